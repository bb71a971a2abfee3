"""Actions as text that reads back as the same action."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimo_launch.schedule.actions import (
    ONCE,
    Action,
    Kind,
    format_program,
    format_slot,
    parse_action,
    parse_program,
)

MODULES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
ACTIONS = st.builds(
    Action,
    MODULES,
    st.none() | st.integers(0, 99),
    st.sampled_from([kind for kind in Kind if kind not in ONCE]),
    st.integers(0, 9999),
) | st.builds(Action, MODULES, st.none(), st.sampled_from(ONCE), st.just(0))
PROGRAMS = st.lists(st.lists(ACTIONS, min_size=1, max_size=4).map(tuple), max_size=6).map(tuple)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("vision.0F2", Action("vision", 0, Kind.FORWARD, 2)),
        ("language.13B40", Action("language", 13, Kind.BACKWARD, 40)),
        ("language.1SEND_B3", Action("language", 1, Kind.SEND_B, 3)),
        ("language.0RECV_B3", Action("language", 0, Kind.RECV_B, 3)),
        ("vision>SEND_F2", Action("vision", None, Kind.SEND_F, 2)),
        ("language.2REDUCE3", Action("language", 2, Kind.REDUCE, 3)),
        ("language:SUM_TIED", Action("language", None, Kind.SUM_TIED, 0)),
        ("step:NORM", Action("step", None, Kind.NORM, 0)),
        ("vision_2>EXCHANGE_F0", Action("vision_2", None, Kind.EXCHANGE_F, 0)),
    ],
)
def test_an_action_is_printed_and_read_as_in_the_table(text, action):
    assert str(action) == text
    assert parse_action(text) == action


@given(ACTIONS)
def test_parsing_inverts_printing(action):
    assert parse_action(str(action)) == action


@given(PROGRAMS)
def test_parsing_inverts_printing_of_programs(program):
    assert parse_program(format_program(program)) == program


def test_a_slot_is_its_actions_joined_by_plus():
    slot = (
        Action("language", 1, Kind.SEND_F, 2),
        Action("language", 1, Kind.RECV_B, 0),
    )
    assert format_slot(slot) == "language.1SEND_F2+language.1RECV_B0"
    assert parse_program(f"language.1F2 {format_slot(slot)}") == (
        (Action("language", 1, Kind.FORWARD, 2),),
        slot,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vision",
        "vision.F2",
        "vision.0F",
        "vision.0X2",
        "vision.0f2",
        "vision.0SEND2",
        "vision>0F2",
        "vision.-1F2",
        "Vision.0F2",
        "2vision.0F2",
        "vision.0F2 ",
        "vision.0F2\n",
        "vision.0F2+vision.0F3",
    ],
)
def test_text_that_is_no_action_is_an_error(text):
    with pytest.raises(ValueError, match=r"is not an action such as"):
        parse_action(text)


@pytest.mark.parametrize("text", ["vision.0F2 vision", "vision.0F2+", "+vision.0F2"])
def test_a_program_with_a_part_that_is_no_action_is_an_error(text):
    with pytest.raises(ValueError, match=r"is not an action such as"):
        parse_program(text)
