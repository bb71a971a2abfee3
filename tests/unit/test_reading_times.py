"""How long a step waited for its samples is in metrics, curves and lines, for shards alone."""

from dataclasses import replace

from mimo_launch.cli.shared.lines import step_line
from mimo_launch.train.events import Reading, StepFinished
from mimo_launch.train.listeners import scalars
from mimo_launch.train.metrics_file import as_record

STEP = StepFinished(
    step=3, loss=1.0, grad_norm=1.0, grad_norms={}, lr=0.1, lrs={}, tokens=10, tokens_per_s=5.0,
    skipped=False,
)  # fmt: skip
TIMED = replace(STEP, reading=Reading(waited_s=0.25, read_s=1.5))


def test_reading_is_recorded_where_something_is_read() -> None:
    assert as_record(TIMED)["reading"] == {"waited_s": 0.25, "read_s": 1.5}
    assert "reading" not in as_record(STEP)


def test_a_step_that_waited_for_nothing_is_recorded_as_well() -> None:
    none = replace(STEP, reading=Reading(waited_s=0.0, read_s=0.0))
    assert as_record(none)["reading"] == {"waited_s": 0.0, "read_s": 0.0}


def test_reading_has_curves_and_words() -> None:
    more = scalars(TIMED).items() - scalars(STEP).items()
    assert dict(more) == {"reading/waited_s": 0.25, "reading/read_s": 1.5}
    assert step_line(TIMED).endswith("waited 0.25 s for data")
    assert "waited" not in step_line(STEP)
