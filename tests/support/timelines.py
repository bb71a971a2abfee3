"""Timelines to draw: of two deep layouts, and by hand. Imports no torch."""

import json

from tests.support.specs import box, spec

from mimo_launch.drawing.spans import Span, Timeline, Unit
from mimo_launch.schedule.actions import parse_action

# Every axis at once.
DEEP = spec(
    {"vision": box(0, dp=2, pp=2), "language": box(4, tp=2, cp=2, dp=1, pp=2)},
    microbatches=4,
    mbs=2,
)
SHARED = spec(
    {"vision": box(0, dp=4), "glance": box(4, dp=2), "language": box(0, tp=2, dp=2)},
    microbatches=4,
    encoder_microbatches=2,
    mbs=2,
)


def made_of(*spans: tuple[int, str, float, float], unit: Unit = Unit.MODEL) -> Timeline:
    """Return a timeline of (rank, action, start, stop)."""
    made = tuple(Span(rank, parse_action(text), start, stop) for rank, text, start, stop in spans)
    return Timeline(unit, 1 + max((span.rank for span in made), default=0), made)


def parse_timeline(text: str) -> Timeline:
    """Return the timeline that `timeline_json` wrote."""
    data = json.loads(text)
    spans = tuple(
        Span(
            rank=each["rank"],
            action=parse_action(each["action"]),
            start=each["start"],
            stop=each["stop"],
            peers=tuple(each.get("peers", ())),
        )
        for each in data["spans"]
    )
    return Timeline(Unit(data["unit"]), data["num_ranks"], spans)
