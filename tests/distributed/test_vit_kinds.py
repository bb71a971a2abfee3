"""Vision transformers of several shapes: gradients are those of one rank on every layout."""

from typing import Any

import pytest
from tests.support.graphs import flow, talker
from tests.support.planted_deepstack import MODEL as STACK
from tests.support.planted_deepstack import stacked
from tests.support.planted_registers import MODEL as REGISTERED
from tests.support.planted_registers import SQUARED
from tests.support.planted_scales import (
    ALIGNED,
    ALTERNATING,
    AVERAGED,
    GATED,
    GROUPED,
    LISTED,
    MAPPED_TWICE,
    MERGED,
    NEAREST,
    POOLED,
    scaled,
)
from tests.support.planted_scales import MODEL as SCALED
from tests.support.planted_windows import MODEL
from tests.support.proof import failures, verdicts
from tests.support.specs import box, spec

from mimo_launch.bench import measure_device
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.rank_session import RankSession

SIGLIP: dict[str, Any] = {
    "layers": 2, "positions": "learned", "image": [3, 4], "activation": "gelu_tanh",
    "norm_eps": 0.1, "projector_activation": "quick_gelu", "patch": 2, "channels": 3,
}  # fmt: skip
CLIP: dict[str, Any] = {
    "layers": 2, "positions": "learned", "image": [3, 4], "activation": "quick_gelu",
    "norm_eps": 0.01, "class_token": True, "pre_norm": True, "patch_bias": False,
    "final_norm": False,
}  # fmt: skip
# Positions as in Qwen3-VL; images of one patch across are the hard ones. Learned tokens stay.
TWICE: dict[str, Any] = {
    "layers": 2, "positions": "learned+rope2d", "image": [3, 2], "interpolation": "bilinear",
    "class_token": True, "registers": 2,
}  # fmt: skip
# Two layers: what a class token has seen reaches patches in the second one only.
# Images of random sizes, most of them not that of the table; some samples have none.
DATA: dict[str, Any] = {"max_patches": 6, "max_images": 2, "text_only": 0.2, "mbs": 2}


@pytest.mark.parametrize(
    ("model", "vision", "more"),
    [
        (SIGLIP, {"tp": 2, "dp": 2}, {}),
        (SIGLIP, {"tp": 2, "cp": 2, "sequence_parallel": True, "sharding": "full"}, {}),
        (CLIP, {"tp": 2, "cp": 2}, {}),
        (TWICE, {"tp": 2, "cp": 2, "sequence_parallel": True}, {"max_patches": 12}),
        (CLIP, {"tp": 2, "cp": 2, "sequence_parallel": True, "sharding": "full"}, {}),
        (CLIP, {"pp": 2, "tp": 2, "sequence_parallel": True}, {"microbatches": 2}),
        (CLIP, {"cp": 3, "recompute": "full"}, {}),
        (
            CLIP | {"positions": "sincos", "image": None, "shuffle": 2},
            {"cp": 2},
            {"max_patches": 12},
        ),
        # One cp rank has all patches, the other one padding.
        (
            SIGLIP,
            {"tp": 2, "cp": 2, "sequence_parallel": True},
            {"max_patches": 2, "max_images": 1, "text_only": 0, "mbs": 1},
        ),
    ],
    ids=[
        "siglip tp",
        "siglip sp cp",
        "clip tp cp",
        "learned and turned",
        "clip sp cp",
        "clip pp sp",
        "clip cp 3",
        "shuffled",
        "a rank of padding",
    ],
)
def test_gradients_are_those_of_one_rank(
    model: dict[str, Any], vision: dict[str, Any], more: dict[str, Any]
) -> None:
    grid = {axis: vision.get(axis, 1) for axis in ("tp", "cp", "pp", "dp")}
    size = 1
    for each in grid.values():
        size *= each
    modules = {"vision": box(0, model=model, **vision), "language": box(size)}
    assert failures(verdicts(spec(modules, **(DATA | more)))) == []


# Windows of 2 x 2 rows of 2 x 2 patches, of which most images have several.
LARGE: dict[str, Any] = {"max_patches": 24, "max_images": 2, "text_only": 0.2, "mbs": 2}
WINDOW_LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one rank": ({}, box(0)),
    "tp": ({"tp": 2, "dp": 2}, box(4)),
    "sp": ({"tp": 2, "sequence_parallel": True, "sharding": "full"}, box(2)),
    "cp 3": ({"cp": 3, "recompute": "full"}, box(3)),
    "sp cp": ({"tp": 2, "cp": 2, "sequence_parallel": True}, box(0, tp=2, cp=2)),
    "pp": ({"pp": 3}, box(3, pp=2)),
    "pp cp": ({"pp": 2, "cp": 2}, box(4)),
    "pp sp": ({"pp": 2, "tp": 2, "sequence_parallel": True}, box(4, tp=2)),
    "colocated": ({"dp": 4}, box(0, tp=2, dp=2)),
    "overlapping": ({"cp": 2, "dp": 2, "frozen": "except_projector"}, box(2, dp=2, pp=2)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("layout", WINDOW_LAYOUTS)
def test_windows(layout: str) -> None:
    vision, language = WINDOW_LAYOUTS[layout]
    made = spec({"vision": box(0, model=MODEL, **vision), "language": language}, **LARGE)
    assert failures(verdicts(made)) == []


# Grids of vision and of language, with four layers each.
STACK_LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one rank": ({}, {}),
    "tp": ({"tp": 2}, {"tp": 2}),
    "sp cp": ({"tp": 2, "cp": 2, "sequence_parallel": True}, {"tp": 2, "sequence_parallel": True}),
    "cp": ({"cp": 2}, {"cp": 2, "pp": 2}),
    "pp": ({"pp": 4}, {"pp": 4}),
    "pp sp": ({"pp": 2, "tp": 2, "sequence_parallel": True}, {"pp": 2, "tp": 2}),
    "dp": ({"dp": 4, "sharding": "full"}, {"dp": 2}),
    "recomputed": ({"recompute": "full"}, {"recompute": "full", "pp": 2}),
    "only projectors": ({"pp": 2, "frozen": "except_projector"}, {"pp": 2}),
    "frozen": ({"frozen": True}, {"cp": 2}),
}


@pytest.mark.sweep
@pytest.mark.parametrize("layout", STACK_LAYOUTS)
def test_rows_of_several_layers(layout: str) -> None:
    assert failures(verdicts(stacked(*STACK_LAYOUTS[layout]))) == []


# Grids of the vision transformer.
SCALE_LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp": {"tp": 2, "dp": 2},
    "sp": {"tp": 2, "sequence_parallel": True, "sharding": "full"},
    "cp": {"cp": 2, "recompute": "full"},
    "sp cp": {"tp": 2, "cp": 2, "sequence_parallel": True},
    "pp": {"pp": 2},
    "only the projector": {"tp": 2, "frozen": "except_projector"},
    "frozen": {"frozen": True},
    "pp sp": {"pp": 2, "tp": 2, "sequence_parallel": True},
    "tp 4": {"tp": 4},
    "dp": {"dp": 2, "sharding": "full", "recompute": "full"},
}
SCALE_OFTEN = "sp cp"


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        pytest.param(
            each,
            layout,
            marks=()
            if layout == SCALE_OFTEN and each in (SCALED, REGISTERED)
            else pytest.mark.sweep,
        )
        for each in (
            *(SCALED, NEAREST, POOLED, MERGED, GATED, GROUPED, REGISTERED, SQUARED),
            *(ALIGNED, ALTERNATING, LISTED, MAPPED_TWICE, AVERAGED),
        )
        for layout in SCALE_LAYOUTS
    ],
)
def test_weights_per_channel(model: dict[str, Any], layout: str) -> None:
    assert failures(verdicts(scaled(SCALE_LAYOUTS[layout], model))) == []


@pytest.mark.sweep
def test_rows_of_several_layers_pass_virtual_stages() -> None:
    """Of one layer each: those of all three layers pass at least one edge."""
    asked = stacked({"pp": 2}, {"pp": 2})
    schedule = asked.schedule.model_copy(update={"kind": "interleaved", "virtual_stages": 2})
    assert failures(verdicts(asked.model_copy(update={"schedule": schedule}))) == []


@pytest.mark.parametrize("model", [SIGLIP, CLIP], ids=["siglip", "clip"])
def test_colocated(model: dict[str, Any]) -> None:
    modules = {"vision": box(0, dp=4, model=model), "language": box(0, tp=2, dp=2)}
    made = spec(modules, microbatches=2, **DATA)
    assert failures(verdicts(made)) == []


def starts_on_rank(made: Spec) -> dict[str, float]:
    measure_device.started = lambda runs, device: (  # type: ignore[assignment]
        [run() for run in runs],
        float(len(runs)),
    )[1]
    with RankSession(Plan.of(made)) as session:
        return measure_device.host_starts(session)


@pytest.mark.parametrize(
    "beside",
    [box(0, model=STACK), box(0, model=MODEL), box(0, **flow()), box(0, **talker())],
    ids=["several layers", "windows", "flow", "talker"],
)
def test_a_block_of_any_module_can_be_timed(beside: dict[str, Any]) -> None:
    made = spec({"vision": beside, "language": box(0, model={"layers": 4})}, max_patches=24)
    [starts] = run_ranks(starts_on_rank, made, world_size=1)
    # Three numbers of tokens in turn.
    assert starts == {"encoder": 1, "dynamic": 3, "block": 1}
