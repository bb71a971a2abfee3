"""Losses by source: each is the loss of a step that has only the records of this source."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_ranks import run_on_running_ranks
from tests.support.shard_runs import DECODER, read_parts
from tests.support.shards import tokenizer_folder
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.record_order import Sample
from mimo_launch.data.order.sample_order import global_order, records_of
from mimo_launch.data.step_of_records import StepOfRecords
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession

NAMES = ("long", "short", "rare")


def sources_spec(folder: Path, language: dict[str, Any], *, packing: bool) -> Spec:
    """Texts of three sources, which differ in length, mixed by weights."""
    if not (folder / "tokenizer").exists():
        tokenizer_folder(folder / "tokenizer")
        for name, words in zip(NAMES, (20, 3, 9), strict=True):
            said = ({"role": "user", "content": f"{name} {n}?"} for n in range(30))
            answers = (f"{'a dog ' * (words + n % 4)}{n}" for n in range(30))
            lines = [
                json.dumps({"messages": [asked, {"role": "assistant", "content": answer}]})
                for asked, answer in zip(said, answers, strict=True)
            ]
            (folder / f"{name}.jsonl").write_text("\n".join(lines))
    given = [
        {"path": str(folder / f"{name}.jsonl"), "weight": weight}
        for name, weight in zip(NAMES, (4, 5, 1), strict=True)
    ]
    data = {"kind": "files", "sources": given, "tokenizer": str(folder / "tokenizer")}
    made = {**box(0, **language), "model": DECODER}
    return spec(
        {"language": made},
        data={**data, "template": "chat", "packing": packing},
        seq=128,
        mbs=12 // (language.get("dp", 1) * 2),
        microbatches=2,
        train={"steps": 1, "precision": "fp64"},
    )


def losses(made: Spec, plant: bool) -> tuple[dict[str, float], dict[str, float], float, float]:
    """Return the losses by source, the loss of each source alone, the whole, and by its parts."""
    if plant:  # Each loss is divided by all labels.
        right = StepOfRecords.labels_by_source.func  # type: ignore[attr-defined]
        wrong = lambda data: dict.fromkeys(right(data), data.num_labels)  # noqa: E731
        StepOfRecords.labels_by_source = property(wrong)  # type: ignore[assignment]
    dataset: Any = build_dataset(made)
    ids = global_order(made, dataset).take(0)
    with (
        RankSession(Plan.of(made), randomise=True) as session,
        StepReader(session, dataset, RunState(), lambda event: None) as reader,
    ):

        def loss_of(samples: tuple[Sample, ...]) -> Any:
            inputs = reader.read("train", samples, 0)
            return session.gradients(inputs).read(), inputs.data

        whole, data = loss_of(ids)
        alone = {}
        for name in whole.sources:
            source = next(each for each in dataset.sources() if each.name == name)
            mine = range(source.first, source.first + source.number)
            kept = [tuple(r for r in records_of(sample) if r in mine) for sample in ids]
            alone[name] = loss_of(tuple(kept))[0].loss
    labels = data.labels_by_source
    parts = sum(whole.sources[name] * labels[name] for name in whole.sources)
    return whole.sources, alone, whole.loss, parts / data.num_labels


LAYOUTS = {
    "one": {},
    "dp 2, packed": {"dp": 2},
    "tp 2, packed": {"tp": 2},
    "cp 2": {"cp": 2},
    "pp 2, packed": {"pp": 2},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_source_has_the_loss_of_its_records_on_any_layout(name: str, tmp_path: Path) -> None:
    made = sources_spec(tmp_path, LAYOUTS[name], packing="packed" in name)
    for found, alone, loss, parts in run_on_running_ranks(
        losses, made, False, world_size=world_size(made)
    ):
        assert len(found) >= 2
        assert found == pytest.approx(alone, rel=1e-12)
        assert loss == pytest.approx(parts, rel=1e-12)


def test_a_wrong_count_of_labels_of_a_source_is_found(tmp_path: Path) -> None:
    made = sources_spec(tmp_path, {}, packing=True)
    # Ranks of its own: the bug stays in them.
    [(found, alone, *_)] = run_ranks(losses, made, True, world_size=1)
    assert all(each < 0.95 * alone[name] for name, each in found.items())


def test_a_mixture_goes_on_with_the_samples_that_are_left_on_other_layouts(tmp_path: Path) -> None:
    """Three runs, each from the place where the one before ended; weights change in between."""
    layouts = [sources_spec(tmp_path, {"dp": dp}, packing=False) for dp in (2, 3, 1)]
    change = [{"step": 80, "weights": {"rare": 9}}]
    changed = [
        made.replace(
            data=type(made.data).model_validate(
                {**made.data.model_dump(mode="json"), "weight_changes": change}
            )
        )
        for made in layouts
    ]
    ends = [0, 36, 1020, 1080]
    given = read_parts([*zip(changed, ends, ends[1:], strict=False)])
    dataset = build_dataset(changed[0])
    order = global_order(changed[0], dataset)
    names = [dataset.name("train", i) for place in range(0, 1080, 12) for i in order.take(place)]
    assert given.texts == Counter(names)
    assert sum(name.startswith("rare") for name in names[:1000]) == 100
    assert sum(name.startswith("rare") for name in names[1000:]) > 25
