"""Text-only twins: what they keep, that they pass the checks, and which specs have none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.specs import box, spec

from mimo_launch.bench.text_twin import NoTwin, text_twin
from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.data.build import build_dataset
from mimo_launch.kinds.vocabulary import padded_vocab_size
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.load import load_spec
from mimo_launch.spec.spec import Spec

TOPOLOGIES = Path(__file__).parents[2] / "topologies"
FILES = sorted([*TOPOLOGIES.glob("*.yaml"), *TOPOLOGIES.glob("bench/nano20*.yaml")])


def twin_of(path: Path, *settings: str) -> Spec:
    """The twin of a file, which passed all checks."""
    found = load_and_check(path, settings, on_gpus=False, change=text_twin)
    assert found.spec is not None, found.diagnostics
    return found.spec


def mean_length(made: Spec) -> float:
    dataset = build_dataset(made)
    return float(np.mean([dataset.length("train", index) for index in range(1000)]))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_twin_of_a_topology_has_language_alone_and_as_many_positions(path: Path) -> None:
    before = load_and_check(path, on_gpus=False, only_plans=True).spec
    assert before is not None
    if not before.sources_of("language"):
        with pytest.raises(NoTwin, match="reads no encoder"):
            text_twin(before)
        return
    twin = twin_of(path)
    old, new = before.language, twin.language
    assert list(twin.modules) == ["language"]
    assert (new.grid, new.order, new.experts) == (old.grid, old.order, old.experts)
    assert new.rank_range == range(old.grid.num_ranks)
    assert world_size(twin) == old.grid.num_ranks
    assert (twin.batch, twin.train.seed) == (before.batch, before.train.seed)
    assert twin.schedule.microbatches == before.schedule.microbatches
    assert twin.schedule.virtual_stages == before.schedule.virtual_stages
    assert padded_vocab_size(twin) == padded_vocab_size(before)
    assert twin.data.packing == before.data.packing


@pytest.mark.parametrize(
    "name",
    [
        "bench/packed_gemma3_4b",
        "bench/packed_video_4b",
        "many_images",
        "quickstart",
        "bench/r1_dp2_tp2",
    ],
)
def test_texts_of_a_twin_have_the_length_of_samples(name: str) -> None:
    path = TOPOLOGIES / f"{name}.yaml"
    before = load_spec(path).spec
    assert before is not None
    assert mean_length(twin_of(path)) == pytest.approx(mean_length(before), rel=0.02)


def test_texts_of_a_twin_have_as_many_documents_as_samples() -> None:
    made = spec({"vision": box(0), "language": box(1)}, max_documents=3)
    assert text_twin(made).data.max_documents == 3


@pytest.mark.parametrize(
    ("language", "vision", "has"),
    [
        ({"frozen": True}, {}, False),
        ({"frozen": True, "adapter": {"rank": 2, "alpha": 2}}, {}, True),
        ({"frozen": {"layers": "0"}}, {}, False),
        ({"frozen": {"layers": "0"}}, {"frozen": "except_projector"}, False),
        ({"frozen": {"layers": "0"}}, {"frozen": True}, True),
        ({"frozen": {"layers": "1"}}, {}, True),
    ],
)
def test_frozen_layers_have_a_twin_if_their_backward_is_the_same(
    language: dict[str, Any], vision: dict[str, Any], has: bool
) -> None:
    model = {"layers": 2}
    made = spec({"vision": box(0, **vision), "language": box(1, model=model, **language)})
    if has:
        assert text_twin(made).language.frozen == made.language.frozen
        return
    with pytest.raises(NoTwin, match=r"modules[.]language[.]frozen=false"):
        text_twin(made)


def test_samples_that_are_not_here_have_the_length_that_the_spec_expects() -> None:
    """Shards and weights need not be here: a twin needs neither."""
    data = "data={kind: webdataset, shards: no/*.tar, tokenizer: no, template: caption, "
    expect = "expect: {images: 1, rows: 9, text: 31, samples: 100}}"
    vocab = "modules.language.model.vocab=64"
    settings = [data + expect, vocab, "batch.seq=128", "init_from=no", "eval=null"]
    twin = twin_of(TOPOLOGIES / "quickstart.yaml", *settings)
    assert twin.language.init_from is None
    assert mean_length(twin) == pytest.approx(9 + 31, rel=0.02)
    assert twin.data.min_text + twin.data.max_text == 2 * (9 + 31)
