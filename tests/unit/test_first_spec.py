"""The first placement of models: by the rule, or better where estimates say so or nothing fits."""

from types import SimpleNamespace
from typing import Any

import pytest

from mimo_launch.checks.all_checks import check, is_legal
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.layout.space import Point
from mimo_launch.plan.plan import Plan
from mimo_launch.search import first_spec as first
from mimo_launch.search.changes import changed
from mimo_launch.search.first_spec import LEAST_GAIN, NothingFits, choose, first_spec, placed
from mimo_launch.search.judge import Planned
from mimo_launch.search.placements import placements
from mimo_launch.spec.load import spec_from_data
from mimo_launch.spec.spec import Grid, Spec

Data = dict[str, Any]

LARGE_VIT: Data = {
    "kind": "vit", "layers": 45, "hidden": 3200, "heads": 25, "mlp": 12800, "patch": 14,
    "image": [32, 32],
}  # fmt: skip
SMALL_VIT: Data = {
    "kind": "vit", "layers": 24, "hidden": 1024, "heads": 16, "mlp": 4096, "patch": 14,
    "image": [24, 24],
}  # fmt: skip
AUDIO: Data = {"kind": "audio", "layers": 4, "hidden": 256, "heads": 4, "mels": 80, "frames": 3000}
LLAMA: Data = {
    "kind": "decoder", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "mlp": 14336,
    "vocab": 128256,
}  # fmt: skip


def unplaced(memory: str | None, samples: int = 32, **models: Data) -> Data:
    vision = models.get("vision", {})
    return {
        "version": 1,
        "name": "first",
        "modules": {name: {"model": model} for name, model in models.items()},
        "batch": {"global": samples, "seq": 4096},
        "data": {"kind": "synthetic", **({"image": vision["image"]} if vision else {})},
        "train": {"steps": 10, "precision": "bf16"},
        "nodes": {"gpus": 8, **({"gpu_memory": memory} if memory else {})},
    }


def step_seconds(data: Data) -> float:
    return Estimator.of(Plan.of(spec_from_data(data))).estimates().step_seconds


def errors(spec: Spec) -> list[str]:
    return [found.headline for found in check(spec) if found.is_error]


def test_a_faster_layout_is_taken_and_its_gain_is_what_estimates_say() -> None:
    data = unplaced("40GB", 64, vision=SMALL_VIT, language=LLAMA)
    rule, found = placed(data, choose(data, 16)), first_spec(data, 16)
    assert found.gain is not None
    assert found.gain >= LEAST_GAIN
    assert step_seconds(rule) / step_seconds(found.data) - 1 == pytest.approx(found.gain)
    assert (found.changes != "", found.compared > 20) == (True, True)
    assert errors(spec_from_data(found.data)) == []
    assert found.data["batch"] == data["batch"]


def test_a_faster_layout_that_fits_only_in_the_typical_step_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search looks at one step; here no layout but that of the rule fits in all of them."""
    data = unplaced("40GB", 64, vision=SMALL_VIT, language=LLAMA)
    rule = spec_from_data(placed(data, choose(data, 16)))
    monkeypatch.setattr("mimo_launch.search.first_spec.fits", lambda job: job.spec == rule)
    found = first_spec(data, 16)
    assert (found.changes, spec_from_data(found.data)) == ("", rule)


def test_the_rule_prefers_tp_to_stages_and_keeps_both_and_experts_on_a_host() -> None:
    experts = {"experts": 16, "top_k": 2, "width": 64}
    model = {"kind": "decoder", "layers": 4, "hidden": 256, "heads": 16, "vocab": 1000}
    data = unplaced("40GB", 16, language=model | {"moe": experts})
    made = spec_from_data(placed(data, first.on_all_ranks(data["modules"], Grid(dp=16))))
    points = [each.language for each in first._points(made)]
    assert {each.experts.ep for each in points if each.experts} == {2, 4, 8}
    cuts = list(dict.fromkeys((each.grid.tp, each.grid.pp) for each in points))
    assert cuts[:4] == [(1, 1), (2, 1), (1, 2), (4, 1)]
    assert max(tp for tp, _ in cuts) == 8


def test_a_first_spec_leaves_no_gpu_out_and_keeps_its_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = unplaced("40GB", 16, language={"kind": "decoder", "layers": 4, "hidden": 64, "heads": 4})
    data["modules"]["language"]["model"]["vocab"] = 1000
    layout = first.on_all_ranks(data["modules"], Grid(dp=4))
    base = spec_from_data(placed(data, layout))
    estimates = Estimator.of(Plan.of(base)).estimates()
    kinds = {
        "fewer GPUs": {"modules.language.ranks": "0-1", "modules.language.grid": {"dp": 2}},
        "precision": {"train.precision": "fp32"},
        "grid": {"modules.language.grid": {"dp": 2, "tp": 2}},
    }
    found = [Planned(changed(base, kind, settings), estimates) for kind, settings in kinds.items()]
    search = SimpleNamespace(
        run=lambda: found,
        gain=lambda planned: 1.0,
        simplest=lambda planned: planned,
        search=SimpleNamespace(compared=3),
    )
    monkeypatch.setattr(first, "Changes", SimpleNamespace(of=lambda *_: search))
    better = first._better(data, layout, rule_fits=True)
    assert better is not None
    assert better.changes == found[-1].change.text


def test_the_rule_stands_where_memory_is_not_known() -> None:
    data = unplaced(None, vision=SMALL_VIT, language=LLAMA)
    found = first_spec(data, 16)
    assert (found.compared, found.changes, found.gain) == (1, "", None)
    assert found.data == placed(data, choose(data, 16))


def test_what_does_not_fit_by_the_rule_is_placed_otherwise() -> None:
    """6 B parameters of vision fit whole on no rank of 40 GB."""
    data = unplaced("40GB", vision=LARGE_VIT, language=LLAMA)
    with pytest.raises(NothingFits, match="`vision` stage 0"):
        choose(data, 8)
    found = first_spec(data, 8)
    spec = spec_from_data(found.data)
    assert errors(spec) == []
    estimates = Estimator.of(Plan.of(spec)).estimates()
    assert max(row.total_bytes for row in estimates.ranks) <= 40e9
    assert found.gain is None


def test_what_fits_nowhere_is_refused_with_the_words_of_the_rule() -> None:
    data = unplaced("10GB", vision=LARGE_VIT, language=LLAMA)
    with pytest.raises(NothingFits, match=r"but a GPU has 10\.0 GB"):
        first_spec(data, 2)


def test_placements_are_shared_apart_and_mixed() -> None:
    """Of two encoders, none, one or both leave the ranks of language."""
    data = unplaced("80GB", 64, vision=SMALL_VIT, audio=AUDIO, language=LLAMA)
    spec = spec_from_data(placed(data, choose(data, 16)))
    legal: set[tuple[str, ...]] = set()
    work = {"vision": 1.0, "audio": 1.0, "language": 4.0}
    for point in placements(spec, Point.of(spec), work, 16):
        if (change := changed(spec, "placement", point.settings())) is None:
            continue  # As it is.
        made = change.spec
        if is_legal(made, files=False):
            own = set(made.language.rank_range)
            apart = (name for name in made.encoders if not own & set(made.modules[name].rank_range))
            legal.add(tuple(sorted(apart)))
    assert {("audio", "vision"), ("vision",), ("audio",)} <= legal


def test_the_rule_shards_weights_fully_where_nothing_else_fits() -> None:
    """200 B parameters in 61 layers, which no pp but 61 divides."""
    large = {**LLAMA, "layers": 61, "hidden": 16384, "heads": 128, "mlp": 53248}
    place = choose(unplaced("40GB", 512, language=large), 512).places["language"]
    assert (place.sharding, place.recompute) == ("full", "full")
