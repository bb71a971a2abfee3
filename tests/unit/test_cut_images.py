"""Processors that make several images of one: tiles, all of it, and the text around them."""

import io
import json
import random
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.cut_images import (
    FAMILIES,
    conversation,
    cut_spec,
    cutting_folder,
    image_classes,
    processor_of,
    write_cut_shard,
)
from tests.support.graphs import flow
from tests.support.shards import PARTS, image_bytes, tokenizer_folder, write_shard
from tests.support.specs import box

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.data.sample_sizes import longest_sample
from mimo_launch.data.samples.decode_media import process, process_cut
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.image_recipe import ImageRecipe
from mimo_launch.processors.image_texts import slice_texts
from mimo_launch.processors.images import read_recipe
from mimo_launch.processors.resize_rules import ImageTooThin
from mimo_launch.processors.slice_rules import Sliced
from mimo_launch.processors.tokenizer import token_id

SHAPES = [(61, 47), (20, 90), (9, 7), (200, 133), (32, 32), (16, 16), (48, 48), (1, 70), (33, 96)]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "idefics3": ("Idefics3", {}),
    "smolvlm": ("SmolVLM", {}),
    "smolvlm, of no multiple": (
        "SmolVLM",
        {"size": {"longest_edge": 50}, "max_image_size": {"longest_edge": 14}, "resample": 3},
    ),
    "smolvlm, of one tile": ("SmolVLM", {"size": {"longest_edge": 16}}),
    "smolvlm, not split": ("SmolVLM", {"do_image_splitting": False}),
    "internvl": ("InternVL", {}),
    "internvl, at least 2": ("InternVL", {"min_patches": 2, "max_patches": 4}),
    "minicpm": ("MiniCPMV4_6", {}),
    "minicpm, coarse": (
        "MiniCPMV4_6",
        {"downsample_mode": "16x", "scale_resolution": 40, "max_slice_nums": 9},
    ),
    "minicpm, not sliced": ("MiniCPMV4_6", {"slice_mode": False}),
    "internvl, wide": ("InternVL", {"size": {"height": 12, "width": 20}, "max_patches": 12}),
}


def recipe_and_theirs(case: str, folder: Path) -> tuple[ImageRecipe, Any]:
    family, settings = CASES[case]
    cutting_folder(folder, family, **settings)
    name = FAMILIES[family][0]
    theirs = getattr(image_classes(name), f"{name}ImageProcessorPil").from_pretrained(folder)
    return read_recipe(folder), theirs


def pixels_of(made: Any, theirs: Any) -> list[np.ndarray]:
    """Return the images that a processor makes of images, each [channels, height, width]."""
    pixels = made["pixel_values"]
    if "target_sizes" not in made:
        return list(pixels[0] if pixels.ndim == 5 else pixels)
    found, at, side = [], 0, theirs.patch_size
    for rows, columns in np.asarray(made["target_sizes"]).tolist():
        wide = rows * columns * side
        patches = np.asarray(pixels[0, :, :, at : at + wide])
        patches = patches.reshape(3, side, rows, columns, side).transpose(0, 2, 1, 3, 4)
        found.append(patches.reshape(3, rows * side, columns * side))
        at += wide
    return found


@pytest.mark.parametrize("case", CASES)
def test_pixels_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    """Of all tiles in their order, and behind them of all of the image."""
    recipe, theirs = recipe_and_theirs(case, tmp_path)
    assert recipe.cut is not None
    numbers = set()
    for seed, (height, width) in enumerate(SHAPES):
        image = Image.open(io.BytesIO(image_bytes(height, width, seed=seed))).convert("RGB")
        more = {"crop_to_patches": True} if case.startswith("internvl") else {}
        want = pixels_of(theirs(image, return_tensors="np", **more), theirs)
        found = list(process_cut(image, recipe, recipe.cut))
        assert [each.shape[1:] for each in found] == recipe.cut.pieces(height, width)
        for ours, its in zip(found, want, strict=True):
            assert ours.shape == its.shape, (height, width)
            assert ours.dtype == np.float32
            assert np.abs(ours - its).max() <= 1e-5, (height, width)
        assert len(found) == len(recipe.cut.pieces(height, width)) >= recipe.cut.fewest
        numbers.add(len(found))
    one = ("smolvlm, of one tile", "smolvlm, not split", "minicpm, not sliced")
    assert len(numbers) > 2 or case in one


# As published: SmolVLM2-2.2B, SmolVLM2-500M, Idefics3-8B, InternVL3.5.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "SmolVLM2-2.2B": (
        "SmolVLM", {"size": {"longest_edge": 1536}, "max_image_size": {"longest_edge": 384}},
    ),
    "SmolVLM2-500M": (
        "SmolVLM", {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
    ),
    "beyond 4096": (
        "Idefics3", {"size": {"longest_edge": 5000}, "max_image_size": {"longest_edge": 364}},
    ),
    "InternVL3.5": (
        "InternVL",
        {"size": {"height": 448, "width": 448}, "max_patches": 12, "crop_to_patches": False},
    ),
}  # fmt: skip


def their_grid(theirs: Any, monkeypatch: pytest.MonkeyPatch, height: int, width: int) -> Any:
    """Return the tiles down and to the right of an image, by the steps that resize it.

    Their method that counts tiles leaves a step out.
    """
    made = height, width

    def resized(self: Any, image: Any, size: Any, **_: Any) -> Any:
        nonlocal made
        del self
        longest = size.longest_edge
        module = image_classes(type(theirs).__name__.removesuffix("ImageProcessorPil"))
        made = (
            module.get_resize_output_image_size(image, longest)
            if longest
            else (size.height, size.width)
        )
        return np.broadcast_to(np.zeros((1, 1, 1)), (3, *made))

    monkeypatch.setattr(type(theirs), "resize", resized)
    side = theirs.max_image_size["longest_edge"]
    image = np.broadcast_to(np.zeros((1, 1, 1)), (3, height, width))
    theirs.resize_for_vision_encoder(theirs.resize(image, theirs.size), side)
    return made[0] // side, made[1] // side


@pytest.mark.parametrize("name", PUBLISHED)
def test_grids_are_those_of_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, settings = PUBLISHED[name]
    cutting_folder(tmp_path, family, **settings)
    recipe = read_recipe(tmp_path)
    assert recipe.cut is not None
    kind = FAMILIES[family][0]
    theirs = getattr(image_classes(kind), f"{kind}ImageProcessorPil").from_pretrained(tmp_path)
    draws = random.Random(5)
    sizes = [(draws.randint(1, 3000), draws.randint(1, 3000)) for _ in range(300)]
    sizes += [(side, 2 * side) for side in (100, 224, 448, 450)] + [(384, 384), (1536, 768)]
    for height, width in sizes:
        found = recipe.cut.grid(height, width)
        if family == "InternVL":
            want = theirs.get_number_of_image_patches(height, width, {"crop_to_patches": True})
            assert len(recipe.cut.pieces(height, width)) == want, (height, width)
        else:
            assert found == their_grid(theirs, monkeypatch, height, width), (height, width)


@pytest.mark.parametrize("mode", ["4x", "16x"])
def test_slices_are_those_of_transformers(mode: str, tmp_path: Path) -> None:
    """Of the published size; their number, their sizes and a limit on all of them."""
    settings = {"scale_resolution": 448, "patch_size": 14, "max_slice_nums": 9}
    cutting_folder(tmp_path, "MiniCPMV4_6", **settings, downsample_mode=mode)
    cut = read_recipe(tmp_path).cut
    assert isinstance(cut, Sliced)
    assert (cut.fewest, cut.most, cut.resize.divisor) == (1, 10, 28 if mode == "4x" else 56)
    made = image_classes("MiniCPMV4_6").MiniCPMV4_6ImageProcessorPil
    theirs = made.from_pretrained(tmp_path)
    draws = random.Random(5)
    sizes = [(draws.randint(1, 3000), draws.randint(1, 3000)) for _ in range(300)]
    sizes += [(448, 448), (449, 449), (1344, 1344), (4000, 20), (20, 4000)]
    for size in sizes:
        if max(size) > 200 * min(size):
            continue
        grid = theirs.get_sliced_grid(size, 9, 448)
        assert cut.grid(*size) == tuple(grid or (1, 1)), size
        want = [theirs.find_best_resize(size, 448, 14, mode, allow_upscale=grid is None)]
        if grid is not None:
            tall, wide = theirs.get_refine_size(size, grid, 448, 14, mode, allow_upscale=True)
            want += [(tall // grid[0], wide // grid[1])] * (grid[0] * grid[1])
        assert cut.pieces(*size) == want, size
        assert max(height * width for height, width in want) <= cut.resize.most_pixels
    with pytest.raises(ImageTooThin):
        cut.pieces(1, 300)


def test_small_images_keep_their_size_where_the_folder_says_so(tmp_path: Path) -> None:
    asked = {"small_image_upsize": "never", "use_image_id": False}
    folder = cutting_folder(tmp_path, "MiniCPMV4_6", **asked)
    cut = read_recipe(folder).cut
    assert cut is not None
    assert cut.pieces(9, 15) == [(8, 16)]
    wanted = ("<image><image_pad></image>", "<slice><image_pad></slice>")
    assert slice_texts(folder) == wanted
    # The processor of a model goes before the older file.
    older = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": older}))
    (folder / "preprocessor_config.json").write_text(json.dumps(older | {"use_image_id": True}))
    assert slice_texts(folder) == wanted


def test_the_index_follows_the_text_of_slices(tmp_path: Path) -> None:
    write_cut_shard(tmp_path / "0.tar", [[(40, 30)]])
    lengths = set()
    for numbered in (True, False):
        folder = cutting_folder(tmp_path / "model", "MiniCPMV4_6", use_image_id=numbered)
        data = build_dataset(cut_spec(tmp_path, folder, "MiniCPMV4_6"))
        data.text("train", 0)
        lengths.add(data.length("train", 0))
    assert len(lengths) == 2


SAMPLES = [
    [(40, 30)], [(20, 90), (61, 47)], [], [(7, 90)], [(24, 24), (9, 70), (100, 21)], [(16, 16)],
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_is_that_of_the_processor(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens, what is learned of them, its images in order and the places of their rows."""
    folder = cutting_folder(tmp_path / "model", family)
    write_cut_shard(tmp_path / "0.tar", SAMPLES)
    data = build_dataset(cut_spec(tmp_path, folder, family))
    processor = processor_of(folder, family, monkeypatch)
    pad = processor.image_token_id
    with tarfile.open(tmp_path / "0.tar") as file:
        names = [each for each in file.getnames() if each.endswith(".png")]
        files = {each: file.extractfile(each).read() for each in names}  # type: ignore[union-attr]
    for index, sizes in enumerate(SAMPLES):
        text = processor.apply_chat_template(conversation(len(sizes), f"A dog, {index}."))
        members = [files[f"{index:03d}.{place}.png"] for place in range(len(sizes))]
        images = [Image.open(io.BytesIO(each)).convert("RGB") for each in members]
        given: dict[str, Any] = {"images": [images]} if images else {}
        want = processor(text=[text], **given, add_special_tokens=False, return_tensors="np")
        plan = data.describe("train", index)
        tokens, labels = data.text("train", index)
        assert tokens[: plan.num_tokens].tolist() == list(want["input_ids"][0])
        spans = plan.spans.get("vision", ())
        places = [place for each in spans for place in range(each.position, each.end)]
        assert places == np.flatnonzero(tokens == pad).tolist()
        learnt = tokens[1:][labels[:-1] != IGNORE_LABEL].tolist()
        assert data.words(learnt).strip().startswith(f"A dog, {index}.")
        assert len(learnt) == plan.num_labels
        found = data.images("train", index, "vision")
        if images:
            wanted = pixels_of(want, processor.image_processor)
            for ours, its in zip(found, wanted, strict=True):
                assert np.abs(ours - its).max() <= 1e-5
        assert len(found) == len(spans)
    numbers = {len(data.describe("train", each).spans.get("vision", ())) for each in range(6)}
    assert len(numbers) > 4


@pytest.mark.parametrize("wrong", ["columns first", "all of it first", "of the other image"])
def test_the_bound_sees_another_order(wrong: str, tmp_path: Path) -> None:
    """Tiles column by column, all of an image in front of them, or made of what it was before."""
    recipe, theirs = recipe_and_theirs("smolvlm", tmp_path)
    assert recipe.cut is not None
    image = Image.open(io.BytesIO(image_bytes(61, 47))).convert("RGB")
    want = theirs(image, return_tensors="np")["pixel_values"][0]
    tall, wide = recipe.cut.grid(61, 47)
    made = np.stack(list(process_cut(image, recipe, recipe.cut)))
    assert np.abs(made - want).max() <= 1e-5
    if wrong == "columns first":
        places = np.arange(tall * wide).reshape(tall, wide).T.ravel()
        made = made[[*places.tolist(), tall * wide]]
    elif wrong == "all of it first":
        made = np.roll(made, 1, axis=0)
    else:
        made[-1] = process(image, recipe)
    assert np.abs(made - want).max() > 1e-2


def test_a_caption_has_its_tiles_one_behind_the_other(tmp_path: Path) -> None:
    """No processor writes text around the images of a caption."""
    folder = cutting_folder(tmp_path / "model", "SmolVLM")
    write_shard(tmp_path / "0.tar", [("0", {"png": image_bytes(20, 90), "txt": b"A dog."})])
    made = cut_spec(tmp_path, folder, "SmolVLM", data={"template": "caption"})
    data = build_dataset(made)
    spans = data.describe("train", 0).spans["vision"]
    assert [each.position for each in spans] == [
        spans[0].position + 4 * place for place in range(len(spans))
    ]
    assert len(data.images("train", 0, "vision")) == len(spans) == 1 + 3


def test_the_tiles_of_each_image_of_a_document_stand_at_its_marker(tmp_path: Path) -> None:
    folder = cutting_folder(tmp_path / "model", "SmolVLM")
    text = b"A dog. <image> A cat. <image> End."
    members = {"png": image_bytes(20, 90), "1.png": image_bytes(90, 20), "txt": text}
    write_shard(tmp_path / "0.tar", [("0", members)])
    made = cut_spec(tmp_path, folder, "SmolVLM", data={"template": "caption"})
    data = build_dataset(made)
    sample, (_, labels) = data.describe("train", 0), data.text("train", 0)
    positions = [each.position for each in sample.spans["vision"]]
    gaps = [after - before for before, after in pairwise(positions)]
    assert len(positions) == 2 * (1 + 3)
    assert [gap == 4 for gap in gaps] == [True] * 3 + [False] + [True] * 3
    # All text but the very first token, which nothing predicts.
    rows = {at for each in sample.spans["vision"] for at in range(each.position, each.end)}
    learnt = {at + 1 for at in np.flatnonzero(labels != IGNORE_LABEL).tolist()}
    assert learnt == set(range(1, sample.num_tokens)) - rows


def test_a_sample_does_not_end_between_two_tiles(tmp_path: Path) -> None:
    """All tiles of an image are left out with any of them."""
    folder = cutting_folder(tmp_path / "model", "InternVL")
    chat = conversation(1, "A dog.") + conversation(1, "A cat.")
    members: dict[str, Any] = {"json": json.dumps({"messages": chat}).encode()}
    members |= {f"{i}.png": image_bytes(*size) for i, size in enumerate([(40, 30), (20, 90)])}
    write_shard(tmp_path / "0.tar", [("0", members)])
    whole = build_dataset(cut_spec(tmp_path, folder, "InternVL"))
    spans = whole.describe("train", 0).spans["vision"]
    recipe = read_recipe(folder)
    assert recipe.cut is not None
    tiles, others = (len(recipe.cut.pieces(*size)) for size in ((40, 30), (20, 90)))
    assert (len(spans), others) == (tiles + others, 6)
    for seq in (spans[-1].position + 1, spans[-2].position, spans[tiles].end):
        asked = cut_spec(tmp_path, folder, "InternVL", seq=seq, data={"too_long": "truncate"})
        cut = build_dataset(asked)
        found = cut.describe("train", 0)
        assert (found.num_tokens, found.spans["vision"]) == (spans[tiles].position, spans[:tiles])
        assert len(cut.images("train", 0, "vision")) == tiles
        text = cut.text("train", 0)[0]
        assert (
            text[: found.num_tokens].tolist()
            == whole.text("train", 0)[0][: found.num_tokens].tolist()
        )


def test_encoders_that_do_not_cut_alike_are_refused(tmp_path: Path) -> None:
    folder = cutting_folder(tmp_path / "model", "InternVL")
    other = cutting_folder(tmp_path / "other", "InternVL", max_patches=1)
    write_cut_shard(tmp_path / "0.tar", [[(40, 30)]])
    vit = {"kind": "vit", "patch": 4, "shuffle": 2, "channels": 3}
    tokens = [token_id(folder, each) for each in ("<IMG_CONTEXT>", "<|audio_pad|>")]
    modules = {
        "vision": box(0, model=vit, placeholder=tokens[0]),
        "second": box(0, model=vit, placeholder=tokens[1]),
        "language": box(0, model={"vocab": 400}),
    }

    def asked(second: Path) -> Any:
        processors = {"vision": str(folder), "second": str(second)}
        return cut_spec(tmp_path, folder, "InternVL", modules, data={"processors": processors})

    assert unfit(asked(other)) == [
        "the image processor of `vision` makes several images of one, but `second` does not take "
        "them"
    ]
    assert unfit(asked(folder)) == []
    found = build_dataset(asked(folder)).describe("train", 0).spans
    assert len(found["vision"]) == len(found["second"]) > 1
    ends = [each.end for each in found["vision"]]
    assert [each.position for each in found["second"]] == ends


def unfit(asked: Any) -> list[str]:
    return [each.headline for each in check(asked) if each.code == "processor-not-supported"]


def test_a_model_with_tiles_of_its_own_takes_none_of_a_processor(tmp_path: Path) -> None:
    folder = cutting_folder(tmp_path / "model", "SmolVLM")
    write_cut_shard(tmp_path / "0.tar", [[(40, 30)]])
    vit = {"kind": "vit", "patch": 4, "channels": 3, "positions": "learned", "image": [4, 4]}
    model = {**vit, "tiles": {"grids": [[1, 2]]}}
    modules = {"vision": box(0, model=model), "language": box(0, model={"vocab": 400})}
    (said,) = unfit(cut_spec(tmp_path, folder, "SmolVLM", modules))
    assert said == f"the image processor of `vision` in {folder} does not fit"
    plain = {**modules, "vision": box(0, model=vit)}
    assert unfit(cut_spec(tmp_path, folder, "SmolVLM", plain)) == []


def test_a_generator_makes_whole_images(tmp_path: Path) -> None:
    folder = cutting_folder(tmp_path / "model", "SmolVLM")
    write_cut_shard(tmp_path / "0.tar", [[(40, 30)]])
    vit = {"kind": "vit", "patch": 4, "shuffle": 2, "channels": 3}
    painter = flow()
    modules = {
        "vision": box(0, model=vit),
        "language": box(0, model={"vocab": 400}),
        "painter": box(0, **{**painter, "model": {**painter["model"], "patch": 4, "channels": 3}}),
    }
    processors = {"vision": str(folder), "painter": str(folder)}
    (said,) = unfit(cut_spec(tmp_path, folder, "SmolVLM", modules, data={"processors": processors}))
    assert said.endswith("makes several images of one, but `painter` does not take them")


@pytest.mark.parametrize(
    ("family", "settings", "said"),
    [
        ("SmolVLM", {"do_resize": False}, "do_resize: false"),
        ("MiniCPMV4_6", {"do_resize": False}, "do_resize: false"),
        ("MiniCPMV4_6", {"max_slice_nums": 0}, "max_slice_nums: 0"),
        ("MiniCPMV4_6", {"small_image_upsize": "adaptive"}, "follow from pixels; write `always`"),
        ("SmolVLM", {"size": {"height": 9, "width": 9}}, "size"),
        ("SmolVLM", {"max_image_size": {"longest_edge": 0}}, "max_image_size: 0"),
        ("InternVL", {"min_patches": 9}, "min_patches: 9, max_patches: 6"),
        ("InternVL", {"max_patches": 10**6}, "max_patches: 1000000 of 16 x 16 pixels"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    family: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ProcessorError, match=said):
        read_recipe(cutting_folder(tmp_path, family, **settings))


def test_one_tile_at_most_is_no_cut(tmp_path: Path) -> None:
    """The processor of an InternVL cuts whatever its file says, unless that allows one tile."""
    assert read_recipe(cutting_folder(tmp_path, "InternVL", crop_to_patches=False)).cut is not None
    assert read_recipe(cutting_folder(tmp_path, "InternVL", max_patches=1)).cut is None


def test_padding_of_a_batch_is_nothing_to_an_image(tmp_path: Path) -> None:
    """Published files ask for it."""
    assert read_recipe(cutting_folder(tmp_path, "SmolVLM", do_pad=True)).pad_square is False


@pytest.mark.parametrize(
    ("family", "usual", "most", "fewest"), [("SmolVLM", 10, 10, 4), ("InternVL", 7, 7, 1)]
)
def test_estimates_count_the_tiles_of_an_image(
    family: str, usual: int, most: int, fewest: int, tmp_path: Path
) -> None:
    """Before shards are read: those of a usual image, as far as a sequence has room."""
    folder = cutting_folder(tmp_path / "model", family)
    write_cut_shard(tmp_path / "0.tar", [[(40, 30)]])
    asked = cut_spec(tmp_path, folder, family)
    for worst, number in ((False, usual), (True, most)):
        sample = nominal_step_data(asked, worst=worst).samples[0]
        assert [span.rows for span in sample.spans["vision"]] == [4] * number
        assert sample.num_tokens <= 512
    short = nominal_step_data(cut_spec(tmp_path, folder, family, seq=20), worst=True)
    assert len(short.samples[0].spans["vision"]) == 4
    assert longest_sample(asked) == 2 + 4 * fewest


def test_tiles_stand_behind_each_other_without_their_processor(tmp_path: Path) -> None:
    """A tokenizer of another model: what its template writes around an image is around all."""
    folder = cutting_folder(tmp_path / "model", "SmolVLM")
    words = tokenizer_folder(tmp_path / "words", PARTS)
    write_cut_shard(tmp_path / "0.tar", [[(40, 30), (20, 90)]])
    pad, *around = (
        token_id(words, f"<|{each}|>") for each in ("image_pad", "vision_start", "vision_end")
    )
    vit = {"kind": "vit", "patch": 4, "shuffle": 2, "channels": 3}
    modules = {
        "vision": box(0, model=vit, placeholder=pad),
        "language": box(0, model={"vocab": 400}),
    }
    asked = cut_spec(tmp_path, folder, "SmolVLM", modules, data={"tokenizer": str(words)})
    tokens = build_dataset(asked).text("train", 0)[0].tolist()
    for begin, number in zip(
        (at for at, token in enumerate(tokens) if token == around[0]), (10, 4), strict=True
    ):
        end = begin + 1 + 4 * number
        assert tokens[begin + 1 : end] == [pad] * (end - begin - 1)
        assert tokens[end] == around[1]
