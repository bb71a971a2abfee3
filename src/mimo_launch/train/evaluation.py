"""Held-out loss and digit accuracy, on any layout.

Decides: what digit accuracy means. For each held-out sample with an image the model gets everything
up to the question and then its own answers, one greedy token at a time. A digit counts as right if
the answer has that digit at that place before it ends; the accuracy is over all digits of images.
Relies on: the forward program, then repeated language forwards on the rows it left.
Leaves: when to evaluate to `loop`.
"""

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from mimo_launch.comm.to_device import to_device
from mimo_launch.data.sample_order import heldout_batches
from mimo_launch.kinds.vocabulary import EOS, IGNORE_LABEL, PAD
from mimo_launch.layout.sample_readers import is_scorer
from mimo_launch.runtime.compute import StepState
from mimo_launch.runtime.model_inputs import read_text
from mimo_launch.train.events import EvalFinished
from mimo_launch.train.loader import ReadInputs
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.session import RankSession


def evaluate(session: RankSession, reader: StepReader, samples: int, step: int) -> EvalFinished:
    """Return held-out loss and digit accuracy after `step` steps, equal on all ranks.

    `samples` is rounded up to whole global batches; those that cannot be read are left out. Ranks:
    collective over the world. Raises, on all ranks alike: TooManyBadSamples.
    """
    program = session.mine.evaluation
    batch = session.spec.batch.global_
    # Summed token losses, right digits, digits.
    sums = torch.zeros(3, dtype=torch.float64, device=session.device)
    labels = seen = 0
    for ids in heldout_batches(samples, batch, reader.dataset.num_samples("heldout")):
        inputs = reader.read("heldout", ids, step - 1)
        result = session.executor.run_forward(program, inputs)
        digits = [0, 0]
        if session.spec.data.kind == "digits":
            found = list(_decode(session, result, inputs))
            digits = [sum(column) for column in zip((0, 0), *found, strict=True)]
        own = to_device(torch.tensor([0, *digits], dtype=sums.dtype), session.device)
        own[0] += result.loss * inputs.data.num_labels
        # Once a batch: ranks without language wait here while the others decode, and a whole
        # evaluation may take longer than a collective may.
        dist.all_reduce(own)
        sums += own
        session.where.beat()
        labels += inputs.data.num_labels
        seen += len(ids) - len(inputs.left_out)
    loss, right, total = sums.tolist()
    return EvalFinished(
        step=step,
        eval_loss=loss / labels if labels else math.nan,
        digit_accuracy=right / total if total else None,
        samples=seen,
    )


def _decode(session: RankSession, step: StepState, inputs: ReadInputs) -> Iterator[tuple[int, int]]:
    """Yield (right digits, digits) of each sample of this rank's language replica.

    Only the first rank of a replica yields, so that a sum over the world counts each sample once.
    """
    language = session.layout.language
    if session.rank not in language.grid:
        # FSDP gathers and tp collectives run inside the language ranks only.
        return
    program = session.mine.evaluation
    replica = language.grid.index("dp", session.rank)
    starts: dict[int, Tensor] = {}
    tokens: dict[int, Tensor] = {}
    for microbatch in range(session.layout.samples.microbatches):
        text = read_text(session.layout, inputs, replica, microbatch, session.device)
        starts[microbatch] = (text.labels != IGNORE_LABEL).int().argmax(dim=1)
        places = torch.arange(text.tokens.shape[1], device=session.device)
        known = places <= starts[microbatch][:, None]
        tokens[microbatch] = text.tokens.where(known, PAD)
    # The same number of passes on every replica: sharded weights are gathered over all of them.
    longest = max(sample.num_labels for sample in inputs.data.samples)
    for position in range(longest):
        for microbatch, choices in session.executor.choose(program, step, tokens).items():
            at = (starts[microbatch] + position)[:, None]
            tokens[microbatch].scatter_(1, at + 1, choices.gather(1, at))
    if not is_scorer(language, session.rank):
        return
    for microbatch, start in starts.items():
        rows, starting = tokens[microbatch].tolist(), start.tolist()
        for item, sample in enumerate(session.layout.samples.language(replica, microbatch)):
            if session.layout.encoders and not inputs.data.samples[sample].spans:
                continue
            first = starting[item] + 1
            yield _score(rows[item][first : first + longest], inputs.answer(sample))


def _score(given: list[int], answer: tuple[int, ...]) -> tuple[int, int]:
    said = given[: given.index(EOS)] if EOS in given else given
    return sum(a == b for a, b in zip(said, answer, strict=False)), len(answer)
