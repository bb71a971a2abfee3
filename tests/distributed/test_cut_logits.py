"""Images of shards that become several, or lines: logits of a SmolVLM, an InternVL, a Mistral 3."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.cut_images import FAMILIES, cut_spec, cutting_folder, write_cut_shard
from tests.support.hugging_face import ids_of, save
from tests.support.lines import IMAGE, lined_spec, marked_folder, write_lined_shard
from tests.support.llava import GRID, PATCH
from tests.support.seeing import boxes, logits_of, tiny
from tests.support.whole_models import deviation, found_logits

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.samples import readers
from mimo_launch.processors.tokenizer import token_id
from mimo_launch.spec.spec import Spec

SIDE, VOCAB = GRID * PATCH, 400
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "smolvlm": (
        "SmolVLM", {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    ),
    "internvl": ("InternVL", {"size": {"height": SIDE, "width": SIDE}, "max_patches": 4}),
}  # fmt: skip
SAMPLES = [[(16, 13), (9, 41)], [(24, 24)], [], [(5, 30)]]


def asked_of(kind: str, layout: str, run: Path) -> tuple[Any, Spec]:
    family, settings = KINDS[kind]
    folder = cutting_folder(run / "model", family, **settings)
    token = token_id(folder, FAMILIES[family][3])
    assert token is not None
    model = tiny(kind, token=token, vocab=VOCAB)
    save(model, folder)
    write_cut_shard(run / "0.tar", SAMPLES)
    asked = cut_spec(
        run, folder, family, boxes(kind, layout, folder, token, VOCAB), seq=128,
        microbatches=2, mbs=2, train={"steps": 1, "precision": "fp32"},
    )  # fmt: skip
    assert not [item for item in check(asked) if item.is_error]
    return model, asked


OFTEN = {("smolvlm", "one rank"), ("smolvlm", "apart"), ("internvl", "cp2")}


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, each, marks=() if (kind, each) in OFTEN else pytest.mark.sweep)
        for kind in KINDS
        for each in ("one rank", "cp2", "apart")
    ],
)
def test_logits_are_those_of_transformers(kind: str, layout: str, tmp_path: Path) -> None:
    """With two images of different sizes, with one and without."""
    model, asked = asked_of(kind, layout, tmp_path)
    found = found_logits(asked, tmp_path)
    data = build_dataset(asked)
    seen = [data.describe("train", each).spans.get("vision", ()) for each in ids_of(asked)]
    assert len({len(each) for each in seen}) > 2
    with torch.no_grad():
        assert deviation(found, logits_of(model, asked)) < 1e-5


def test_the_bound_sees_all_of_an_image_in_front_of_its_tiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = asked_of("smolvlm", "one rank", tmp_path)
    found = found_logits(asked, tmp_path)
    correct = readers.process_cut

    def whole_first(*given: Any) -> Any:
        *tiles, whole = correct(*given)
        return iter([whole, *tiles])

    monkeypatch.setattr(readers, "process_cut", whole_first)
    with torch.no_grad():
        assert deviation(found, logits_of(model, asked)) > 1e-4


@pytest.mark.parametrize("layout", ["cp2", pytest.param("apart", marks=pytest.mark.sweep)])
def test_logits_with_tokens_between_the_lines_of_images(layout: str, tmp_path: Path) -> None:
    """Of shards: the tokens of a Mistral 3, on cp ranks that share an image."""
    folder, vocab = marked_folder(tmp_path / "model"), 400
    token = token_id(folder, IMAGE)
    assert token is not None
    model = tiny("mistral3", token=token, vocab=vocab)
    save(model, folder)
    write_lined_shard(tmp_path / "0.tar", [[(16, 13), (9, 21)], [(24, 24)], [], [(5, 30)]])
    modules = boxes("mistral3", layout, folder, token, vocab)
    asked = lined_spec(
        tmp_path, folder, modules, seq=128, microbatches=2, mbs=2,
        train={"steps": 1, "precision": "fp32"},
    )  # fmt: skip
    assert not [item for item in check(asked) if item.is_error]
    found = found_logits(asked, tmp_path)
    with torch.no_grad():
        wanted = logits_of(model, asked)
    data = build_dataset(asked)
    samples = [data.describe("train", each).spans for each in ids_of(asked)]
    lines = [len(span.lines) for spans in samples for span in spans.get("vision", ())]
    assert sorted(lines) == [1, 3, 4, 6]
    assert deviation(found, wanted) < 1e-5
