"""Encoders of a user's own compute on every layout what their class computes on one rank."""

from typing import Any

import pytest
from tests.support.proof import failures, verdicts
from tests.support.specs import Box, box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import GlobalOrder, make_step_data
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.step_views import StepViews
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.shrink import shrink


def own(name: str, first: int = 0, *, model: dict[str, Any] | None = None, **rest: Any) -> Box:
    """A class of tests/support/custom_encoders.py."""
    return box(
        first, model={"kind": f"tests.support.custom_encoders:{name}", **(model or {})}, **rest
    )


def wide(**options: Any) -> dict[str, Any]:
    return {"heads": 2, "options": {"inner": 8, **options}}


def staged() -> Spec:
    """Plain torch, pp 2 on the ranks of language tp 2; squares of patches; a group has no image."""
    return spec(
        {
            "vision": own(
                "Mixer",
                pp=2,
                recompute="full",
                model={"input": {"kind": "image", "patch": 1, "shuffle": 2}},
            ),
            "language": box(0, tp=2),
        },
        microbatches=2,
        encoder_microbatches=1,
        max_patches=32,
        text_only=0.5,
    )


def cut(**options: Any) -> Spec:
    """Layers of ours, tp 2 dp 2 under sequence parallelism, in front of language."""
    vision = own("Wide", tp=2, dp=2, sequence_parallel=True, sharding="full", model=wide(**options))
    return spec(
        {"vision": vision, "language": box(4)}, microbatches=2, mbs=2, max_patches=12, text_only=0.3
    )


def around() -> Spec:
    """Layers of ours, tp 2 cp 2, on the ranks of language tp 2 pp 2."""
    return spec(
        {"vision": own("Wide", tp=2, cp=2, model=wide()), "language": box(0, tp=2, pp=2)},
        microbatches=2,
        mbs=2,
        max_patches=12,
        text_only=0.3,
    )


def of_sound() -> Spec:
    """Plain torch, dp 2, over log-mel clips; two tokens a row."""
    clips = {"kind": "audio", "mels": 3, "frames": 24, "stack": 2}
    vision = own("Mixer", dp=2, model={"input": clips})
    return spec({"vision": vision, "language": box(2)}, microbatches=2, mbs=2, text_only=0.3)


def projector_only() -> Spec:
    """Plain torch, pp 2, of which only the projector trains."""
    return spec(
        {"vision": own("Mixer", pp=2, frozen="except_projector"), "language": box(2)},
        microbatches=2,
        mbs=2,
        max_patches=12,
    )


def one_sided() -> Spec:
    """Plain torch, pp 2 dp 2, weights gathered layer by layer; one replica has no image."""
    return spec(
        {
            "vision": own("Mixer", pp=2, dp=2, sharding="full", model={"layers": 2}),
            "language": box(0, dp=4),
        },
        microbatches=1,
        mbs=1,
        max_patches=12,
        text_only=0.7,
    )


@pytest.mark.parametrize("made", [staged, cut, around, of_sound, projector_only, one_sided])
def test_a_layout_computes_what_the_class_computes_on_one_rank(made: Any) -> None:
    """Parallelism: as each spec says."""
    found = verdicts(made())
    assert failures(found) == []
    assert sum(verdict.tensors for verdict in found if verdict.module == "vision") > 4


def test_one_replica_of_the_one_sided_spec_has_images() -> None:
    made = shrink(one_sided())
    dataset = build_dataset(made)
    order = GlobalOrder(dataset.num_samples("train"), made.batch.global_, made.train.seed)
    data = make_step_data(dataset, "train", order.ids(0), 0)
    layout = build_layout(made)
    rows = [
        sum(
            data.samples[sample].rows("vision")
            for sample in StepViews(layout, data).encoder("vision", replica, 0).samples
        )
        for replica in range(2)
    ]
    assert [count > 0 for count in rows] in ([True, False], [False, True])


def test_the_staged_spec_has_a_group_without_images() -> None:
    small = shrink(staged())
    dataset = build_dataset(small)
    order = GlobalOrder(dataset.num_samples("train"), small.batch.global_, small.train.seed)
    data = make_step_data(dataset, "train", order.ids(0), 0)
    assert {sample.rows("vision") > 0 for sample in data.samples} == {True, False}


def test_a_sum_over_tp_that_a_layer_forgets_is_found() -> None:
    """Parallelism: tp 2 with sequence parallelism, where each rank sees some tokens only."""
    found = failures(verdicts(cut(forget_the_sum=True)))
    assert any("vision.layers.0.scale.weight: relative error" in each for each in found)


def test_a_layer_that_looks_at_other_images_is_found() -> None:
    """Parallelism: none; what is encoded together is enough."""
    blurred = spec({"vision": own("Blurred"), "language": box(1)}, mbs=2, max_patches=12)
    assert any("vision.layers.0" in each for each in failures(verdicts(blurred)))
