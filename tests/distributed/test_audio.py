"""Audio encoders: gradients are those of one rank on every layout, with clips of many lengths."""

from typing import Any

import pytest
from tests.support.proof import failures, verdicts
from tests.support.specs import OF_PHI4, box, spec

from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.spec import SyntheticData
from mimo_launch.verify.shrink import shrink

AUDIO: dict[str, Any] = {"kind": "audio", "heads": 2, "stack": 2}
# Chunks of 8 frames and 2 rows; some clips end with a frame or a token alone.
CHUNKS: dict[str, Any] = {
    "chunk": 8, "stack": 2, "pooling": "mean", "projector": "linear", "frames": 40,
}  # fmt: skip
# Chunks of 12 frames and 2 tokens, of which two attend together.
AUT: dict[str, Any] = {
    "kind": "aut", "stack": 1, "mels": 5, "channels": 3, "chunk": 12, "window": 2, "frames": 60,
}  # fmt: skip
# Clips of several tokens, the last of which may see fewer frames.
CONFORMER: dict[str, Any] = {
    "kind": "conformer", "stack": 1, "mels": 8, "channels": 3, "kernel": 3, "frames": 60,
    "hidden": 16,
}  # fmt: skip
PHI4: dict[str, Any] = CONFORMER | OF_PHI4
DATA: dict[str, Any] = {"max_images": 3, "max_frames": 16, "text_only": 0.2, "mbs": 2}


@pytest.mark.parametrize(
    ("model", "audio"),
    [
        pytest.param({}, {"tp": 2, "dp": 2}, marks=pytest.mark.sweep),
        (
            {"projector": "linear", "projector_bias": False},
            {"tp": 2, "cp": 2, "sequence_parallel": True},
        ),
        ({"stack": 3, "frames": 18}, {"cp": 3, "recompute": "full"}),
        ({"fixed_length": True, "frames": 12}, {"tp": 2, "pp": 2, "sequence_parallel": True}),
        (
            {"unpadded": True, "pooling": "mean", "projector": "linear"},
            {"tp": 2, "cp": 2, "pp": 2, "sequence_parallel": True},
        ),
        pytest.param(
            {"unpadded": True, "stack": 3, "frames": 18}, {"cp": 3}, marks=pytest.mark.sweep
        ),
        ({"stack": 1}, {"dp": 2, "sharding": "full", "frozen": "except_projector"}),
        # Over tp and cp, the specs of the planted bugs have both.
        (CHUNKS, {"pp": 2}),
        pytest.param(CHUNKS, {"cp": 3, "pp": 2}, marks=pytest.mark.sweep),
        pytest.param(CHUNKS, {"dp": 2, "sharding": "full"}, marks=pytest.mark.sweep),
        (AUT, {"cp": 2}),
        pytest.param(AUT, {"cp": 3, "pp": 2, "recompute": "full"}, marks=pytest.mark.sweep),
        pytest.param(AUT, {"dp": 2, "sharding": "full"}, marks=pytest.mark.sweep),
        pytest.param(AUT, {"tp": 2, "frozen": "except_projector"}, marks=pytest.mark.sweep),
        (CONFORMER, {"tp": 2}),
        (CONFORMER, {"dp": 2}),
        (CONFORMER, {"pp": 2, "recompute": "full"}),
        pytest.param(CONFORMER, {"dp": 2, "sharding": "full"}, marks=pytest.mark.sweep),
        pytest.param(
            CONFORMER, {"tp": 2, "recompute": ["attention", "norms"]}, marks=pytest.mark.sweep
        ),
        (PHI4, {"tp": 2, "recompute": "full"}),
        (PHI4, {"dp": 2}),
        (PHI4, {"dp": 2, "sharding": "full", "recompute": ["attention"]}),
    ],
    ids=[
        *("tp dp", "sp cp", "cp 3", "pp sp", "unpadded", "unpadded cp 3", "full sharding"),
        *("chunks pp", "chunks cp 3", "chunks full sharding", "aut cp", "aut cp 3"),
        *("aut full sharding", "aut tp", "conformer tp", "conformer dp"),
        *("conformer pp", "conformer full sharding", "conformer tp, recompute"),
        *("phi4 tp", "phi4 dp", "phi4 full sharding"),
    ],
)
def test_gradients_are_those_of_one_rank(model: dict[str, Any], audio: dict[str, Any]) -> None:
    module = box(0, model={**AUDIO, **model}, **audio)
    first = 1 + int(module["ranks"].partition("-")[2])
    # Of clips in chunks, some are longer than a window.
    data = DATA | ({"max_frames": 40, "seq": 64} if {"chunk", "kernel"} & {*model} else {})
    made = spec({"audio": module, "language": box(first)}, microbatches=2, **data)
    # In the first step each replica has a clip.
    assert failures(verdicts(made, steps=2)) == []


@pytest.mark.parametrize(
    ("language", "data"),
    [({"tp": 2, "dp": 2}, {}), ({"cp": 2, "dp": 2}, {"packing": True})],
    ids=["tp", "cp, packed"],
)
def test_beside_vision_on_the_ranks_of_language(
    language: dict[str, Any], data: dict[str, Any]
) -> None:
    modules = {
        "audio": box(0, dp=4, model=AUDIO),
        "vision": box(0, tp=2, cp=2),
        "language": box(0, **language),
    }
    made = spec(modules, microbatches=2, encoder_microbatches=1, **DATA, **data)
    assert failures(verdicts(made)) == []


@pytest.mark.parametrize("model", [AUT, PHI4], ids=["aut", "phi4"])
def test_no_clip_is_proved_whose_only_token_attends_to_itself(model: dict[str, Any]) -> None:
    """Of the clips of 2 to 16 frames that the data has, one of 8 has one token."""
    modules = {"audio": box(0, model=model), "language": box(0)}
    made = spec(modules, seed=1, **{**DATA, "mbs": 1, "text_only": 0.0, "max_images": 1})
    [clips] = [kind_of(module.model).clips for module in shrink(made).encoders.values()]
    assert clips is not None
    data = shrink(made).data
    assert isinstance(data, SyntheticData)
    assert clips.tokens_of(data.min_frames) == 2
    assert failures(verdicts(made)) == []


def test_shrinking_leaves_a_conformer_channels_that_its_activation_does_not_zero() -> None:
    """With this seed, ReLU zeroes all of three channels, and nothing before them can be judged."""
    model = PHI4 | {"channels": 64, "frames": 1000}
    made = spec(
        {"audio": box(0, model=model), "language": box(0)},
        seed=26, mbs=2, microbatches=2, max_frames=1000, seq=512,
    )  # fmt: skip
    assert failures(verdicts(made)) == []
