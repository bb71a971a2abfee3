"""Greedy answers of a language model to the samples of a step, on any layout.

Decides: that the text before an answer is continued one greedy token at a time.
Relies on: the decoding program of the plan, on the rows that an evaluation forward left.
Leaves: scoring answers to `evaluation`, writing them to `samples`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD
from mimo_launch.layout.sample_readers import is_scorer
from mimo_launch.runtime.model_inputs import read_text
from mimo_launch.runtime.stage_inputs import StepState
from mimo_launch.train.loader import ReadStep
from mimo_launch.train.rank_session import RankSession


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer to a sample, given by its position in the step, and the true ones."""

    sample: int
    said: tuple[int, ...]
    wanted: tuple[int, ...]


def greedy_answers(
    session: RankSession, forwarded: StepState, inputs: ReadStep, end: int
) -> Iterator[Answer]:
    """Yield the answer to each sample of this rank's language replica, up to the token `end`.

    Only the first rank of a replica yields, so that a sum over the world counts each sample once.
    Ranks: collective over each language replica, and with sharded weights over all of them.
    """
    language = session.layout.language
    if session.rank not in language.grid:
        # FSDP gathers and tp collectives run on the language ranks only.
        return
    program = session.mine.decoding
    replica = language.grid.index("dp", session.rank)
    starts: dict[int, Tensor] = {}
    tokens: dict[int, Tensor] = {}
    for microbatch in range(session.layout.samples.microbatches):
        text = read_text(forwarded.views.language(replica, microbatch), inputs, session.device)
        starts[microbatch] = (text.labels != IGNORE_LABEL).int().argmax(dim=1)
        places = torch.arange(text.tokens.shape[1], device=session.device)
        known = places <= starts[microbatch][:, None]
        tokens[microbatch] = text.tokens.where(known, PAD)
    # The same number of passes on every replica: sharded weights are gathered over all of them.
    longest = max(sample.num_labels for sample in inputs.data.samples)
    for position in range(longest):
        for microbatch, choices in session.executor.choose(program, forwarded, tokens).items():
            written, at = tokens[microbatch], (starts[microbatch] + position)[:, None]
            # A short answer may start too near the end of the sequence for all passes.
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
            if end in said:
                said = said[: said.index(end)]
            yield Answer(sample, tuple(said), answer)
