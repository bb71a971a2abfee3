"""Packs of shard samples: every good record of an epoch once, though some of a pack are bad."""

from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.shard_runs import Given, shard_spec
from tests.support.shards import planted, write_shards

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import BadSamples
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession


def packed_spec(folder: Path, dp: int) -> Spec:
    made = shard_spec(folder, dp, placed="same")
    return made.model_copy(update={"data": made.data.model_copy(update={"packing": True})})


def read_epoch(made: Spec) -> tuple[Given, int]:
    """Read the first epoch as training does; also return the most records of a pack."""
    dataset: Any = build_dataset(made)
    order, total = global_order(made, dataset), dataset.num_samples("train")
    events: list[Any] = []
    texts: Counter[str] = Counter()
    images: Counter[str] = Counter()
    seen = place = step = most = 0
    with (
        RankSession(Plan.of(made)) as session,
        StepReader(session, dataset, RunState(), events.append) as reader,
    ):
        while seen < total:
            inputs = reader.read("train", order.take(place), step)
            data = inputs.data
            numbers = range(data.num_records)
            most = max(most, *(len(sample.records) for sample in data.samples))
            # The last step of an epoch takes the first records of the next one as well.
            for number in numbers[: total - seen]:
                key = dataset.name("train", inputs.record(number).id)
                texts[key] += number in inputs.texts and number not in inputs.left_out
                pixels = (number, "vision") in inputs.pixels
                images[key] += pixels and number not in inputs.left_out
            seen, place, step = seen + len(numbers), order.after(place), step + 1
    bad = {
        dataset.name("train", record): why
        for event in events
        if isinstance(event, BadSamples)
        for record, why in event.reasons.items()
    }
    return Given(+texts, +images, bad), most


def test_an_epoch_of_packs_has_every_good_record_once(tmp_path: Path) -> None:
    """Parallelism: vision and language dp 3 on the same ranks."""
    said = write_shards(tmp_path, samples=100, bad=10, shards=3)
    made = packed_spec(tmp_path, 3)
    ranks = run_ranks(read_epoch, made, world_size=world_size(made))
    texts: Counter[str] = Counter()
    images: Counter[str] = Counter()
    for given, most in ranks:
        texts += given.texts
        images += given.images
        assert most > 2
    assert {name.split()[1] for name in texts} == {f"{n:06d}" for n in range(100)}
    assert set(texts.values()) == {1}
    assert images == texts
    decoding = {key for n, key in enumerate(said) if planted(n)[2]}
    assert {name.split()[1] for name in ranks[0][0].bad} == decoding
