"""How long a run that fails again and again waits before it starts again."""

from mimo_launch.cli.launch.attempts import LONGEST_PAUSE, Pause


def test_pauses_double_up_to_a_minute_until_the_run_gets_on() -> None:
    pause = Pause()
    assert [pause.after(4) for _ in range(8)] == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE]
    assert [pause.after(step) for step in (4, 6, 6, 8)] == [LONGEST_PAUSE, 1, 2, 1]
