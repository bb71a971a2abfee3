"""The frozen weights of a module in 4 or 8 bits: kinds of numbers, and their blocks.

Decides: how many bytes a block of inputs takes: its codes, then its scale.
Relies on: `base`.
Leaves: the numbers to `layers.packed`; which maps of a layer are kept so to `kinds.shapes`.
"""

from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.base import Strict

# A scale is one number in fp32.
SCALE_BYTES = 4


class QuantizedBase(Strict):
    """How the frozen maps in the layers of a module are kept in few bits."""

    kind: Literal["nf4", "int8", "fp8"] = Field(
        description="`nf4`: the 4 bits of QLoRA (arXiv:2305.14314), by bitsandbytes. `int8`: whole "
        "numbers from -127 to 127. `fp8`: E4M3. Both 8-bit kinds keep the numbers of a folder "
        "that is quantized so.",
    )
    block: Annotated[int, Field(ge=2, le=4096, multiple_of=2)] | None = Field(
        None,
        description="Inputs of a map that share a scale. Default: 64, or 128 for `fp8`; `nf4` "
        "takes powers of 2 from 64.",
    )

    @property
    def inputs(self) -> int:
        """Inputs that share a scale."""
        return self.block or (128 if self.kind == "fp8" else 64)

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes of a block."""
        return self.inputs // 2 if self.kind == "nf4" else self.inputs

    def row_bytes(self, inputs: int) -> int:
        """Return the bytes of a row of a map with this many inputs; the last block is padded."""
        return -(-inputs // self.inputs) * (self.code_bytes + SCALE_BYTES)
