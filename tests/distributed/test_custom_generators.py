"""Generators of a user's own learn on every layout what their class learns on one rank."""

from typing import Any

import pytest
from tests.support.proof import failures, training_verdicts, verdicts
from tests.support.specs import Box, box, spec

from mimo_launch.spec.spec import Spec

IMAGES: dict[str, Any] = {"max_images": 2, "max_patches": 8}


def own(name: str, first: int = 0, *, model: dict[str, Any] | None = None, **rest: Any) -> Box:
    """A class of tests/support/custom_generators.py."""
    kind = f"tests.support.custom_generators:{name}"
    model = {"kind": kind, "loss": True, "heads": 2, "options": {"inner": 8}, **(model or {})}
    return box(first, model=model, reads=["language"], **rest)


def plain() -> Spec:
    """Plain torch, pp 2 dp 2, some of whose microbatches ask for no image; squares of patches."""
    squares = {"input": {"kind": "image", "patch": 1, "shuffle": 2}}
    drawer = own("Denoiser", 1, pp=2, dp=2, model=squares, recompute="full", loss_weight=0.7)
    return spec(
        {"language": box(0, tp=2), "drawer": drawer},
        microbatches=2,
        mbs=2,
        max_images=2,
        max_patches=16,
        text_only=0.6,
    )


def cut() -> Spec:
    """Layers of ours, tp 2 cp 2 under sequence parallelism, on the ranks of language and more."""
    drawer = own(
        "Wide",
        1,
        tp=2,
        cp=2,
        sequence_parallel=True,
        model={"options": {"inner": 8, "per_patch": 3.0}},
    )
    return spec(
        {"vision": box(0), "language": box(0, tp=2), "drawer": drawer},
        microbatches=2,
        mbs=2,
        text_only=0.3,
        **IMAGES,
    )


def of_sound() -> Spec:
    """Plain torch, dp 2, which makes clips, behind tp 2 pp 2; weights gathered layer by layer."""
    clips = {"input": {"kind": "audio", "mels": 3, "frames": 24}}
    drawer = own("Denoiser", 0, dp=2, sharding="full", model=clips)
    return spec(
        {"language": box(0, tp=2, pp=2), "drawer": drawer},
        microbatches=2,
        mbs=2,
        text_only=0.7,
        packing=True,
    )


@pytest.mark.parametrize("made", [plain, cut, of_sound])
def test_a_layout_learns_what_the_class_learns_on_one_rank(made: Any) -> None:
    """Parallelism: as each spec says."""
    found = verdicts(made())
    assert failures(found) == []
    assert sum(verdict.tensors for verdict in found if verdict.module == "drawer") > 4


def test_a_class_that_mixes_images_is_found() -> None:
    mixed = spec({"language": box(0), "drawer": own("Greedy")}, mbs=2, **IMAGES)
    assert any("drawer.layers.0" in each for each in failures(verdicts(mixed)))


def test_a_run_with_a_generator_of_ones_own_is_evaluated_and_resumed() -> None:
    modules = {"language": box(0), "drawer": own("Denoiser", dp=2)}
    settings = {"eval": {"samples": 5}, "optimizer": {"kind": "adamw", "clip": 1.0}}
    made = spec(modules, microbatches=2, mbs=2, **settings, **IMAGES)
    assert failures(training_verdicts(made)) == []
