"""Folders in FP8 and MXFP4 are read as what they stand for, on any layout, and written in bf16."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.exports import exported, load, save_on_rank, trained, with_sections
from tests.support.hugging_face import logits_on_rank, made, save, tiny
from tests.support.quantized import INTEGERS, MXFP4, in_fp8, in_integers, in_mxfp4, write
from tests.support.running_ranks import run_on_running_ranks
from torch import Tensor

from mimo_launch.cli.app import run
from mimo_launch.hugging_face.folder import CONFIG, WEIGHTS, FilesError
from mimo_launch.hugging_face.quantized import read_tensors
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.layout.layout import world_size

# Kinds with sizes that need several blocks of 128, and experts whose matrices are square.
SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpt_oss": (
        {"intermediate_size": 32},
        {"moe": {"experts": 4, "top_k": 2, "width": 32, "bias": True}},
    ),
    "qwen3": ({"intermediate_size": 320}, {"mlp": 320}),
}


def folder(kind: str, at: Path) -> Path:
    theirs, _ = SIZES[kind]
    save(tiny(kind, **theirs), at)
    return at


def imported(kind: str, layout: str, start: Path, run: Path, **more: Any) -> Path:
    asked = with_sections(made(kind, layout, start, model=SIZES[kind][1], **more))
    run_on_running_ranks(save_on_rank, asked, run, world_size=world_size(asked))
    return run


@pytest.mark.parametrize(
    ("kind", "quantized", "layout", "more"),
    [
        ("gpt_oss", in_mxfp4, "one rank", {}),
        ("gpt_oss", in_mxfp4, "tp2", {"experts": {"tp": 2}}),
        pytest.param(
            *("gpt_oss", in_mxfp4, "tp2 pp2", {"experts": {"ep": 2}}), marks=pytest.mark.sweep
        ),
        ("qwen3", in_fp8, "tp2", {}),
        pytest.param("qwen3", in_fp8, "one rank", {}, marks=pytest.mark.sweep),
        pytest.param("qwen3", in_fp8, "tp4 dp2", {"sharding": "full"}, marks=pytest.mark.sweep),
    ],
)
def test_weights_are_what_the_bits_stand_for(
    kind: str,
    quantized: Callable[[Path], dict[str, Tensor]],
    layout: str,
    more: dict[str, Any],
    tmp_path: Path,
) -> None:
    start = folder(kind, tmp_path / "model")
    stood = quantized(start)
    saved = imported(kind, layout, start, tmp_path / "run", **more)
    found = exported(saved, tmp_path / "out", dtype="fp32")
    assert found.keys() == stood.keys()
    for name, tensor in stood.items():
        assert torch.equal(found[name], tensor), name
    assert "quantization_config" not in json.loads((tmp_path / "out" / CONFIG).read_text())
    load("AutoModelForCausalLM", tmp_path / "out")


@pytest.mark.parametrize(
    ("form", "layout"),
    [
        ("gptq", "tp2"),
        ("shuffled gptq", "one rank"),
        ("awq", "tp2"),
        ("int4", "tp2"),
        ("int8", "tp2"),
    ],
)
def test_whole_numbers_are_read_in_every_form(form: str, layout: str, tmp_path: Path) -> None:
    start = folder("qwen3", tmp_path / "model")
    stood = in_integers(start, form.rsplit(maxsplit=1)[-1], shuffled="shuffled" in form)
    saved = imported("qwen3", layout, start, tmp_path / "run")
    found = exported(saved, tmp_path / "out", dtype="fp32")
    assert found.keys() == stood.keys()
    for name, tensor in stood.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    "form",
    ["gptq", "int8", *(pytest.param(each, marks=pytest.mark.sweep) for each in ("awq", "int4"))],
)
def test_whole_numbers_are_what_a_base_in_int8_keeps(form: str, tmp_path: Path) -> None:
    start = folder("qwen3", tmp_path / "model")
    stood = in_integers(start, form)
    few = {"adapter": {"rank": 2}, "quantize_base": {"kind": "int8", "block": 8}}
    asked = with_sections(
        made("qwen3", "tp2", start, model=SIZES["qwen3"][1], **few), optimizer={"lr": 1e-30}
    )
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype="fp32")
    for name, tensor in stood.items():
        assert float((found[name] - tensor).abs().max()) < 1e-25, name


def test_scales_of_other_matrices_are_damage(tmp_path: Path) -> None:
    start = folder("qwen3", tmp_path / "model")
    in_integers(start, "gptq")
    there = load_file(start / WEIGHTS)
    name = next(each for each in there if each.endswith(".scales"))
    write(start, there | {name: there[name][:, :-1].contiguous()}, INTEGERS["gptq"])
    with pytest.raises(FilesError, match=r"has .*scales of shape"):
        read_tensors(start)


def test_one_scale_may_be_that_of_a_whole_matrix(tmp_path: Path) -> None:
    """Written in the type that most tensors of the folder had: those in FP8 become bf16."""
    start = folder("qwen3", tmp_path / "model")
    stood = in_fp8(start, per_block=False)
    found = exported(imported("qwen3", "one rank", start, tmp_path / "run"), tmp_path / "out")
    for name, tensor in stood.items():
        wanted = tensor.bfloat16() if "_proj" in name else tensor
        assert torch.equal(found[name], wanted), name


def test_scales_of_inputs_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in Ministral 3: one for each matrix, besides that of its values."""
    folder = tmp_path / "model"
    save(tiny("ministral3"), folder)
    in_fp8(folder, per_block=False)
    held = load_file(folder / WEIGHTS)
    names = [name for name in held if name.endswith("_proj.weight")]
    more = {name.replace(".weight", ".activation_scale"): torch.tensor(0.5) for name in names}
    form = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    write(folder, held, form)
    asked = made("ministral3", "tp2", folder)
    wanted = run_on_running_ranks(logits_on_rank, asked, tmp_path / "run", world_size=2)
    write(folder, held | more, form)
    found = run_on_running_ranks(logits_on_rank, asked, tmp_path / "other", world_size=2)
    for one, other in zip(wanted[0], found[0], strict=True):
        assert torch.equal(one.logits, other.logits)
    assert run(["inspect", str(folder)]) == 0
    assert "inputs are not quantized here" in capsys.readouterr().out


def test_inspect_names_the_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = folder("gpt_oss", tmp_path / "model")
    in_mxfp4(start)
    assert run(["inspect", str(start)]) == 0
    said = capsys.readouterr().out
    assert "mxfp4" in said
    assert "quantization" not in said


@pytest.mark.parametrize(
    "form",
    [
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "fp8", "weight_block_size": [64, 128]},
        {"quant_method": "compressed-tensors"},
    ],
)
def test_other_forms_are_refused(form: dict[str, Any], tmp_path: Path) -> None:
    start = folder("qwen3", tmp_path / "model")
    config = json.loads((start / CONFIG).read_text()) | {"quantization_config": form}
    [found] = part_of(config, "decoder").not_computed()
    assert found.startswith("quantization_config: {")
    # Around a model of several modules, too.
    whole = {"model_type": "llava", "text_config": config, "vision_config": {}}
    whole["vision_config"] = {"model_type": "clip_vision_model"}
    around = whole | {"quantization_config": form, "text_config": {"model_type": "llama"}}
    for each in (whole, around):
        assert found in part_of(each, "decoder").not_computed()


@pytest.mark.parametrize("ending", ["_scale_inv", "_scales"])
def test_scales_that_do_not_fit_are_damage(ending: str, tmp_path: Path) -> None:
    kind, quantized = ("qwen3", in_fp8) if ending == "_scale_inv" else ("gpt_oss", in_mxfp4)
    start = folder(kind, tmp_path / "model")
    quantized(start)
    there = load_file(start / WEIGHTS)
    name = next(each for each in there if each.endswith(ending))
    write(start, there | {name: torch.cat([there[name]] * 2)}, MXFP4)
    with pytest.raises(FilesError, match=f"has {name.replace('.', '[.]')} of shape"):
        read_tensors(start)
    with pytest.raises(AssertionError):
        made(kind, "one rank", start, model=SIZES[kind][1])
    write(start, there | {name: there[name].to(torch.int32)}, MXFP4)
    with pytest.raises(FilesError, match=r"of shape \[.*\] in I32"):
        read_tensors(start)


@pytest.mark.parametrize("shape", [(), (16,), (4, 16)])
def test_blocks_of_no_matrix_are_damage(shape: tuple[int, ...], tmp_path: Path) -> None:
    bits = torch.zeros(shape, dtype=torch.uint8)
    scales = torch.zeros(shape[:-1], dtype=torch.uint8)
    save_file({"x_blocks": bits, "x_scales": scales}, tmp_path / WEIGHTS)
    with pytest.raises(FilesError, match="has x_scales of shape"):
        read_tensors(tmp_path)


def test_values_without_their_scales_are_not_read(tmp_path: Path) -> None:
    start = folder("qwen3", tmp_path / "model")
    in_fp8(start)
    there = load_file(start / WEIGHTS)
    name = next(each for each in there if each.endswith("_scale_inv"))
    write(start, {key: each for key, each in there.items() if key != name}, None)
    with pytest.raises(Exception, match="has type F8_E4M3"):
        imported("qwen3", "one rank", start, tmp_path / "run")
