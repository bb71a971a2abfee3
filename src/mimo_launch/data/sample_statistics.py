"""A file with the sizes of some samples, for plans where the samples themselves are not.

Decides: its form, and how many samples it holds, evenly spaced in a data set. It holds lengths and
places only: neither texts nor images.
Relies on: `index.columns` for the numbers of a span.
Leaves: who writes it to `mimo-launch data`, steps made from it to `expected_steps`.
"""

import json
from dataclasses import fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from mimo_launch.data.dataset import Dataset
from mimo_launch.data.index.columns import LISTS, SpanFields, numbers_of, placed_from
from mimo_launch.data.order.captions import first_epoch
from mimo_launch.data.samples.media_rows import PlacedMedium
from mimo_launch.layout.step_data import ImageSpan, SampleData
from mimo_launch.spec.spec import Spec

# Version 1 lacks the sound of videos, and 2 which images are of the same medium.
VERSION, READ = 3, (1, 2, 3)
_MOST = 4096


class BadStatistics(ValueError):
    """A file holds no statistics for a spec; the message says why."""


def statistics_text(spec: Spec, dataset: Dataset) -> str:
    """Return the sizes of samples of a data set as JSON, a sample in each line."""
    number = dataset.num_samples("train")
    chosen = np.unique(np.linspace(0, number - 1, min(number, _MOST)).round().astype(int))
    chosen = first_epoch(dataset.captions(), spec.train.seed, chosen)
    samples = [dataset.describe("train", index) for index in chosen.tolist()]
    names = list(spec.modules)
    of_module = [[span for each in samples for span in each.spans.get(n, ())] for n in names]
    head = {
        "version": VERSION,
        "samples": number,
        "modules": names,
        "gaps": [max((span.gap for span in spans), default=0) for spans in of_module],
        "holds_text": [any(span.holds_text for span in spans) for spans in of_module],
        "hears": [any(span.parts for span in spans) for spans in of_module],
        "shares_bounds": [any(span.shares_bounds for span in spans) for spans in of_module],
    }
    lines = ",\n".join(json.dumps(_numbers(names, each)) for each in samples)
    return f'{json.dumps(head)[:-1]}, "sizes": [\n{lines}\n]}}\n'


def read_statistics(spec: Spec, path: Path) -> tuple[list[SampleData], int]:
    """Return the samples of a file, and the number of samples that they stand for.

    Samples that are longer than a sequence are left out. Raises: BadStatistics.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("version") not in READ:
            raise BadStatistics(f"{path} was not written by `mimo-launch data --stats`")
        names = found["modules"]
        if {*names} != {*spec.modules}:
            said, have = ", ".join(sorted(names)), ", ".join(sorted(spec.modules))
            raise BadStatistics(f"{path} is for the modules {said}; this spec has {have}")
        samples = [_sample(found, sizes) for sizes in found["sizes"]]
        if len({len(each.labels_ahead) for each in samples}) > 1:
            raise BadStatistics(f"{path} is damaged: samples have labels ahead at unlike depths")
        number = int(found["samples"])
    except OSError as error:
        raise BadStatistics(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, IndexError) as error:
        raise BadStatistics(f"{path} is damaged: {type(error).__name__}: {error}") from error
    fitting = [each for each in samples if each.num_tokens <= spec.batch.seq]
    if not fitting or number < 1:
        raise BadStatistics(f"no sample of {path} has room in `batch.seq` {spec.batch.seq}")
    return fitting, max(1, round(number * len(fitting) / len(samples)))


def _numbers(names: list[str], sample: SampleData) -> list[Any]:
    numbers: list[tuple[int, ...]] = []
    for number, name in enumerate(names):
        spans = sample.spans.get(name, ())
        members = accumulate(not span.joined for span in spans)
        for member, span in zip(members, spans, strict=True):
            numbers += numbers_of(PlacedMedium(number, member, span))
    return [sample.num_tokens, sample.num_labels, sample.labels_ahead, numbers]


def _sample(found: dict[str, Any], sizes: list[Any]) -> SampleData:
    num_tokens, num_labels, ahead, numbers = sizes
    spans: dict[str, tuple[ImageSpan, ...]] = {}
    # What a file of an older version lacks, its samples do not have.
    width, nothing = len(LISTS["span"]), [False] * len(found["modules"])
    numbers = [(*each, *[0] * (width - len(each))) for each in numbers]
    if found["version"] < 3:
        # These do not say which images are of the same medium.
        numbers = [(module, place, *rest) for place, (module, _, *rest) in enumerate(numbers)]
    of_module = (found.get(each.name, nothing) for each in fields(SpanFields))
    for placed in placed_from(numbers, SpanFields(*of_module)):
        name = found["modules"][placed.module]
        spans[name] = (*spans.get(name, ()), placed.span)
    return SampleData(0, num_tokens, num_labels, spans, labels_ahead=tuple(ahead))
