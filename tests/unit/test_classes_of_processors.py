"""An image processor that is not supported makes images by its own class, in a child process."""

import io
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.shards import CHATML, image_bytes, shard_data, tokenizer_folder, write_shard
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.class_runner import ClassRunner
from mimo_launch.processors.files import ProcessorError, UnknownProcessor
from mimo_launch.processors.images import read_recipe
from mimo_launch.processors.other_classes import recipe_of_class
from mimo_launch.spec.spec import Spec

SIZE = (12, 20)
VIT = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": SIZE[0], "width": SIZE[1]},
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.3, 0.4],
}


def folder_of(folder: Path, **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "preprocessor_config.json").write_text(json.dumps({**VIT, **settings}))
    return folder


# What the child asks of `transformers`, which takes seconds to import.
SMALL = """
import json
from pathlib import Path

import numpy as np

class AutoImageProcessor:
    def __init__(self, settings):
        self.settings = settings

    @classmethod
    def from_pretrained(cls, folder, *, local_files_only, trust_remote_code):
        assert local_files_only and not trust_remote_code
        settings = json.loads((Path(folder) / "preprocessor_config.json").read_text())
        if settings["image_processor_type"] != "ViTImageProcessor":
            raise ValueError("Unrecognized image processor")
        return cls(settings)

    def __call__(self, images, return_tensors):
        assert return_tensors == "np"
        size = self.settings["size"]["width"], self.settings["size"]["height"]
        pixels = np.atleast_3d(np.asarray(images.resize(size))) / 255
        if pixels.shape[2] != len(self.settings["image_mean"]):
            raise ValueError("mean must have as many elements as channels")
        return {"pixel_values": pixels.transpose(2, 0, 1)[None]}
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClassRunner]:
    """A runner with a child of small imports."""
    (tmp_path / "transformers.py").write_text(SMALL)
    monkeypatch.syspath_prepend(tmp_path)
    made = ClassRunner(folder_of(tmp_path / "vit"), SIZE)
    yield made
    if made._child is not None:
        made._child.kill()


def child_of(runner: ClassRunner) -> Any:
    return runner._child


def theirs(folder: Path, image: Image.Image) -> np.ndarray:
    from transformers import AutoImageProcessor

    made = AutoImageProcessor.from_pretrained(folder)(images=image, return_tensors="np")
    return np.asarray(made["pixel_values"][0])


def image_of(height: int = 9, width: int = 31, seed: int = 0) -> Image.Image:
    return Image.open(io.BytesIO(image_bytes(height, width, seed=seed))).convert("RGB")


def class_spec(tmp_path: Path, **data: Any) -> Spec:
    folder = folder_of(tmp_path / "model")
    tokenizer_folder(tmp_path / "words", CHATML)
    members = {"png": image_bytes(9, 31), "txt": b"A dog."}
    write_shard(tmp_path / "0.tar", [("0", members), ("1", members)])
    vit = {"kind": "vit", "patch": 4, "channels": 3}
    return spec(
        {"vision": box(0, model=vit), "language": box(0, model={"vocab": 400})},
        data=shard_data(
            tmp_path,
            tmp_path / "words",
            processors={"vision": str(folder)},
            template="caption",
            **data,
        ),
        seq=64,
    )


def test_samples_have_the_pixels_and_rows_of_the_class(tmp_path: Path) -> None:
    asked = class_spec(tmp_path, processor="transformers")
    assert [each.headline for each in check(asked) if "processor" in str(each.path)] == []
    data = build_dataset(asked)
    (span,) = data.describe("train", 0).spans["vision"]
    assert (span.height, span.width) == (3, 5)
    (found,) = data.images("train", 0, "vision")
    want = theirs(tmp_path / "model", image_of())
    assert found.shape == want.shape == (3, *SIZE)
    assert np.array_equal(found, want)


def test_without_the_key_the_processor_is_refused_with_the_key_to_write(tmp_path: Path) -> None:
    asked = class_spec(tmp_path)
    (said,) = [each for each in check(asked) if each.code == "processor-not-supported"]
    assert said.why.startswith("its image processor is ViTImageProcessor; supported are CLIP")
    assert said.help.startswith("write `processor: transformers` in `data`")


def test_the_key_does_nothing_for_a_processor_that_is_supported(tmp_path: Path) -> None:
    asked = class_spec(tmp_path, processor="transformers")
    folder_of(tmp_path / "model", image_processor_type="SiglipImageProcessor")
    said = [each.headline for each in check(asked) if each.path[-1] == "processor"]
    assert said == ["`processor: transformers` does nothing: every image processor is supported"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": {"shortest_edge": 9}}, "declare no `size` with `height` and `width`"),
        ({"do_resize": False}, "declare no `size`"),
        ({"crop_to_patches": True}, "say `crop_to_patches: true`"),
        ({"image_mean": "grey"}, "its mean or deviation cannot be read"),
    ],
)
def test_sizes_that_are_not_known_beforehand_are_refused(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, **settings)
    with pytest.raises(UnknownProcessor):
        read_recipe(folder)
    with pytest.raises(ProcessorError, match=said):
        recipe_of_class(folder)


def test_the_size_of_a_crop_is_that_of_the_image(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, do_center_crop=True, crop_size={"height": 7, "width": 8})
    assert recipe_of_class(folder).only_size == (7, 8)


def test_a_child_that_died_is_started_again(runner: ClassRunner) -> None:
    first = runner.pixels(image_of())
    child = child_of(runner)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert np.array_equal(runner.pixels(image_of()), first)
    second = child_of(runner)
    assert second.pid != child.pid
    assert np.array_equal(runner.pixels(image_of()), first)
    assert child_of(runner) is second


def test_an_image_of_which_the_child_dies_twice_is_a_bad_sample(
    runner: ClassRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next image gets a new child."""
    want = runner.pixels(image_of())
    running = ClassRunner._running

    def dying(self: ClassRunner) -> Any:
        child = running(self)
        os.kill(child.pid, signal.SIGSTOP)
        threading.Thread(target=lambda: (time.sleep(0.05), child.kill())).start()
        return child

    with monkeypatch.context() as patch:
        patch.setattr(ClassRunner, "_running", dying)
        with pytest.raises(BadSample, match="died of an image"):
            runner.pixels(image_of(100, 100))
    assert np.array_equal(runner.pixels(image_of()), want)


def test_what_the_class_refuses_is_a_bad_sample(runner: ClassRunner) -> None:
    """A grey image has no three channels to normalise; the child goes on."""
    want, child = runner.pixels(image_of()), child_of(runner)
    with pytest.raises(BadSample, match="fails: ValueError: "):
        runner.pixels(image_of().convert("L"))
    assert np.array_equal(runner.pixels(image_of()), want)
    assert child_of(runner) is child


def test_another_size_than_declared_is_a_bad_sample(runner: ClassRunner) -> None:
    declared = ClassRunner(runner._folder, (12, 21))
    runner.pixels(image_of())
    declared._child = child_of(runner)
    with pytest.raises(BadSample, match=r"made 1 x 3 x 12 x 20 numbers.*declare 1 x 3 x 12 x 21"):
        declared.pixels(image_of())


def test_a_class_that_cannot_be_started_ends_the_run(runner: ClassRunner) -> None:
    folder_of(runner._folder, image_processor_type="NoSuchImageProcessor")
    with pytest.raises(ProcessorError, match="cannot be run: ValueError: Unrecognized"):
        runner.pixels(image_of())
