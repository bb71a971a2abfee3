"""A tower and a decoder of ours are an InternVL, a SmolVLM, a Mistral 3, number by number."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.hugging_face import ids_of, save
from tests.support.lines import IMAGE, lined_spec, marked_folder, write_lined_shard
from tests.support.llava import GRID, LAYOUTS
from tests.support.seeing import KINDS, TOKEN, boxes, logits_of, made, tiny
from tests.support.whole_models import OPTIMIZERS, WholeModel, deviation, found_logits

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.processors.tokenizer import token_id
from mimo_launch.spec.spec import Spec


def family(kind: str, **settings: Any) -> WholeModel:
    """Return a family; `settings` are those of `made`."""
    return WholeModel(
        partial(tiny, kind),
        partial(made, kind, **settings),
        logits_of,
        "vision_config",
        (("image_token_id", "image_token_index"), TOKEN),
        derived=frozenset({"layer_types"}),
    )


def deviation_of(kind: str, asked: Spec, model: Any, run: Path) -> float:
    """Return how far the logits of a spec are from those of a model."""
    return deviation(found_logits(asked, run), family(kind).wanted(model, asked))


# Its tower takes images of one size.
OF_ONE_SIZE = {"gemma3"}
OFTEN = {
    ("gemma3", "cp2"), ("internvl", "apart"), ("internvl_large", "tp2"), ("mistral3", "apart"),
    ("smolvlm", "cp2"), ("ministral3", "cp2"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, each, marks=() if (kind, each) in OFTEN else pytest.mark.sweep)
        for kind in KINDS
        for each in LAYOUTS
    ],
)
def test_logits_are_those_of_transformers(kind: str, layout: str, tmp_path: Path) -> None:
    """Text alone in some samples, several images in others, of the size of the table."""
    assert family(kind).deviation(layout, tmp_path) < 1e-5


@pytest.mark.sweep
@pytest.mark.parametrize("side", [2, 6, 10])
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - OF_ONE_SIZE))
def test_logits_of_images_of_other_sizes(kind: str, side: int, tmp_path: Path) -> None:
    assert family(kind, side=side).deviation("tp2", tmp_path) < 1e-5


# Each image has a size of its own.
OF_ANY_SIZE = {"ministral3", "mistral3", "pixtral"}


@pytest.mark.parametrize("kind", sorted(OF_ANY_SIZE))
def test_logits_of_images_of_several_sizes(kind: str, tmp_path: Path) -> None:
    layout = "tp2" if kind == "mistral3" else "one rank"
    assert family(kind, side=None).deviation(layout, tmp_path) < 1e-5
    asked = made(kind, layout, tmp_path / "model", side=None)
    data = build_dataset(asked)
    sizes = {x.shape for each in ids_of(asked) for x in data.images("train", each, "vision")}
    assert len(sizes) > 2


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
    found = found_logits(asked, tmp_path, vocab)
    wanted = family("mistral3").wanted(model, asked)
    data = build_dataset(asked)
    samples = [data.describe("train", each).spans for each in ids_of(asked)]
    lines = [len(span.lines) for spans in samples for span in spans.get("vision", ())]
    assert sorted(lines) == [1, 3, 4, 6]
    assert deviation(found, wanted) < 1e-5


SELDOM = {"idefics3", "ministral3", "pixtral"}


@pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=pytest.mark.sweep if x in SELDOM else ()) for x in KINDS]
)
def test_logits_in_float64(kind: str, tmp_path: Path) -> None:
    side = GRID if kind in OF_ONE_SIZE else 6
    found, _ = family(kind, side=side).deviations_in_float64(tmp_path)
    assert found < 1e-9


STEPS_OFTEN = {
    ("gemma3", "adamw"), ("internvl", "adamw"), ("mistral3", "sgd"), ("smolvlm", "sgd"),
    ("ministral3", "adamw"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        pytest.param(kind, each, marks=() if (kind, each) in STEPS_OFTEN else pytest.mark.sweep)
        for kind in KINDS
        for each in OPTIMIZERS
    ],
)
def test_a_step_is_that_of_plain_torch(kind: str, optimizer: str, tmp_path: Path) -> None:
    """On the same texts and images, by name; norms, biases and layer scale do not decay."""
    # One bias for all keys of a query changes nothing.
    family(kind).assert_step(
        optimizer, tmp_path, undecided=lambda name: name.endswith("k_proj.bias")
    )


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "frequencies of both axes": ("mistral3", {"rope_frequencies": "shared"}),
    "norm of patches": ("mistral3", {"projector_norm_eps": 0.1}),
    "offset of the projector's norm": ("gemma3", {"projector_norm_offset": False}),
    "norm of the projector": ("internvl", {"projector_norm_eps": 0.1}),
    "norms per layer": ("internvl_large", {"norm_eps": 1e-2}),
    "interpolation": ("smolvlm", {"interpolation": "bicubic"}),
}


@pytest.mark.sweep
@pytest.mark.parametrize("wrong", WRONG)
def test_the_bound_sees_a_wrong_setting(wrong: str, tmp_path: Path) -> None:
    kind, changed = WRONG[wrong]
    model = tiny(kind)
    save(model, tmp_path / "model")
    side = GRID if kind in OF_ONE_SIZE else 6
    asked = made(kind, "one rank", tmp_path / "model", side=side)
    module = asked.modules["vision"]
    other = module.model_copy(update={"model": module.model.model_copy(update=changed)})
    asked = asked.model_copy(update={"modules": {**asked.modules, "vision": other}})
    assert deviation_of(kind, asked, model, tmp_path) > 1e-4


@pytest.mark.sweep
def test_the_bound_sees_images_that_are_causal(tmp_path: Path) -> None:
    model = tiny("gemma3")
    save(model, tmp_path / "model")
    asked = made("gemma3", "one rank", tmp_path / "model")
    changed = asked.language.model.model_copy(update={"bidirectional_images": False})
    language = asked.language.model_copy(update={"model": changed})
    asked = asked.model_copy(update={"modules": {**asked.modules, "language": language}})
    assert deviation_of("gemma3", asked, model, tmp_path) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_an_untouched_model_comes_out_bit_for_bit(kind: str, tmp_path: Path) -> None:
    """With its settings, those that we do not know among them."""
    family(kind).assert_untouched(tmp_path)
