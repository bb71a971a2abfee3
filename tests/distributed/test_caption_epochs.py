"""Records with lists of captions: every layout learns the same one of each in each epoch."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from tests.distributed.test_changed_data import run_on_rank
from tests.support.caption_lists import caption_drawn, captions_of, write_tars
from tests.support.running_ranks import run_on_running_ranks
from tests.support.shard_runs import GLOBAL, shard_spec
from tests.support.specs import box

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.captions import Captions
from mimo_launch.data.order.sample_order import global_order
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import StepFinished
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession

NUMBERS, SEED = range(1, 31), 5
# Three epochs of 30 records, and a part of the fourth, in steps of 12 samples.
STEPS = 9
ONE = {"vision": box(0), "language": box(0)}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "dp 2": (2, {"vision": box(0, dp=2), "language": box(0, dp=2)}),
    "apart": (2, {"vision": box(0, dp=2), "language": box(2, dp=2)}),
    "fan-in": (1, {"vision": box(0, dp=3), "language": box(3, tp=2)}),
    "fan-out": (3, {"vision": box(0), "language": box(1, dp=3)}),
    "stages": (1, {"vision": box(0, dp=2), "language": box(2, tp=2, pp=2)}),
    "cp 2": (2, {"vision": box(0, dp=4), "language": box(0, cp=2, dp=2)}),
}
Read = dict[tuple[int | str, ...], tuple[int, Any]]


def caption_spec(folder: Path, dp: int, modules: dict[str, Any], **sections: Any) -> Spec:
    data = {"template": "caption", "packing": sections.pop("packing", False)}
    train = {"steps": STEPS, "precision": "fp64", "seed": SEED, **sections.pop("train", {})}
    return shard_spec(folder, dp, modules=modules, data=data, train=train, **sections)


def by_rank(self: Captions, records: Any, epochs: Any) -> Any:
    """A planted bug: each rank draws its own."""
    return _drawn(self, records, epochs + dist.get_rank())


def by_position(self: Captions, records: Any, epochs: Any) -> Any:
    """A planted bug: by the place in the step."""
    return _drawn(self, records, epochs + np.arange(len(records)))


_drawn = Captions.drawn


def read_steps(made: Spec, first: int, end: int, bug: Any = None) -> Read:
    """Read steps as training does; return what this rank was given of each record.

    By step, module, number in the step, and of images their place in the sample: the id of the
    record, tokens and labels or pixels.
    """
    if bug is not None:
        Captions.drawn = bug
    dataset, found = build_dataset(made), Read()
    order, events = global_order(made, dataset), list[Any]()
    with (
        RankSession(Plan.of(made)) as session,
        StepReader(session, dataset, RunState(), events.append) as reader,
    ):
        place = 0
        for step in range(end):
            if step >= first:
                inputs = reader.read("train", order.take(place), step)
                for number, arrays in inputs.texts.items():
                    held = [each.tobytes() for each in arrays]
                    found[step, "language", number] = inputs.record(number).id, held
                for (number, name), images in inputs.pixels.items():
                    # Another replica may encode some images of a sample.
                    for at, each in enumerate(images):
                        if each is not None:
                            held = each.values.numpy().tobytes()
                            found[step, name, number, at] = inputs.record(number).id, held
            place = order.after(place)
    assert not events
    return found


def given(made: Spec, first: int = 0, end: int = STEPS, bug: Any = None) -> Read:
    """Return what all ranks were given; two ranks are given the same of a record."""
    found = Read()
    for each in run_ranks(read_steps, made, first, end, bug, world_size=world_size(made)):
        for key, value in each.items():
            assert found.setdefault(key, value) == value
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("captions")
    write_tars(made, NUMBERS, shards=2)
    return made


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "packed"])
def right(folder: Path, request: pytest.FixtureRequest) -> tuple[bool, Read]:
    """What one rank is given."""
    return request.param, given(caption_spec(folder, 1, ONE, packing=request.param))


def test_one_rank_learns_one_caption_of_each_record_in_an_epoch(right: tuple[bool, Read]) -> None:
    """Those that are drawn by seed, epoch and record alone."""
    _, read = right
    keys = sorted(key for key in read if key[1] == "language")
    ids = [read[key][0] for key in keys]
    numbers = [*NUMBERS[0::2], *NUMBERS[1::2]]
    for epoch in range(min(3, len(ids) // len(NUMBERS))):
        here = ids[epoch * len(NUMBERS) : (epoch + 1) * len(NUMBERS)]
        wanted = [
            n + len(NUMBERS) * caption_drawn(SEED, epoch, n, len(captions_of(number)))
            for n, number in enumerate(numbers)
        ]
        assert sorted(here) == sorted(wanted)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_given_the_same(folder: Path, right: tuple[bool, Read], name: str) -> None:
    """Tokens, labels and pixels, bit by bit; and another layout goes on from any step."""
    packing, read = right
    dp, modules = LAYOUTS[name]
    assert given(caption_spec(folder, dp, modules, packing=packing), STEPS // 2, STEPS) == {
        key: value for key, value in read.items() if key[0] >= STEPS // 2
    }


@pytest.mark.parametrize("bug", [by_rank, by_position])
def test_planted_bugs_are_rejected(folder: Path, right: tuple[bool, Read], bug: Any) -> None:
    packing, read = right
    made = caption_spec(folder, *LAYOUTS["dp 2"], packing=packing)
    try:
        assert given(made, bug=bug) != read
    except AssertionError:
        return  # Ranks differ from each other.


def losses(made: Spec, folder: Path) -> list[tuple[int, float, int]]:
    """Train, or go on from the newest checkpoint of the folder."""
    folder.mkdir(exist_ok=True)
    ranks = run_on_running_ranks(run_on_rank, made, folder, world_size=world_size(made))
    assert all(not refused for _, refused in ranks)
    return [(e.step, e.loss, e.tokens) for e in ranks[0][0] if isinstance(e, StepFinished)]


def test_a_run_that_ends_and_goes_on_elsewhere_learns_the_same(
    folder: Path, tmp_path: Path
) -> None:
    """From dp 2 to stages, in the middle of the second epoch; against one rank without a stop."""
    settings = {"optimizer": {"kind": "sgd", "lr": 0.1}, "checkpoint": {"every": 1}}
    asked = partial(caption_spec, folder, **settings)
    wanted = losses(asked(1, ONE), tmp_path / "one")
    first = losses(asked(*LAYOUTS["dp 2"], train={"steps": 4}), tmp_path / "two")
    rest = losses(asked(*LAYOUTS["stages"]), tmp_path / "two")
    assert [each[0] for each in (*first, *rest)] == [*range(1, STEPS + 1)]
    for (step, loss, tokens), (same, expected, number) in zip((*first, *rest), wanted, strict=True):
        assert (step, tokens) == (same, number)
        assert loss == pytest.approx(expected, rel=1e-9)
    assert GLOBAL * 4 % len(NUMBERS)
