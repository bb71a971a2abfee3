"""The weights of a rank that have no values yet: sources fill some, the rest is drawn.

Decides: that rows which a source has filled are not drawn; that no stage runs before all weights
have values.
Relies on: sources, which note the rows that they fill.
Leaves: drawing to `layers.initial_weights`, reading to `checkpoint`.

Until a weight has values it is NaN, so one that a source notes but does not fill makes the first
loss NaN: memory that was never set cannot train in silence.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from mimo_launch.layers.initial_weights import init_parameters
from mimo_launch.layers.parameter_segments import LocalSegment, weight_segments

_NAMES_SHOWN = 3
# All bits of a byte: NaN as a scale in fp32, and as a code of FP8.
_NAN_BYTE = 255


class UnfilledWeights:
    """The weights of one module on this rank without values; none after `draw`."""

    def __init__(
        self,
        module: str,
        networks: Mapping[int, nn.Module],
        seed: int,
        given: Callable[[nn.Module], Mapping[str, Tensor]],
    ) -> None:
        """Set every weight of the stages `networks` to NaN.

        `given` returns the values of a stage that are not drawn, as for `init_parameters`.
        """
        self._module, self._networks, self._seed, self._given = module, networks, seed, given
        self._filled: dict[str, int] | None = {}
        with torch.no_grad():
            for item in (each for stage in networks.values() for each in self._rest(stage)):
                item.local.fill_(torch.nan if item.segment.packed is None else _NAN_BYTE)

    def note(self, name: str, rows: int) -> None:
        """Note that the first `rows` of this rank's part of a weight have values."""
        if self._filled is not None:
            self._filled[name] = max(rows, self._filled.get(name, 0))

    def draw(self, *, randomise: bool = False, quick: bool = False) -> None:
        """Draw what no source has filled; `randomise` and `quick` are those of `init_parameters`.

        Raises: CustomClassError
        """
        for stage in self._networks.values():
            if rest := list(self._rest(stage)):
                is_given = any(each.segment.weight.init == "given" for each in rest)
                given = self._given(stage) if is_given else {}
                init_parameters(rest, self._seed, randomise=randomise, quick=quick, given=given)
        self._filled = None

    def check(self) -> None:
        """Raise RuntimeError with the names of weights that have no values."""
        if self._filled is None:
            return
        rest = [each.name for stage in self._networks.values() for each in self._rest(stage)]
        if not rest:
            self._filled = None
            return
        shown = ", ".join(rest[:_NAMES_SHOWN]) + (", ..." if len(rest) > _NAMES_SHOWN else "")
        raise RuntimeError(
            f"`{self._module}` would run before its weights were drawn; no source has filled "
            f"{len(rest)} of them: {shown}"
        )

    def _rest(self, stage: nn.Module) -> Iterator[LocalSegment]:
        """Yield the rows of a stage that no source has filled."""
        if self._filled is None:
            return
        for item in weight_segments(self._module, stage):
            there = self._filled.get(item.name, 0)
            if there < len(item.local):
                rows = item.local[there:]
                yield replace(item, local=rows, first_row=item.first_row + there)
