"""Writes a model's output for held-out samples to a folder: answers, pictures and codes.

Decides: the names and formats of the files: a PNG for each picture, a `.npy` for the codes of each
clip, a line of `samples.jsonl` for each sample, a sheet with all pictures of a generator.
Relies on: `evaluation`; the data set for words and displayable pixels.
Leaves: starting ranks and loading weights to `launcher.rank_tasks`.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_launch.comm.objects import gather_objects
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Dataset
from mimo_launch.data.order.sample_order import heldout_batches
from mimo_launch.runtime.progress import Phase, RunState
from mimo_launch.train.evaluation import Answer, Drawn, draw, greedy_answers
from mimo_launch.train.events import Listener, SamplesWritten
from mimo_launch.train.loader import ReadStep
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession

Picture = npt.NDArray[np.uint8]
LINES = "samples.jsonl"


def write_samples(
    session: RankSession,
    folder: Path,
    *,
    samples: int,
    steps: int,
    tokens: int,
    emit: Listener,
    stop: Callable[[], int] | None = None,
) -> int:
    """Write the answers to `samples` held-out samples, and the pictures made for them.

    Flows take `steps` steps from noise to picture; answers have at most `tokens` tokens. Rank 0
    writes. After a signal that `stop` returns, only the batches until then are written; return
    that signal, or 0.

    Ranks: collective over the world. Raises: OSError.
    """
    dataset = build_dataset(session.spec)
    lines: list[dict[str, Any]] = []
    sheets: dict[str, list[Picture]] = {}
    ends, ended_by = dataset.answer_ends, 0
    session.progress.enter(Phase.EVALUATING)
    with StepReader(session, dataset, RunState(), emit, answers=bool(ends), stop=stop) as reader:
        batch, total = session.spec.batch.global_, range(dataset.num_samples("heldout"))
        for number, ids in enumerate(heldout_batches(samples, batch, total)):
            inputs = reader.read("heldout", ids, number)
            if ended_by := inputs.stop:
                break
            forwarded = session.executor.run_forward(session.mine.evaluation, inputs)
            answers: list[Answer] = []
            if ends:
                answers = list(greedy_answers(session, forwarded, inputs, ends, tokens))
            drawn = list(draw(session, forwarded, inputs.data, steps))
            found = gather_objects((answers, drawn))
            if session.rank == 0:
                lines += _written(dataset, inputs, found, folder, sheets)
                emit(SamplesWritten(folder=str(folder), samples=len(lines)))
    if session.rank:
        return ended_by
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / LINES).write_text(text, encoding="utf-8")
    names = []
    for generator, pictures in sheets.items():
        names.append(f"{generator}.png")
        _save(sheet_of(pictures), folder / names[-1])
    number, sheets_made = len(lines), tuple(names)
    emit(SamplesWritten(folder=str(folder), samples=number, sheets=sheets_made, is_last=True))
    return ended_by


def _written(
    dataset: Dataset,
    inputs: ReadStep,
    found: Sequence[tuple[list[Answer], list[Drawn]]],
    folder: Path,
    sheets: dict[str, list[Picture]],
) -> Iterator[dict[str, Any]]:
    """Save the pictures of a batch, and yield a line for each sample with an answer or pictures."""
    answers = {each.sample: each for said, _ in found for each in said if each.wanted}
    drawn: dict[int, list[Drawn]] = {}
    for _, made in found:
        for each in made:
            drawn.setdefault(each.record, []).append(each)
    for position, sample in enumerate(inputs.data.samples):
        for record in sample.records:
            line: dict[str, Any] = {"sample": dataset.name("heldout", record.id)}
            if position in answers:
                answer = answers[position]
                line |= {"answer": dataset.words(answer.said), "true": dataset.words(answer.wanted)}
            for each in drawn.get(record.id, []):
                for what, files in _saved(dataset, each, folder, sheets).items():
                    line.setdefault(what, {})[each.generator] = files
                right, judged = dataset.count_recognised("heldout", record.id, each.images)
                if judged:  # By all generators together, as in an evaluation.
                    line["recognised"] = line.get("recognised", 0) + right
                    line["of"] = line.get("of", 0) + judged
            if len(line) > 1:
                yield line


def _saved(
    dataset: Dataset, made: Drawn, folder: Path, sheets: dict[str, list[Picture]]
) -> dict[str, list[str]]:
    """Save the pictures and codes made for a record; return the names of the files."""
    files: dict[str, list[str]] = {}
    for number, image in enumerate(made.images):
        name = f"{made.generator}-{made.record:08}-{number}"
        if (picture := dataset.pixels(made.generator, image)) is not None:
            sheets.setdefault(made.generator, []).append(picture)
            files.setdefault("pictures", []).append(f"{name}.png")
            _save(picture, folder / f"{name}.png")
        if image.dtype == np.int64:
            files.setdefault("codes", []).append(f"{name}.npy")
            np.save(folder / f"{name}.npy", image)
    return files


def sheet_of(pictures: Sequence[Picture]) -> Picture:
    """Return all pictures as one, in rows, with a border of one pixel; all have equal channels."""
    height, width = (max(each.shape[axis] for each in pictures) + 1 for axis in (1, 2))
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    shape = pictures[0].shape[0], rows * height + 1, columns * width + 1
    sheet = np.full(shape, 255, np.uint8)
    for number, each in enumerate(pictures):
        top, left = 1 + number // columns * height, 1 + number % columns * width
        sheet[:, top : top + each.shape[1], left : left + each.shape[2]] = each
    return sheet


def _save(picture: Picture, path: Path) -> None:
    from PIL import Image  # An optional package; the command checks for it.

    grey = picture[0] if picture.shape[0] == 1 else picture[:3].transpose(1, 2, 0)
    Image.fromarray(grey).save(path)
