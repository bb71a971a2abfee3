"""Muon moves every matrix on every layout as the one-rank oracle does, which uses an SVD."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import (
    LANGUAGE,
    make_spec,
    numbers,
    run,
    run_anew,
    tensors,
)
from tests.support.planted_experts import mixture
from tests.support.planted_graphs import spoken
from tests.support.planted_hybrid import split_heads
from tests.support.proof import failures, training_verdicts
from tests.support.specs import box, spec

from mimo_launch.checkpoint.folder import all_checkpoints, read_marker
from mimo_launch.optimizer import muon as optimizer
from mimo_launch.optimizer.whole_matrices import Part
from mimo_launch.spec.spec import Spec

# Nothing is a default, and AdamW's settings count for all weights but matrices.
OPTIMIZER = {
    "kind": "muon", "lr": 0.01, "momentum": 0.8, "ns_steps": 4, "betas": [0.7, 0.8], "eps": 1e-3,
    "weight_decay": 0.1, "clip": 0.2,
}  # fmt: skip


def made(
    vision: dict[str, Any] | None = None,
    language: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    **rest: Any,
) -> Spec:
    """Vision and language that train by Muon."""
    modules = {"vision": box(**(vision or {})), "language": box(**(language or {}))}
    settings = {"microbatches": 2, "mbs": 2} | rest
    return spec(modules, optimizer=OPTIMIZER | (optimizer or {}), train={"steps": 50}, **settings)


LAYOUTS: dict[str, Callable[[], Spec]] = {
    "one rank": made,
    "tp 2": lambda: made({"tp": 2}, {"tp": 2}),
    "sequence parallel, heads shared": lambda: made(
        {"dp": 4}, {"tp": 4, "sequence_parallel": True, "model": {"kv_heads": 2}}
    ),
    "dp 2, fully sharded": lambda: made(
        {"dp": 2, "sharding": "full"}, {"dp": 2, "sharding": "full"}
    ),
    "pp 2, tied": lambda: made({"dp": 2}, {"pp": 2, "model": {"tied": True}}),
    "cp 2, without Nesterov": lambda: made(
        {"cp": 2}, {"cp": 2, "tp": 2, "first": 0}, {"nesterov": False}
    ),
    "experts over ep 2, split, without Nesterov, beside SGD": lambda: made(
        {"dp": 4, "optimizer": {"kind": "sgd"}},
        {
            "tp": 2, "dp": 2, "experts": {"ep": 2, "tp": 2}, "model": mixture(width=8),
            "optimizer": {"lr": 0.02},
        },
        {"nesterov": False},
    ),
    "experts, fully sharded": lambda: made(
        {"dp": 4}, {"dp": 4, "experts": {"ep": 2}, "sharding": "full", "model": mixture()}
    ),
    "frozen vision": lambda: made({"dp": 2, "frozen": "except_projector"}, {"tp": 2}),
    "mixed placement": lambda: made({"dp": 2}, {"first": 1, "tp": 2, "dp": 2}),
    "other optimizers": lambda: made(
        {"tp": 2, "optimizer": {"kind": "sgd"}}, {"dp": 2, "tp": 2, "optimizer": {"lr": 0.02}}
    ),
    "a talker with output layers": lambda: muon(spoken()),
    "hybrid over cp and tp": lambda: muon(split_heads(2, "G-*M", tp=2)),
}  # fmt: skip


def muon(given: Spec) -> Spec:
    """Return a spec that trains by Muon."""
    data = given.model_dump(mode="json", by_alias=True) | {"optimizer": OPTIMIZER}
    data["train"]["steps"] = 50
    return Spec.model_validate(data)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_moves_whole_matrices(name: str) -> None:
    assert failures(training_verdicts(LAYOUTS[name]())) == []


def parts_made_orthogonal() -> None:
    """Each rank takes what it holds of a matrix for a matrix."""

    def alone(parts: list[Part], work: Any, dtype: Any) -> None:
        for part in parts:
            if part.values.numel():
                part.values.copy_(work([part.values])[0])

    optimizer.replace_whole = alone


def fused_made_orthogonal() -> None:
    """Queries, keys and values that are stored in one parameter count as one matrix."""
    correct = optimizer.parts_of

    def fused(module: Any, grids: Any, tensors: Any) -> Any:
        starts = {tensor.data_ptr(): tensor for tensor in tensors.values()}
        for part in correct(module, grids, tensors):
            # The first of those that are fused stands for all.
            if (whole := starts.get(part.values.data_ptr())) is None:
                continue
            weight = replace(part.weight, shape=tuple(whole.shape))
            yield replace(part, weight=weight, values=whole, rows=(len(whole),))

    optimizer.parts_of = fused


def scaled_by_width() -> None:
    """The scale follows the number of columns alone."""
    optimizer.max = lambda shape: shape[1]


def setting_ignored(key: str, value: Any) -> None:
    """Muon keeps a default of its own."""
    correct = optimizer.LocalMuon.__init__

    def without(self: Any, groups: Any, settings: Any) -> None:
        correct(self, groups, settings.replace(**{key: value}))

    optimizer.LocalMuon.__init__ = without


def skipped_steps_move_momentum() -> None:
    """Momentum decays in a step that must change nothing."""
    correct = optimizer.LocalMuon._ahead

    def decaying(self: Any, weight: Any, skip: Any, divisor: Any) -> Any:
        found = correct(self, weight, skip, divisor)
        self.state[weight]["momentum_buffer"].mul_(1 - 0.2 * skip)
        return found

    optimizer.LocalMuon._ahead = decaying


BUGS: dict[str, tuple[Callable[[], None], str]] = {
    "shards": (parts_made_orthogonal, "dp 2, fully sharded"),
    "parts over tp": (parts_made_orthogonal, "tp 2"),
    "fused": (fused_made_orthogonal, "one rank"),
    "scaled by width": (scaled_by_width, "one rank"),
    "momentum": (partial(setting_ignored, "momentum", 0.95), "one rank"),
    "Nesterov": (partial(setting_ignored, "nesterov", False), "one rank"),
    "steps": (partial(setting_ignored, "ns_steps", 5), "one rank"),
    "skipped steps": (skipped_steps_move_momentum, "one rank"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_rejected(name: str) -> None:
    plant, layout = BUGS[name]
    assert failures(training_verdicts(LAYOUTS[layout](), prepare=plant)), f"{name} passes"


def saving(layout: str, steps: int, experts: dict[str, int], **changes: Any) -> Spec:
    """A run of experts that saves after three steps."""
    model = LANGUAGE | {"moe": {"experts": 4, "top_k": 2, "width": 24}}
    modules = {("language", "model"): model, ("language", "experts"): experts}
    return make_spec(layout, steps, modules=modules, optimizer=OPTIMIZER | changes)


def test_a_checkpoint_goes_on_on_another_layout(tmp_path: Path) -> None:
    """With another grid of experts, too; the last steps are those of a run on one rank."""
    alone = numbers(run(saving("one rank", 5, {}), tmp_path / "alone"))
    run(saving("colocated dp4, tp2 dp2", 3, {"ep": 2, "tp": 2}), tmp_path / "run")
    went_on = numbers(run_anew(saving("fully sharded dp4", 5, {"ep": 2}), tmp_path / "run"))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(alone[step], rel=1e-9)


def test_adamw_counts_its_updates_anew_for_weights_that_muon_moved_in_between(
    tmp_path: Path,
) -> None:
    """Their moments begin at 0 again; AdamW moved all other weights at every step, and counts on.

    Counts of updates without moments of as many would leave the first updates far too small.
    """
    run(make_spec("one rank", 3), tmp_path)
    run(make_spec("one rank", 6, optimizer=OPTIMIZER), tmp_path)
    states = (name.partition("/") for name in tensors(tmp_path))
    matrices = {name for kind, _, name in states if kind == "momentum_buffer"}
    run(make_spec("one rank", 9), tmp_path)
    updates = read_marker(all_checkpoints(tmp_path)[0]).updates
    assert matrices < updates.keys()
    assert updates == {name: 3 if name in matrices else 9 for name in updates}
