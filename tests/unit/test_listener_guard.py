"""A listener that fails is told of once, and stops nothing."""

from mimo_launch.train.events import Event, ListenerFailed, RunFinished
from mimo_launch.train.listeners import Guarded

EVENT = RunFinished(steps=1, seconds=1.0, skipped=0)


class Broken:
    """A listener that fails at its n-th event, or when it is closed."""

    def __init__(self, fails_at: int | None) -> None:
        self.fails_at, self.heard, self.is_closed = fails_at, 0, False

    def __call__(self, event: Event) -> None:
        self.heard += 1
        if self.heard == self.fails_at:
            raise OSError(28, "No space left on device")

    def close(self) -> None:
        self.is_closed = True
        if self.fails_at is None:
            raise RuntimeError("")


def test_a_failure_is_told_once_and_ends_the_listener() -> None:
    told: list[Event] = []
    broken = Broken(fails_at=2)
    guarded = Guarded("Some", broken, told.append)
    for _ in range(4):
        guarded(EVENT)
    guarded.close()
    assert broken.heard == 2
    assert broken.is_closed
    (found,) = told
    assert isinstance(found, ListenerFailed)
    assert found.reason == "[Errno 28] No space left on device"


def test_a_failure_to_close_is_told() -> None:
    told: list[Event] = []
    Guarded("Some", Broken(fails_at=None), told.append).close()
    assert [event.reason for event in told if isinstance(event, ListenerFailed)] == [
        "RuntimeError('')"
    ]


def test_listeners_may_hear_of_their_own_failure() -> None:
    """`tell` hands the report to all listeners, the failed one included."""
    listeners: list[Guarded] = []

    def tell(event: Event) -> None:
        for each in listeners:
            each(event)

    listeners.append(Guarded("Some", Broken(fails_at=1), tell))
    tell(EVENT)
