"""The text of a spec after settings were written into it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimo_launch.spec.editing import edit, merge, tree_of
from mimo_launch.spec.yaml_source import read_text

TEXT = """\
# The job
modules:   # both of them
  vision: &vision
    grid: &grid {tp: 2, dp: 4}   # eight ranks
    ranks:
      - 0   # the first
    # sequence_parallel: true
  audio: *vision
  language: {grid: *grid, ranks: 8-15}   # the rest
# When
schedule:
  encoder_microbatches:
  microbatches: 4  # as many
data: {kind: synthetic,
   image: [3, 4],  # small
}
# The end
"""
AFTER = """\
# The job
modules:   # both of them
  vision: &vision
    grid: &grid {tp: 1, dp: 8}   # eight ranks
    ranks:
      - 0   # the first
    sharding: full
    # sequence_parallel: true
  audio: {grid: {tp: 2, dp: 4}, ranks: [0]}
  language: {grid: {tp: 2, dp: 4, pp: 2}, ranks: 8-15, experts: {ep: 4}}   # the rest
# When
schedule:
  encoder_microbatches: 2
  microbatches: 8  # as many
data: {text: 3, kind: synthetic,
   image: [3, 4],  # small
}
train: {precision: bf16}
# The end
"""
SETTINGS = {
    "modules.vision.grid": {"tp": 1, "dp": 8},
    "modules.vision.sharding": "full",
    "modules.language.grid.pp": 2,
    "modules.language.experts": {"ep": 4},
    "schedule.encoder_microbatches": 2,
    "schedule.microbatches": 8,
    "data.text": 3,
    "train.precision": "bf16",
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_settings_change_their_places_and_nothing_else(end: str) -> None:
    text = TEXT.replace("\n", end)
    wanted = merge(read_text(text).data, tree_of(SETTINGS))
    assert edit(text, wanted) == AFTER.replace("\n", end)


@pytest.mark.parametrize(
    ("text", "wanted", "after"),
    [
        ("a: {b: 1, c: 2}", {"a": {"b": 1}}, "a: {b: 1}"),
        ("a: {}", {"a": {"b": 1}}, "a: {b: 1}"),
        ("a: {b: 1,}", {"a": {"b": 1, "c": 2}}, "a: {b: 1,c: 2}"),
        ("a:\n- 1\n- 2\n# d\nb: 1\n", {"a": "0-3", "b": 1}, "a:\n 0-3\n# d\nb: 1\n"),
        ("a: |\n  b\n\nc: 1\n", {"a": "d", "c": 1}, "a: d\n\nc: 1\n"),
        ("a: true", {"a": 1}, "a: 1"),
        ("a: {b: 1}  # c", {"a": {"b": 1}, "d": None}, "a: {b: 1}  # c\nd: null"),
        # No edit of the text says this.
        ("? a\n: b\n", {"c": 1}, "c: 1\n"),
        ("{a}\n", {"a": 1}, "a: 1\n"),
    ],
)
def test_less_usual_texts_say_what_is_wanted(text: str, wanted: dict[str, Any], after: str) -> None:
    assert edit(text, wanted) == after
    assert read_text(after).data == wanted


KEYS = st.sampled_from("abcdef")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["x", "1", "y: z", "no # c"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
)
SPECS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)


@given(before=SPECS, after=SPECS, style=st.sampled_from([None, False, True]))
def test_any_text_says_what_is_wanted(
    before: dict[str, Any], after: dict[str, Any], style: bool | None
) -> None:
    import yaml

    text = yaml.safe_dump(before, default_flow_style=style, sort_keys=False)
    assert read_text(edit(text, after)).data == after
