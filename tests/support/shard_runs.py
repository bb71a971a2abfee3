"""Drives the real reader of training over shards, and says which records each rank was given."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.running_ranks import run_on_running_ranks
from tests.support.shards import shard_data, tokenizer_folder
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import BadSamples
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession

SIZES = {"hidden": 16, "heads": 2, "mlp": 32}
VIT = {"kind": "vit", "layers": 1, **SIZES, "patch": 2, "shuffle": 2, "channels": 3}
DECODER = {"layers": 2, **SIZES, "kv_heads": 2, "head_dim": 8, "vocab": 400}
GLOBAL = 12


@dataclass(frozen=True, slots=True)
class Given:
    """What one rank was given: keys of records, and in what it was told were bad."""

    texts: Counter[str]
    images: Counter[str]
    bad: dict[str, str]


def shard_spec(
    folder: Path,
    dp: int,
    *,
    placed: str = "disjoint",
    modules: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    **sections: Any,
) -> Spec:
    """Vision dp n before language dp n, or on the same ranks, over the shards of a folder.

    Or `modules`, whose models are filled in.
    """
    tokenizer = folder / "tokenizer"
    if not tokenizer.exists():
        tokenizer_folder(tokenizer)
    first = dp if placed == "disjoint" else 0
    boxes = modules or {"vision": box(0, dp=dp), "language": box(first, dp=dp)}
    return spec(
        {
            "vision": {**boxes["vision"], "model": VIT},
            "language": {**boxes["language"], "model": DECODER},
        },
        mbs=GLOBAL // dp,
        data=shard_data(folder, tokenizer, max_rows=24, **(data or {})),
        seq=192,
        **{"train": {"steps": 1, "precision": "fp32"}, **sections},
    )


def read_steps(made: Spec, first: int, last: int) -> Given:
    """Read the steps that take the places `first` to `last` of the order, as training does."""
    dataset: Any = build_dataset(made)
    order = global_order(made, dataset)
    events: list[Any] = []
    texts: Counter[str] = Counter()
    images: Counter[str] = Counter()
    with (
        RankSession(Plan.of(made)) as session,
        StepReader(session, dataset, RunState(), events.append) as reader,
    ):
        step = 0
        while first < last:
            inputs = reader.read("train", order.take(first), step)
            following = order.after(first)
            if following < last:
                reader.read_ahead(order.take(following), step + 1)
            # The last step of an epoch takes the first samples of the next one as well.
            here = range(min(GLOBAL, last - first))
            for number in here:
                key = dataset.name("train", inputs.record(number).id)
                texts[key] += number in inputs.texts and number not in inputs.left_out
                pixels = (number, "vision") in inputs.pixels
                images[key] += pixels and number not in inputs.left_out
            first, step = following, step + 1
    bad = {
        dataset.name("train", sample): why
        for event in events
        if isinstance(event, BadSamples)
        for sample, why in event.reasons.items()
    }
    return Given(+texts, +images, bad)


def read_parts(parts: list[tuple[Spec, int, int]]) -> Given:
    """Read parts of the order, each by its own ranks; return what all of them were given."""
    texts: Counter[str] = Counter()
    images: Counter[str] = Counter()
    bad: dict[str, str] = {}
    for made, first, last in parts:
        for given in run_on_running_ranks(
            read_steps, made, first, last, world_size=world_size(made)
        ):
            texts += given.texts
            images += given.images
            bad |= given.bad
    return Given(texts, images, bad)
