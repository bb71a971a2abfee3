"""Which steps a process measures, whatever was done before."""

import pytest

from mimo_launch.launcher.rank_tasks import ProfiledSteps
from mimo_launch.schedule.actions import parse_action
from mimo_launch.train.profiling import Told, on_one_clock


@pytest.mark.parametrize(
    ("wanted", "done", "total", "measured", "passed"),
    [
        (ProfiledSteps(), 0, 9, range(2, 2), range(0)),
        (ProfiledSteps(2), 0, 9, range(2, 4), range(0)),
        (ProfiledSteps(2), 0, 3, range(1, 3), range(0)),
        (ProfiledSteps(5), 0, 3, range(3), range(0)),
        (ProfiledSteps(2), 40, 60, range(42, 44), range(0)),
        (ProfiledSteps(2), 59, 60, range(59, 60), range(0)),
        (ProfiledSteps(2), 60, 60, range(60, 60), range(0)),
        (ProfiledSteps(3, 19), 0, 60, range(19, 22), range(0)),
        (ProfiledSteps(3, 19), 20, 60, range(20, 22), range(19, 20)),
        (ProfiledSteps(3, 19), 40, 60, range(0), range(19, 22)),
    ],
)
def test_a_number_of_steps_warms_up_anew_and_a_range_does_not(
    wanted: ProfiledSteps, done: int, total: int, measured: range, passed: range
) -> None:
    assert wanted.of(done, total) == measured
    assert list(wanted.passed(done)) == list(passed)


def test_ranks_of_several_hosts_are_drawn_on_one_clock() -> None:
    """Host b has run for some days longer than host a; rank 1 left the barrier late."""
    slot, days = (parse_action("language.0F0"),), 3e5
    told = [
        Told(host="a", began=10.0, slots=[(slot, 11.0, 12.0)]),
        Told(host="a", began=10.5, slots=[(slot, 12.0, 13.0)]),
        Told(host="b", began=days, slots=[(slot, days + 3, days + 4)]),
    ]
    found = [(start, end) for ((_, start, end),) in on_one_clock(told)]
    assert found == [(1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]
