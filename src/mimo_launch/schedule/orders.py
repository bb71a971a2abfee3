"""The kinds of schedule, each as one value.

Decides: for each kind, the order of forwards and backwards on one rank of the language pipeline,
and what else distinguishes it.
Relies on: nothing; these orders depend on numbers only.
Leaves: encoders and generators around the pipeline to `pipeline`, `bubble_filling` and
`graph_order`.

1F1B and interleaved 1F1B: Narayanan et al. 2021 (arXiv:2104.04473, section 2.2). GPipe: all
forwards, then all backwards, both in the order of microbatches; last in, first out would take the
same time.
"""

from collections.abc import Callable
from functools import lru_cache

from mimo_launch.diag.frozen import frozen
from mimo_launch.schedule.actions import Kind
from mimo_launch.spec.sections import ScheduleKind

F, B = Kind.FORWARD, Kind.BACKWARD
# (chunk, kind, position): which of the rank's stages, forward or backward, which microbatch.
Work = tuple[int, Kind, int]
Works = tuple[Work, ...]


@frozen
class PipelineRank:
    """Rank `index` of a pipeline of `depth` ranks; it runs `total` microbatches in each chunk.

    Its chunks are its stages. With several chunks microbatches run in blocks of `depth`: a block
    passes all chunks before the next block starts.
    """

    depth: int
    num_chunks: int
    index: int
    total: int

    def forwards(self) -> Works:
        """Return all forwards in order."""
        return self._passes(F)

    def backwards(self) -> Works:
        """Return all backwards in order: the same blocks, from the last chunk to the first."""
        return self._passes(B)

    def _passes(self, kind: Kind) -> Works:
        if self.num_chunks == 1:
            return tuple((0, kind, each) for each in range(self.total))
        block = self.depth * self.num_chunks
        turns = [divmod(turn, block) for turn in range(self.total * self.num_chunks)]
        places = [(run * self.depth, *divmod(inside, self.depth)) for run, inside in turns]
        last = self.num_chunks - 1
        return tuple(
            (chunk if kind is F else last - chunk, kind, first + each)
            for first, chunk, each in places
        )


@frozen
class Order:
    """A kind of schedule.

    `works` are the forwards and backwards of a rank of the language pipeline, in order. In graphs
    other than stars a list scheduler orders all work, backwards before forwards and with few
    forwards in flight, unless `forwards_first`. Only if the order `interleaves` may a rank hold
    several stages of language. If it `fills_bubbles`, encoders on the ranks of language run in the
    idle slots of its pipeline.
    """

    works: Callable[[PipelineRank], Works]
    forwards_first: bool = False
    interleaves: bool = False
    fills_bubbles: bool = False


def one_forward_one_backward(rank: PipelineRank) -> Works:
    """Run as many forwards as the later ranks can hold, then a forward and a backward in turn."""
    forwards, backwards = rank.forwards(), rank.backwards()
    warmup = rank.depth - 1 - rank.index
    if rank.num_chunks > 1:
        warmup = 2 * warmup + (rank.num_chunks - 1) * rank.depth
    warmup = min(warmup, len(forwards))
    steady = zip(forwards[warmup:], backwards, strict=False)
    drain = backwards[len(forwards) - warmup :]
    return (*forwards[:warmup], *(work for pair in steady for work in pair), *drain)


def all_forwards_first(rank: PipelineRank) -> Works:
    """Run all forwards, then all backwards."""
    return (*rank.forwards(), *rank.backwards())


ORDERS: dict[ScheduleKind, Order] = {
    "1f1b": Order(one_forward_one_backward),
    "gpipe": Order(all_forwards_first, forwards_first=True),
    "interleaved": Order(one_forward_one_backward, interleaves=True),
    "bubble_filling": Order(one_forward_one_backward, fills_bubbles=True),
}


@lru_cache(maxsize=256)
def works_of(kind: ScheduleKind, rank: PipelineRank, *, backward: bool) -> Works:
    """Return the work of a rank in a step, or in an evaluation if not `backward` (cached)."""
    return ORDERS[kind].works(rank) if backward else rank.forwards()
