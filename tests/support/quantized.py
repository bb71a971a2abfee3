"""Folders whose weights are made quantized, and what they stand for by `transformers`."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mimo_launch.hugging_face.folder import CONFIG, WEIGHTS

MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def in_mxfp4(folder: Path) -> dict[str, Tensor]:
    """Rewrite the experts of a GPT-OSS as random bytes; return the tensors they stand for."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    dice, found, stood = torch.Generator().manual_seed(3), {}, {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            found[name] = stood[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        groups = experts, outputs, inputs // 32
        blocks = torch.randint(0, 256, (*groups, 16), generator=dice, dtype=torch.uint8)
        scales = torch.randint(120, 126, groups, generator=dice, dtype=torch.uint8)
        found[f"{name}_blocks"], found[f"{name}_scales"] = blocks, scales
        whole = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        assert whole.shape == tensor.shape
        stood[name] = whole.contiguous()
    write(folder, found, MXFP4)
    return stood


def in_fp8(folder: Path, *, per_block: bool = True) -> dict[str, Tensor]:
    """Rewrite the matrices of blocks in FP8; return the tensors they stand for.

    By the definition: element by element, in float32.
    """
    dice, found, stood = torch.Generator().manual_seed(3), {}, {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        if not name.endswith("_proj.weight"):
            found[name] = stood[name] = tensor
            continue
        blocks = [-(-size // 128) if per_block else 1 for size in tensor.shape]
        scales = 0.002 * (1 + torch.rand(blocks, generator=dice))
        values = (tensor * 100).to(torch.float8_e4m3fn)
        whole = torch.empty_like(tensor, dtype=torch.float32)
        for row in range(tensor.shape[0]):
            for column in range(tensor.shape[1]):
                block = (row // 128, column // 128) if per_block else (0, 0)
                whole[row, column] = values[row, column].float() * scales[block]
        found[name] = values
        found[f"{name}_scale_inv"] = scales if per_block else scales.reshape(())
        stood[name] = whole
    write(folder, found, FP8 if per_block else FP8 | {"weight_block_size": None})
    return stood


def write(folder: Path, tensors: dict[str, Tensor], form: dict[str, object] | None) -> None:
    """Write the weights of a folder, and how they are quantized into its configuration."""
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((folder / CONFIG).read_text())
    config["quantization_config"] = form
    (folder / CONFIG).write_text(json.dumps(config))


INTEGERS: dict[str, dict[str, object]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"},
    "int4": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
    },
    "int8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
    },
}
# Which of eight outputs AutoAWQ puts into the lowest bits of a word, and so on.
_ORDER_OF_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def in_integers(folder: Path, form: str, *, shuffled: bool = False) -> dict[str, Tensor]:
    """Rewrite the matrices of blocks in whole numbers; return the tensors they stand for.

    By the definition: number by number. `shuffled`: GPTQ has inputs of a group anywhere.
    """
    dice, found, stood = torch.Generator().manual_seed(3), {}, {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        if not name.endswith("_proj.weight"):
            found[name] = stood[name] = tensor
            continue
        start, (outputs, inputs) = name.removesuffix(".weight"), tensor.shape
        groups = 1 if form == "int8" else inputs // 16
        group = torch.arange(inputs) // (inputs // groups)
        if shuffled:
            group = group[torch.randperm(inputs, generator=dice)]
        scales = (0.01 * (1 + torch.rand((outputs, groups), generator=dice))).half()
        most = 256 if form == "int8" else 16
        numbers = torch.randint(0, most, (outputs, inputs), generator=dice)
        zeros = torch.full((outputs, groups), most // 2)
        if form in ("gptq", "awq"):
            zeros = torch.randint(1, 16, (outputs, groups), generator=dice)
        stood[name] = (numbers - zeros[:, group]).float() * scales.float()[:, group]
        places = _ORDER_OF_AWQ if form == "awq" else tuple(range(8))
        if form == "int8":
            found[name] = (numbers - 128).to(torch.int8)
            found[f"{start}.weight_scale"] = scales
        elif form == "int4":
            found[f"{start}.weight_packed"] = _words(numbers, places)
            found[f"{start}.weight_scale"] = scales
            found[f"{start}.weight_shape"] = torch.tensor([outputs, inputs])
        else:
            gptq = form == "gptq"
            words = _words(numbers, places).T if gptq else _words(numbers.T, places)
            found[f"{start}.qweight"] = words.contiguous()
            found[f"{start}.qzeros"] = _words(zeros.T - int(gptq), places)
            found[f"{start}.scales"] = scales.T.contiguous()
            if gptq:
                found[f"{start}.g_idx"] = group.int()
    write(folder, found, INTEGERS[form])
    return stood


def _words(numbers: Tensor, places: tuple[int, ...]) -> Tensor:
    """Return words of eight numbers along the last dimension."""
    made = torch.zeros((len(numbers), numbers.shape[1] // 8), dtype=torch.int64)
    for word in range(made.shape[1]):
        for shift, place in enumerate(places):
            made[:, word] |= numbers[:, 8 * word + place].long() << 4 * shift
    return (made - ((made >> 31) << 32)).to(torch.int32)
