"""What a drawing of a timeline shows."""

import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.specs import box, layout_specs, spec
from tests.support.timelines import DEEP, SHARED, made_of

from mimo_launch.drawing.spans import Timeline, Unit, planned
from mimo_launch.drawing.svg import render_svg
from mimo_launch.drawing.svg_layout import rows_of, sizes_of, text_width, ticks_of
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec

CASES = settings(max_examples=25, deadline=None)
NS = "{http://www.w3.org/2000/svg}"


def drawn(timeline: Timeline, **options: Any) -> ET.Element:
    options = {"name": "a name", "plan_hash": "0" * 12, **options}
    return ET.fromstring(render_svg(timeline, **options))


def rects(picture: ET.Element, kind: str) -> list[tuple[float, float, float, float]]:
    """Return (x, y, width, height) of each rectangle whose first class is `kind`."""
    return [
        tuple(float(each.get(key, "nan")) for key in ("x", "y", "width", "height"))
        for each in picture.iter(f"{NS}rect")
        if (each.get("class") or "").split(" ")[0] == kind
    ]


@CASES
@example(DEEP)
@example(SHARED)
@given(layout_specs(supported_only=False))
def test_every_span_is_drawn_once_inside_the_axis(made: Spec) -> None:
    timeline = planned(Plan.of(made))
    picture = drawn(timeline)
    grounds = rects(picture, "ground")
    assert len(grounds) == timeline.num_ranks
    boxes, marks = rects(picture, "box"), rects(picture, "mark")
    assert len(boxes) == sum(span.is_compute for span in timeline.spans)
    # The legend has one mark of its own, without this class.
    assert len(marks) == sum(not span.is_compute for span in timeline.spans)
    left, _, width, _ = grounds[0]
    for x, y, w, h in [*boxes, *marks]:
        assert left - 0.01 <= x
        assert x + w <= left + width + 0.01
        assert any(top <= y and y + h <= top + high + 0.01 for _, top, _, high in grounds)
    rows = defaultdict(list)
    for x, y, w, _ in boxes:
        top = max(top for _, top, _, _ in grounds if top <= y)
        rows[top].append((x, x + w))
    for row in rows.values():
        assert all(before[1] <= after[0] + 0.01 for before, after in pairwise(sorted(row)))


def test_box_lies_where_its_span_is_and_carries_its_number() -> None:
    timeline = made_of(
        (0, "language.0F7", 0, 1), (0, "language.0B7", 1, 3), (0, "language.0F8", 5, 8)
    )
    picture = drawn(timeline)
    (left, _, width, _), unit = rects(picture, "ground")[0], rects(picture, "ground")[0][2] / 8
    assert [round((x - left) / unit, 2) for x, *_ in rects(picture, "box")] == [0, 1, 5]
    assert width == pytest.approx(8 * unit)
    numbers = [e.text for e in picture.iter(f"{NS}text") if (e.get("class") or "").startswith("n")]
    assert numbers == ["7", "7", "8"]


def test_transfer_at_the_end_of_the_step_stays_inside_the_axis() -> None:
    picture = drawn(made_of((0, "language.0F0", 0, 1), (0, "vision>SEND_B0", 1, 1)))
    ((left, _, width, _),), ((x, _, mark, _),) = rects(picture, "ground"), rects(picture, "mark")
    assert mark > 0
    assert x + mark == pytest.approx(left + width)


def test_forward_and_backward_differ_and_modules_keep_their_colour() -> None:
    timeline = planned(Plan.of(SHARED))
    alone = drawn(timeline, rank=4)
    classes = {
        hover.text.split(" ")[0] + " " + hover.text.split(": ")[1].split(" ")[0]: each.get("class")
        for picture in (drawn(timeline), alone)
        for each in picture.iter(f"{NS}rect")
        if (hover := each.find(f"{NS}title")) is not None and hover.text
        if (each.get("class") or "").startswith("box")
    }
    assert len(classes) == len(set(classes.values())) == 6
    assert len(rects(alone, "ground")) == 1
    everyone = {each.get("class") for each in drawn(timeline).iter(f"{NS}rect")}
    assert {each.get("class") for each in alone.iter(f"{NS}rect")} <= everyone


def test_many_ranks_are_drawn_by_role() -> None:
    modules = {"vision": box(0, dp=32), "language": box(32, tp=2, dp=8, pp=3)}
    timeline = planned(Plan.of(spec(modules, microbatches=4, mbs=4)))
    assert timeline.num_ranks == 80
    rows, note = rows_of(timeline)
    assert [row.label for row in rows] == [
        "0-31 vision",
        "32-47 language",
        "48-63 language.1",
        "64-79 language.2",
    ]
    assert "one row per role" in note
    assert note in "".join(drawn(timeline).itertext())
    assert [row.label for row in rows_of(timeline, 50)[0]] == ["50 language.1"]


def test_stages_of_one_rank_are_told_apart() -> None:
    timeline = made_of(
        (0, "language.0F0", 0, 1), (0, "language.2F0", 1, 2), (0, "vision.0F0", 2, 3)
    )
    picture = drawn(timeline)
    texts = list(picture.itertext())
    assert {"0.0", "0.2", "0"} <= set(texts)
    first, second, third = rects(picture, "box")
    assert first[1] == third[1] < second[1]


@pytest.mark.parametrize("unit", list(Unit))
def test_nothing_to_draw_is_a_picture_too(unit: Unit) -> None:
    for timeline in (Timeline(unit, 2, ()), made_of((1, "language.0F0", 0, 0), unit=unit)):
        assert len(rects(drawn(timeline), "ground")) == 2


def test_the_picture_is_as_wide_as_its_heading() -> None:
    timeline = made_of((0, "language.0F0", 0, 1), unit=Unit.ESTIMATED)
    for name, device in (("n" * 100, ""), ("n", "NVIDIA H200 " * 10)):
        picture = drawn(timeline, name=name, device=device)
        heading = [each for each in picture.iter(f"{NS}text") if float(each.get("y", 0)) < 60]
        assert len(heading) == 2
        for each in heading:
            end = float(each.get("x", 0)) + text_width(
                each.text or "", float(each.get("font-size", 0))
            )
            assert end <= float(picture.get("width", 0))


def test_text_is_escaped() -> None:
    picture = drawn(made_of((0, "language.0F0", 0, 1)), name='<a> & \x00 "b"')
    assert '<a> & \ufffd "b"' in list(picture.itertext())


def test_picture_needs_nothing_else() -> None:
    source = render_svg(planned(Plan.of(SHARED)), name="n", plan_hash="0")
    assert set(re.findall(r"https?://[^\"']*", source)) == {"http://www.w3.org/2000/svg"}
    for word in ("<script", "@import", "<image", "href"):
        assert word not in source


@given(st.floats(1e-6, 1e6), st.sampled_from(list(Unit)))
def test_axis_has_a_readable_number_of_ticks(length: float, unit: Unit) -> None:
    timeline = made_of((0, "language.0F0", 0, length), unit=unit)
    rows, _ = rows_of(timeline)
    sizes = sizes_of(timeline, rows, 0)
    ticks = list(ticks_of(timeline, sizes))
    assert ticks[0] == (0, "0")
    assert len(ticks) <= 60
    assert ticks[-1][0] <= length * (1 + 1e-6)
    assert len({label for _, label in ticks}) == len(ticks)
    if unit is Unit.SECONDS:
        assert len(ticks) >= 4


def test_numbers_have_room_in_boxes_and_boxes_make_room_for_them() -> None:
    """In the widest of the fonts a bold digit is 0.7 of its size wide; a stage has two digits."""
    short = [(0, f"language.{n % 12}F{n}", float(n), n + 1.0) for n in range(40)]
    picture = drawn(made_of(*short))
    labels = [each for each in picture.iter(f"{NS}text") if (each.get("class") or "")[0] == "n"]
    assert {each.text for each in labels} >= {"9.9", "10.10", "11.11", "39.3"}
    boxes = rects(picture, "box")
    for each, (_, _, width, _) in zip(labels, boxes, strict=True):
        digits = len((each.text or "").replace(".", ""))
        assert float(each.get("font-size", "")) * (0.7 * digits + 0.38) < width
