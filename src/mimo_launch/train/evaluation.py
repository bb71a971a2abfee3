"""Evaluates held-out loss and accuracy of answers, on any layout.

Decides: the meaning of that accuracy. For each held-out sample with an answer, the model continues
the text before the answer, one greedy token at a time. A token of the answer counts as right if the
model generates it at that place before it ends; the accuracy is over all answers.
Relies on: the data set for answers and the token that ends them; the forward program, then repeated
language forwards on the rows that it left.
Leaves: when to evaluate to `loop`.
"""

import math

import torch
import torch.distributed as dist

from mimo_launch.comm.async_copies import to_device
from mimo_launch.data.dataset import Dataset
from mimo_launch.data.sample_order import heldout_batches
from mimo_launch.kinds.registry import kind_of
from mimo_launch.runtime.stage_inputs import StepState
from mimo_launch.train.events import EvalFinished
from mimo_launch.train.generation import DRAWING_STEPS, draw, greedy_answers
from mimo_launch.train.loader import ReadStep
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession


def evaluate(session: RankSession, reader: StepReader, samples: int, step: int) -> EvalFinished:
    """Return held-out loss and accuracy of answers after `step` steps, equal on all ranks.

    `samples` is rounded up to whole global batches; those that cannot be read are left out. Ranks:
    collective over the world. Raises, on all ranks: TooManyBadSamples.
    """
    program = session.mine.evaluation
    batch = session.spec.batch.global_
    names = [module.name for module in session.layout.losses]
    # Right tokens of answers, tokens of answers; images that were recognised, and all that were
    # judged; right codes; then the sum of each loss over its terms.
    sums = torch.zeros(5 + len(names), dtype=torch.float64, device=session.device)
    terms, seen = dict.fromkeys(names, 0), 0
    kinds = {name: kind_of(session.spec.modules[name].model) for name in names}
    for ids in heldout_batches(samples, batch, reader.dataset.num_samples("heldout")):
        inputs = reader.read("heldout", ids, step - 1)  # Which counts steps from 0.
        result = session.executor.run_forward(program, inputs)
        right = total = 0
        if (end := reader.dataset.answer_end) is not None:
            for each in greedy_answers(session, result, inputs, end):
                right += sum(a == b for a, b in zip(each.said, each.wanted, strict=False))
                total += len(each.wanted)
        counts = [right, total, *_recognised(session, reader.dataset, result, inputs)]
        counts.append(sum(int(right) for right in result.right_codes.values()))
        answers = to_device(torch.tensor(counts, dtype=sums.dtype), session.device)
        batch_terms = {name: inputs.data.num_terms(name) for name in names}
        own = torch.cat([answers, *((result.losses[n] * batch_terms[n])[None] for n in names)])
        # Reduce after each batch: ranks without language wait here while the others decode, and a
        # whole evaluation may take longer than the timeout of a collective.
        dist.all_reduce(own)
        sums += own
        session.progress.beat()
        terms = {name: terms[name] + batch_terms[name] for name in names}
        seen += len(ids) - len(inputs.left_out)
    all_right, all_tokens, recognised, judged, right_codes, *summed = sums.tolist()
    losses = {n: total / terms[n] for n, total in zip(names, summed, strict=True) if terms[n]}
    codes = sum(terms[n] * said.codebooks for n, kind in kinds.items() if (said := kind.codes))
    weighted = [session.layout[name].loss_weight * loss for name, loss in losses.items()]
    return EvalFinished(
        step=step,
        eval_loss=sum(weighted) if weighted else math.nan,
        eval_losses=losses if len(names) > 1 else None,
        drawn_recognised=recognised / judged if judged else None,
        code_accuracy=right_codes / codes if codes else None,
        digit_accuracy=all_right / all_tokens if all_tokens else None,
        samples=seen,
    )


def _recognised(
    session: RankSession, dataset: Dataset, forwarded: StepState, inputs: ReadStep
) -> tuple[int, int]:
    """Return how many images that generators make of a batch are recognised, and how many judged.

    Those of this rank's replicas, counted on one rank of each; what nobody judges is not made.
    """
    if not dataset.judges:
        return 0, 0
    found = [
        dataset.recognised("heldout", made.record, made.images)
        for made in draw(session, forwarded, inputs.data, DRAWING_STEPS)
    ]
    return sum(right for right, _ in found), sum(judged for _, judged in found)
