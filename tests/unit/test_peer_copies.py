"""Which memory of which GPU is read for what, with memory of this process in place of GPUs'."""

from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mimo_launch.comm.peer_copies import PeerCopies, _Space  # noqa: E402

ROWS, WIDTH = 3, 2
BYTES = 8  # Of a number.


class Instant:
    """A stream or an event where each copy ends before the next one begins."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Memory:
    """Memory of all ranks, which each of them reads."""

    def __init__(self, size: int, ranks: int) -> None:
        self.by_rank = [torch.zeros(size, dtype=torch.uint8) for _ in range(ranks)]

    def get_buffer(self, rank: int, shape: Any, dtype: Any, first: int) -> Any:
        """Return a tensor in the memory of a rank."""
        flat = self.by_rank[rank].view(dtype)
        return flat[first : first + shape.numel()].view(shape)

    def barrier(self, _channel: int) -> None:
        """Ranks come one after another."""


@pytest.fixture(params=[2, 3, 4, 5])
def ranks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[PeerCopies]:
    """Return the copies of each rank of a group."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda priority: Instant())
    monkeypatch.setattr(torch.cuda, "Event", Instant)
    monkeypatch.setattr(torch.cuda, "current_stream", Instant)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    size, own = request.param, ROWS * WIDTH * BYTES
    memory = [(Memory(each, size), each) for each in (own, (size - 1) * own)]
    made = []
    for rank in range(size):
        spaces = [_Space(handle, each, Instant()) for handle, each in memory]
        made.append(PeerCopies(*spaces, rank, size))
    return made


def sent(source: int, target: int) -> Any:
    """Return what one rank has for another."""
    return (
        100 * source + 10 * target + torch.arange(ROWS * WIDTH, dtype=torch.float64).view(ROWS, -1)
    )


def test_a_rank_gathers_the_tokens_of_all_in_the_order_of_ranks(ranks: list[PeerCopies]) -> None:
    whole = torch.cat([sent(rank, 0) for rank in range(len(ranks))])
    for copies, own in zip(ranks, whole.chunk(len(ranks)), strict=True):
        copies.gather(own)
    # Now the memory of all holds their tokens.
    for copies, own in zip(ranks, whole.chunk(len(ranks)), strict=True):
        found, _ = copies.gather(own)
        assert found.equal(whole)


def test_a_rank_reads_the_part_that_each_other_one_wrote_for_it(ranks: list[PeerCopies]) -> None:
    places = range(len(ranks))
    shape = torch.Size(((len(ranks) - 1) * ROWS, WIDTH))
    rooms = [copies.room(shape, torch.float64) for copies in ranks]
    for source, room in enumerate(rooms):
        room.copy_(torch.cat([sent(source, target) for target in places if target != source]))
    for target, (copies, room) in enumerate(zip(ranks, rooms, strict=True)):
        found, _ = copies.exchange(room)
        assert found.equal(
            torch.cat([sent(source, target) for source in places if source != target])
        )


def test_what_does_not_fit_is_left_to_collectives(ranks: list[PeerCopies]) -> None:
    own = ROWS * WIDTH * BYTES
    for copies in ranks:
        assert [copies.gathers(each) for each in (0, own, own + 1)] == [False, True, False]
        most = (len(ranks) - 1) * own
        assert [copies.exchanges(each) for each in (0, most, most + 1)] == [False, True, False]
