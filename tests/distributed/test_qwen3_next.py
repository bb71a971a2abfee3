"""Hybrid models are the Qwen3-Next of `transformers`, number by number, from weights and back."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.distributed.test_exported_models import assert_same, saved_untouched
from tests.distributed.test_moe_decoders import in_float64
from tests.distributed.test_qwen3_5_mtp import MTP, PREFIX, Ahead, in_files, unstacked
from tests.distributed.test_qwen_omni import losses_on_rank
from tests.support.exports import exported, load, tensors, trained
from tests.support.hugging_face import save, tokens_of
from tests.support.quantized import FP8, write
from tests.support.specs import box, spec
from tests.support.whole_models import (
    OPTIMIZERS,
    deviation,
    found_logits,
    labels_of,
    step_of_torch,
    with_optimizer,
)
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

VOCAB = 37
# Two heads of keys, each with two of values. The first layer has an MLP.
CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "rms_norm_eps": 1e-3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_value_head_dim": 6,
    "linear_key_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 8, "norm_topk_prob": False,
    "mlp_only_layers": [0],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5,
    },
}  # fmt: skip
MODEL: dict[str, Any] = {
    "kind": "hybrid", "pattern": "G-*EGE", "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 12,
    "mlp": 48, "vocab": VOCAB, "vocab_multiple": 16, "norm_eps": 1e-3, "rope_theta": 50.0,
    "rotary_factor": 0.5, "qk_norm": True, "norm_offset": True, "gated_attention": True,
    "activation": "silu",
    "deltanet": {"heads": 4, "key_heads": 2, "head_dim": 6, "key_dim": 8, "chunk": 16},
    "moe": {
        "experts": 4, "top_k": 2, "width": 16, "shared": 8, "shared_gate": True,
        "normalize": False, "aux_loss": 0.0,
    },
}  # fmt: skip
EP2: dict[str, Any] = {"experts": {"ep": 2}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp2": {"tp": 2, **EP2, "sequence_parallel": True},
    "tp4, heads of keys shared": {"tp": 4},
    "cp2": {"cp": 2, **EP2},
    "pp2": {"pp": 2},
    "tp2 pp2": {"tp": 2, "pp": 2, **EP2},
}
OFTEN = {"tp2"}


def tiny(dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """Return a model in which no weight is a constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
    made = Qwen3NextForCausalLM(Qwen3NextConfig(**{**CONFIG, **settings})).to(dtype).eval()
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            noise = torch.randn(weight.shape, generator=random, dtype=torch.float64)
            # To the other norms 1 is added.
            weight.copy_(0.2 * noise + name.endswith("linear_attn.norm.weight"))
    return made


def made(layout: str, folder: Path, precision: str = "fp32", **model: Any) -> Spec:
    """Return a spec whose language module starts from a folder."""
    language = box(0, **LAYOUTS[layout], init_from=str(folder), model={**MODEL, **model})
    train = {"steps": 1, "precision": precision}
    found = spec({"language": language}, microbatches=2, mbs=2, seq=32, text_only=1.0, train=train)
    assert not [item for item in check(found) if item.is_error]
    return found


def wanted_logits(model: Any, asked: Spec) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=tokens_of(asked)).logits
    return logits.double()


def widen_all(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute all in float64, the recurrence and its norm, too, which ask for float32 by `to`."""
    plain = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor,
        "to",
        lambda x, *given, **named: plain(
            x, *(torch.float64 if each is torch.float32 else each for each in given), **named
        ),
    )
    in_float64(model, monkeypatch)


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_logits_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    model = tiny()
    save(model, tmp_path / "model")
    asked = made(layout, tmp_path / "model")
    assert deviation(found_logits(asked, tmp_path, VOCAB), wanted_logits(model, asked)) < 1e-5


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
    found = found_logits(asked, tmp_path, VOCAB)
    save_file(in_a_row(load_file(file)), file, {"format": "pt"})
    other = found_logits(asked, tmp_path, VOCAB)
    widen_all(model, monkeypatch)
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
    assert deviation(found_logits(asked, tmp_path, VOCAB), wanted_logits(model, asked)) < 1e-5


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.sweep)])
def test_a_step_is_that_of_plain_torch(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same texts, by the names of its tensors, in float64."""
    assert optimizer in OPTIMIZERS
    model = tiny(torch.float64)
    save(model, tmp_path / "model")
    asked = with_optimizer(made("one rank", tmp_path / "model", "fp64"), optimizer)
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype="fp64")
    widen_all(model, monkeypatch)
    step_of_torch(model, model(input_ids=tokens_of(asked)).logits, asked, optimizer)
    save(model, tmp_path / "wanted")
    wanted, before = tensors(tmp_path / "wanted"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert not torch.equal(tensor, before[name]), name
        assert (found[name] - tensor).abs().max() < 1e-9, name


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
