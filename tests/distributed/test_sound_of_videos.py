"""Videos with their sound are what the thinkers of Qwen-Omni of `transformers` compute of them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.support import omni
from tests.support.proof import failures
from tests.support.sounding_videos import made, proved, saved, sounding_shard, wanted
from tests.support.specs import box
from tests.support.whole_models import deviation, found_logits

from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.models import language_input
from mimo_launch.verify.proof import verify_spec

OFTEN = {("qwen2_5_omni", "cp2"), ("qwen2_5_omni", "apart"), ("qwen3_omni_moe", "tp2")}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sounding")
    sounding_shard(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(*each, marks=() if each in OFTEN else pytest.mark.sweep)
        for each in product(omni.KINDS, omni.LAYOUTS)
    ],
)
def test_logits_are_those_of_transformers(
    kind: str, layout: str, shards: Path, tmp_path: Path
) -> None:
    """Sound that is longer and shorter than its video, two videos, a clip beside one, and text."""
    model = saved(kind, shards, tmp_path / "model")
    asked = made(kind, layout, shards, tmp_path / "model")
    there = wanted(model, asked, shards)
    assert deviation(found_logits(asked, tmp_path), there) < 1e-5


@pytest.mark.parametrize("kind", omni.KINDS)
def test_a_proof_over_videos_with_sound(kind: str, shards: Path) -> None:
    """Packed, with the tower cut over cp, the ears on language's ranks."""
    boxes = (box(0, cp=2), box(2, tp=2), box(2, cp=2))
    assert failures(verify_spec(proved(kind, shards, boxes))) == []


def sound_after_the_video() -> None:
    """Sound counts on from the last frame before it, as text would."""
    correct = language_input.axis_positions

    def as_text(spans: Iterable[ImageSpan], seq: int) -> np.ndarray:
        return correct((each for each in spans if not each.parts), seq)

    language_input.axis_positions = as_text


def bounds_apart() -> None:
    """The tokens around a video have places of their own."""
    correct = language_input.axis_positions

    def apart(spans: Iterable[ImageSpan], seq: int) -> np.ndarray:
        return correct((replace(each, shares_bounds=False) for each in spans), seq)

    language_input.axis_positions = apart


@pytest.mark.parametrize("planted", [sound_after_the_video, bounds_apart])
def test_the_proof_rejects_sound_in_other_places(planted: Callable[[], None], shards: Path) -> None:
    asked = proved("qwen2_5_omni", shards, (box(0), box(0), box(0)))
    assert failures(verify_spec(asked, prepare=planted)) != []
