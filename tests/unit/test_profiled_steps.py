"""Which steps a process measures, whatever was done before."""

import pytest

from mimo_launch.launcher.profiled_steps import ProfiledSteps


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
