"""Evaluates held-out loss and accuracy, and generates answers, images and clips for samples.

Decides: that the text before an answer is continued one greedy token at a time; that a token of the
answer counts as right if the model generates it at that position before it ends, and the accuracy
is over all answers; that the first rank of a generator's replica has the replica's output.
Relies on: the data set for answers and the token that ends them; the plan's programs for decoding
and drawing, on rows that an evaluation forward left.
Leaves: when to evaluate to `loop`, judging pictures to the data set.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.data.dataset import Dataset, Media
from mimo_launch.data.order.sample_order import heldout_batches
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD
from mimo_launch.layout.step_data import ImageSpan, StepData
from mimo_launch.layout.step_views import is_scorer
from mimo_launch.models.language_input import read_text
from mimo_launch.runtime.step_state import StepState
from mimo_launch.spec.base import Axis
from mimo_launch.spec.sections import HeldOut
from mimo_launch.spec.spec import Codes, Images, Model
from mimo_launch.train.events import EvalFinished
from mimo_launch.train.loader import ReadStep
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession


class EvaluationStopped(Exception):
    """A signal ended an evaluation before the same batch on all ranks."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


def evaluate(
    session: RankSession,
    reader: StepReader,
    samples: HeldOut,
    step: int,
    eval_set: str | None = None,
    there: Sequence[int] | None = None,
) -> EvalFinished:
    """Return held-out loss and accuracy of answers after `step` steps, equal on all ranks.

    `there` are the ids of the samples of the set `eval_set`; by default all held-out samples. Each
    sample counts once. Padding fills the last global batch; unreadable samples are left out.
    Ranks: collective over the world. Raises, on all ranks: TooManyBadSamples, EvaluationStopped.
    """
    program = session.mine.evaluation
    batch = session.spec.batch.global_
    losses_of = {loss.name: loss for loss in session.layout.losses if loss.is_evaluated}
    names = list(losses_of)
    # Right answer tokens, all answer tokens; recognised images, judged images; right codes; then
    # the sum of each loss over its terms.
    sums = torch.zeros(5 + len(names), dtype=torch.float64, device=session.device)
    terms, seen = dict.fromkeys(names, 0.0), 0
    kinds = {n: kind_of(session.spec.modules[each.module].model) for n, each in losses_of.items()}
    if there is None:
        there = range(reader.dataset.num_samples("heldout"))
    for ids in heldout_batches(samples, batch, there):
        inputs = reader.read("heldout", ids, step - 1)  # The reader counts steps from 0.
        if inputs.stop:
            raise EvaluationStopped(inputs.stop)
        result = session.executor.run_forward(program, inputs)
        answered = _answered(session, reader.dataset, result, inputs)
        counts = [*answered, *_recognised(session, reader.dataset, result, inputs)]
        counts.append(sum(int(right) for right in result.right_codes.values()))
        answers = to_device(torch.tensor(counts, dtype=sums.dtype), session.device)
        batch_terms = {n: inputs.data.num_terms(each.module) for n, each in losses_of.items()}
        own = torch.cat([answers, *((result.losses[n] * batch_terms[n])[None] for n in names)])
        # Reduce after each batch: ranks without language wait here while the others decode, and a
        # whole evaluation may take longer than the timeout of a collective.
        dist.all_reduce(own)
        sums += own
        session.progress.beat()
        terms = {name: terms[name] + batch_terms[name] for name in names}
        seen += inputs.data.num_records - len(inputs.left_out)
    all_right, all_tokens, recognised, judged, right_codes, *summed = sums.tolist()
    losses = {n: total / terms[n] for n, total in zip(names, summed, strict=True) if terms[n]}
    codes = sum(terms[n] * said.codebooks for n, kind in kinds.items() if (said := kind.codes))
    weighted = [losses_of[name].weight * loss for name, loss in losses.items()]
    return EvalFinished(
        step=step,
        eval_set=eval_set,
        eval_loss=sum(weighted) if weighted else math.nan,
        eval_losses=losses if len(names) > 1 else None,
        drawn_recognised=recognised / judged if judged else None,
        code_accuracy=right_codes / codes if codes else None,
        digit_accuracy=all_right / all_tokens if all_tokens else None,
        samples=seen,
    )


def _answered(
    session: RankSession, dataset: Dataset, forwarded: StepState, inputs: ReadStep
) -> tuple[int, int]:
    """Return how many tokens of answers are right, and how many there are, if they are scored."""
    if not dataset.scores:
        return 0, 0
    found = [*greedy_answers(session, forwarded, inputs, dataset.answer_ends)]
    pairs = [(a == b for a, b in zip(x.said, x.wanted, strict=False)) for x in found]
    return sum(map(sum, pairs)), sum(len(x.wanted) for x in found)


def _recognised(
    session: RankSession, dataset: Dataset, forwarded: StepState, inputs: ReadStep
) -> tuple[int, int]:
    """Return how many images generated for a batch are recognised, and how many are judged.

    Counts the images of this rank's replicas, on one rank of each. If the data set judges none, no
    image is generated.
    """
    if not dataset.judges:
        return 0, 0
    found = [
        dataset.count_recognised("heldout", made.record, made.images)
        for made in draw(session, forwarded, inputs.data, DRAWING_STEPS)
    ]
    return sum(right for right, _ in found), sum(judged for _, judged in found)


@dataclass(frozen=True, slots=True)
class Answer:
    """The generated and the true answer to a sample, which is given by its position in the step."""

    sample: int
    said: tuple[int, ...]
    wanted: tuple[int, ...]


def greedy_answers(
    session: RankSession,
    forwarded: StepState,
    inputs: ReadStep,
    ends: frozenset[int],
    most: int | None = None,
) -> Iterator[Answer]:
    """Yield the answer to each sample of this rank's language replica, up to a token of `ends`.

    Answers are as long as the longest one of the step may be, or have `most` tokens.

    Only the first rank of a replica yields, so that a sum over the world counts each sample once.
    Ranks: collective over each language replica, and with sharded weights over all of them.
    """
    language = session.layout.language
    if session.rank not in language.grid:
        # FSDP gathers and tp collectives run on the language ranks only.
        return
    program = session.mine.decoding
    replica = language.grid.index(Axis.DP, session.rank)
    starts: dict[int, Tensor] = {}
    tokens: dict[int, Tensor] = {}
    for microbatch in range(session.layout.samples.microbatches):
        text = read_text(forwarded.views.language(replica, microbatch), inputs, session.device)
        starts[microbatch] = (text.labels != IGNORE_LABEL).int().argmax(dim=1)
        places = torch.arange(text.tokens.shape[1], device=session.device)
        known = places <= starts[microbatch][:, None]
        tokens[microbatch] = text.tokens.where(known, PAD)
    # All replicas make the same number of passes, because sharded weights are gathered over them.
    longest = inputs.data.most_labels
    longest = min(longest, most or longest)
    for position in range(longest):
        for microbatch, choices in session.executor.choose(program, forwarded, tokens).items():
            written, at = tokens[microbatch], (starts[microbatch] + position)[:, None]
            # A short answer may start too close to the end of the sequence for all passes.
            last = written.shape[1] - 1
            goes_on, to = at < last, (at + 1).clamp(max=last)
            chosen = choices.gather(1, at.clamp(max=last))
            written.scatter_(1, to, chosen.where(goes_on, written.gather(1, to)))
    if not is_scorer(language, session.rank):
        return
    for microbatch, start in starts.items():
        rows, starting = tokens[microbatch].tolist(), start.tolist()
        for item, sample in enumerate(session.layout.samples.language(replica, microbatch)):
            answer, first = inputs.answer(sample), starting[item] + 1
            said = rows[item][first : first + longest]
            yield Answer(sample, tuple(takewhile(lambda each: each not in ends, said)), answer)


# With a straight flow, more steps hardly change the pictures.
DRAWING_STEPS = 20


@dataclass(frozen=True, slots=True)
class Drawn:
    """The output of a generator for one record, in the form of the arrays that it learns from."""

    generator: str
    record: int
    images: tuple[Media, ...]


def draw(
    session: RankSession, forwarded: StepState, data: StepData, num_steps: int
) -> Iterator[Drawn]:
    """Yield the output of generators for the step in `forwarded`, record by record.

    Flows take `num_steps` steps. A talker takes the most probable codes, for as many frames as the
    true clip has or up to the end code. Ranks: collective over each replica of a generator; only
    its first rank yields.
    """
    if not session.mine.drawing:
        return  # There is no generator, or none on this rank.
    made = session.executor.draw(session.mine.drawing, forwarded, num_steps)
    for (name, group), canvas in made.items():
        grid, whole = session.layout[name].grid, canvas.whole()
        if any(grid.index(axis, session.rank) for axis in (Axis.TP, Axis.CP, Axis.PP)):
            continue
        model, first = session.spec.modules[name].model, 0
        replica = grid.index(Axis.DP, session.rank)
        for sample in forwarded.views.encoder(name, replica, group).samples:
            for record in data.samples[sample].records:
                images = []
                for span in record.spans.get(name, ()):
                    images.append(_array(whole[first : first + span.rows], span, model))
                    first += span.rows
                if images:
                    yield Drawn(name, record.id, tuple(images))


def _array(part: Tensor, span: ImageSpan, model: Model) -> Media:
    """Return one image or clip from the output of a generator. Raises: TypeError."""
    kind = kind_of(model)
    if kind.images is not None:
        return picture(part, span.height, span.width, kind.images)
    if kind.codes is not None:
        return clip(part, kind.codes)
    raise TypeError(f"a model of kind {model.kind} makes neither images nor codes")


def picture(patches_NP: Tensor, height: int, width: int, images: Images) -> npt.NDArray[np.float32]:
    """Return the picture [channels, height, width] from its patches, the inverse of `cut_image`."""
    side, channels = images.patch, images.channels
    squares = patches_NP.view(height, width, channels, side, side)
    made = squares.permute(2, 0, 3, 1, 4).reshape(channels, height * side, width * side)
    found: npt.NDArray[np.float32] = made.to(torch.float32).numpy()
    return found


def clip(said_NK: Tensor, codes: Codes) -> npt.NDArray[np.int64]:
    """Return the clip [codebooks, frames] before the first end code, without the last row."""
    found: npt.NDArray[np.int64] = said_NK[:-1].T.numpy()
    ends = (found[: codes.ending_books] == codes.end_code).any(axis=0)
    return found[:, : int(ends.argmax())] if ends.any() else found
