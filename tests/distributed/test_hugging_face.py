"""Decoders are those of `transformers`, number by number, from weights that `init_from` reads."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.support.hugging_face import (
    KINDS,
    VOCAB,
    joined,
    logits_on_rank,
    model_keys,
    tiny,
    tokens_of,
    weights_on_rank,
    widen,
)
from tests.support.proof import failures, verdicts
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.launcher.ranks import RankError, run_ranks
from mimo_launch.layout.checks.entry import check
from mimo_launch.layout.hugging_face import tensor_name
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.model import Spec
from mimo_launch.train.checkpoint import hugging_face
from mimo_launch.train.checkpoint.chunks import Chunk

LAYOUTS = {
    "one rank": {},
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "pp2": {"pp": 2},
    "cp2": {"cp": 2},
    "colocated dp2": {"dp": 2},
}
WIDE = {"tp4 dp2": {"tp": 4, "dp": 2}}  # fmt: skip


def made(kind: str, layout: str, folder: Path, precision: str = "fp32", **more: Any) -> Spec:
    """Return a spec of text alone whose language module starts from a folder."""
    model = model_keys(kind) | more.pop("model", {})
    modules = {"language": box(0, **{**LAYOUTS, **WIDE}[layout], init_from=str(folder), **more)}
    if "colocated" in layout:
        modules["vision"] = box(0, dp=2)
        model["vocab"] += 1
    modules["language"]["model"] = model
    train = {"steps": 1, "precision": precision}
    found = spec(modules, microbatches=2, mbs=2, seq=16, text_only=1.0, train=train)
    assert check(found) == ()
    return found


def save(model: Any, folder: Path, **more: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, **more)


def wanted_logits(model: Any, made: Spec) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=tokens_of(made)).logits
    return logits.double()


def deviation(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference by the largest logit."""
    assert wanted.std() > 0.1
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind: str, layout: str, tmp_path: Path) -> None:
    model = tiny(kind)
    save(model, tmp_path / "model")
    asked = made(kind, layout, tmp_path / "model")
    parts = run_ranks(logits_on_rank, asked, tmp_path, world_size=world_size(asked))
    wanted = wanted_logits(model, asked)
    # A word that the file does not have gets the mean of the others' rows, so of their logits.
    grown = asked.language.model.vocab - VOCAB
    wanted = torch.cat([wanted, *[wanted.mean(-1, keepdim=True)] * grown], dim=-1)
    assert deviation(joined(asked, parts, VOCAB + grown), wanted) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers_in_float64(kind: str, tmp_path: Path) -> None:
    model = tiny(kind, torch.float64)
    save(model, tmp_path / "model")
    widen(model)
    asked = made(kind, "one rank", tmp_path / "model", "fp64")
    [part] = run_ranks(logits_on_rank, asked, tmp_path, world_size=1)
    assert deviation(joined(asked, [part], VOCAB), wanted_logits(model, asked)) < 1e-9


@pytest.mark.parametrize(
    "changed", [{"norm_eps": 1e-4}, {"rope_theta": 400.0}], ids=lambda each: next(iter(each))
)
def test_the_bound_sees_a_wrong_setting(changed: dict[str, float], tmp_path: Path) -> None:
    model = tiny("llama")
    save(model, tmp_path / "model")
    asked = made("llama", "one rank", tmp_path / "model")
    update = {"model": asked.language.model.model_copy(update=changed)}
    wrong = asked.language.model_copy(update=update)
    asked = asked.model_copy(update={"modules": {"language": wrong}})
    [part] = run_ranks(logits_on_rank, asked, tmp_path, world_size=1)
    assert deviation(joined(asked, [part], VOCAB), wanted_logits(model, asked)) > 1e-5


def full_tensor(chunk: Chunk, state: dict[str, Tensor]) -> Tensor:
    """Return a tensor of transformers with rows of the mean, then padding, which is not known."""
    saved = state[tensor_name(chunk.name.removeprefix("weights/language."))]
    if saved.shape[0] != VOCAB or saved.ndim != 2:
        return saved
    mean = saved.double().mean(0, keepdim=True)
    padding = torch.full((chunk.shape[0] - VOCAB - 1, saved.shape[1]), torch.nan)
    return torch.cat([saved.double(), mean, padding.double()]).to(saved.dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sharding", ["optimizer", "full"])
def test_every_rank_holds_the_tensors_of_the_files(
    kind: str, sharding: str, tmp_path: Path
) -> None:
    """Sharded files, fused and cut weights, shared key/value heads, FSDP, a larger vocabulary."""
    model = tiny(kind)
    save(model, tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    asked = made(kind, "tp4 dp2", tmp_path / "model", sharding=sharding, model={"vocab": VOCAB + 1})
    ranks = run_ranks(weights_on_rank, asked, tmp_path, world_size=8)
    state, seen = model.state_dict(), set()
    for chunks, [event], _ in ranks:
        assert (event.missing, event.misfits, event.unused) == ((), (), ())
        for chunk in chunks:
            whole = full_tensor(chunk, state)
            box_of = zip(chunk.offsets, chunk.tensor.shape, strict=True)
            wanted = whole[tuple(slice(o, o + n) for o, n in box_of)]
            known = ~wanted.isnan()
            assert torch.equal(chunk.tensor[known], wanted[known]), chunk.name
            assert chunk.tensor.isfinite().all()
            seen.add(chunk.name)
        assert event.num_loaded == len(dict(model.named_parameters()))
    assert len(seen) == event.num_loaded


def count_reads() -> list[int]:
    """Note how many elements are taken from files on this rank."""
    read: list[int] = []

    class Counted:
        def __init__(self, part: Any) -> None:
            self.part = part
            self.get_shape, self.get_dtype = part.get_shape, part.get_dtype

        def __getitem__(self, where: Any) -> Tensor:
            values: Tensor = self.part[where]
            read.append(values.numel())
            return values

    class Opened:
        def __init__(self, *where: Any, **how: Any) -> None:
            self.file = safe_open(*where, **how)
            self.keys = self.file.keys

        def __enter__(self) -> "Opened":
            self.file.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self.file.__exit__(*error)

        def get_slice(self, name: str) -> Counted:
            return Counted(self.file.get_slice(name))

    hugging_face.safe_open = Opened  # type: ignore[misc, assignment]
    return read


def test_a_rank_reads_what_it_holds_and_no_more(tmp_path: Path) -> None:
    save(tiny("qwen2"), tmp_path / "model")
    asked = made("qwen2", "colocated dp2", tmp_path / "model", model={"vocab": VOCAB - 1})
    words = VOCAB
    ranks = run_ranks(weights_on_rank, asked, tmp_path, count_reads, world_size=2)
    for chunks, _, read in ranks:
        held = sum(
            max(0, min(c.tensor.shape[0], words - c.offsets[0])) * c.tensor[0].numel()
            if c.name.endswith("embedding.weight")
            else c.tensor.numel()
            for c in chunks
        )
        assert sum(read) == held


def change(folder: Path, *without: str, **more: Tensor) -> None:
    """Take tensors out of a file, and put others in."""
    state = load_file(folder / "model.safetensors")
    for name in without:
        del state[name]
    save_file(state | more, folder / "model.safetensors", {"format": "pt"})


def test_every_tensor_that_does_not_fit_is_listed_once_for_all(tmp_path: Path) -> None:
    save(tiny("llama"), tmp_path / "model")
    gone, other = "model.layers.1.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight"
    change(tmp_path / "model", gone, **{other: torch.ones(31), "lm_head.bias": torch.ones(VOCAB)})
    asked = made("llama", "tp2", tmp_path / "model")
    with pytest.raises(RankError) as caught:
        run_ranks(weights_on_rank, asked, tmp_path, world_size=2)
    for words in (
        f"1 missing there: {gone} (48x32)",
        f"1 of another shape: {other} (31 there, 32 here)",
        "1 there only: lm_head.bias (37)",
        "`init_partial: true` loads what fits",
    ):
        assert words in str(caught.value)
    partial = made("llama", "tp2", tmp_path / "model", init_partial=True)
    for _, [event], _ in run_ranks(weights_on_rank, partial, tmp_path, world_size=2):
        assert event.missing == (gone,)
        assert event.misfits == (f"{other} (31 there, 32 here)",)
        assert event.unused == ("lm_head.bias",)
        assert event.num_loaded == 19


def test_what_is_said_twice_is_left_out_by_rule_and_listed(tmp_path: Path) -> None:
    """Frequencies that old versions saved, and the head of a tied model."""
    model = tiny("qwen2")
    save(model, tmp_path / "model")
    again = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "lm_head.weight": model.model.embed_tokens.weight.detach().clone(),
    }
    change(tmp_path / "model", **again)
    asked = made("qwen2", "one rank", tmp_path / "model")
    [(_, [event], _)] = run_ranks(weights_on_rank, asked, tmp_path, world_size=1)
    assert (event.missing, event.misfits, event.unused) == ((), (), tuple(sorted(again)))


@pytest.mark.parametrize("fault", ["cut", "index", "file", "type"])
def test_files_that_cannot_be_read_end_in_one_message(fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(
        tiny("llama"), folder, **({"max_shard_size": "20KB"} if fault in ("index", "file") else {})
    )
    if fault == "cut":
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-64])
    elif fault == "index":
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": [1]}))
    elif fault == "file":
        next(folder.glob("*.safetensors")).unlink()
    else:
        change(folder, **{"model.norm.weight": torch.ones(32, dtype=torch.int64)})
    asked = made("llama", "tp2", folder)
    with pytest.raises(RankError, match=r"cannot be read: "):
        run_ranks(weights_on_rank, asked, tmp_path, world_size=2)


@pytest.mark.parametrize("tp", [2, 4])
def test_gradients_with_biases_are_those_of_one_rank(tp: int) -> None:
    """Key and value biases, too, where tp ranks share a head; an epsilon that matters."""
    model = {"heads": 4, "kv_heads": 2, "qkv_bias": True, "norm_eps": 0.1}
    asked = spec({"language": box(0, tp=tp, model=model, sequence_parallel=tp == 4)})
    assert failures(verdicts(asked)) == []
