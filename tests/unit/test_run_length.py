"""Epochs become steps: those that take each sample so often, packed or not, known or looked at."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.shards import shard_data, tokenizer_folder, write_shards
from tests.support.specs import box, spec

from mimo_launch.checks.epochs import counted
from mimo_launch.checks.load_and_check import check_text
from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.readiness import ready_shards
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order, records_of
from mimo_launch.data.run_length import Begun, with_steps
from mimo_launch.spec.load import dump_spec, dump_written, spec_from_data
from mimo_launch.spec.spec import Spec

DIGITS = {"kind": "digits", "samples": 100}


def asked(train: dict[str, Any], **data: Any) -> Spec:
    language = box(0, model={"vocab": 64})
    return spec({"language": language}, mbs=16, seq=48, data={**DIGITS, **data}, train=train)


@pytest.mark.parametrize(
    ("epochs", "steps"), [(1, 7), (2, 13), (1.5, 10), (0.01, 1), (0.1, 1), (3.2, 20), (0.321, 3)]
)
def test_the_last_step_takes_the_last_sample(epochs: float, steps: int) -> None:
    """A part of a sample counts as a whole one."""
    assert with_steps(asked({"epochs": epochs})).train.steps == steps


def taken(made: Spec, steps: int) -> list[int]:
    """Return how often each sample has been taken after some steps."""
    dataset = build_dataset(made)
    order, place, times = global_order(made, dataset), 0, [0] * dataset.num_samples("train")
    for _ in range(steps):
        for sample in order.take(place):
            for record in records_of(sample):
                times[record] += 1
        place = order.after(place)
    return times


@pytest.mark.parametrize("epochs", [1, 2])
def test_packs_are_counted_as_a_run_takes_them(epochs: int) -> None:
    """Of more than one chunk: every sample so often, and one step before some are missing."""
    made = with_steps(asked({"epochs": epochs, "seed": 4}, packing=True, samples=5000))
    assert made.train.steps < epochs * 5000 // 16
    assert min(taken(made, made.train.steps)) == epochs
    assert min(taken(made, made.train.steps - 1)) < epochs


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize(("before", "after"), [(16, 4), (4, 16), (16, 16)])
def test_a_run_that_goes_on_with_another_batch_takes_what_is_left(
    packing: bool, before: int, after: int
) -> None:
    """Its last step takes the last sample of two epochs, and no step is too many."""
    made = asked({"epochs": 2}, packing=packing, samples=500)
    first, second = (
        made.replace(batch=made.batch.model_copy(update={"global_": each}))
        for each in (before, after)
    )
    dataset = build_dataset(made)
    order, begun = global_order(first, dataset), Begun()
    for step in range(1, 9):
        begun = Begun(step, order.after(begun.place))
    steps = with_steps(second, begun).train.steps
    order, places = global_order(second, dataset), [begun.place]
    for _ in range(steps - begun.steps):
        places.append(order.after(places[-1]))
    assert places[-2] < 2 * 500 <= places[-1]
    assert (steps == with_steps(second).train.steps) == (before == after)
    assert with_steps(second, Begun(8, 1000)).train.steps == 8


def test_half_an_epoch_of_packs_is_half_of_the_samples() -> None:
    made = with_steps(asked({"epochs": 0.5}, packing=True, samples=5000))
    assert sum(taken(made, made.train.steps)) == pytest.approx(2500, abs=16 * 5)


def test_steps_that_are_written_end_the_run_if_they_are_fewer() -> None:
    assert with_steps(asked({"epochs": 2, "steps": 5})).train.steps == 5
    made = with_steps(asked({"epochs": 2, "steps": 500}))
    assert made.train.steps == 13
    # A spec that a run has written down means the same when it is read again.
    assert with_steps(spec_from_data(dump_spec(made))).train.steps == 13


@pytest.mark.parametrize(("written", "steps"), [({}, 25), ({"steps": 20}, 20)])
def test_the_file_of_a_run_has_the_steps_that_were_written(
    written: dict[str, int], steps: int
) -> None:
    """More epochs of a file that a run has written take more steps."""
    made = with_steps(with_steps(asked({"epochs": 2, **written})))
    assert made.train.steps == 13
    data = dump_written(made)
    assert data["train"].get("steps") == written.get("steps")
    again = spec_from_data({**data, "train": {**data["train"], "epochs": 4}})
    assert with_steps(again).train.steps == steps
    more = made.replace(train=made.train.replace(epochs=4))
    assert with_steps(more).train.steps == steps


def test_warmup_and_decay_are_judged_by_the_steps_of_the_epochs() -> None:
    schedule = {"kind": "wsd", "warmup": 8, "decay": 6}
    data = dump_spec(asked({})) | {"optimizer": {"schedule": schedule}, "train": {"epochs": 2}}
    text = json.dumps(data)
    assert [each.code for each in check_text(text).diagnostics] == ["wsd-longer-than-run"]
    assert check_text(text, overrides=["train.epochs=3"]).diagnostics == ()


def test_an_index_counts_what_a_look_estimates(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=60, bad=6, shards=2)
    data = shard_data(tmp_path, tokenizer_folder(tmp_path / "tokenizer"), too_long="drop")
    language = box(0, model={"vocab": 400})
    made = spec({"language": language}, mbs=4, seq=128, data=data, train={"epochs": 3})
    looked = with_steps(made).train.steps
    ready_shards(made, Console(), speaks=False)
    number = build_dataset(made).num_samples("train")
    assert with_steps(made).train.steps == -(-3 * number // 4)
    assert looked == pytest.approx(3 * number / 4, rel=0.2)


def test_epochs_of_files_that_are_not_here_go_by_what_is_expected(tmp_path: Path) -> None:
    tokenizer_folder(tmp_path / "tokenizer")
    data = shard_data(tmp_path / "none", tmp_path / "tokenizer")
    language = box(0, model={"vocab": 400})
    asked = {"mbs": 4, "seq": 128, "train": {"epochs": 3}}
    made = spec({"language": language}, data=data, **asked)
    same, [told] = counted(made)
    assert (same.train.steps, told.code, told.is_error) == (100, "epochs-not-counted", False)
    # Steps beside them are at most as many as the run has.
    known = asked | {"train": {"epochs": 3, "steps": 50}}
    same, told = counted(spec({"language": language}, data=data, **known))
    assert (same.train.steps, told) == (50, ())
    data["expect"] = {"samples": 3_000_000, "text": 50}
    assert with_steps(spec({"language": language}, data=data, **asked)).train.steps == 2_250_000
    # Two in each sequence; a part of so many packs is counted.
    data |= {"packing": True, "expect": {"samples": 200_000, "text": 50}}
    packed = with_steps(spec({"language": language}, data=data, **asked | {"train": {"epochs": 1}}))
    assert packed.train.steps == pytest.approx(200_000 / 2 / 4, rel=1e-3)
