"""Everything that `mimo-launch data` reports of a spec's data.

Decides: the contents of the report.
Relies on: `facts`, `reading_speed` and `shown_samples`; the index of shards for bad records.
Leaves: drawing to `cli`.
"""

from dataclasses import dataclass
from itertools import islice

from mimo_launch.data.dataset import Dataset
from mimo_launch.layout.layout import build_layout
from mimo_launch.spec.spec import Spec, WebdatasetData
from mimo_launch.survey.facts import Facts, find_facts, first_steps
from mimo_launch.survey.reading_speed import Read, read_steps
from mimo_launch.survey.shown_samples import Shown, show_samples

MOST_BAD = 5


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The records that are left out: those that are `bad`, and those `too_long` for a sequence.

    `first_bad` has some bad ones by name with the reason; all of them are in `file`.
    """

    bad: int
    first_bad: dict[str, str]
    file: str
    too_long: int
    are_cut: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """The whole report; `left_out` is None for generated data."""

    name: str
    kind: str
    seq: int
    global_batch: int
    facts: Facts
    left_out: LeftOut | None
    read: Read
    shown: list[Shown]


def survey(spec: Spec, dataset: Dataset, *, records: int, steps: int, show: int) -> Survey:
    """Survey at most `records` records in the index, read `steps` steps, show `show` samples."""
    layout = build_layout(spec)
    # After the first epoch there is nothing new; its last step reaches into the next one.
    first = first_steps(spec, dataset, show, 2 * dataset.num_samples("train"))
    return Survey(
        name=spec.name,
        kind=spec.data.kind,
        seq=spec.batch.seq,
        global_batch=spec.batch.global_,
        facts=find_facts(spec, layout, dataset, records),
        left_out=_left_out(spec, dataset),
        read=read_steps(spec, layout, dataset, steps),
        shown=show_samples(spec, dataset, (s for _, _, data in first for s in data.samples), show),
    )


def _left_out(spec: Spec, dataset: Dataset) -> LeftOut | None:
    if not isinstance(spec.data, WebdatasetData):
        return None
    from mimo_launch.data.webdataset.index_columns import BAD
    from mimo_launch.data.webdataset.samples import ShardSamples

    if not isinstance(dataset, ShardSamples):
        raise TypeError(f"shards are no {type(dataset).__name__}")
    split = dataset.splits["train"]
    first = islice(split.index.bad(), MOST_BAD)
    return LeftOut(
        bad=split.index.num_bad,
        first_bad={f"{each['shard']} {each['key']}": each["why"] for each in first},
        file=str(split.index.folder / BAD),
        too_long=split.num_too_long,
        are_cut=spec.data.too_long == "truncate",
    )
