"""Checks of audio encoders at their limits; the fixtures have one failing spec per code."""

from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check

ROWS = {"kind": "audio", "frames": 24, "stack": 2}


def codes(model: dict[str, Any], data: dict[str, Any] | None = None, **audio: Any) -> list[str]:
    sizes = {"kind": "synthetic", "max_frames": 12, **(data or {})}
    modules = {"audio": box(0, model={**ROWS, **model}, **audio), "language": box(0)}
    return [finding.code for finding in check(spec(modules, seq=64, data=sizes))]


def test_a_clip_of_one_row_is_enough() -> None:
    assert codes({}, {"max_frames": 4}) == []
    assert codes({}, {"max_frames": 3}) == ["row-over-clips"]
    # Clips are padded to the whole length anyhow; then the limits say nothing.
    assert codes({"fixed_length": True}, {"max_frames": 3}) == ["setting-without-effect"]


@pytest.mark.parametrize(("stack", "found"), [(1, []), (3, []), (5, ["frames-over-rows"])])
def test_the_longest_clip_is_whole_rows(stack: int, found: list[str]) -> None:
    assert codes({"stack": stack, "frames": 24}) == found


@pytest.mark.parametrize(
    ("chunk", "found"), [(8, []), (7, []), (6, ["frames-over-rows"]), (5, ["frames-over-rows"])]
)
def test_chunks_are_whole_rows(chunk: int, found: list[str]) -> None:
    """Seven frames are four tokens; the longest clip may then have any length."""
    assert codes({"chunk": chunk, "frames": 23}, {"max_frames": 8}) == found


def test_settings_without_silence_and_of_single_tokens_do_nothing() -> None:
    assert codes({"unpadded": True, "pooling": "mean"}) == []
    assert codes({"unpadded": True, "fixed_length": True}) == ["setting-without-effect"]
    assert codes({"chunk": 8, "unpadded": True}) == ["setting-without-effect"]
    assert codes({"chunk": 8, "fixed_length": True}) == ["setting-without-effect"]
    assert codes({"pooling": "mean", "stack": 1}) == ["setting-without-effect"]
    # A Qwen3-Omni is always without silence.
    aut = box(0, model={"kind": "aut", "mels": 16, "channels": 2, "frames": 200})
    made = spec({"audio": aut, "language": box(0)}, seq=64, data={"kind": "synthetic"})
    assert not check(made)


def test_limits_of_clips_in_order() -> None:
    assert codes({}, {"min_frames": 12}) == []
    assert codes({}, {"min_frames": 13}) == ["empty-image-range"]


def test_the_sequence_holds_the_longest_clip() -> None:
    """Of 3,000 frames at most 100 in the data: 50 rows and 2 words."""
    model = {"frames": 3000, "stack": 1}
    modules = {"audio": box(0, model={**ROWS, **model}), "language": box(0)}
    for seq, found in ((52, []), (51, ["seq-too-short"])):
        data = {"kind": "synthetic", "max_frames": 100}
        made = spec(modules, seq=seq, data=data)
        assert [finding.code for finding in check(made)] == found


def test_transformer_engine_is_refused() -> None:
    found = codes({"hidden": 16, "heads": 2}, backend="transformer_engine")
    # In float64, and with a bias that the keys do not have.
    assert found == ["backend-cannot", "backend-cannot"]
