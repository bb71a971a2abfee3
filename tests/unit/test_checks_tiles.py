"""Checks of encoders that cut images into tiles."""

from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check

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
        ({"image": None}, ["positions"]),
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


def test_language_has_no_places_for_images_in_tiles() -> None:
    assert places({}, {"head_dim": 8, "mrope": [1, 2, 1]}) == ["mrope"]
    assert places({}, {"bidirectional_images": True}) == ["bidirectional_images"]
