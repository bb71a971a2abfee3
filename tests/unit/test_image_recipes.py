"""Images are made as the processors of transformers make them, pixel for pixel."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from transformers.image_utils import IMAGENET_DEFAULT_MEAN as IMAGENET_MEAN
from transformers.image_utils import IMAGENET_DEFAULT_STD as IMAGENET_STD

from mimo_launch.data.samples.decode_media import decode_image, process
from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.image_recipe import ImageRecipe
from mimo_launch.processors.images import read_recipe
from mimo_launch.processors.resize_rules import ImageTooThin, ShortEdge, Smart

PROCESSORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "siglip": ("siglip", "SiglipImageProcessorPil", {"size": {"height": 30, "width": 30}}),
    "clip": (
        "clip",
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}},
    ),
    "clip-small": (
        "clip",
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 21}, "crop_size": {"height": 32, "width": 33}},
    ),
    "video-llava": (
        "video_llava",
        "VideoLlavaImageProcessor",
        {
            "size": {"shortest_edge": 28},
            "crop_size": {"height": 28, "width": 28},
        },
    ),
    "llava": (
        "llava",
        "LlavaImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}, "do_pad": True},
    ),
    # Without pan and scan.
    "gemma3": ("gemma3", "Gemma3ImageProcessorPil", {"size": {"height": 28, "width": 28}}),
    "gemma4": (
        "gemma4",
        "Gemma4ImageProcessorPil",
        {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70},
    ),
    # That of InternVL, without tiles.
    "internvl": ("got_ocr2", "GotOcr2ImageProcessorPil", {"size": {"height": 28, "width": 28}}),
    "pixtral": (
        "pixtral",
        "PixtralImageProcessorPil",
        {"patch_size": {"height": 6, "width": 6}, "size": {"longest_edge": 64}},
    ),
    "qwen2-vl": (
        "qwen2_vl",
        "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "merge_size": 2, "min_pixels": 16 * 16, "max_pixels": 48 * 40},
    ),
    "paddleocr-vl": (
        "paddleocr_vl",
        "PaddleOCRVLImageProcessorPil",
        {
            "patch_size": 8,
            "merge_size": 2,
            "size": {"shortest_edge": 16 * 16, "longest_edge": 80 * 64},
        },
    ),
    "video-llama-3": (
        "video_llama_3",
        "VideoLlama3ImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 16 * 16, "longest_edge": 48 * 40}},
    ),
    "glm4v": (
        "glm4v",
        "Glm4vImageProcessorPil",
        {
            "patch_size": 4,
            "merge_size": 2,
            "size": {"shortest_edge": 2 * 16 * 16, "longest_edge": 2 * 48 * 40},
        },
    ),
    "glm46v": (
        "glm46v",
        "Glm46VImageProcessorPil",
        {
            "patch_size": 4,
            "merge_size": 2,
            "size": {"shortest_edge": 2 * 16 * 16, "longest_edge": 2 * 48 * 40},
        },
    ),
    "glmga": (
        "glmga",
        "GlmgaImageProcessorPil",
        {
            "patch_size": 4,
            "merge_size": 2,
            "size": {"shortest_edge": 2 * 32 * 32, "longest_edge": 2 * 96 * 80},
        },
    ),
    "cosmos3-edge": (
        "cosmos3_edge",
        "Cosmos3EdgeImageProcessorPil",
        {
            "patch_size": 4,
            "merge_size": 2,
            "size": {"shortest_edge": 16 * 16, "longest_edge": 48 * 40},
        },
    ),
    "janus": (
        "janus",
        "JanusImageProcessorPil",
        {"size": {"height": 28, "width": 28}, "do_convert_rgb": True},
    ),
    "janus, thin": (
        "janus",
        "JanusImageProcessorPil",
        {
            "size": {"height": 28, "width": 28},
            "min_size": 21,
            "image_mean": [0.5, 0.4, 0.3],
            "do_convert_rgb": True,
        },
    ),
    # Qwen3-VL has the same with other settings.
    "qwen3-vl": (
        "qwen2_vl",
        "Qwen2VLImageProcessorPil",
        {
            "patch_size": 8,
            "merge_size": 2,
            "size": {"shortest_edge": 32 * 32, "longest_edge": 80 * 64},
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
    ),
}
SHAPES = [(61, 47), (20, 90), (9, 7), (200, 133), (32, 32)]


def class_of(name: str) -> Any:
    module, cls, _ = PROCESSORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pil = "pil_" * cls.endswith("Pil")
        loaded = __import__(
            f"transformers.models.{module}.image_processing_{pil}{module}", fromlist=[cls]
        )
    return getattr(loaded, cls)


def saved(folder: Path, name: str) -> Any:
    processor = class_of(name)(**PROCESSORS[name][2])
    processor.save_pretrained(folder)
    return processor


def files(folder: Path) -> list[Path]:
    """Real files of every kind that Pillow decodes in another mode; some turned or transparent."""
    random = np.random.default_rng(0)
    turned = Image.Exif()
    turned[0x0112] = 6
    made = []
    for number, (height, width) in enumerate(SHAPES):
        smooth = np.indices((height, width)).sum(0)[..., None] * 2 + random.integers(
            0, 60, (height, width, 3)
        )
        image = Image.fromarray(smooth.clip(0, 255).astype(np.uint8))
        alpha = Image.fromarray(np.linspace(0, 255, height * width).reshape(height, width) // 1)
        settings: dict[str, Any]
        for mode, suffix, settings in [
            ("RGB", "jpg", {"exif": turned}),
            ("CMYK", "jpg", {}),
            ("L", "png", {"transparency": 90}),
            ("P", "png", {"transparency": bytes(range(256))}),
            ("RGB", "png", {"transparency": image.getpixel((0, 0))}),
            ("RGBA", "png", {}),
            ("LA", "png", {}),
            ("RGBA", "webp", {"exif": turned}),
            ("1", "png", {}),
        ]:
            path = folder / f"{number}-{mode}.{suffix}"
            converted = image.convert(mode)
            if mode.endswith("A"):
                converted.putalpha(alpha.convert("L"))
            converted.save(path, **settings)
            made.append(path)
    return made


def reference(processor: Any, path: Path) -> np.ndarray:
    """What transformers makes of a file, [channels, height, width].

    What is opaque it loads itself. Its processors put a picture that is opened on white, but do not
    turn it.
    """
    from transformers.image_utils import load_image

    with Image.open(path) as file:
        opened = ImageOps.exif_transpose(file)
    image = opened if opened.has_transparency_data else load_image(str(path))
    made = processor(image, return_tensors="np")
    # A Video-LLaVA has its own name for them.
    pixels = made.get("pixel_values", made.get("pixel_values_images"))
    if (places := made.get("image_position_ids")) is not None:
        # Patches line by line, colours last, padded; the model centres them.
        columns, rows = places[0].max(axis=0) + 1
        patches = pixels[0, : rows * columns].reshape(rows, columns, *[processor.patch_size] * 2, 3)
        whole = patches.transpose(4, 0, 2, 1, 3)
        return 2 * whole.reshape(3, *(whole.shape[1] * whole.shape[2], -1)) - 1
    if "image_grid_thw" not in made:
        return pixels[0]
    _, rows, columns = made["image_grid_thw"][0]
    p, t = processor.patch_size, processor.temporal_patch_size
    # Some have their patches line by line.
    m = 1 if pixels.ndim == 4 else processor.merge_size
    if type(processor).__name__.startswith("Cosmos3Edge"):
        pixels = np.moveaxis(pixels.reshape(-1, p, p, 3, t), (1, 2), (3, 4))  # Colours last.
    patches = pixels.reshape(rows // m, columns // m, m, m, 3, t, p, p)[:, :, :, :, :, 0]
    return patches.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * p, columns * p)


@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    processor = saved(tmp_path, name)
    recipe = read_recipe(tmp_path)
    compared = 0
    for path in files(tmp_path):
        image = decode_image(path.suffix[1:], path.read_bytes(), channels=3)
        want = reference(processor, path)
        found = process(image, recipe)
        assert found.dtype == np.float32
        assert found.shape == want.shape == (3, *recipe.size(image.height, image.width)), path
        assert np.abs(found - want).max() <= 1e-5, path
        compared += 1
    assert compared == len(SHAPES) * 9


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        # The border keeps the colour of the mean.
        ("llava", {"do_normalize": False}),
        ("janus", {"do_normalize": False, "image_mean": [0.2, 0.4, 0.6]}),
        # A size without names is that of a square, or of the shorter side.
        ("gemma3", {"size": 28}),
        ("internvl", {"size": 28}),
        ("internvl", {"size": [28, 32]}),
        ("pixtral", {"size": 60}),
        ("siglip", {"size": 28}),
        # These crop nothing.
        ("gemma3", {"do_center_crop": True, "crop_size": 20}),
        ("internvl", {"do_center_crop": True, "crop_size": 20}),
        ("janus", {"do_center_crop": True, "crop_size": 20}),
        ("qwen2-vl", {"do_center_crop": True, "crop_size": 20}),
    ],
)
def test_settings_mean_what_they_mean_to_the_class(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    _, cls, usual = PROCESSORS[name]
    said = {"image_processor_type": cls.removesuffix("Pil"), **usual, **settings}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    theirs, recipe = class_of(name).from_pretrained(tmp_path), read_recipe(tmp_path)
    for path in [each for each in files(tmp_path) if "RGB." in each.name]:
        with Image.open(path) as file:
            want = reference(theirs, path)
            found = process(ImageOps.exif_transpose(file).convert("RGB"), recipe)
        assert found.shape == want.shape, path
        if "transparency" not in file.info:
            assert np.abs(found - want).max() <= 1e-5, path


@pytest.mark.parametrize(
    ("whole", "factor"),
    [
        ({"processor_class": "PixtralProcessor", "patch_size": 7, "spatial_merge_size": 2}, 14),
        ({"processor_class": "PixtralProcessor"}, 16),
        ({"processor_class": "LlavaProcessor", "patch_size": 7}, 6),
    ],
)
def test_the_processor_of_a_model_decides_the_multiples(
    whole: dict[str, Any], factor: int, tmp_path: Path
) -> None:
    saved(tmp_path, "pixtral")
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    assert read_recipe(tmp_path).factor == factor
    assert read_recipe(tmp_path).most_pixels == (-(-64 // factor) * factor) ** 2


def test_sides_are_multiples_of_a_patch_that_expands(tmp_path: Path) -> None:
    """As in the class with torchvision; that of Pillow leaves the setting out."""
    saved(tmp_path, "glmga")
    config = json.loads((tmp_path / "preprocessor_config.json").read_text())
    config["patch_expand_factor"] = 3
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    assert read_recipe(tmp_path).factor == 4 * 2 * 3


def test_a_side_that_shrinks_to_nothing_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "pixtral")
    assert read_recipe(tmp_path).size(640, 10) == (66, 6)
    with pytest.raises(ImageTooThin, match="1 x 100 pixels become 0 x 64"):
        read_recipe(tmp_path).size(100, 1)


def test_a_processor_may_stand_inside_that_of_a_model(tmp_path: Path) -> None:
    saved(tmp_path, "qwen2-vl")
    config = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": config}))
    assert read_recipe(tmp_path).resize == Smart(8, 256, 1920)


def test_the_processor_of_a_model_goes_before_an_older_file(tmp_path: Path) -> None:
    """As in `transformers` 5, which leaves the older file where it saves."""
    inner = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 9, "width": 9}}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": inner}))
    older = {**inner, "size": {"height": 7, "width": 7}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(older))
    assert class_of("siglip").from_pretrained(tmp_path).size.height == 9
    assert read_recipe(tmp_path).only_size == (9, 9)
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "X"}))
    assert class_of("siglip").from_pretrained(tmp_path).size.height == 7
    assert read_recipe(tmp_path).only_size == (7, 7)


def test_pixels_are_divided_by_255_unless_a_file_says_otherwise(tmp_path: Path) -> None:
    saved(tmp_path, "qwen2-vl")
    file = tmp_path / "preprocessor_config.json"
    config = json.loads(file.read_text())
    del config["rescale_factor"]
    file.write_text(json.dumps(config))
    assert read_recipe(tmp_path).scale == 1 / 255


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"image_processor_type": "ViTImageProcessor"}, "ViTImageProcessor; supported are CLIP"),
        ({"image_processor_type": "CLIPImageProcessor", "do_pad": True}, "do_pad: true"),
        (
            {"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": True},
            "do_pan_and_scan: true, which adds crops",
        ),
        ({"image_processor_type": "CLIPImageProcessor", "size": {"longest_edge": 3}}, "size"),
        (
            {"image_processor_type": "CLIPImageProcessor", "use_square_size": True},
            "use_square_size",
        ),
        ({"image_processor_type": "Qwen2VLImageProcessor", "size": 9}, "a setting of its Qwen2VL"),
        ({"image_processor_type": "Qwen2VLImageProcessor", "size": "9"}, 'size: "9"'),
        (
            {
                "image_processor_type": "PixtralImageProcessor",
                "patch_size": {"height": 8, "width": 4},
            },
            'patch_size: {"height": 8, "width": 4}',
        ),
        (
            {"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 336}},
            "tiles are cut in one size and resized to another",
        ),
        (
            {"image_processor_type": "LlavaOnevisionImageProcessor", "crop_size": 336},
            "tiles are cut in one size and resized to another",
        ),
        ({"image_processor_type": "JanusImageProcessor", "min_size": 999}, "min_size: 999"),
        (
            {"image_processor_type": "JanusImageProcessor", "do_resize": False},
            "do_pad: true with do_resize: false",
        ),
        (
            {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 100},
            "`max_soft_tokens` is 100, not one of",
        ),
        ([], "not a JSON object"),
    ],
)
def test_a_processor_that_is_not_understood_is_refused(
    tmp_path: Path, config: Any, words: str
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(ProcessorError, match=words):
        read_recipe(tmp_path)


def test_tiles_behind_other_words_are_refused(tmp_path: Path) -> None:
    """The processor of an Aya Vision asks for tiles, whatever the file says, and numbers them."""
    from transformers.models.aya_vision.processing_aya_vision import AyaVisionProcessor

    assert AyaVisionProcessor.images_kwargs == {"crop_to_patches": True}
    config = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "processor_class": "InternVLProcessor",
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    assert read_recipe(tmp_path).cut is not None
    config["processor_class"] = "AyaVisionProcessor"
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(
        ProcessorError, match="Aya Vision cuts every image into tiles behind `TILE_1`"
    ):
        read_recipe(tmp_path)


def test_a_folder_without_a_processor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProcessorError, match="neither preprocessor_config"):
        read_recipe(tmp_path)


def test_no_size_is_made_of_a_line(tmp_path: Path) -> None:
    saved(tmp_path, "qwen2-vl")
    with pytest.raises(ImageTooThin, match="more than 200 to 1"):
        read_recipe(tmp_path).size(2, 401)


@pytest.mark.parametrize(
    "recipe",
    [
        ImageRecipe(ShortEdge(224)),
        ImageRecipe(ShortEdge(224), crop=(224, 224)),
        ImageRecipe(ShortEdge(224), crop=(224, 224), pad_square=True),
    ],
    ids=["resize", "crop", "square"],
)
def test_no_aspect_makes_a_giant_of_an_image(recipe: ImageRecipe) -> None:
    """On the way to 224 x 224 a line of 20,000 pixels would be 224 x 4,480,000, or a square."""
    with pytest.raises(ImageTooThin, match=r"20000 x 1 pixels become \d+ million while resizing"):
        recipe.size(1, 20_000)
    assert min(recipe.size(10, 2_000)) == 224


@pytest.mark.parametrize("shape", SHAPES)
def test_images_of_a_dinov3_are_resized_as_floats(tmp_path: Path, shape: tuple[int, int]) -> None:
    """By torch, as its processor does, which needs torchvision: scaled, resized, normalised."""
    settings = {"image_processor_type": "DINOv3ViTImageProcessorFast"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (*shape, 3), dtype=np.uint8))
    scaled = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255
    resized = F.interpolate(scaled, (224, 224), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (IMAGENET_MEAN, IMAGENET_STD))
    found = process(image, read_recipe(tmp_path))
    assert np.abs(found - ((resized[0] - mean) / std).numpy()).max() < 1e-4
