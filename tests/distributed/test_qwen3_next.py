"""Hybrid models are the Qwen3-Next of `transformers`, number by number, from weights and back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.distributed.test_exported_models import assert_same, saved_untouched
from tests.distributed.test_qwen3_5_mtp import MTP, PREFIX, Ahead, in_files, unstacked
from tests.distributed.test_qwen_omni import losses_on_rank
from tests.support.exports import exported, load, tensors
from tests.support.families import exact_delta
from tests.support.hugging_face import save, tokens_of
from tests.support.quantized import FP8, write
from tests.support.qwen3_next import made, tiny
from tests.support.whole_models import (
    deviation,
    found_logits,
    labels_of,
)
from torch import Tensor

from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec


def wanted_logits(model: Any, asked: Spec) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=tokens_of(asked)).logits
    return logits.double()


def in_a_row(held: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors whose fused queries, keys, values and gates do not follow each other by head.

    So Qwen3.5 orders them.
    """
    found = dict(held)
    for name, each in held.items():
        sizes = {"in_proj_qkvz": (8, 8, 12, 12), "in_proj_ba": (2, 2)}
        if (parts := sizes.get(name.removesuffix(".weight").rpartition(".")[2])) is not None:
            cut = each.unflatten(0, (2, -1)).split(parts, dim=1)
            found[name] = torch.cat([part.flatten(0, 1) for part in cut])
    return found


def test_logits_are_those_of_transformers_in_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are not where rows of fused tensors are in another order."""
    model, file = tiny(torch.float64), tmp_path / "model" / "model.safetensors"
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model", "fp64")
    found = found_logits(asked, tmp_path)
    save_file(in_a_row(load_file(file)), file, {"format": "pt"})
    other = found_logits(asked, tmp_path)
    exact_delta(model, monkeypatch)
    wanted = wanted_logits(model, asked)
    assert deviation(found, wanted) < 1e-9
    assert deviation(other, wanted) > 1e-2


@pytest.mark.sweep
def test_fused_projections_in_fp8_are_read(tmp_path: Path) -> None:
    """Rows of a head lie in several blocks of scales."""
    wide: dict[str, Any] = {"linear_key_head_dim": 40, "linear_value_head_dim": 24}
    model, folder = tiny(**wide), tmp_path / "model"
    save(model, folder)
    found, dice = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(3)
    weights = model.state_dict()
    for name in [each for each in found if each.endswith("in_proj_qkvz.weight")]:
        values = (found[name] * 100).to(torch.float8_e4m3fn)
        scales = 0.005 * (1 + torch.rand(-(-len(values) // 128), 1, generator=dice))
        of_rows = scales.repeat_interleave(128, dim=0)[: len(values)]
        weights[name].copy_(values.float() * of_rows)
        found |= {name: values, f"{name}_scale_inv": scales}
    write(folder, found, FP8)
    sizes = {"heads": 4, "key_heads": 2, "head_dim": 24, "key_dim": 40}
    asked = made("tp2", folder, deltanet=sizes)
    assert deviation(found_logits(asked, tmp_path), wanted_logits(model, asked)) < 1e-5


def with_ahead(folder: Path, dtype: torch.dtype) -> tuple[Any, Ahead]:
    """Save a model with `mtp.*` as in the published files; return both as modules."""
    model = tiny(dtype)
    save(model, folder)
    ahead, random = Ahead(model).to(dtype).eval(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in ahead.parameters():
            weight.copy_(0.2 * torch.randn(weight.shape, generator=random))
    file = folder / "model.safetensors"
    save_file(load_file(file) | unstacked(in_files(ahead)), file, metadata={"format": "pt"})
    return model, ahead


def right_losses(model: Any, ahead: Ahead, asked: Spec) -> list[float]:
    """Return the losses of the next token and of the one behind it."""
    tokens, labels, inner = tokens_of(asked), labels_of(asked), model.model
    with torch.no_grad():
        x = inner(input_ids=tokens).last_hidden_state
        turns = inner.rotary_emb(x, torch.arange(tokens.shape[1] - 1)[None])
        y = ahead(x[:, :-1], inner.embed_tokens(tokens[:, 1:]), turns)
        return [
            float(F.cross_entropy(model.lm_head(state).flatten(0, 1), said.flatten()))
            for state, said in ((x, labels), (y, labels[:, 1:]))
        ]


@pytest.mark.parametrize("layout", ["tp2", pytest.param("pp2", marks=pytest.mark.sweep)])
def test_losses_of_further_tokens_are_those_of_its_own_layers(layout: str, tmp_path: Path) -> None:
    model, ahead = with_ahead(tmp_path / "model", torch.float32)
    asked = made(layout, tmp_path / "model", **MTP)
    found = run_ranks(losses_on_rank, asked, tmp_path, world_size=world_size(asked))[-1]
    names = ("language", "language.mtp")
    right = right_losses(model, ahead, asked)
    assert [found[name] for name in names] == pytest.approx(right, rel=1e-5)


def test_an_untouched_folder_comes_out_bit_for_bit(tmp_path: Path) -> None:
    """With every tensor of `mtp.*`, and without them where the spec has none."""
    folder = tmp_path / "model"
    with_ahead(folder, torch.bfloat16)
    whole = tensors(folder)
    contents = read_contents(folder)
    [module] = contents.modules
    assert (module.depths, contents.unknown) == (1, ())
    for name, keys in (("with", MTP), ("without", {})):
        run = saved_untouched(made("tp2", folder, **keys), tmp_path / name)
        found = exported(run, tmp_path / f"{name} out")
        left = {each: x for each, x in whole.items() if keys or not each.startswith(PREFIX)}
        assert_same(found, left)
    # `transformers` finds a place for every tensor, and the same settings.
    load("AutoModelForCausalLM", tmp_path / "without out")
    source, written = (
        json.loads((each / "config.json").read_text()) for each in (folder, tmp_path / "with out")
    )
    del source["transformers_version"]
    assert {key: written.get(key) for key in source} == source
