"""Checks of encoders that cut images into tiles."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.pasting import pasted
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.checks.load_and_check import check_text
from mimo_launch.spec.load import dump_spec

TILES: dict[str, Any] = {
    "positions": "learned", "image": [3, 3], "patch": 2, "tiles": {"grids": [[1, 2]]},
}  # fmt: skip


LAST: dict[str, Any] = {"tiles": {"grids": [[1, 2]], "each": True, "whole": "last"}}


def places(model: dict[str, Any], language: dict[str, Any] | None = None) -> list[str]:
    modules = {"vision": box(0, model=TILES | model), "language": box(0, model=language or {})}
    made = spec(modules, seq=256)
    return [str(x.path[-1]) for x in check(made) if x.code == "tiles-do-not-fit"]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ({}, []),
        ({"class_token": True}, []),
        ({"tiles": {"grids": [[2, 2]], "side": 6}}, []),
        ({"tiles": {"grids": [[2, 2]], "side": 5}}, ["side"]),
        ({"positions": "sincos", "image": None}, ["positions"]),
        ({"shuffle": 3}, ["shuffle"]),
        ({"windows": {"side": 2}}, ["windows"]),
        ({"deepstack": [0]}, ["deepstack"]),
        ({"video": {"time": "none"}}, []),
        ({"temporal_patch": 2}, []),
        ({"video": {"time": "none"}, "temporal_patch": 2}, ["temporal_patch"]),
        ({"video": {"time": "patches"}}, ["time"]),
        (LAST, []),
        (LAST | {"shuffle": 3}, []),
        (LAST | {"shuffle": 2}, ["image"]),
        (LAST | {"tiles": {"grids": [[1, 2]], "whole": "last"}}, ["each"]),
        (LAST | {"tiles": {**LAST["tiles"], "most": 2}}, ["most"]),
        (LAST | {"video": {"time": "none"}}, ["video"]),
    ],
)
def test_what_does_not_fit_is_named(model: dict[str, Any], found: list[str]) -> None:
    assert places(model) == found


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ({}, []),
        ({"tiles": {}}, []),
        ({"shuffle": 3}, ["image"]),
        ({"image": None}, []),
        ({"windows": {"side": 2}}, ["windows"]),
        ({"deepstack": [0]}, ["deepstack"]),
    ],
)
def test_what_does_not_fit_tiles_of_an_ovis2_is_named(
    model: dict[str, Any], found: list[str]
) -> None:
    assert places({"kind": "ovis2_vision", "words": 5, "shuffle": 2, "image": [4, 2]} | model) == (
        found
    )


OVIS2: dict[str, Any] = {"kind": "ovis2_vision", "words": 5}


def helps_to_the_end(text: str) -> Iterator[list[str]]:
    """Yield the helps along each way of offers, of which each is for the first error left."""
    checked = check_text(text)
    first = next((each for each in checked.diagnostics if each.is_error), None)
    if first is None:
        yield []
        return
    offered = pasted(text, first)
    if not offered:
        yield [first.help, "no offer"]
    for each in offered:
        for rest in helps_to_the_end(each):
            yield [first.help, *rest]


@pytest.mark.parametrize("shuffle", [1, 2, 5])
@pytest.mark.parametrize(
    "model",
    [
        {"image": None},
        {"image": None, **LAST},
        {"image": None, **OVIS2},
        {"image": None, "positions": "sincos"},
        {"image": None, "positions": "sincos", **LAST},
        {"image": None, "positions": "learned+rope2d"},
        {"positions": "sincos", **LAST},
        {"image": None, "windows": {"side": 2}},
    ],
)
def test_no_help_is_against_another(model: dict[str, Any], shuffle: int) -> None:
    modules = {"vision": box(0, model=TILES | model | {"shuffle": shuffle}), "language": box(0)}
    data = {"kind": "synthetic", "image": [20, 20]}
    text = json.dumps(dump_spec(spec(modules, seq=8192, data=data)))
    ways = list(helps_to_the_end(text))
    assert ways
    for way in ways:
        assert len(set(way)) == len(way)
        assert "no offer" not in way
        keys = [key for help_ in way for key in re.findall(r"write `(\w+):", help_)]
        assert len(set(keys)) == len(keys), way


def test_language_has_no_places_for_images_in_tiles() -> None:
    assert places({}, {"head_dim": 8, "mrope": [1, 2, 1]}) == ["mrope"]
    assert places({}, {"bidirectional_images": True}) == ["bidirectional_images"]
