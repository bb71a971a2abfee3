"""Weights in 8 and in 4 bits, as published folders hold them: values beside their scales.

Decides: which two tensors of the files form one, its shape and form, and which forms are refused.
Relies on: the headers of the files. A `weight` in FP8 comes with `weight_scale_inv`, which holds a
scale for each block of its last two dimensions. `X_blocks` and `X_scales` are X in MXFP4: two
values of four bits per byte, one scale per 32 values along the inputs, which come last in the files
and first in the X of transformers.
Leaves: reading the numbers to `checkpoint.folder_tensors`.

Source: FP8 of DeepSeek-V3, arXiv:2412.19437, section 3.3; MXFP4 of GPT-OSS, arXiv:2508.10925, and
OCP Microscaling Formats 1.0; both as `transformers` 5.23 reads them (integrations/finegrained_fp8,
integrations/mxfp4).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.folder import (
    Config,
    FilesError,
    TensorHeader,
    read_headers,
    section,
    short,
)
from mimo_launch.hugging_face.integers import integers, refused_integers

FP8, MXFP4 = "FP8", "MXFP4"
# Rows and columns per scale of FP8; values per scale of MXFP4, and their bytes.
BLOCK = 128
GROUP, GROUP_BYTES = 32, 16
_SCALE_TYPES = ("F32", "BF16", "F16", "F8_E8M0")
_SCALE, _SCALES, _BLOCKS = "_scale_inv", "_scales", "_blocks"


@frozen
class QuantizedHeader(TensorHeader):
    """A tensor of the form `dtype`, made of two tensors of the files, by their names there."""

    values: tuple[str, TensorHeader]
    scales: tuple[str, TensorHeader]


def refused(config: Config) -> Iterator[str]:
    """Yield, as `key: value`, quantization that is not supported. Raises: ConfigError."""
    if not config.get("quantization_config"):
        return
    found = section(config, "quantization_config")
    method, block = found.get("quant_method"), found.get("weight_block_size")
    if method in ("gptq", "awq", "compressed-tensors"):
        if refused_integers(found):
            yield f"quantization_config: {short(config['quantization_config'])}"
    elif method != "mxfp4" and (method != "fp8" or block not in (None, [BLOCK, BLOCK])):
        yield f"quantization_config: {short(config['quantization_config'])}"


def read_tensors(folder: Path) -> dict[str, TensorHeader]:
    """Return every tensor that transformers would load. Raises: FilesError."""
    return combined(read_headers(folder))


def combined(headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
    """Return the tensors of files, with values and scales combined into one tensor each.

    Raises: FilesError if scales do not fit their values.
    """
    found = dict(headers)
    for name, header in headers.items():
        if name.endswith(_SCALE) and _has_type(
            headers, whole := name.removesuffix(_SCALE), "F8_E4M3"
        ):
            found[whole] = _in_blocks(whole, headers[whole], (name, header))
            del found[name]
        blocks = name.removesuffix(_SCALES) + _BLOCKS
        if name.endswith(_SCALES) and _has_type(headers, blocks, "U8"):
            found[name.removesuffix(_SCALES)] = _in_groups(
                (blocks, headers[blocks]), (name, header)
            )
            del found[name], found[blocks]
    for matrix, made, parts in integers(headers):
        for each in parts:
            found.pop(each, None)
        found[matrix] = made
    return found


def _has_type(headers: Mapping[str, TensorHeader], name: str, dtype: str) -> bool:
    return name in headers and headers[name].dtype == dtype


def _in_blocks(
    name: str, values: TensorHeader, scales: tuple[str, TensorHeader]
) -> QuantizedHeader:
    """Return a matrix, or a stack of them, in FP8; a single scale applies to all values."""
    *stack, rows, columns = (1, 1, *values.shape)
    there = (*stack[2:], *(-(-size // BLOCK) for size in (rows, columns)))
    fits = scales[1].numel == 1 or (len(values.shape) > 1 and scales[1].shape == there)
    if not fits or scales[1].dtype not in _SCALE_TYPES:
        raise FilesError(_unlike(name, values, scales))
    return QuantizedHeader(values.file, FP8, values.shape, (name, values), scales, at=values.at)


def _in_groups(
    values: tuple[str, TensorHeader], scales: tuple[str, TensorHeader]
) -> QuantizedHeader:
    """Return the matrices of experts in MXFP4, with the inputs first."""
    there = values[1].shape
    fits = len(there) > 2 and scales[1].shape == there[:-1] and there[-1] == GROUP_BYTES
    if not fits or scales[1].dtype != "U8":
        raise FilesError(_unlike(values[0], values[1], scales))
    *experts, outputs, groups, _ = there
    shape = (*experts, groups * GROUP, outputs)
    return QuantizedHeader(values[1].file, MXFP4, shape, values, scales)


def _unlike(name: str, values: TensorHeader, scales: tuple[str, TensorHeader]) -> str:
    return (
        f"{values.file} cannot be read: {name} of shape {list(values.shape)} has "
        f"{scales[0]} of shape {list(scales[1].shape)} in {scales[1].dtype}"
    )
