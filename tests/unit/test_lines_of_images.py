"""Between the lines of an image stands a token of text where the processor of a model says so."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.lines import (
    BREAK,
    CHAT,
    END,
    IMAGE,
    conversation,
    lined_spec,
    marked_folder,
    write_lined_shard,
)
from tests.support.shards import image_bytes, tokenizer_folder, write_shard

from mimo_launch.data.build import build_dataset
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.models.text_positions import axis_positions
from mimo_launch.processors.image_texts import image_text, line_break


def processor_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the processor of `transformers`, with its images of Pillow: torchvision is absent."""
    pixtral = "transformers.models.pixtral"
    images = import_module(f"{pixtral}.image_processing_pil_pixtral")
    monkeypatch.setitem(sys.modules, f"{pixtral}.image_processing_pixtral", images)
    from transformers import PreTrainedTokenizerFast

    whole = json.loads((folder / "processor_config.json").read_text())
    return import_module(f"{pixtral}.processing_pixtral").PixtralProcessor(
        images.PixtralImageProcessorPil.from_pretrained(folder),
        PreTrainedTokenizerFast.from_pretrained(folder),
        chat_template=CHAT,
        **{key: value for key, value in whole.items() if key != "processor_class"},
    )


SIZES = [(9, 13), (40, 6), (4, 4), (7, 90), (24, 24)]


def test_tokens_are_those_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one image, two and none; the sizes of some are no multiples, some shrink."""
    folder = marked_folder(tmp_path / "model")
    samples = [SIZES[:1], SIZES[1:3], [], SIZES[3:], SIZES]
    write_lined_shard(tmp_path / "0.tar", samples)
    data = build_dataset(lined_spec(tmp_path, folder))
    processor = processor_of(folder, monkeypatch)
    for index, sizes in enumerate(samples):
        chat = conversation(len(sizes), f"A dog, {index}.")
        images = [Image.new("RGB", (width, height)) for height, width in sizes]
        text = processor.apply_chat_template(chat)
        given = {"images": [images]} if images else {}
        want = list(processor(text=[text], **given, add_special_tokens=False)["input_ids"][0])
        plan = data.describe("train", index)
        tokens, labels = data.text("train", index)
        assert tokens[: plan.num_tokens].tolist() == want
        spans = plan.spans.get("vision", ())
        shapes = [each.shape[1:] for each in data.images("train", index, "vision")]
        assert shapes == [(4 * span.height, 4 * span.width) for span in spans]
        places = [place for span in spans for line in span.lines for place in _range(line)]
        pad = processor.image_token_id
        assert places == np.flatnonzero(tokens == pad).tolist()
        learnt = tokens[1:][labels[:-1] != IGNORE_LABEL]
        assert not np.isin(learnt, processor.image_token_ids).any()
        assert plan.num_labels == len(learnt) > 0


def _range(line: ImageSpan) -> range:
    return range(line.position, line.position + line.rows)


def test_an_image_is_not_cut_between_its_lines(tmp_path: Path) -> None:
    folder = marked_folder(tmp_path / "model")
    chat = [
        {"role": "user", "content": [{"type": "text", "text": "What?"}, {"type": "image"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A dog."}]},
        {"role": "user", "content": [{"type": "image"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
    ]
    members: dict[str, Any] = {"json": json.dumps({"messages": chat}).encode()}
    members |= {f"{place}.png": image_bytes(24, 8, seed=place) for place in range(2)}
    write_shard(tmp_path / "0.tar", [("0", members)])
    whole = build_dataset(lined_spec(tmp_path, folder))
    first, second = whole.describe("train", 0).spans["vision"]
    assert (first.rows, first.end - first.position, len(first.lines)) == (12, 17, 6)
    # Of the second image all rows but those of the last line.
    seq = second.lines[-1].position
    cut = build_dataset(lined_spec(tmp_path, folder, seq=seq, too_long="truncate"))
    found = cut.describe("train", 0)
    assert (found.num_tokens, found.spans["vision"]) == (second.position, (first,))


def test_lines_of_an_image_are_images_to_positions_of_three_axes() -> None:
    lined = ImageSpan(2, 2, 3, gap=1)
    assert [(each.position, each.height, each.rows) for each in lined.lines] == [
        (2, 1, 3), (6, 1, 3),
    ]  # fmt: skip
    apart = axis_positions([ImageSpan(2, 1, 3), ImageSpan(6, 1, 3)], 12)
    assert np.array_equal(axis_positions([lined], 12), apart)


def test_what_stands_around_and_between_is_read(tmp_path: Path) -> None:
    folder = marked_folder(tmp_path / "model")
    assert image_text(folder) == (IMAGE, f"{IMAGE}{END}")
    assert line_break(folder) == BREAK
    # As the class has them where a folder does not say.
    (folder / "processor_config.json").write_text('{"processor_class": "PixtralProcessor"}')
    assert (image_text(folder), line_break(folder)) == (None, None)
    usual = tokenizer_folder(
        tmp_path / "usual", CHAT, specials=("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    )
    (usual / "processor_config.json").write_text('{"processor_class": "PixtralProcessor"}')
    assert (image_text(usual), line_break(usual)) == (("[IMG]", "[IMG][IMG_END]"), "[IMG_BREAK]")
