"""Sources of any format: the same conversations give the same samples, and records stay in place.

`FORMATS` writes the conversations of `chats` in each format; a new one is a row.
"""

import base64
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from tests.support.shards import clip_bytes, image_bytes, tokenizer_folder, write_shard
from tests.support.specs import box, spec
from tests.unit.test_shard_samples import VIT, opened, with_vocab
from transformers import ParakeetEncoderConfig, ParakeetFeatureExtractor

from mimo_launch.checks import sources
from mimo_launch.checks.all_checks import check
from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.checks.shards import members_for_encoders
from mimo_launch.checks.sources import sources_are_there
from mimo_launch.cli.data_tables import as_text, page
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.index import indexer, kept_parts
from mimo_launch.data.index.columns import BAD, Bad, ShardIndex, ShardRows
from mimo_launch.data.index.indexer import tasks_of
from mimo_launch.data.index.kept_parts import KeptParts
from mimo_launch.data.index.split_report import NotTrainable, summary_of
from mimo_launch.data.known_shards import records_of_shards
from mimo_launch.data.order.block_counts import BadMixture
from mimo_launch.data.order.known_order import known_order
from mimo_launch.data.order.sample_order import global_order, steps_of
from mimo_launch.data.samples.decode_media import decode_clip
from mimo_launch.data.samples.text_tokens import TextTokens
from mimo_launch.data.shard_samples import ShardSamples
from mimo_launch.data.sources import json_files, tables
from mimo_launch.data.sources.file_formats import split_files
from mimo_launch.data.sources.record_shapes import shaped
from mimo_launch.data.sources.source_file import Recent
from mimo_launch.data.torch_media import log_mel
from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.parse import read_spec
from mimo_launch.spec.sections import EvalSpec
from mimo_launch.spec.spec import FilesData, Spec
from mimo_launch.survey.reading_speed import survey

Chat = tuple[list[dict[str, Any]], list[bytes]]


def files_spec(folder: Path, *sources: Any, vision: bool = True, **data: Any) -> Spec:
    """A spec over sources, with a tokenizer made in their folder."""
    if not (tokenizer := folder / "tokenizer").exists():
        tokenizer_folder(tokenizer)
    given = {"kind": "files", "sources": list(sources), "tokenizer": str(tokenizer)}
    modules = {"vision": box(model=VIT)} if vision else {"sound": box(model={"kind": "audio"})}
    return spec(modules, data={**given, "template": "chat", "max_rows": 24, **data}, seq=512)


ASKED = {"role": "user", "content": "<audio>What?"}
LAST = {"kind": "chat", "learn_not": "dög"}


def chats(number: int) -> list[Chat]:
    """Conversations with no image, one or two."""
    found = []
    for n in range(number):
        images = [image_bytes(12 + n % 7, 16, seed=9 * n + k) for k in range(n % 3)]
        asked = f"{'<image>' * len(images)} What is in {n}?"
        answer = f"A dög beside two cats, {n}."
        found.append(
            ([{"role": "user", "content": asked}, {"role": "assistant", "content": answer}], images)
        )
    return found


def as_tar(folder: Path, given: list[Chat]) -> Path:
    return write_shard(
        folder / "x.tar",
        [
            (
                f"{n:04d}",
                {"json": {"messages": m}, **{f"{k}.png": i for k, i in enumerate(images)}},
            )
            for n, (m, images) in enumerate(given)
        ],
    )


def records(folder: Path, given: list[Chat]) -> list[dict[str, Any]]:
    """As ms-swift writes them, with images in files beside the records."""
    made = []
    for n, (messages, images) in enumerate(given):
        names = [f"images/{n:04d}-{k}.png" for k in range(len(images))]
        for name, data in zip(names, images, strict=True):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        made.append({"messages": messages, "images": names})
    return made


def as_lines(folder: Path, given: list[Chat]) -> Path:
    lines = [json.dumps(each, ensure_ascii=False) for each in records(folder, given)]
    (folder / "x.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder / "x.jsonl"


def as_list(folder: Path, given: list[Chat]) -> Path:
    text = json.dumps(records(folder, given), ensure_ascii=False, indent=1)
    (folder / "x.json").write_text(text, encoding="utf-8")
    return folder / "x.json"


def rows(given: list[Chat]) -> list[dict[str, Any]]:
    """As the Hub holds them: images as bytes with a name, messages as structs."""
    return [
        {"messages": said, "images": [{"bytes": each, "path": "x.png"} for each in images]}
        for said, images in given
    ]


def as_parquet(folder: Path, given: list[Chat]) -> Path:
    table = pyarrow.Table.from_pylist(rows(given))
    (folder / "data").mkdir()
    half = len(given) // 2
    for n, part in enumerate((table.slice(0, half), table.slice(half))):
        path = folder / "data" / f"train-{n:05d}-of-00002.parquet"
        pyarrow.parquet.write_table(part, path, row_group_size=5)
    return folder


def as_saved(folder: Path, given: list[Chat], made: str = "x.arrow") -> Path:
    """As `save_to_disk` writes it: streams, their names in a file, and caches beside."""
    table = pyarrow.Table.from_pylist(rows(given))
    saved = folder / "saved"
    saved.mkdir()
    for name in (made, "cache-1.arrow"):
        with (saved / name).open("wb") as file, pyarrow.ipc.new_stream(file, table.schema) as out:
            out.write_table(table, max_chunksize=7)
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": made}]}))
    (saved / "dataset_info.json").write_text("{}")
    return saved


def as_arrow(folder: Path, given: list[Chat]) -> Path:
    table = pyarrow.Table.from_pylist(rows(given))
    with pyarrow.ipc.new_file(str(folder / "x.arrow"), table.schema) as out:
        out.write_table(table)
    return folder


FORMATS: dict[str, Callable[[Path, list[Chat]], Path]] = {
    "tar": as_tar,
    "lines": as_lines,
    "list": as_list,
    "parquet": as_parquet,
    "saved": as_saved,
    "arrow": as_arrow,
}


def everything(found: ShardSamples) -> list[tuple[Any, ...]]:
    """Return all that training reads of the samples, in order."""
    return [everything_of(found, n) for n in range(found.num_samples("train"))]


def everything_of(found: ShardSamples, n: int) -> tuple[Any, ...]:
    return (
        *(each.tobytes() for each in found.text("train", n)),
        [each.tobytes() for each in found.images("train", n, "vision")],
        found.describe("train", n),
    )


def test_the_same_conversations_in_any_format_are_the_same_samples(tmp_path: Path) -> None:
    given = chats(24)
    wanted, order = None, None
    for name, write in FORMATS.items():
        (folder := tmp_path / name).mkdir()
        made = files_spec(folder, str(write(folder, given)))
        found = opened(made)
        assert found.num_samples("train") == 24
        seen = everything(found), steps_of(global_order(made, found), 20)
        wanted, order = wanted or seen[0], order or seen[1]
        assert seen == (wanted, order), name


@pytest.mark.sweep
def test_2000_conversations_in_four_formats_are_the_same_bit_by_bit(tmp_path: Path) -> None:
    """Tokens, labels, pixels and places of every sample, and the order of three epochs."""
    given = chats(2000)
    wanted, order = None, None
    for name in ("tar", "lines", "parquet", "saved"):
        (folder := tmp_path / name).mkdir()
        made = files_spec(folder, str(FORMATS[name](folder, given)))
        found = opened(made)
        assert found.num_samples("train") == 2000
        steps = steps_of(global_order(made, found), 3 * 2000 // made.batch.global_)
        seen = everything(found)
        wanted, order = wanted or seen, order or steps
        assert seen == wanted, name
        assert steps == order, name
    assert wanted is not None
    assert len({repr(each[:3]) for each in wanted}) == 2000


def opened_lines(folder: Path, *lines: Any, **data: Any) -> ShardSamples:
    """Write records, and open them."""
    text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    (folder / "x.jsonl").write_text(text + "\n", encoding="utf-8")
    return opened(files_spec(folder, str(folder / "x.jsonl"), **data))


def bad_of(found: ShardSamples) -> dict[str, str]:
    return {each["key"]: each["why"] for each in found.splits["train"].index.bad()}


LLAVA = {
    "id": "000000033471",
    "image": "coco/train2017/000000033471.jpg",
    "conversations": [
        {"from": "human", "value": "<image>\nWhat are the colors of the bus?"},
        {"from": "gpt", "value": "The bus is white and red."},
    ],
}
URL = "data:image/png;base64," + base64.b64encode(image_bytes(8, 12)).decode()
SHAPES: dict[str, tuple[dict[str, Any], int]] = {
    "LLaVA-665k": (LLAVA, 1),
    "LLaVA-665k, text": (
        {
            "id": "wgByO4Y_0",
            "model": "",
            "conversations": [
                {"from": "human", "value": "What is it?"},
                {"from": "gpt", "value": "A bus."},
            ],
        },
        0,
    ),
    "ShareGPT4V": (
        {
            "id": "000000033471",
            "image": "coco/train2017/000000033471.jpg",
            "conversations": [
                {"from": "human", "value": "What do you see happening in this image?\n<image>"},
                {"from": "gpt", "value": "In the heart of a city, a white and red bus waits."},
            ],
        },
        1,
    ),
    "ms-swift": (
        {
            "messages": [
                {"role": "system", "content": "You see."},
                {"role": "user", "content": "<image><image>Which differ?"},
                {"role": "assistant", "content": "Both."},
            ],
            "images": ["coco/train2017/000000033471.jpg", {"path": "b.png", "bytes": None}],
        },
        2,
    ),
    "OpenAI": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is it?"},
                        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
                    ],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "A bus."}]},
            ]
        },
        1,
    ),
    "parts with paths": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "image": "b.png"},
                        {"type": "image"},
                        {"type": "text", "text": "What are they?"},
                    ],
                },
                {"role": "assistant", "content": "Two buses."},
            ],
        },
        1,
    ),
    "messages as text": (
        {
            "image": "b.png",
            "messages": json.dumps(
                [
                    {"role": "user", "content": [{"type": "image"}]},
                    {"role": "assistant", "content": "A bus."},
                ]
            ),
        },
        1,
    ),
    "ms-swift, a question": (
        {"query": "<image>What is it?", "response": "A bus.", "images": ["b.png"]},
        1,
    ),
    "TRL": (
        {
            "prompt": [{"role": "user", "content": [{"type": "image", "path": "b.png"}]}],
            "completion": [
                {"role": "assistant", "content": [{"type": "text", "text": "A bus."}]},
            ],
        },
        1,
    ),
    "TRL, as text": (
        {
            "image": "b.png",
            "prompt": json.dumps([{"role": "user", "content": [{"type": "image"}]}]),
            "completion": json.dumps([{"role": "assistant", "content": "A bus."}]),
        },
        1,
    ),
    "The Cauldron": (
        {
            "images": ["b.png", "coco/train2017/000000033471.jpg"],
            "texts": [
                {"user": "What is <image> here?", "assistant": "A tag.", "source": "vqa"},
                {"user": "And there?", "assistant": "A bus.", "source": "vqa"},
            ],
        },
        2,
    ),
}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    (tmp_path / "coco/train2017").mkdir(parents=True)
    photo = image_bytes(16, 20, kind="JPEG")
    (tmp_path / "coco/train2017/000000033471.jpg").write_bytes(photo)
    (tmp_path / "b.png").write_bytes(image_bytes(8, 8))
    return tmp_path


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"parts with paths"}))
def test_records_as_published_are_read_as_they_are(name: str, pictures: Path) -> None:
    record, images = SHAPES[name]
    found = opened_lines(pictures, record)
    assert not bad_of(found)
    assert len(found.images("train", 0, "vision")) == images
    tokens, labels = found.text("train", 0)
    assert (labels >= 0).any()
    if name == "The Cauldron":
        said = found.words(tokens[: found.describe("train", 0).num_tokens].tolist())
        assert "What is <image> here?" in said


def test_a_part_without_a_file_takes_the_next_of_the_record(pictures: Path) -> None:
    record = SHAPES["parts with paths"][0]
    assert "names them" not in str(bad_of_alone(pictures, record))
    turn = record["messages"][0]
    bare = {**turn, "content": [{"type": "image"}, *turn["content"][1:]]}
    paths = ["b.png", "coco/train2017/000000033471.jpg"]
    found = opened_lines(pictures, {"messages": [bare, record["messages"][1]], "images": paths})
    sizes = [each.shape[-2:] for each in found.images("train", 0, "vision")]
    assert sizes == [(8, 8), (16, 20)]


def bad_of_alone(folder: Path, record: Any) -> str:
    """Return why a record is bad that lies beside a good one."""
    found = opened_lines(folder, SHAPES["LLaVA-665k, text"][0], record)
    assert found.num_samples("train") == 1
    return bad_of(found)["line 2"]


def test_clips_are_read_as_images_are(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(clip_bytes(3_200))
    sound = base64.b64encode(clip_bytes(1_600, kind="FLAC")).decode()
    asked = [
        {"type": "audio", "audio": "a.wav"},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "flac"}},
    ]
    answer = {"role": "assistant", "content": "Noise."}
    found = opened_lines(
        tmp_path, {"messages": [{"role": "user", "content": asked}, answer]}, vision=False
    )
    rows = [span.rows for span in found.describe("train", 0).spans["sound"]]
    assert len(rows) == 2
    assert rows[0] > rows[1]


def test_a_template_that_every_source_replaces_is_not_needed(tmp_path: Path) -> None:
    own = {"path": "x", "template": "caption"}
    for others, kinds in ([], ["caption"]), (["x"], ["chat", "caption"]):
        made = files_spec(tmp_path, *others, own)
        assert isinstance(made.data, FilesData)
        assert [each.kind for each in made.data.templates] == kinds
        bare = files_spec(tmp_path, *others, own, template=None)
        assert isinstance(bare.data, FilesData)
        assert [each.kind for each in bare.data.templates] == ["caption"]
        faults = list(sources.every_source_has_a_template(bare, bare.data))
        assert [each.code for each in faults] == ["missing-key"] * len(others)
        assert all("`data.sources.0` has no template" in str(each.why) for each in faults)


def test_data_without_a_shared_template_are_read_and_load_each_template_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a set of held-out samples; with the samples that a shared template gives."""
    path = str(as_lines(tmp_path, chats(4)))
    loaded = list[str]()
    right = TextTokens.__init__

    def counted(self: TextTokens, folder: Path, end: str, most: int) -> None:
        loaded.append(folder.name)
        right(self, folder, end, most)

    monkeypatch.setattr(TextTokens, "__init__", counted)
    own = [{"path": path, "template": each} for each in ("chat", LAST, "chat", LAST, "chat")]
    made = files_spec(tmp_path, *own, eval_sources=own[:2], template=None)
    found = opened(made.replace(eval=EvalSpec(every=1)))
    assert len(loaded) == 2
    again = files_spec(tmp_path, *own, eval_sources=own[:2])
    assert everything(found) == everything(opened(again.replace(eval=EvalSpec(every=1))))


def test_long_clips_need_an_encoder_that_reads_clips(tmp_path: Path) -> None:
    said = {}
    for vision in (True, False):
        made = files_spec(tmp_path, "x", vision=vision, long_clips="cut")
        said[vision] = [each.headline for each in check(made) if "long_clips" in each.path]
    assert said == {True: ["`long_clips` does nothing: no encoder reads clips"], False: []}


@pytest.mark.parametrize("more", [{}, {"fixed_length": True}, {"stack": 4}])
def test_of_a_long_clip_the_encoder_hears_the_beginning(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """Only if the spec says so; other samples are the same."""
    said = {"messages": [ASKED, {"role": "assistant", "content": "Noise."}]}
    for name, size in (("short", 1_600), ("long", 16_000)):
        (tmp_path / f"{name}.wav").write_bytes(clip_bytes(size, seed=3))
    (tmp_path / "x.jsonl").write_text(
        "\n".join(json.dumps({**said, "audio": f"{name}.wav"}) for name in ("short", "long"))
    )
    made = files_spec(tmp_path, str(tmp_path / "x.jsonl"), vision=False)
    sound = made.modules["sound"]
    small = sound.replace(model=sound.model.replace(frames=26, **more))
    made = made.replace(modules={**made.modules, "sound": small})
    left = opened(made)
    assert "or write `long_clips: cut` in `data`" in bad_of(left)["line 2"]
    cut = opened(made.replace(data=made.data.replace(long_clips="cut")))
    assert (left.num_samples("train"), cut.num_samples("train")) == (1, 2)
    clips = [cut.images("train", n, "sound")[0] for n in range(2)]
    assert np.array_equal(clips[0], left.images("train", 0, "sound")[0])
    most = 26 if more != {"stack": 4} else 24
    assert clips[1].shape[-1] == most
    sound_of = decode_clip("wav", (tmp_path / "long.wav").read_bytes(), seconds=5)
    assert np.array_equal(clips[1], log_mel(*sound_of, len(clips[1]), frames=most))


def test_a_conformer_hears_the_frames_of_parakeet(tmp_path: Path) -> None:
    """Each clip has as many rows as the encoder of `transformers` makes of its frames."""
    sizes = {"kind": "conformer", "layers": 1, "hidden": 8, "heads": 1, "mels": 80}
    names = {"short": 100, "odd": 12_345, "whole": 16_000}
    for name, size in names.items():
        (tmp_path / f"{name}.wav").write_bytes(clip_bytes(size, seed=3))
    said = {"messages": [ASKED, {"role": "assistant", "content": "Noise."}]}
    (tmp_path / "x.jsonl").write_text(
        "\n".join(json.dumps({**said, "audio": f"{name}.wav"}) for name in names)
    )
    made = files_spec(tmp_path, str(tmp_path / "x.jsonl"), vision=False)
    sound = made.modules["sound"].model_dump(mode="json") | {"model": sizes}
    made = made.replace(
        modules={**made.modules, "sound": type(made.modules["sound"]).model_validate(sound)}
    )
    assert not [each for each in check(with_vocab(made)) if each.is_error]
    data, encoder = opened(made), ParakeetEncoderConfig(num_mel_bins=80)
    for number, (name, size) in enumerate(names.items()):
        (clip,) = data.images("train", number, "sound")
        samples, _ = decode_clip("wav", (tmp_path / f"{name}.wav").read_bytes(), seconds=9)
        frames = max(2, size // 160)
        assert clip.shape == (80, frames)
        (span,) = data.describe("train", number).spans["sound"]
        assert span.rows == -(-frames // encoder.subsampling_factor)
        if size >= 320:
            heard = ParakeetFeatureExtractor()(samples, sampling_rate=16_000, return_tensors="np")
            wanted = heard.input_features[0, :frames].T
            np.testing.assert_allclose(clip, wanted, rtol=1e-4, atol=1e-4)


def test_media_get_the_suffixes_of_their_names_and_types() -> None:
    """So that each is decoded as its medium, and by its number among those of its kind."""
    wav = {"data": "AAAA", "format": "mp3"}
    record = {
        "images": ["a.JPEG", "b", "https://x/c.webp", {"bytes": b"x", "path": "d.png"}, URL],
        "videos": ["a.mp4", "b.frames.zip", "c.zip"],
        "audio": [wav, "a.flac"],
        "target": ["a.npy", "b.png"],
        "loss": 1,
    }
    found = shaped(record)
    assert list(found.media) == [
        *("0.jpeg", "1.jpg", "2.webp", "3.png", "4.png"),
        *("0.mp4", "1.frames.zip", "2.mp4"),
        *("0.mp3", "1.flac"),
        *("target.0.npy", "target.1.png"),
    ]
    assert json.loads(found.text) == {"loss": 1}
    assert found.media["3.png"].held(1) == b"x"
    assert found.media["4.png"].held(3) == image_bytes(8, 12)[:3]
    assert found.media["4.png"].held() == image_bytes(8, 12)


ENCODED = URL.partition(",")[2]


@pytest.mark.parametrize(
    "given",
    [{"image": ENCODED}, {"image": {"bytes": ENCODED, "path": None}}, {"image": {"data": ENCODED}}],
)
def test_bytes_in_base64_are_read_with_and_without_their_type(
    given: dict[str, Any], pictures: Path
) -> None:
    """As ms-swift reads them: JSON has no other form for bytes."""
    found = opened_lines(pictures, {**given, "caption": "A sign."}, template="caption")
    assert not bad_of(found)
    assert [each.shape[-2:] for each in found.images("train", 0, "vision")] == [(8, 12)]


def test_lines_of_base64_may_be_broken(pictures: Path) -> None:
    """As `base64.encodebytes` writes them, of an image longer than what an index reads of it."""
    image = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (60, 48, 3), dtype=np.uint8)
    Image.fromarray(noise).save(image, "PNG")
    for given in (text := base64.encodebytes(image.getvalue()).decode(), {"data": text}):
        found = opened_lines(pictures, {"image": given, "caption": "A."}, template="caption")
        assert not bad_of(found)
        (pixels,) = found.images("train", 0, "vision")
        assert pixels.shape[0] == 3


def test_images_are_in_the_order_of_the_text_whatever_the_order_of_keys() -> None:
    def turn(role: str, name: str) -> list[dict[str, Any]]:
        return [{"role": role, "content": [{"type": "image", "image": name}]}]

    for asked, said in (("prompt", "completion"), ("query", "response"), ("instruction", "output")):
        record = {said: turn("assistant", "b.png"), asked: turn("user", "a.png")}
        assert [each.said for each in shaped(record).media.values()] == ["a.png", "b.png"]


@pytest.mark.parametrize("nothing", [None, "", [], {"bytes": None, "path": None}])
def test_an_image_of_nothing_is_no_image(nothing: Any, pictures: Path) -> None:
    """As `datasets` save it, beside the name of a file that is not there."""
    found = opened_lines(pictures, {"image": nothing, "caption": "A sign."}, template="caption")
    assert not bad_of(found)
    assert len(found.images("train", 0, "vision")) == 0


def test_the_name_of_a_file_beside_its_bytes_is_no_second_file(pictures: Path) -> None:
    """Tables have both: the bytes of an image, and the path that it had once."""
    record = {"caption": "A sign.", "image": "b.png"}
    names = [
        {"image_path": "b.png"},
        {"file_name": "gone.png"},
        {"image_path": "b.png", "file_name": "gone.png"},
    ]
    found = opened_lines(pictures, *({**record, **each} for each in names), template="caption")
    assert not bad_of(found)
    assert [len(found.images("train", n, "vision")) for n in range(3)] == [1, 1, 1]
    ignored = dict(found.splits["train"].index.ignored)
    assert ignored == {"`image_path`": 2, "`file_name`": 2}


def test_images_under_two_keys_are_not_summed(pictures: Path) -> None:
    why = bad_of_alone(pictures, {**LLAVA, "images": [LLAVA["image"]]})
    assert why == "its images are named by `images` and by `image`: name them once"


@pytest.mark.parametrize(
    ("name", "member"),
    [("a.png", "0.png"), ("a.mp4", "0.mp4"), ("a.flac", "0.flac"), ("a", "0.jpg")],
)
def test_the_name_of_a_file_says_which_medium_it_is(name: str, member: str) -> None:
    """As in `metadata.jsonl` of folders of images, videos and clips."""
    assert list(shaped({"file_name": name, "text": "A bus."}).media) == [member]
    beside = shaped({"file_name": name, "text": "A bus.", "video": "b.mp4"})
    assert list(beside.media) == ["0.mp4"]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (
            {"type": "video", "video": ["b.png", "b.png"], "fps": 2},
            "its video is a list of files: write one file, for frames a zip",
        ),
        ({"type": "image", "image": ["b.png", "b.png"]}, "its image is a list of files: write"),
        (
            {"type": "image", "source": {"type": "base64", "data": ENCODED}},
            "a part of type `image` has no file under `image`, `image_url`, `url`, `path`, `data`",
        ),
    ],
)
def test_a_part_with_files_in_another_form_is_bad(
    part: dict[str, Any], why: str, pictures: Path
) -> None:
    asked = {"role": "user", "content": [part, {"type": "text", "text": "What?"}]}
    record = {"messages": [asked, {"role": "assistant", "content": "A bus."}]}
    assert why in bad_of_alone(pictures, record)


def test_a_part_of_a_type_that_is_no_text_is_bad(pictures: Path) -> None:
    asked = {"role": "user", "content": [{"type": ["image"], "image": "b.png"}]}
    why = bad_of_alone(pictures, {"messages": [asked, {"role": "assistant", "content": "A bus."}]})
    assert "a message has a part of unknown type ['image']" in why


def test_what_files_keep_together_is_bounded() -> None:
    """A row group of each of many files would not fit in memory; one may be larger than all."""
    kept, made = Recent(10), list[str]()

    def value_of(key: str, cost: int) -> str:
        def make() -> str:
            made.append(key)
            return key * 2

        return kept.get(key, make, lambda _: cost)

    assert [value_of(key, 4) for key in "ababcb"] == ["aa", "bb", "aa", "bb", "cc", "bb"]
    assert made == ["a", "b", "c"]
    value_of("a", 4)
    assert made == ["a", "b", "c", "a"]
    value_of("large", 99)
    value_of("large", 99)
    value_of("b", 4)
    assert made[4:] == ["large", "b"]
    kept.keep("b", "bb", 9)
    assert value_of("b", 9) == "bb"


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("../secret.png", "lies outside of"),
        ("/etc/hostname", "lies outside of"),
        ("file:///etc/hostname", "lies outside of"),
        ("out/secret.png", "lies outside of"),
        ("beside/secret.png", "lies outside of"),
        ("https://example.com/a.jpg", "nothing is fetched while a run reads"),
        ("s3://bucket/a.jpg", "nothing is fetched while a run reads"),
        ("gone.png", "`gone.png` cannot be read: No such file"),
        ("pipe", "`pipe` is no plain file"),
        ("coco", "`coco` is no plain file"),
        ("a\0b", "has a zero byte"),
        ("data:image/png,abc", "but `data:TYPE;base64,...` is read"),
        ("data:image/png;base64,a", "its image is no base64"),
        (["b.png", ["b.png"]], "is a list of files"),
        (7, "its image is int, not a path or bytes"),
        ({"array": [1]}, "its image is an object with the key `array`: write a path"),
        ({"src": "b.png", "id": 3}, "an object with the keys `src`, `id`: write a path"),
        ({"bytes": "a"}, "its image is no base64"),
    ],
)
def test_what_a_record_must_not_name_is_a_bad_sample(
    image: Any, why: str, pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "secret.png").write_bytes(image_bytes(8, 8))
    (pictures / "out").symlink_to(elsewhere)
    (pictures.parent / "secret.png").write_bytes(image_bytes(8, 8))
    # Its name begins like that of the folder.
    beside = pictures.with_name(f"{pictures.name}-2")
    beside.mkdir()
    (beside / "secret.png").write_bytes(image_bytes(8, 8))
    (pictures / "beside").symlink_to(beside)
    os.mkfifo(pictures / "pipe")
    assert why in bad_of_alone(pictures, {**LLAVA, "image": image})


def test_files_outside_are_read_if_the_source_names_their_folder(
    pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "a.png").write_bytes(image_bytes(8, 8))
    (pictures / "out").symlink_to(elsewhere)
    lines = [{**LLAVA, "image": name} for name in ("out/a.png", str(elsewhere / "a.png"), "b.png")]
    (pictures / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    path, named = str(pictures / "x.jsonl"), [str(pictures), str(elsewhere)]
    found = opened(files_spec(pictures, {"path": path, "media": named}))
    assert found.num_samples("train") == 3
    braces = f"{{{pictures},{elsewhere}}}"
    found = opened(files_spec(pictures, {"path": path, "media": braces}))
    assert found.num_samples("train") == 3
    one = opened(files_spec(pictures, path))
    assert one.num_samples("train") == 1


def test_damaged_records_are_named_by_line_or_place(pictures: Path) -> None:
    good = SHAPES["LLaVA-665k, text"][0]
    found = opened_lines(pictures, good, '{"messages": [', "", "[1, 2]", good, '{"a": 1}')
    assert found.num_samples("train") == 2
    whys = bad_of(found)
    assert list(whys) == ["line 2", "line 4", "line 6"]
    assert "it is no JSON" in whys["line 2"]
    assert "it is list, not an object" in whys["line 4"]
    assert found.name("train", 1) == "x.jsonl line 5"
    (pictures / "x.json").write_text(f"[{json.dumps(good)}, 7, {json.dumps(good)}, {{oops")
    found = opened(files_spec(pictures, str(pictures / "x.json")))
    assert found.num_samples("train") == 2
    assert list(bad_of(found)) == ["record 1", ""]
    assert "the rest of the file cannot be read: after byte" in bad_of(found)[""]


@pytest.mark.parametrize("more", ["\n[{}]", " " * (5 << 20) + "x", "]"])
def test_what_follows_a_list_is_not_lost_silently(more: str, pictures: Path) -> None:
    """Two files that were joined are two lists."""
    good = json.dumps(SHAPES["LLaVA-665k, text"][0])
    for tail, want in ((" \n", {}), (more, {"": "another text follows its list"})):
        (pictures / "x.json").write_text(f"[{good}]{tail}")
        found = opened(files_spec(pictures, str(pictures / "x.json")))
        assert found.num_samples("train") == 1
        whys = bad_of(found)
        assert whys.keys() == want.keys()
        assert all(why in whys[key] for key, why in want.items())


def test_cut_samples_of_which_nothing_is_learnt_are_counted(pictures: Path) -> None:
    def chat(asked: str, said: str) -> dict[str, Any]:
        turns = [("human", asked), ("gpt", said)]
        return {"conversations": [{"from": who, "value": text} for who, text in turns]}

    lines = [
        chat("What?", "A bus."),
        chat("What? " * 400, "A bus."),
        chat("What?", "A bus. " * 400),
    ]
    cut = summary_of(opened_lines(pictures, *lines, too_long="truncate").splits["train"])
    assert "2 longer than 512 tokens, cut, nothing is learnt of 1 of them" in cut
    answers = opened_lines(pictures, lines[0], lines[2], too_long="truncate")
    assert summary_of(answers.splits["train"]).endswith("1 longer than 512 tokens, cut")


def test_a_list_of_turns_is_a_conversation(pictures: Path) -> None:
    """As in shards of LLaVA-Pretrain for Megatron's Energon, and in lists of such lists."""
    turns = SHAPES["LLaVA-665k, text"][0]["conversations"]
    (pictures / "x.json").write_text(json.dumps([turns, turns]))
    (pictures / "x.jsonl").write_text(f"{json.dumps(turns)}\n" * 2)
    (pictures / "list.jsonl").write_text(json.dumps([turns, turns]))
    write_shard(pictures / "0.tar", [("a", {"json": turns})])
    for path in ("x.json", "x.jsonl", "list.jsonl", "0.tar"):
        found = opened(files_spec(pictures, str(pictures / path)))
        assert not bad_of(found)
        assert found.words(found.text("train", 0)[0].tolist()).count("A bus.") == 1
        assert found.keys("train", 0).read.keys() == {"messages"}


def test_a_file_that_changed_after_indexing_is_bad_not_wrong(pictures: Path) -> None:
    found = opened_lines(pictures, LLAVA)
    (pictures / "x.jsonl").write_text(json.dumps({**LLAVA, "image": None}))
    with pytest.raises(BadSample, match=r"x\.jsonl line 1: "):
        found.images("train", 0, "vision")


# FineVision rates each turn of a conversation by these.
RATINGS = ("relevance", "visual_dependency", "image_correspondence", "formatting")


def test_rows_of_tables_are_read_as_published(tmp_path: Path) -> None:
    """FineVision's and The Cauldron's columns, and messages as older `datasets` save them."""
    image = {"bytes": image_bytes(8, 12), "path": None}
    pair = {"user": "What is it?", "assistant": "A bus.", "source": "vqa"}
    columns = {
        "fine": {
            "images": [image],
            "texts": [{"user": "What is it?", "assistant": "A bus."}] * 2,
            "source": "vqa",
            **{f"{name}_ratings": [5, 4] for name in RATINGS},
            **{f"{name}_min": 4 for name in RATINGS},
        },
        "cauldron": {"images": [image, image], "texts": [pair]},
        "struct": {
            "image": image,
            "conversations": {"from": ["human", "gpt"], "value": ["<image>What?", "A bus."]},
        },
    }
    for n, (name, row) in enumerate(columns.items()):
        path = tmp_path / f"{name}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row] * (n + 1)), path)
        found = opened(files_spec(tmp_path, str(path)))
        assert (found.num_samples("train"), bad_of(found)) == (n + 1, {})
        assert len(found.images("train", n, "vision")) == (2 if name == "cauldron" else 1)
        assert found.name("train", n) == f"{name}.parquet row {n}"


def test_damage_of_a_table_is_a_bad_sample_with_its_rows(tmp_path: Path) -> None:
    good = rows(chats(20))
    good[3]["messages"] = []
    good[7]["images"] = [{"bytes": None, "path": "../x.png"}]
    path = tmp_path / "x.parquet"
    table = pyarrow.Table.from_pylist(good)
    pyarrow.parquet.write_table(table, path, row_group_size=5, compression="none")
    group = pyarrow.parquet.read_metadata(path).row_group(2)
    data = bytearray(path.read_bytes())
    at = group.column(0).dictionary_page_offset or group.column(0).data_page_offset
    data[at : at + 40] = b"\xff" * 40
    path.write_bytes(data)
    found = opened(files_spec(tmp_path, str(path)))
    assert found.num_samples("train") == 13
    whys = bad_of(found)
    assert list(whys) == ["row 3", "row 7", "rows 10 to 14"]
    assert "lies outside of" in whys["row 7"]
    path.write_bytes(data[: len(data) // 2])
    as_lines(tmp_path, chats(2))
    found = opened(files_spec(tmp_path, str(path), str(tmp_path / "x.jsonl")))
    assert found.num_samples("train") == 2
    assert "the rest of the file cannot be read" in bad_of(found)[""]


def test_a_value_that_python_cannot_hold_costs_only_its_row(tmp_path: Path) -> None:
    given, path = rows(chats(5)), tmp_path / "x.parquet"
    table = pyarrow.Table.from_pylist(given)
    days = pyarrow.array([1, 10**8, 2, 3, 4], pyarrow.date32())
    bytes_ = pyarrow.array([b"a", b"b", b"c", b"\xff\xfe", b"d"])
    notes = pyarrow.Array.from_buffers(pyarrow.string(), 5, bytes_.buffers())
    pyarrow.parquet.write_table(table.append_column("day", days).append_column("note", notes), path)
    found = opened(files_spec(tmp_path, str(path)))
    whys = bad_of(found)
    assert list(whys) == ["row 1", "row 3"]
    assert "its `day` cannot be read: " in whys["row 1"]
    assert "its `note` cannot be read: 'utf-8' codec" in whys["row 3"]
    assert [found.name("train", n) for n in range(3)] == [f"x.parquet row {n}" for n in (0, 2, 4)]
    assert len(found.text("train", 2)[0]) == 512


def test_a_deep_record_costs_only_itself(pictures: Path) -> None:
    deep: list[Any] = []
    for _ in range(700):
        deep = [deep]
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    records = [{"messages": [said[0], {**said[1], "x": deep}]}, {"messages": said}]
    found = opened_lines(pictures, *records)
    assert (list(bad_of(found)), found.num_samples("train")) == (["line 1"], 1)


def test_a_plan_without_an_index_looks_at_every_source_and_mixes_them(tmp_path: Path) -> None:
    """Long texts are one in ten of the samples, whatever the sizes of the files."""
    for name, number, words in (("short", 600, 1), ("long", 40, 60)):
        turns = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "ho " * words})
        text = "\n".join([json.dumps({"messages": turns})] * number)
        (tmp_path / f"{name}.jsonl").write_text(text)
    given = [
        {"path": str(tmp_path / f"{name}.jsonl"), "weight": weight}
        for name, weight in (("short", 9), ("long", 1))
    ]
    made = with_vocab(files_spec(tmp_path, *given, index=str(tmp_path / "index")))
    assert isinstance(made.data, FilesData)
    records = records_of_shards(made, made.data)
    assert records is not None
    assert records.in_all == pytest.approx(640, rel=0.02)
    short, long = (each.tokens / each.number for each in records.sources)
    made = made.replace(train=made.train.replace(steps=1000 // made.batch.global_))
    looked = known_order(made, records).tokens.mean()
    assert looked == pytest.approx(0.9 * short + 0.1 * long, rel=0.05)
    opened(made)
    exact = records_of_shards(made, made.data)
    assert exact is not None
    assert exact.source == "index"
    assert known_order(made, exact).tokens.mean() == pytest.approx(looked, rel=0.05)


def test_bad_records_of_a_file_of_the_same_name_are_not_those_of_a_source(tmp_path: Path) -> None:
    turns = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "ho " * 500})
    good = json.dumps({"messages": [turns[0], {"role": "assistant", "content": "ho"}]})
    given = []
    for name, text in (("a", f"{good}\nnone\n"), ("b", json.dumps({"messages": turns}))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jsonl").write_text(text)
        given.append({"path": str(tmp_path / name / "x.jsonl"), "weight": 1})
    index = {"index": str(tmp_path / "index"), "too_long": "drop"}
    with pytest.raises(NotTrainable) as refused:
        opened(with_vocab(files_spec(tmp_path, *given, **index)))
    assert str(refused.value).endswith("usable sample: 1 record is longer than `batch.seq` 512")


@pytest.mark.parametrize("is_held_out", [False, True])
def test_a_source_of_records_that_are_all_too_long_says_so(
    tmp_path: Path, is_held_out: bool
) -> None:
    for name, number, words in (("short", 3, 1), ("long", 2, 500)):
        turns = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "ho " * words})
        text = "\n".join([json.dumps({"messages": turns})] * number)
        (tmp_path / f"{name}.jsonl").write_text(text)
    short, long = ({"path": str(tmp_path / f"{each}.jsonl")} for each in ("short", "long"))
    index = {"index": str(tmp_path / "index"), "too_long": "drop"}
    if is_held_out:
        sets = {"few": [short], "many": [long]}
        made = files_spec(tmp_path, short, eval_sources=sets, **index)
        made = made.replace(eval=EvalSpec(samples="all"))
    else:
        made = files_spec(tmp_path, short | {"weight": 1}, long | {"weight": 1}, **index)
    of = "held-out set `many`" if is_held_out else "source `long`"
    said = (
        f"the {of} holds no usable sample: 2 records are longer than `batch.seq` {made.batch.seq}"
    )
    with pytest.raises(NotTrainable) as refused:
        opened(with_vocab(made))
    assert str(refused.value) == said


def test_weights_of_tokens_that_leave_a_block_without_a_source_are_refused(tmp_path: Path) -> None:
    """Of samples it would have one in a block, but its records are several times as long."""
    for name, words in (("short", 1), ("long", 40)):
        turns = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "ho " * words})
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"messages": turns}))
    given = [
        {"path": str(tmp_path / f"{name}.jsonl"), "weight": weight}
        for name, weight in (("short", 1), ("long", 0.001))
    ]
    made = with_vocab(files_spec(tmp_path, *given, weigh="tokens", index=str(tmp_path / "index")))
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(dump_spec(made)))
    checked = load_and_check(file, only_plans=True)
    assert checked.spec is checked.unfit is None
    assert [each.code for each in checked.diagnostics if each.is_error] == ["mixture-not-usable"]
    with pytest.raises(BadMixture, match="the weight of source `long` gives it less than one of"):
        opened(made)


def test_a_source_has_a_template_of_its_own(tmp_path: Path) -> None:
    """Captions beside conversations; each sample is what it is in data of its source alone."""
    said = [json.dumps(each) for each in records(tmp_path, chats(4))]
    (tmp_path / "chats.jsonl").write_text("\n".join(said))
    shown = [
        json.dumps({"image": "seen.png", "text": f"A lamp, {number} times."}) for number in range(3)
    ]
    (tmp_path / "seen.png").write_bytes(image_bytes(8, 12))
    (tmp_path / "shown.jsonl").write_text("\n".join(shown))
    talk, captions = str(tmp_path / "chats.jsonl"), str(tmp_path / "shown.jsonl")
    own = {"path": captions, "template": "caption"}
    found = opened(files_spec(tmp_path, talk, own, {"path": talk, "template": LAST}))
    alone = [
        opened(files_spec(tmp_path, path, template=template))
        for path, template in ((talk, "chat"), (captions, "caption"), (talk, LAST))
    ]
    texts = [
        [each.tobytes() for each in made.text("train", n)]
        for made in alone
        for n in range(made.num_samples("train"))
    ]
    assert found.num_samples("train") == len(texts) == 4 + 3 + 4
    assert [[each.tobytes() for each in found.text("train", n)] for n in range(len(texts))] == texts
    assert len({repr(each) for each in texts}) > 4 + 3


def test_held_out_sources_are_sets_by_name(tmp_path: Path) -> None:
    """A file may be in several sets; a list is one set without a name."""
    for name, number in (("a", 3), ("b", 4)):
        lines = (json.dumps(each) for each in records(tmp_path, chats(number)))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    a, b = (str(tmp_path / f"{name}.jsonl") for name in "ab")
    made = files_spec(tmp_path, a, eval_sources={"one": [a], "both": [a, {"path": b}]})
    made = made.replace(eval=EvalSpec(every=1))
    found = opened(made)
    sets = {
        name: [found.name("heldout", n) for n in there]
        for name, there in found.heldout_sets().items()
    }
    of_a, of_b = (
        [f"{name}.jsonl line {n + 1}" for n in range(k)] for name, k in (("a", 3), ("b", 4))
    )
    assert sets == {"one": of_a, "both": [*of_a, *of_b]}
    alone = opened(files_spec(tmp_path, a, eval_sources=[b]).replace(eval=EvalSpec(every=1)))
    assert {name: len(there) for name, there in alone.heldout_sets().items()} == {"": 4}
    assert not list(sources_are_there(made, made.data))


@pytest.mark.parametrize("name", ["lines", "list", "parquet", "saved"])
def test_a_large_file_is_indexed_in_parts_as_in_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = files_spec(tmp_path, str(FORMATS[name](tmp_path, chats(40))))
    whole = opened(made).splits["train"].index
    columns = {key: np.array(column) for key, column in whole.columns.items()}
    for each in whole.folder.iterdir():
        each.unlink()
    monkeypatch.setattr(json_files, "PART", 1000)
    monkeypatch.setattr(tables, "PART", 1000)
    monkeypatch.setattr(json_files, "_BLOCK", 64)
    monkeypatch.setattr(tables, "_ROWS", 3)
    parts = opened(made).splits["train"].index
    assert BAD in {each.name for each in parts.folder.iterdir()}
    for key, column in parts.columns.items():
        assert np.array_equal(column, columns[key]), key
    assert len(tasks_of(split_files(made.data, "train"))) > 3


def test_an_index_that_was_killed_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are kept, unless the file has changed."""
    path = as_lines(tmp_path, chats(40))
    made = files_spec(tmp_path, str(path))
    monkeypatch.setattr(json_files, "PART", 1000)
    monkeypatch.setattr(indexer, "SMALL", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    right, seen = indexer.index_part, list[int]()

    def killed(*given: Any) -> Any:
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(given[-1].first)
        return right(*given)

    monkeypatch.setattr(indexer, "index_part", killed)
    with pytest.raises(KeyboardInterrupt):
        opened(made)
    first, seen = seen, []
    with pytest.raises(KeyboardInterrupt):
        opened(made)
    assert first[0] == 0
    assert not {*first} & {*seen}
    monkeypatch.setattr(indexer, "index_part", right)
    found = opened(made)
    assert found.num_samples("train") == 40
    assert everything(found) == everything(
        opened(files_spec(tmp_path, str(path), index=str(tmp_path / "fresh")))
    )
    folder = found.splits["train"].index.folder
    assert sorted(each.suffix for each in folder.parent.iterdir()) == ["", ".lock"]


def test_a_part_of_an_index_comes_back_as_it_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless another version wrote it."""
    columns = {"caption": np.array([0, 1], np.int32), "tokens": np.arange(3, dtype=np.uint16)}
    bad = (Bad("x.jsonl", "line 2", "it is no JSON"), Bad("x.jsonl", "", "cut"))
    part = ShardIndex(columns, ("json", "png"), bad, Counter({"`source`": 2, "`.svg`": 1}))
    kept = KeptParts(tmp_path / "parts", {"names": []})
    assert kept.load(7) is None
    kept.keep(7, part)
    monkeypatch.setattr(kept_parts, "VERSION", 0)
    assert KeptParts(tmp_path / "parts", {"names": []}).load(7) is None
    kept = KeptParts(tmp_path / "parts", {"names": []})
    kept.keep(7, part)
    found = KeptParts(tmp_path / "parts", {"names": []}).load(7)
    assert found is not None
    assert (found.suffixes, found.bad, found.ignored) == (part.suffixes, bad, part.ignored)
    assert found.columns.keys() == columns.keys()
    for name, column in columns.items():
        assert found.columns[name].dtype == column.dtype
        np.testing.assert_array_equal(found.columns[name], column)


def test_another_process_may_remove_the_parts_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of several processes makes the same index then, and the first to end removes them."""
    path = as_lines(tmp_path, chats(40))
    made = files_spec(tmp_path, str(path))
    monkeypatch.setattr(json_files, "PART", 1000)
    monkeypatch.setattr(indexer, "SMALL", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    right, load, seen = indexer.index_part, KeptParts.load, list[int]()

    def killed(*given: Any) -> Any:
        seen.append(given[-1].first)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return right(*given)

    def removed(kept: KeptParts, number: int) -> ShardIndex | None:
        found = load(kept, number)
        if number == len(tasks_of(split_files(made.data, "train"))) - 1:
            kept.remove()
        return found

    monkeypatch.setattr(indexer, "index_part", killed)
    with pytest.raises(KeyboardInterrupt):
        opened(made)
    monkeypatch.setattr(KeptParts, "load", removed)
    assert opened(made).num_samples("train") == 40
    assert seen[3:].count(0) == 1


def test_parts_of_another_file_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptParts(tmp_path / "x.parts", {"shards": [1]})
    rows = ShardRows(0)
    kept.keep(0, rows.index([Bad("x", "line 1", "why")]))
    again = KeptParts(tmp_path / "x.parts", {"shards": [1]}).load(0)
    assert again is not None
    assert again.bad == (Bad("x", "line 1", "why"),)
    assert KeptParts(tmp_path / "x.parts", {"shards": [2]}).load(0) is None


def test_faults_in_a_list_of_sources_are_found_where_they_are() -> None:
    made = files_spec(Path("tests/fixtures/shards"), "x.jsonl")
    data = dump_spec(made)
    data["data"]["sources"] = [{"pth": "a"}, "b", {"path": "c", "weight": -1}]
    data["data"]["weight_changes"] = [{"step": 3, "weights": {"b": 1}}, 7]
    found = {each.path: each.code for each in read_spec(data)[1]}
    assert found == {
        ("data", "sources", 0, "pth"): "unknown-key",
        ("data", "sources", 2, "weight"): "bad-value",
        ("data", "weight_changes", 1): "wrong-type",
    }


@pytest.mark.parametrize(
    ("source", "code", "why"),
    [
        ("wide.jsonl", "source-not-read", "wide.jsonl is text in UTF-16, not in UTF-8"),
        ("x.csv", "source-not-read", "x.csv is a table"),
        ("notes.txt", "source-not-read", "holds no tar archive, JSON or table"),
        ("notes.jsonl", "source-not-read", "holds no tar archive, JSON or table"),
        ("blank.jsonl", "source-not-read", "begins with 2 bytes of blanks"),
        ("page.jsonl", "source-not-read", "is a web page"),
        ("pipe.jsonl", "source-not-read", "pipe.jsonl is a pipe or a device"),
        ("piped", "source-not-read", "a.jsonl is a pipe or a device"),
        ("/dev/zero", "source-not-read", "zero is a pipe or a device"),
        ("chats [v2].jsonl", None, ""),
        ("of [v2]/x.jsonl", None, ""),
        ("of [v2]", None, ""),
        ("of [v2]/*.jsonl", None, ""),
        ("dir", "source-not-read", "cannot be read: Is a directory"),
        ("x.jsonl.gz", "source-not-read", "is compressed"),
        ("empty", "source-not-read", "files that end in .tar, .jsonl"),
        ({"path": ["x.jsonl", "empty"]}, "source-not-read", "files that end in .tar, .jsonl"),
        ("splits", "source-not-read", "splits/test, "),
        ("hub", "source-not-read", "hub/test-*, "),
        ("{x.jsonl,splits}", "source-not-read", "splits/test, "),
        (f"{{x.jsonl,{'splits,' * 40}}}", "source-not-read", "splits/test, "),
        ("none.jsonl", "shards-not-found", "paths are relative to"),
        ("hf://a/b.jsonl", "shards-not-found", "samples are read from anywhere in a file"),
        ({"path": "x.jsonl", "media": "x.jsonl"}, "source-not-read", "by paths in a folder"),
        ({"path": "x.jsonl", "media": "none"}, "shards-not-found", "paths are relative to"),
        ("x.jsonl", None, ""),
    ],
)
def test_faulty_sources_are_found_before_a_run(
    source: Any, code: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    as_lines(tmp_path, chats(3))
    for name in ("notes.txt", "notes.jsonl"):
        (tmp_path / name).write_text("hello there")
    (tmp_path / "blank.jsonl").write_text("\n\n")
    (tmp_path / "page.jsonl").write_text("<!DOCTYPE html>")
    for name in ("piped", "of [v2]", "dir/a.jsonl"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("pipe.jsonl", "piped/a.jsonl"):
        os.mkfifo(tmp_path / name)
    for name in ("chats [v2].jsonl", "of [v2]/x.jsonl"):
        shutil.copy(tmp_path / "x.jsonl", tmp_path / name)
    (tmp_path / "x.jsonl.gz").write_bytes(b"\x1f\x8b..")
    (tmp_path / "wide.jsonl").write_text('{"messages": []}', encoding="utf-16")
    (tmp_path / "x.csv").write_text("image,caption")
    for name in ("empty", "hub"):
        (tmp_path / name).mkdir()
    for name in ("train", "test"):
        (tmp_path / "hub" / f"{name}-00000-of-00001.jsonl").touch()
        (tmp_path / "splits" / name).mkdir(parents=True)
        (tmp_path / "splits" / name / "state.json").write_text('{"_data_files": []}')
    (tmp_path / "splits" / "dataset_dict.json").write_text("{}")
    made = files_spec(tmp_path, source)
    found = list(sources_are_there(made, made.data))
    assert [each.code for each in found] == ([] if code is None else [code])
    assert all(why in str(each.why) for each in found)
    assert not any("in place of `kind: webdataset`" in each.help for each in found)
    assert source != "empty" or "a line of JSON for each" in found[0].help
    assert source != "hf://a/b.jsonl" or found[0].help.endswith("write `path: FOLDER/b.jsonl`")


@pytest.mark.parametrize("first", ["text", "seen"])
def test_an_encoder_needs_inputs_from_one_source_at_least(tmp_path: Path, first: str) -> None:
    """In any order of sources; sound is in none."""
    as_lines(tmp_path, chats(1))
    (tmp_path / "x.jsonl").rename(tmp_path / "text.jsonl")
    (tmp_path / "seen").mkdir()
    as_lines(tmp_path / "seen", chats(3)[1:])
    paths = {"text": tmp_path / "text.jsonl", "seen": tmp_path / "seen" / "x.jsonl"}
    named = [str(paths.pop(first)), *map(str, paths.values())]
    assert list(members_for_encoders(files_spec(tmp_path, *named))) == []
    [only] = members_for_encoders(files_spec(tmp_path, *named, vision=False))
    assert only.headline == "`sound` reads clips, but 2 sources begin without any"
    assert only.help == "delete `sound`, or name sources with clips"
    unknown = ["s3://bucket/images.parquet", str(tmp_path / "text.jsonl")]
    assert list(members_for_encoders(files_spec(tmp_path, *unknown))) == []


def test_help_for_splits_keeps_the_other_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    as_lines(tmp_path, chats(3))
    for name in ("train", "test"):
        (tmp_path / "splits" / name).mkdir(parents=True)
        (tmp_path / "splits" / name / "state.json").write_text('{"_data_files": []}')
    (tmp_path / "splits" / "dataset_dict.json").write_text("{}")
    for paths in ("{x.jsonl,splits}", ["x.jsonl", "splits"]):
        made = files_spec(tmp_path, {"path": paths})
        (only,) = sources_are_there(made, made.data)
        assert only.help == "write `splits/train` in place of `splits`"


def test_folders_of_media_in_braces_may_be_longer_than_a_name(tmp_path: Path) -> None:
    folders = [f"a-folder-of-photographs-and-drawings-{n:03d}" for n in range(10)]
    for name in folders:
        (tmp_path / name).mkdir()
    as_lines(tmp_path, chats(3))
    media = f"{tmp_path}/{{{','.join(folders)}}}"
    made = files_spec(tmp_path, {"path": str(tmp_path / "x.jsonl"), "media": media})
    assert list(sources_are_there(made, made.data)) == []


def test_a_large_row_group_is_decoded_once_and_not_for_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are copied beside the index; without room for a copy, they are read all the same."""
    given = rows(chats(24))
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(given), path, row_group_size=8)
    made, whole = files_spec(tmp_path, str(path)), pyarrow.parquet.ParquetFile
    wanted = everything(opened(made))
    decoded = list[int]()

    class Counted(whole):
        def read_row_group(self, i: int, **options: Any) -> Any:
            decoded.append(i)
            return super().read_row_group(i, **options)

        def iter_batches(self, size: int, row_groups: list[int], **options: Any) -> Any:
            decoded.extend(row_groups)
            return super().iter_batches(size, row_groups=row_groups, **options)

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", Counted)
    monkeypatch.setattr(tables, "LARGE", 0)
    monkeypatch.setattr(tables, "_MAP", 200 << 20)  # As if only one were kept in memory.
    shutil.rmtree(tmp_path / ".mimo-index")
    found = opened(made)
    assert decoded == [0, 1, 2]
    assert "GB of large row groups copied" in summary_of(found.splits["train"])
    seen = {n: everything_of(found, n) for n in np.random.default_rng(0).permutation(24).tolist()}
    assert [seen[n] for n in range(24)] == wanted
    assert decoded == [0, 1, 2]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    shutil.rmtree(tmp_path / ".mimo-index" / "rows")
    assert everything(opened(made)) == wanted
    assert not list(tmp_path.glob(".mimo-index/rows/*/*.arrow"))
    monkeypatch.undo()
    monkeypatch.setattr(tables, "LARGE", 0)
    shutil.rmtree(tmp_path / ".mimo-index" / "rows")
    (tmp_path / ".mimo-index" / "rows").touch()  # As a folder that cannot be written.
    assert everything(opened(made)) == wanted


def test_a_copy_that_is_damaged_or_removed_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes room in the cache of files from elsewhere."""
    monkeypatch.setattr(tables, "LARGE", 0)
    path, given = tmp_path / "x.parquet", rows(chats(8))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(given), path, row_group_size=2)
    made, right = files_spec(tmp_path, str(path)), tables._held_copy
    wanted = everything(opened(made))
    for copy in tmp_path.glob(".mimo-index/rows/*/*.arrow"):  # By a host that lost its power.
        copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
    assert everything(opened(made)) == wanted

    def removed(copy: Path) -> Any:
        copy.unlink()
        return right(copy)

    monkeypatch.setattr(tables, "_held_copy", removed)
    assert everything(opened(made)) == wanted


def test_processes_without_locks_make_copies_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system without locks, each makes its own, and one of each is kept."""
    monkeypatch.setattr(tables, "LARGE", 0)
    path, given = tmp_path / "x.parquet", rows(chats(8))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(given), path, row_group_size=8)
    (shard,) = split_files(files_spec(tmp_path, str(path)).data, "train", fetches=True)
    one, other = (tables.ParquetTable(shard, Recent(0)) for _ in range(2))
    right = Path.rename

    def second(part: Path, to: Path) -> Path:
        monkeypatch.setattr(Path, "rename", right)
        other._write(0, to)
        return right(part, to)

    monkeypatch.setattr(Path, "rename", second)
    assert [len(list(each.records(each.parts()[0]))) for each in (one, other)] == [8, 8]
    (folder,) = tables.copies_of(shard)[0].parent.iterdir()
    assert sorted(each.suffix for each in folder.iterdir()) == [".arrow", ".lock"]


def test_copies_of_row_groups_follow_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LARGE", 0)
    path, given = tmp_path / "x.parquet", rows(chats(8))
    for n in (3, 8, 5):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(given[:n]), path, row_group_size=2)
        assert len(everything(opened(files_spec(tmp_path, str(path))))) == n
        copies = list(tmp_path.glob(".mimo-index/rows/*/*.arrow"))
        assert len(copies) == -(-n // 2)


def test_a_row_group_of_many_rows_is_work_for_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their parts are the rows of the file, each once."""
    monkeypatch.setattr(tables, "MOST_ROWS", 7)
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(chats(24))), path, row_group_size=18)
    tasks = tasks_of(split_files(files_spec(tmp_path, str(path)).data, "train"))
    assert [(each.part.first, each.part.end) for each in tasks] == [
        (0, 7), (7, 14), (14, 21), (21, 24),
    ]  # fmt: skip
    found = opened(files_spec(tmp_path, str(path)))
    assert [found.name("train", n) for n in range(24)] == [f"x.parquet row {n}" for n in range(24)]


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_a_shown_record_has_the_values_of_its_keys(name: str, pictures: Path) -> None:
    """Those that are read, and those that are ignored, by its line or row."""
    record = {**LLAVA, "score": [1, 2.5], "note": "x" * 99, "empty": None}
    if name == "x.parquet":
        table = pyarrow.Table.from_pylist([record])
        pyarrow.parquet.write_table(table, pictures / name)
    else:
        (pictures / name).write_text(json.dumps(record))
    made = files_spec(pictures, str(pictures / name))
    found = survey(made, opened(made), records=1, steps=1, show=1)
    keys = found.shown[0].records[0].keys
    assert keys is not None
    size = (pictures / LLAVA["image"]).stat().st_size
    assert keys.read == {
        "conversations": json.dumps(LLAVA["conversations"])[:60] + "...",
        "0.jpg": f"{size:,} bytes",
    }
    assert keys.ignored == {
        "id": '"000000033471"',
        "score": "[1.0, 2.5]" if name == "x.parquet" else "[1, 2.5]",
        "note": '"' + "x" * 59 + "...",
    }
    where = "line 1" if name == "x.jsonl" else "row 0"
    for text in as_text(found, None), page(found):
        assert f"{name} {where}, " in text
        assert "ignored: id " in text
