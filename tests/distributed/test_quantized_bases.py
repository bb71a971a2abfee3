"""Bases in 4 and 8 bits: every layout has the values of one rank, and trains adapters on them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.test_adapter_folders import adapted
from tests.distributed.test_adapters import EXPERTS, LORA, made
from tests.support.exports import exported, trained, with_sections
from tests.support.families import FAMILIES
from tests.support.hugging_face import made as text_run
from tests.support.hugging_face import save, tiny
from tests.support.planted_experts import mixture
from tests.support.proof import failures, training_verdicts, verdicts_as_it_is
from tests.support.quantized import in_fp8
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import hybrid
from tests.support.whole_models import deviation, found_logits

from mimo_launch.checkpoint.index import open_checkpoint, read_index
from mimo_launch.checks.all_checks import check
from mimo_launch.diag.installed import is_installed
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.memory import stage_memory
from mimo_launch.export.export_plan import Exporter
from mimo_launch.layers.packed import pack
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.quantized_base import QuantizedBase
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import StepFinished
from mimo_launch.train.loop import train
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.shrink import shrink

SMALL = {"kind": "int8", "block": 2}
FP8 = {"kind": "fp8", "block": 4}
NF4 = {"kind": "nf4"}
WIDE = {"hidden": 128, "heads": 2, "kv_heads": 2, "head_dim": 64, "mlp": 256}


def kept(vision: dict[str, Any], language: dict[str, Any], **rest: Any) -> Spec:
    """Vision and language with adapters on bases of few bits."""
    base = {"quantize_base": SMALL}
    return made(base | vision, base | language, **rest)


def by_sgd(asked: Spec) -> Spec:
    """Return a spec that is proved with its own sizes."""
    small = shrink(asked)
    models = {
        n: {"model": m.model, "quantize_base": m.quantize_base} for n, m in asked.modules.items()
    }
    modules = {
        name: each.replace(**models[name], compile=False) for name, each in small.modules.items()
    }
    return asked.replace(
        modules=modules, optimizer=small.optimizer, train=small.train, checkpoint=None
    )


LAYOUTS: dict[str, Callable[[], Spec]] = {
    "one rank": lambda: kept({"quantize_base": FP8}, {}),
    "tp 2, sequence parallel, heads shared": lambda: kept(
        {"tp": 2, "dp": 2}, {"tp": 4, "sequence_parallel": True, "model": {"kv_heads": 2}}
    ),
    "dp 2, fully sharded": lambda: kept(
        {"dp": 2, "sharding": "full"}, {"dp": 2, "sharding": "full", "quantize_base": FP8}
    ),
    "pp 2, recomputed, beside a frozen tower": lambda: kept(
        {"dp": 2, "adapter": None, "frozen": True},
        {"pp": 2, "tp": 2, "recompute": "full", "dp": 1},
    ),
    "experts": lambda: kept(
        {"dp": 4},
        {
            "tp": 2,
            "dp": 2,
            "experts": {"ep": 2, "tp": 2},
            "adapter": EXPERTS,
            "model": mixture(width=8, shared=4),
        },
    ),
    "experts, sharded": lambda: kept(
        {"dp": 4},
        {"tp": 2, "dp": 2, "experts": {"ep": 2}, "sharding": "full", "model": mixture(width=8)},
    ),
    "a hybrid": lambda: kept(
        {"dp": 2, "frozen": "except_projector"},
        {
            "pp": 2,
            "model": hybrid({"tp": 1}, "M-*-"),
            "adapter": {**LORA, "targets": ["attention"]},
        },
    ),
}


RARE = ("experts, sharded",)


@pytest.mark.parametrize(
    "layout",
    [pytest.param(each, marks=[pytest.mark.sweep] * (each in RARE)) for each in LAYOUTS],
)
def test_adapters_get_the_gradients_of_one_rank(layout: str) -> None:
    assert not failures(verdicts_as_it_is(by_sgd(LAYOUTS[layout]())))


def test_a_proof_keeps_the_base_in_few_bits() -> None:
    small = shrink(kept({}, {"quantize_base": NF4}))
    assert [each.quantize_base.kind for each in small.modules.values() if each.quantize_base] == [
        "int8",
        "int8",
    ]
    odd = kept({"dp": 2}, {"tp": 2, "model": mixture(width=8, shared=6), "adapter": EXPERTS})
    assert not [each for each in check(shrink(odd)) if each.code == "quantized-base-cut"]


@pytest.mark.skipif(not is_installed("bitsandbytes"), reason="NF4 is of bitsandbytes")
def test_nf4_has_the_same_values_on_every_layout() -> None:
    wide = {"model": WIDE, "quantize_base": NF4, "tp": 2}
    assert not failures(verdicts_as_it_is(by_sgd(made({"dp": 2}, wide))))


def test_only_adapters_move_in_a_run() -> None:
    assert not failures(training_verdicts(LAYOUTS["tp 2, sequence parallel, heads shared"]()))


def test_a_base_that_is_packed_after_the_cut_is_rejected() -> None:
    """A block of all inputs of a map: tp cuts it, so that each rank has a scale of its own."""
    wide = {"quantize_base": {"kind": "int8", "block": 64}}
    assert not failures(verdicts_as_it_is(by_sgd(kept(wide, wide))))
    cut = by_sgd(kept(wide, wide | {"tp": 2}))
    assert failures(verdicts_as_it_is(cut))
    assert "quantized-base-cut" in {each.code for each in check(cut)}


@pytest.mark.parametrize("kind", ["int8", "fp8", "nf4"])
def test_a_cut_between_blocks_leaves_all_values(kind: str) -> None:
    """Packed before a cut of rows or of blocks, or after it: the same bytes."""
    if kind == "nf4" and not is_installed("bitsandbytes"):
        pytest.skip("NF4 is of bitsandbytes")
    base = QuantizedBase.model_validate({"kind": kind, "block": 64})
    whole = torch.randn(6, 192, generator=torch.Generator().manual_seed(0))
    packed = pack(whole, base)
    assert torch.equal(packed[2:4], pack(whole[2:4], base))
    assert torch.equal(packed[:, : base.row_bytes(64)], pack(whole[:, :64], base))
    assert torch.equal(packed[:, base.row_bytes(128) :], pack(whole[:, 128:], base))


def of_few_bits(asked: Spec, base: dict[str, Any] = SMALL, **sections: Any) -> Spec:
    """Return a run of a folder with adapters on bases of few bits."""
    data = adapted(asked).model_dump(mode="json", by_alias=True)
    for module in data["modules"].values():
        module["quantize_base"] = base
    return Spec.model_validate({**data, **sections})


def test_a_run_rereads_its_base_and_leaves_as_what_it_computes(tmp_path: Path) -> None:
    """A checkpoint has no base; a merged export has the values of few bits, with the updates."""
    family = FAMILIES["qwen2_vl"]
    model, asked = family.start("one rank", tmp_path, **family.layouts.get("one rank", {}))
    made = of_few_bits(asked)
    folder = trained(made, tmp_path / "run")
    saved = read_index(sorted((folder / "checkpoints").iterdir())[-1])
    assert not [name for name in saved if re.search(r"layers\..*(q|down)\.weight", name)]
    assert [name for name in saved if name.endswith("norm.weight")]
    ours = found_logits(made, folder)
    tensors = exported(folder, tmp_path / "merged")
    merged = type(model).from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    assert deviation(ours, family.wanted(merged, made)) < 1e-5
    whole = exported(trained(adapted(asked), tmp_path / "whole"), tmp_path / "other")
    key = next(name for name in tensors if name.endswith("mlp.down_proj.weight"))
    assert not torch.allclose(tensors[key], whole[key], rtol=1e-4)
    notes = Exporter(open_checkpoint(folder, None)).folders(())[0].beside.notes
    assert "`language` has the int8 values of its base, plus its updates" in notes


def test_a_run_goes_on_on_another_layout(tmp_path: Path) -> None:
    start = tmp_path / "model"
    save(tiny("llama"), start)

    def over(layout: str, steps: int, **language: Any) -> Spec:
        more = {"adapter": LORA, "quantize_base": SMALL, **language}
        asked = text_run("llama", layout, start, "fp64", **more)
        train = {"steps": steps, "precision": "fp64"}
        return with_sections(asked, train=train, optimizer={"lr": 0.1})

    alone = exported(trained(over("one rank", 4), tmp_path / "alone"), tmp_path / "out")
    run = trained(over("tp2", 2), tmp_path / "run")
    went_on = exported(trained(over("pp2", 4, sharding="full"), run), tmp_path / "other")
    for name, tensor in alone.items():
        torch.testing.assert_close(went_on[name], tensor, rtol=1e-6, atol=1e-7)


def test_a_folder_in_fp8_keeps_its_own_numbers(tmp_path: Path) -> None:
    start = tmp_path / "model"
    save(tiny("qwen3", intermediate_size=320), start)
    stood = in_fp8(start)
    more = {"adapter": LORA, "quantize_base": {"kind": "fp8", "block": 8}, "model": {"mlp": 320}}
    asked = with_sections(text_run("qwen3", "tp2", start, **more), optimizer={"lr": 1e-30})
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype="fp32")
    for name, tensor in stood.items():
        assert float((found[name] - tensor).abs().max()) < 1e-25, name


@pytest.mark.parametrize("sharding", ["optimizer", "full"])
def test_a_base_of_few_bits_trains_in_bf16(sharding: str) -> None:
    """Bytes are gathered beside weights in 16 bits."""
    wide = kept({"dp": 2, "sharding": sharding}, {"dp": 2, "sharding": sharding})
    train = wide.train.model_copy(update={"precision": "bf16"})
    (found, *_) = run_on_running_ranks(
        losses, wide.model_copy(update={"train": train}), world_size=2
    )
    (exact, *_) = run_on_running_ranks(losses, wide, world_size=2)
    assert found == pytest.approx(exact, rel=2e-2)


def losses(asked: Spec) -> list[float]:
    """Return the losses of two steps."""
    with RankSession(Plan.of(asked)) as session:
        events: list[Any] = []
        train(session, events.append)
    return [each.loss for each in events if isinstance(each, StepFinished)]


@pytest.mark.parametrize("sharding", ["optimizer", "full"])
def test_the_plan_knows_the_bytes_of_the_base(sharding: str) -> None:
    asked = kept({"dp": 2, "sharding": sharding}, {"dp": 2, "sharding": sharding})
    (held, _) = run_on_running_ranks(bytes_held, asked, world_size=2)
    plan = Plan.of(asked)
    work = Estimator.of(plan).model.work
    for name, module in ((each.name, each) for each in plan.layout.modules):
        stage, parts = module.stages[0], (plan.spec, plan.layout, module)
        found = stage_memory(*parts, stage, work[name][0], 0)
        assert found.weights == pytest.approx(held[name], rel=0.02)


def bytes_held(asked: Spec) -> dict[str, int]:
    """Return the bytes of the weights of each module on this rank."""
    with RankSession(Plan.of(asked)) as session:
        return {
            name: sum(local_tensor(each).nbytes for each in module.parameters())
            for name, module in session.modules.items()
        }
