"""Weights as integers of 4 or 8 bits: GPTQ, AWQ and compressed-tensors.

Decides: which tensors of the files form one matrix, by their names and shapes; which settings are
refused.
Relies on: the headers of the files. The form of `X.weight` [outputs, inputs], with a scale for each
output and group of inputs:

    GPTQ    `X.qweight` [inputs / 8, outputs], `X.qzeros` [groups, outputs / 8], `X.scales` [groups,
            outputs], `X.g_idx` [inputs] with the group of each input; a zero is stored less 1
    AWQ     `X.qweight` [inputs, outputs / 8], zeros and scales as in GPTQ; of eight outputs in a
            word, the even ones come first
    CT4     `X.weight_packed` [outputs, inputs / 8], `X.weight_scale` [outputs, groups]
    CT8     `X.weight` in I8 [outputs, inputs], `X.weight_scale` [outputs, groups]

A word of 32 bits holds eight numbers, the first in its lowest bits. Numbers of CT4 are stored plus
8; both forms of compressed-tensors are symmetric here.
Leaves: the numbers to `checkpoint.folder_integers`.

Source: GPTQ, arXiv:2210.17323, as AutoGPTQ packs it; AWQ, arXiv:2306.00978, as AutoAWQ packs it
(version GEMM); compressed-tensors 0.20, `pack_quantized` and `naive_quantized`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.folder import FilesError, TensorHeader

GPTQ, AWQ, CT4, CT8 = "GPTQ", "AWQ", "CT4", "CT8"
# Numbers in a word.
IN_WORD = 8
_SCALE_TYPES = ("F32", "BF16", "F16")
Named = tuple[str, TensorHeader]


@frozen
class IntegerHeader(TensorHeader):
    """A matrix of the form `dtype`, made of tensors of the files, by their names there.

    `group` inputs share a scale; GPTQ may have an `order` of inputs by their groups.
    """

    values: Named
    scales: Named
    zeros: Named | None
    order: Named | None
    group: int


def refused_integers(found: Mapping[str, Any]) -> bool:
    """Return whether a `quantization_config` of one of these methods is not read."""
    method, bits = found.get("quant_method"), found.get("bits", found.get("w_bit", 4))
    if method == "gptq":
        return bool(bits != 4 or found.get("checkpoint_format", "gptq") != "gptq")
    if method == "awq":
        return bool(bits != 4 or str(found.get("version", "gemm")).lower() != "gemm")
    groups = found.get("config_groups")
    if method != "compressed-tensors" or not isinstance(groups, dict) or not groups:
        return True
    weights = [each.get("weights") for each in groups.values() if isinstance(each, dict)]
    forms = {"pack-quantized": 4, "int-quantized": 8}
    return any(
        not isinstance(each, dict)
        or each.get("num_bits") != forms.get(str(found.get("format")))
        or not each.get("symmetric", True)
        or each.get("type") != "int"
        or each.get("actorder") not in (None, False, "weight", "static")
        for each in weights
    )


def integers(headers: Mapping[str, TensorHeader]) -> Iterator[tuple[str, IntegerHeader, set[str]]]:
    """Yield the matrices of integers: name, header, and the tensors that it is made of.

    Raises: FilesError if scales do not fit their values.
    """
    for name in headers:
        start, _, last = name.rpartition(".")
        parts = {
            each: (f"{start}.{each}", headers[f"{start}.{each}"])
            for each in (last, *_BESIDE.get(last, ()))
            if f"{start}.{each}" in headers
        }
        if last == "qweight" and {"scales", "qzeros"} <= parts.keys():
            found = _of_words(parts)
        elif last == "weight_packed" and "weight_scale" in parts:
            rows, words = _matrix(parts["weight_packed"])
            found = _header(CT4, parts, (rows, words * IN_WORD), last, "weight_scale")
        elif last == "weight" and headers[name].dtype == "I8" and "weight_scale" in parts:
            found = _header(CT8, parts, _matrix(parts["weight"]), last, "weight_scale")
        else:
            continue
        yield f"{start}.weight", found, {held for held, _ in parts.values()}


_BESIDE = {
    "qweight": ("qzeros", "scales", "g_idx"),
    "weight_packed": ("weight_scale", "weight_shape", "weight_g_idx"),
    "weight": ("weight_scale",),
}


def _matrix(of: Named) -> tuple[int, int]:
    """Return the shape of a matrix. Raises: FilesError if it is none."""
    name, header = of
    if len(header.shape) != 2:
        raise FilesError(f"{header.file} cannot be read: {name} is no matrix")
    rows, columns = header.shape
    return rows, columns


def _of_words(parts: Mapping[str, Named]) -> IntegerHeader:
    """Return a matrix of GPTQ or AWQ, which the shape of its words tells apart."""
    (rows, columns), (_, outputs) = _matrix(parts["qweight"]), _matrix(parts["scales"])
    if columns == outputs:
        return _header(GPTQ, parts, (outputs, rows * IN_WORD), "qweight", "scales")
    return _header(AWQ, parts, (columns * IN_WORD, rows), "qweight", "scales")


def _header(
    form: str, parts: Mapping[str, Named], shape: tuple[int, int], values: str, scales: str
) -> IntegerHeader:
    """Return a header. Raises: FilesError if the tensors do not fit each other."""
    outputs, inputs = shape
    turned = form in (GPTQ, AWQ)
    there = _matrix(parts[scales])
    groups = there[not turned]
    fits = there[turned] == outputs and groups and inputs % groups == 0
    fits = fits and parts[scales][1].dtype in _SCALE_TYPES
    fits = fits and parts[values][1].dtype == ("I8" if form == CT8 else "I32")
    if turned:
        fits = fits and _matrix(parts["qzeros"]) == (groups, outputs // IN_WORD)
    if not fits or "weight_g_idx" in parts:
        raise FilesError(
            f"{parts[values][1].file} cannot be read: {parts[values][0]} of shape "
            f"{list(parts[values][1].shape)} has {parts[scales][0]} of shape {list(there)}"
        )
    file, zeros, order = parts[values][1].file, parts.get("qzeros"), parts.get("g_idx")
    return IntegerHeader(
        file, form, shape, parts[values], parts[scales], zeros, order, inputs // groups
    )
