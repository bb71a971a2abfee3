"""The second stage of a training starts from the first by one line, as the docs show."""

import re
from pathlib import Path
from typing import Any

import torch
import yaml

from mimo_launch.checkpoint.boxes import Box, weight_boxes
from mimo_launch.checkpoint.loading import start_run
from mimo_launch.checks.load_and_check import check_text
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.yaml_source import read_text
from mimo_launch.train.events import Event, StepFinished, WeightsLoaded
from mimo_launch.train.loop import Hooks, train
from mimo_launch.train.rank_session import RankSession

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"

Weights = dict[str, torch.Tensor]


def block(title: str) -> str:
    found = re.search(rf'^```yaml title="{title}"\n(.*?)^```$', PAGE.read_text(), re.M | re.S)
    assert found is not None
    return found[1]


def data_of(text: str) -> dict[str, Any]:
    data = read_text(text).data
    assert data is not None
    return data


def merged(data: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: merged(data[key], value)
        if isinstance(value, dict) and isinstance(data.get(key), dict)
        else value
        for key, value in more.items()
    }
    return {**data, **both}


def run_on_rank(spec: Spec, run: Path) -> tuple[list[Event], Weights, Weights]:
    """Return the events, and this rank's weights before and after, by name and place."""
    events: list[Event] = []
    with RankSession(Plan.of(spec)) as session:
        state, saver = start_run(session, run, events.append)
        modules = session.modules.values()
        before = {key(c): c.tensor.clone() for module in modules for c in weight_boxes(module)}
        train(session, events.append, Hooks(saver=saver), state)
        after = {key(c): c.tensor.clone() for module in modules for c in weight_boxes(module)}
    return events, before, after


def key(chunk: Box) -> str:
    return f"{chunk.name} {chunk.offsets}"


def moved(ranks: list[tuple[list[Event], Weights, Weights]]) -> set[str]:
    """Return the tensors that a run changed, as `vision.projector` or `language`."""
    found = set()
    for _, before, after in ranks:
        for name, tensor in before.items():
            if not torch.equal(tensor, after[name]):
                module, rest = name.removeprefix("weights/").split(".", 1)
                found.add(f"{module}.projector" if rest.startswith("projector") else module)
    return found


def test_the_example_of_the_page(tmp_path: Path) -> None:
    text = block("stage1.yaml")
    assert check_text(text).diagnostics == ()
    # The first two steps show as much as fifty.
    few = {"train": {"steps": 2}, "checkpoint": {"every": 2, "asynchronous": False}}
    data = merged(data_of(text), few)
    first = Spec.model_validate(data)
    ranks = run_ranks(run_on_rank, first, tmp_path / "stage1", world_size=world_size(first))
    assert moved(ranks) == {"vision.projector"}
    last = [after for _, _, after in ranks]

    lines = data_of(block("stage2-lines.yaml")) | {"init_from": str(tmp_path / "stage1")}
    second_text = yaml.safe_dump(merged(data, lines))
    assert check_text(second_text).diagnostics == ()
    second = check_text(second_text).spec
    assert second is not None
    ranks = run_ranks(run_on_rank, second, tmp_path / "stage2", world_size=world_size(second))
    for (events, before, _), left in zip(ranks, last, strict=True):
        assert {e.module for e in events if isinstance(e, WeightsLoaded)} in (
            {"vision", "language"}, set(),
        )  # fmt: skip
        assert before.keys() == left.keys()
        assert all(torch.equal(before[name], left[name]) for name in before)
    assert moved(ranks) == {"vision", "vision.projector", "language"}
    assert [e.step for e in ranks[0][0] if isinstance(e, StepFinished)] == [1, 2]
