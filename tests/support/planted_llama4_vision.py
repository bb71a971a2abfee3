"""A tower of Llama 4, and known ways to get it wrong; `planted` lists them with the others."""

from dataclasses import replace
from typing import Any

from tests.support.specs import box, spec

from mimo_launch.kinds.llama4_vision import Llama4VisionKind
from mimo_launch.kinds.vision import PositionsShape
from mimo_launch.spec.spec import Spec

MODEL: dict[str, Any] = {
    "kind": "llama4_vision", "layers": 2, "image": [4, 4], "rope_theta": 20.0,
    "projector_mlp": 24, "projector_out": 20,
}  # fmt: skip


def rotated(
    vision: dict[str, Any], language: dict[str, Any] | None = None, /, **sections: Any
) -> Spec:
    """Such a tower before a decoder on the ranks after it, or on others; images of any size."""
    ranks = 1
    for axis in ("tp", "cp", "pp", "dp"):
        ranks *= vision.get(axis, 1)
    modules = {
        "vision": box(0, **{"model": MODEL, **vision}),
        "language": box(**{"first": ranks, **(language or {})}),
    }
    usual = {"microbatches": 2, "mbs": 2, "max_images": 2, "max_patches": 24, "text_only": 0.2}
    return spec(modules, **{**usual, **sections})


def _turns(**wrong: Any) -> None:
    correct = Llama4VisionKind.turns
    Llama4VisionKind.turns = property(  # type: ignore[assignment]
        lambda self: replace(correct.fget(self), **wrong)
    )


def places_from_0() -> None:
    """The first patch does not rotate against the class token."""
    _turns(first=0)


def rows_turn_first() -> None:
    """The first half of a head rotates by the row."""
    _turns(column_first=False)


def halves_turned() -> None:
    """Numbers half a head apart rotate together."""
    _turns(pairs="apart")


def usual_base() -> None:
    """Frequencies have the base of other towers."""
    _turns(theta=10000.0)


def class_token_first() -> None:
    """The class token reads the first row of the table, and patches the rows after it."""
    PositionsShape.first_row = property(lambda _: 1)  # type: ignore[assignment]
    PositionsShape.class_row = property(lambda _: 0)  # type: ignore[assignment]


def rows_as_they_are() -> None:
    """Nothing stands between the second and the third map."""
    Llama4VisionKind.activates_rows = property(lambda _: False)  # type: ignore[assignment]


SPLIT = {"tp": 2, "cp": 2, "sequence_parallel": True}
LLAMA4_VISION_BUGS = {
    "Llama 4 places from 0": (places_from_0, rotated({"cp": 2})),
    "Llama 4 rows turn first": (rows_turn_first, rotated(SPLIT)),
    "Llama 4 halves turned": (halves_turned, rotated({"tp": 2})),
    "Llama 4 base of other towers": (usual_base, rotated({})),
    "Llama 4 class token first": (class_token_first, rotated({"pp": 2})),
    "Llama 4 rows as they are": (rows_as_they_are, rotated({"tp": 2})),
}
