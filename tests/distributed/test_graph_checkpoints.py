"""Checkpoints of a job with a connector and a generator, loaded on other layouts."""

from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import LANGUAGE, VISION, exact, numbers, run, run_anew
from tests.support.specs import box

from mimo_launch.checkpoint.folder import all_checkpoints
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import RunResumed

SP, FULL = {"sequence_parallel": True}, {"sharding": "full"}
MODELS: dict[str, dict[str, Any]] = {
    "vision": VISION,
    "merger": {"kind": "connector", "layers": 2, "hidden": 24, "heads": 6, "queries": 3},
    "language": {**LANGUAGE, "layers": 2},
    "drawer": {"kind": "flow", "layers": 2, "hidden": 24, "heads": 6, "patch": 4},
}
# Vision, the connector, language, the generator.
LAYOUTS: dict[str, tuple[dict[str, Any], ...]] = {
    "one rank": (box(0), box(0), box(0), box(0)),
    "a rank for each": (box(0), box(1), box(2), box(3)),
    "dp 2": (box(0, dp=2), box(0, dp=2), box(0, dp=2), box(0, dp=2)),
    "pp 2 in the middle": (box(0), box(0, pp=2), box(0, pp=2), box(0, pp=2)),
    "tp 2 and cp 2": (box(0, tp=2, **SP), box(0, cp=2), box(0, tp=2, **SP), box(0, cp=2)),
    "fully sharded": (
        box(0, dp=2, **FULL), box(1, dp=2, **FULL), box(0, dp=4, **FULL), box(2, dp=2, **FULL),
    ),
    "overlapping": (box(0, dp=2), box(1, tp=2), box(0, tp=2, dp=2), box(2, tp=2)),
}  # fmt: skip
PAIRS = [
    ("one rank", "dp 2"),
    ("dp 2", "a rank for each"),
    ("a rank for each", "pp 2 in the middle"),
    ("pp 2 in the middle", "tp 2 and cp 2"),
    ("tp 2 and cp 2", "one rank"),
    ("dp 2", "fully sharded"),
    ("fully sharded", "overlapping"),
    ("overlapping", "dp 2"),
]
OFTEN = 2


def drawn(layout: str) -> Spec:
    """Four steps of digits to read and to draw, saved after the second."""
    reads = {"merger": {"reads": ["vision"]}, "drawer": {"reads": ["language"], "loss_weight": 0.5}}
    modules = {
        name: {**module, "model": model, **reads.get(name, {})}
        for (name, model), module in zip(MODELS.items(), LAYOUTS[layout], strict=True)
    }
    return Spec.model_validate(
        {
            "version": 1,
            "name": "saved",
            "modules": modules,
            "schedule": {"microbatches": 2},
            "batch": {"global": 8, "seq": 40},
            "data": {"kind": "digits", "tasks": ["read", "draw"]},
            "optimizer": {"kind": "adamw", "lr": 5e-3, "weight_decay": 0.1, "clip": 1.0},
            "train": {"steps": 4, "seed": 3, "precision": "fp64"},
            "checkpoint": {"every": 2, "keep": 2},
        }
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return runs by layout: the folder, without its last checkpoint, and events."""
    runs: dict[str, tuple[Path, list[Any]]] = {}

    def get(layout: str) -> tuple[Path, list[Any]]:
        if layout not in runs:
            folder = tmp_path_factory.mktemp("run")
            events = run(drawn(layout), folder)
            all_checkpoints(folder)[0].rename(folder / "end")
            runs[layout] = folder, events
        return runs[layout]

    return get


def resumed(source: Path, layout: str, folder: Path) -> list[Any]:
    """Return the events of a run from the checkpoint after step 2 in another folder."""
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-00000002").symlink_to(source / "checkpoints/step-00000002")
    events = run_anew(drawn(layout), folder)
    assert [event.step for event in events if isinstance(event, RunResumed)] == [2]
    return events


@pytest.mark.parametrize(
    ("source", "target"),
    [pytest.param(*p, marks=() if n < OFTEN else pytest.mark.sweep) for n, p in enumerate(PAIRS)],
)
def test_a_graph_goes_on_on_another_layout(
    source: str, target: str, saved: Any, tmp_path: Path
) -> None:
    """The steps after the checkpoint equal those of the source layout, every norm too."""
    folder, before = saved(source)
    found = numbers(resumed(folder, target, tmp_path))
    assert sorted(found) == [3, 4]
    for step, values in found.items():
        assert values.keys() >= MODELS.keys()
        assert values == pytest.approx(numbers(before)[step], rel=1e-9), step


@pytest.mark.parametrize("layout", ["dp 2", pytest.param("overlapping", marks=pytest.mark.sweep)])
def test_a_graph_resumes_bit_by_bit_on_the_same_layout(
    layout: str, saved: Any, tmp_path: Path
) -> None:
    folder, before = saved(layout)
    again = exact(resumed(folder, layout, tmp_path))
    assert again == {step: exact(before)[step] for step in (3, 4)}
