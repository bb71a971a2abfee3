"""Samples of which several replicas encode images: gradients are those of one rank."""

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_cached_rows import files, keeping
from tests.support.graphs import connector
from tests.support.planted_split import split_apart
from tests.support.planted_tiles import LAST, TILES
from tests.support.proof import failures, training_verdicts, verdicts, verdicts_as_it_is
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order, make_step_data
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import build_layout, world_size
from mimo_launch.layout.step_views import StepViews
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import BadSamples
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.compare import TensorPiece, compare_numbers, compare_tensors, pieces_of
from mimo_launch.verify.oracle import Oracle
from mimo_launch.verify.shrink import shrink

DATA: dict[str, Any] = {"max_images": 4, "max_patches": 12, "mbs": 2}


def several(vision: dict[str, Any], language: dict[str, Any], **rest: Any) -> Spec:
    """Vision from rank 0 on; samples of up to four images of two to twelve patches."""
    return spec({"vision": box(0, **vision), "language": box(**language)}, **{**DATA, **rest})


SPECS: dict[str, Callable[[], Spec]] = {
    "on the ranks of language": split_apart,
    "several groups, each with a sample for each replica": lambda: split_apart(
        {"microbatches": 4, "encoder_microbatches": 2}
    ),
    "upstream, cp 2, tp 2, sequence parallel": lambda: several(
        {"dp": 2, "cp": 2, "tp": 2, "sequence_parallel": True},
        {"first": 8, "tp": 2, "cp": 2, "sequence_parallel": True},
        microbatches=2,
        seed=3,
    ),
    "dp 3 into dp 2": lambda: several(
        {"dp": 3}, {"first": 3, "dp": 2}, mbs=3, microbatches=2, seed=4
    ),
    "one-to-one, all": lambda: several({"dp": 2, "balance": "all"}, {"first": 0, "dp": 2}, seed=2),
    "pp 2, fully sharded, a class token": lambda: several(
        {"dp": 2, "pp": 2, "sharding": "full", "model": {"class_token": True, "layers": 2}},
        {"first": 4},
        microbatches=2,
        seed=3,
    ),
    "packed records": lambda: split_apart({"packing": True}),
    "tiles": lambda: split_apart({"microbatches": 4}, model=TILES),
    "the whole image last": lambda: split_apart(model=LAST, tp=1),
    "windows, squares of patches": lambda: split_apart(
        {"max_patches": 48},
        model={"layers": 2, "shuffle": 2, "windows": {"side": 1, "full": [1]}},
    ),
    "videos": lambda: split_apart(model={"video": {"time": "patches"}}),
    "clips": lambda: split_apart(model={"kind": "audio"}),
    "clips in chunks": lambda: split_apart({"max_frames": 40}, model={"kind": "aut"}),
    "dropout, adapters": lambda: split_apart(
        dropout=0.2, adapter={"rank": 3, "alpha": 5.0, "dropout": 0.3}
    ),
    "behind a connector, which has whole samples": lambda: spec(
        {
            "vision": box(0, dp=4),
            "merger": box(0, dp=2, tp=2, **connector("vision")),
            "language": box(0, tp=4),
        },
        **{**DATA, "microbatches": 2},
    ),
}


def split_samples(small: Spec) -> int:
    """Return how many samples of the first step have images on several replicas of vision."""
    dataset, layout = build_dataset(small), build_layout(small)
    data = make_step_data(dataset, "train", global_order(small, dataset).take(0), 0)
    views, module = StepViews(layout, data), layout["vision"]
    forwards = range(layout.num_groups(module))
    replicas = range(module.grid.size("dp"))
    found = [
        views.encoder("vision", replica, each).split for replica in replicas for each in forwards
    ]
    return len({sample for split in found for sample in split})


@pytest.mark.parametrize("name", SPECS)
def test_gradients_are_those_of_one_rank(name: str) -> None:
    made = SPECS[name]()
    assert split_samples(shrink(made)) > 0
    assert failures(verdicts(made)) == []


def test_two_steps_of_training_are_those_of_one_rank() -> None:
    assert failures(training_verdicts(split_apart())) == []


def test_rows_are_kept_and_read_image_by_image(tmp_path: Path) -> None:
    made = keeping(shrink(split_apart(frozen=True)), tmp_path)
    assert split_samples(made) > 0
    assert failures(verdicts_as_it_is(made)) == []
    kept = {each: each.read_bytes() for each in files(tmp_path)}
    assert kept
    assert failures(verdicts_as_it_is(made)) == []
    assert {each: each.read_bytes() for each in files(tmp_path)} == kept


class OneDamaged:
    """A data set in which one image of a sample cannot be read; `asked` has the places read."""

    def __init__(self, made: Spec, sample: int, place: int) -> None:
        self._dataset, self._bad = build_dataset(made), (sample, place)
        self.asked = list[tuple[int, int]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def images(self, split: Any, index: int, encoder: str, only: Any = None) -> Any:
        every = self._dataset.describe(split, index).spans.get(encoder, ())
        places = range(len(every)) if only is None else sorted(only)
        self.asked += ((index, place) for place in places)
        if self._bad in self.asked:
            raise OSError("image file is truncated")
        return self._dataset.images(split, index, encoder, only)


Step = tuple[float, list[TensorPiece], list[Any], list[tuple[int, int]]]


def one_step(made: Spec, ids: tuple[int, ...], sample: int, place: int) -> Step:
    events: list[Any] = []
    with RankSession(Plan.of(made), randomise=True) as session:
        dataset: Any = OneDamaged(made, sample, place)
        inputs = StepReader(session, dataset, RunState(), events.append).read("train", ids, 0)
        loss = session.gradients(inputs).read().loss
        return loss, pieces_of(session, attrgetter("grad")), events, dataset.asked


def test_replicas_read_only_their_images_and_leave_out_a_sample_with_a_bad_one() -> None:
    """Only the replica that has the image sees that it is damaged."""
    made = shrink(split_apart())
    dataset = build_dataset(made)
    ids = global_order(made, dataset).take(0)
    data = make_step_data(dataset, "train", ids, 0)
    views = StepViews(build_layout(made), data)
    replica, split = next(
        (replica, found)
        for replica in range(4)
        if (found := views.encoder("vision", replica, 0).split)
    )
    (position, _), *_ = split.items()
    place = max(views.encoder("vision", replica, 0).places(position))
    bad: Any = ids[position]
    results = run_ranks(one_step, made, ids, bad, place, world_size=world_size(made))
    good = [sample for sample in ids if sample != bad]
    loss, grads = Oracle(made, randomise=True).loss_and_gradients(good)
    found = [compare_numbers("loss", "language", result[0], loss) for result in results]
    pieces = [piece for result in results for piece in result[1]]
    found += compare_tensors("gradients", made.modules, pieces, grads)
    assert [failure for verdict in found for failure in verdict.failures] == []
    expected = BadSamples(step=1, reasons={bad: "OSError: image file is truncated"}, total=1)
    assert all(result[2] == [expected] for result in results)
    asked = [each for result in results for each in result[3]]
    images = [
        (id_, at)
        for id_ in ids
        for at in range(len(dataset.describe("train", id_).spans.get("vision", ())))
    ]
    assert sorted(asked) == sorted(images)
