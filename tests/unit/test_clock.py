"""The clock of a step, on a processor; tests/gpu has the same on a GPU."""

import time

import pytest
import torch

from mimo_launch.comm.process_groups import Group
from mimo_launch.comm.step_clock import Section, StepClock, TokenExchange
from mimo_launch.schedule.actions import parse_program

SLOT = parse_program("vision.0F0")[0]


def test_only_what_lies_between_start_and_stop_is_noted() -> None:
    clock = StepClock(torch.device("cpu"))
    with clock.span(SLOT):
        pass
    assert clock.stop() == []
    began = clock.start()
    with clock.span(Section.STEP), clock.span(SLOT):
        time.sleep(0.02)
    noted = clock.stop()
    assert [what for what, _, _ in noted] == [SLOT, Section.STEP]
    (_, first, last), (_, begin, end) = noted
    assert began <= begin <= first < last <= end <= time.perf_counter()
    assert last - first >= 0.02
    with clock.span(SLOT):
        pass
    assert clock.stop() == []


def test_a_span_that_ends_in_an_error_is_not_noted() -> None:
    clock = StepClock(torch.device("cpu"))
    clock.start()
    with pytest.raises(ZeroDivisionError), clock.span(SLOT):
        _ = 1 / 0
    assert clock.stop() == []


def test_a_group_of_several_ranks_notes_its_exchanges() -> None:
    clock = StepClock(torch.device("cpu"))
    clock.start()
    for ranks in ((3,), (3, 5)):
        with Group(ranks, 0, None, clock).noted():
            pass
    with Group((3, 5), 0, None).noted():
        pass
    assert [what for what, _, _ in clock.stop()] == [TokenExchange((3, 5))]
