"""Samples of shards: what the index says of them is what reading them gives."""

import json
import re
import shutil
import tarfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tests.support.shards import (
    CHATML,
    clip_bytes,
    image_bytes,
    planted,
    sample,
    shard_data,
    tokenizer_folder,
    write_shard,
    write_shards,
)
from tests.support.specs import box, spec

from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.readiness import ready_shards
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.index.open_index import IndexProgress
from mimo_launch.data.index.open_split import OpenSplit
from mimo_launch.data.index.split_report import NotTrainable, summary_of
from mimo_launch.data.shard_samples import ShardSamples
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, placeholder_id
from mimo_launch.layout.step_views import Reads
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import read_step, step_inputs

VIT = {"kind": "vit", "patch": 2, "shuffle": 2, "channels": 3}


def shard_spec(
    folder: Path, modules: dict[str, Any] | None = None, seq: int = 512, **data: Any
) -> Spec:
    """A spec over the shards of a folder, with a tokenizer made in it."""
    tokenizer = folder / "tokenizer"
    if not tokenizer.exists():
        tokenizer_folder(tokenizer, CHATML)
    return spec(
        {"vision": box(model=VIT)} if modules is None else modules,
        data=shard_data(folder, **{"max_rows": 24, **data}),
        seq=seq,
    )


def with_vocab(made: Spec, vocab: int = 400) -> Spec:
    language = made.modules["language"]
    model = language.model.model_copy(update={"vocab": vocab})
    modules = {**made.modules, "language": language.model_copy(update={"model": model})}
    return made.model_copy(update={"modules": modules})


def opened(made: Spec, heard: list[IndexProgress] | None = None) -> ShardSamples:
    made = with_vocab(made)
    return ShardSamples(made, made.data, (lambda p: None) if heard is None else heard.append)


def test_every_good_sample_is_there_once_and_every_bad_one_is_named(tmp_path: Path) -> None:
    said = write_shards(tmp_path, samples=60, bad=20, shards=3)
    found = opened(shard_spec(tmp_path))
    keys = [found.name("train", index).split()[1] for index in range(found.num_samples("train"))]
    decoding = {key for n, key in enumerate(said) if planted(n)[2]}
    assert sorted(keys) == sorted([f"{n:06d}" for n in range(60)] + list(decoding))
    named = {each["key"]: each["why"] for each in found.splits["train"].index.bad()}
    assert named.keys() == said.keys() - decoding
    assert all(said[key] in why for key, why in named.items())
    for key in decoding:
        with pytest.raises(BadSample, match=rf"00\d\.tar {key}: .*{said[key]}"):
            found.images("train", keys.index(key), "vision")


def test_reading_gives_what_the_index_says(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=40, bad=0, shards=2)
    made = with_vocab(shard_spec(tmp_path))
    found = opened(made)
    assert found.num_samples("train") == 40
    pad, several = placeholder_id(made, "vision"), 0
    for index in range(40):
        plan = found.describe("train", index)
        tokens, labels = found.text("train", index)
        spans = plan.spans.get("vision", ())
        several += len(spans) > 1
        rows = np.zeros(512, dtype=bool)
        for span in spans:
            rows[span.position : span.position + span.rows] = True
        assert np.array_equal(tokens == pad, rows)
        assert int((labels != IGNORE_LABEL).sum()) == plan.num_labels > 0
        assert not tokens[plan.num_tokens :].any()
        assert len(tokens[: plan.num_tokens]) == found.length("train", index)
        here = np.flatnonzero(labels != IGNORE_LABEL)
        assert np.array_equal(labels[here], tokens[here + 1])
        images = found.images("train", index, "vision")
        assert [image.shape for image in images] == [
            (3, 4 * span.height, 4 * span.width) for span in spans
        ]
        assert len(images) == sum(not name.endswith("json") for name in sample(index))
        for only in ({0}, {1, 2}, set()):
            some = found.images("train", index, "vision", only)
            wanted = [image for at, image in enumerate(images) if at in only]
            assert [each.tobytes() for each in some] == [each.tobytes() for each in wanted]
        first = found.answer("train", index)
        assert first == tuple(labels[here[0] :][: len(first)].tolist())
        assert not found.documents("train", index).any()
    assert several > 5
    for index in (-1, 40):
        with pytest.raises(IndexError, match=rf"^sample {index} of 40 \(train\)$"):
            found.describe("train", index)


def test_other_images_of_a_sample_are_not_read(tmp_path: Path, monkeypatch: Any) -> None:
    write_shards(tmp_path, samples=40, bad=0, shards=2)
    found = opened(shard_spec(tmp_path))
    described = [found.describe("train", index) for index in range(40)]
    index = next(each.id for each in described if len(each.spans.get("vision", ())) > 1)
    read, correct = list[str](), OpenSplit.read

    def noted(self: Any, row: int, places: Any, suffix: str) -> bytes:
        read.append(suffix)
        return correct(self, row, places, suffix)

    monkeypatch.setattr(OpenSplit, "read", noted)
    found.images("train", index, "vision")
    every = read[:]
    read.clear()
    found.images("train", index, "vision", {1})
    assert read == every[1:2]


def test_images_go_to_every_encoder_of_images_and_clips_to_those_of_clips(tmp_path: Path) -> None:
    said = [
        {"from": "human", "value": "<audio> then <image>, <image>"},
        {"from": "gpt", "value": "Heard and seen."},
    ]
    members = {
        "flac": clip_bytes(16_000, kind="FLAC"),
        "jpg": image_bytes(20, 30, 1),
        "10.jpg": image_bytes(8, 8, 2),
        "9.jpg": image_bytes(16, 8, 3),
        "json": {"conversations": said},
    }
    members["1.jpg"] = members.pop("9.jpg")
    del members["10.jpg"]
    write_shard(tmp_path / "a.tar", [("x", members)])
    audio = {"kind": "audio", "mels": 80, "frames": 200}
    modules = {
        "vision": box(model=VIT),
        "sound": box(model=audio),
        "other": box(model={**VIT, "patch": 4, "shuffle": 1}),
    }
    made = with_vocab(shard_spec(tmp_path, modules))
    found = opened(made)
    plan = found.describe("train", 0)
    (clip,) = plan.spans["sound"]
    assert (clip.height, clip.width) == (1, 50)
    first, second = plan.spans["vision"]
    others = plan.spans["other"]
    assert clip.position < first.position < others[0].position < second.position
    assert others[0].position == first.position + first.rows
    (mel,) = found.images("train", 0, "sound")
    assert mel.shape == (80, 100)
    assert [image.shape for image in found.images("train", 0, "vision")] == [
        (3, 16, 24), (3, 16, 8)
    ]  # fmt: skip
    tokens, _ = found.text("train", 0)
    for name, spans in plan.spans.items():
        for span in spans:
            assert set(tokens[span.position : span.position + span.rows]) == {
                placeholder_id(made, name)
            }


def lengths_of(found: ShardSamples) -> list[int]:
    return [found.length("train", index) for index in range(found.num_samples("train"))]


def long_samples(folder: Path) -> None:
    """Text around one image of 4 x 6 rows; of 8 samples, each is longer than the last."""
    records = []
    for number in range(8):
        asked = "a " * (10 * number) + "<image>?"
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": "a " * 4}]
        image = image_bytes(16, 24, number)
        records.append((f"{number}", {"png": image, "json": {"conversations": turns}}))
    write_shard(folder / "a.tar", records)


def test_samples_that_are_too_long_are_left_out_or_cut_or_refused(tmp_path: Path) -> None:
    long_samples(tmp_path)
    every = opened(shard_spec(tmp_path))
    lengths = lengths_of(every)
    seq = every.describe("train", 6).spans["vision"][0].position + 5
    fit = [length for length in lengths if length <= seq]
    dropped = opened(shard_spec(tmp_path, seq=seq))
    assert lengths_of(dropped) == fit
    assert f"{8 - len(fit)} longer than" in summary_of(dropped.splits["train"])
    why = rf"{8 - len(fit)} samples .* the first is a.tar {len(fit)} with {lengths[len(fit)]}"
    with pytest.raises(NotTrainable, match=why):
        opened(shard_spec(tmp_path, seq=seq, too_long="error"))
    cut = opened(shard_spec(tmp_path, seq=seq, too_long="truncate"))
    ends = lengths_of(cut)
    inside = 0
    for index in range(8):
        plan, whole = cut.describe("train", index), every.describe("train", index)
        tokens, labels = cut.text("train", index)
        all_tokens, all_labels = every.text("train", index)
        assert plan.num_tokens == ends[index] == min(ends[index], seq)
        assert np.array_equal(tokens[: ends[index]], all_tokens[: ends[index]])
        assert np.array_equal(labels[: ends[index] - 1], all_labels[: ends[index] - 1])
        assert int((labels != IGNORE_LABEL).sum()) == plan.num_labels
        (span,) = whole.spans["vision"]
        if span.position + span.rows > seq:
            inside += span.position < seq
            assert plan.spans == {}
            assert ends[index] == min(seq, span.position)
            assert cut.images("train", index, "vision") == []
        else:
            assert plan.spans == whole.spans
    assert 2 < len(fit) < 6
    assert inside > 0, "a cut falls inside an image"


def repeated(tmp_path: Path, shards: list[str], **data: Any) -> tuple[Counter[str], str, int]:
    """How often each sample is in an epoch, the line that says so, and the samples in the index."""
    made = shard_spec(tmp_path, shards=[f"{tmp_path}/{each}" for each in shards], **data)
    found = opened(made)
    number = found.num_samples("train")
    keys = Counter(found.name("train", each).split()[1] for each in range(number))
    for index in range(number):
        assert found.length("train", index) == found.describe("train", index).num_tokens
    split = found.splits["train"]
    return keys, summary_of(split), split.index.num_rows


@pytest.mark.parametrize(
    ("shards", "a", "b", "line"),
    [
        (["a.tar", "b.tar"], 1, 1, ""),
        (["a.tar", "a.tar", "b.tar"], 2, 1, "a.tar counts 2 times"),
        (["a.tar", "b.tar", "./a.tar"], 2, 1, "a.tar counts 2 times"),
        (["{a,a}.tar", "[ab].tar"], 3, 1, "a.tar counts 3 times"),
        (["a.tar", "link.tar", "b.tar"], 2, 1, "a.tar counts 2 times (link.tar is the same file)"),
        (["hard.tar", "../{name}/a.tar"], 2, 0, "hard.tar counts 2 times (a.tar is the same file)"),
        (["*.tar"], 1, 1, "a.tar counts once (hard.tar, link.tar are the same file)"),
        (["a.tar", "a.tar", "b.tar", "b.tar"], 2, 2, "a.tar counts 2 times, and 1 more shard is"),
    ],
)  # fmt: skip
def test_a_shard_counts_as_often_as_it_is_written(
    tmp_path: Path, shards: list[str], a: int, b: int, line: str
) -> None:
    """A pattern with a `*` is written once. Other names and links are the same file, read once."""
    write_shard(tmp_path / "a.tar", [("a0", sample(0)), ("a1", sample(5))])
    write_shard(tmp_path / "b.tar", [("b0", sample(10))])
    (tmp_path / "link.tar").symlink_to(tmp_path / "a.tar")
    (tmp_path / "hard.tar").hardlink_to(tmp_path / "a.tar")
    shards = [each.replace("{name}", tmp_path.name) for each in shards]
    keys, summary, indexed = repeated(tmp_path, shards)
    assert keys == +Counter({"a0": a, "a1": a, "b0": b})
    assert indexed == len(keys)
    assert line in summary
    assert ("counts" in summary) == bool(line)


@pytest.mark.parametrize("too_long", ["drop", "truncate"])
def test_a_repeated_shard_keeps_the_lengths_of_its_samples(tmp_path: Path, too_long: str) -> None:
    write_shard(tmp_path / "a.tar", [(f"{n}", sample(n)) for n in range(1, 5)])
    whole = opened(shard_spec(tmp_path))
    lengths = sorted(whole.length("train", each) for each in range(4))
    made = shard_spec(tmp_path, shards=[f"{tmp_path}/a.tar"] * 2, seq=lengths[2], too_long=too_long)
    found = opened(made)
    seen = sorted(found.length("train", each) for each in range(found.num_samples("train")))
    assert seen[:6] == sorted(lengths[:3] * 2)
    assert len(seen) == (6 if too_long == "drop" else 8)
    assert max(seen) == lengths[2] < lengths[3]


@pytest.mark.parametrize(
    ("members", "template", "why"),
    [
        (["key.with.dots.json", "key.with.dots.png"], "chat", "no .json; its .with.dots.json is "
         "not read: a key ends at the first dot of a name, so write `_` for the dots of keys"),
        ([f"img.{n}.txt" for n in range(7)], "caption", "no .json or .txt; its .0.txt, .1.txt, "
         ".2.txt, .3.txt, .4.txt and 2 more are not read: a key ends"),
        (["x.png", "x.jsonl"], "chat", "no .json; its .jsonl is not read"),
        (["x.txt"], "chat", "no .json; its .txt is not read"),
        (["x.png"], "chat", "no .json"),
    ],
)  # fmt: skip
def test_a_sample_without_a_text_names_the_members_that_are_not_read(
    tmp_path: Path, members: list[str], template: str, why: str
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in members:
            tar.addfile(tarfile.TarInfo(name))
    write_shard(tmp_path / "b.tar", [("x", {"json": {**sample(5)["json"], "text": "A."}})])
    found = opened(shard_spec(tmp_path, template=template, max_bad_samples=9))
    (bad,) = found.splits["train"].index.bad()
    assert bad["why"].startswith(f"it has {why}")
    assert ("dots" in bad["why"]) == ("dots" in why or "ends" in why)


def test_a_shard_without_members_has_no_samples(tmp_path: Path) -> None:
    tarfile.open(tmp_path / "a.tar", "w").close()
    (tmp_path / "b.tar").write_bytes(bytes(1024))
    with pytest.raises(NotTrainable, match="hold no usable sample: 0 are bad"):
        opened(shard_spec(tmp_path))
    write_shard(tmp_path / "c.tar", [("x", sample(5))])
    found = opened(shard_spec(tmp_path))
    assert (found.num_samples("train"), found.splits["train"].index.num_bad) == (1, 0)


def test_a_damaged_end_of_a_shard_is_named_and_the_rest_is_used(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", [(f"{n}", sample(5 * n)) for n in range(4)])
    whole = path.read_bytes()
    last = whole.rindex(b"3.json")
    cases = {
        "the shard ends inside its `.json`": whole[: last + 512 + 10],
        "no header of a member": whole[:last] + b"?" * 100 + whole[last + 100 :],
    }
    for why, damaged in cases.items():
        path.write_bytes(damaged)
        found = opened(shard_spec(tmp_path))
        assert found.num_samples("train") == 3
        (bad,) = found.splits["train"].index.bad()
        assert bad["shard"] == "a.tar"
        assert why in bad["why"]


def test_an_index_is_made_once_and_again_when_something_has_changed(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=20, bad=2, shards=2)
    made = shard_spec(tmp_path)

    def made_again() -> str:
        heard: list[IndexProgress] = []
        opened(made, heard)
        return heard[0].why if heard else ""

    assert made_again() == "no index yet"
    assert made_again() == ""
    folder = opened(made).splits["train"].index.folder
    assert folder.parent == tmp_path / ".mimo-index"
    first = write_shard(tmp_path / "000.tar", [("x", sample(3))])
    assert made_again() == "000.tar has changed"
    first.touch()
    assert made_again() == "000.tar has changed"
    tokenizer = tmp_path / "tokenizer" / "chat_template.jinja"
    tokenizer.write_text(tokenizer.read_text() + " ")
    assert made_again() == "the tokenizer has changed"
    with (folder / "tokens").open("ab") as file:
        file.write(b"1234")
    assert re.match("the index is damaged: column tokens has", made_again())
    (folder / "run_end").unlink()
    assert made_again() == "the index is damaged: column run_end is missing"
    (folder / "index.json").write_text("{")
    assert made_again() == "the index is damaged: index.json is not JSON"
    (folder / "index.json").write_text(json.dumps({"version": 0}))
    assert made_again() == "the index is damaged: another version wrote it"
    assert made_again() == ""
    assert [each.name for each in folder.parent.iterdir() if each.is_dir()] == [folder.name]
    # Another length of sequence needs no other index, other sizes of images do.
    made = shard_spec(tmp_path, seq=256)
    assert made_again() == ""
    made = shard_spec(tmp_path, max_rows=12)
    assert made_again() == "no index yet"
    for other in (
        {"max_image_pixels": 1 << 20},
        {"max_characters": 1 << 20},
        {"image_marker": "<picture>"},
        {"template": {"kind": "chat", "system": "Be brief."}},
    ):
        made = shard_spec(tmp_path, **other)
        assert made_again() == "no index yet"
        assert made_again() == ""


def test_an_index_goes_where_it_is_told_to_or_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path, samples=4, bad=0, shards=1)
    elsewhere = tmp_path / "elsewhere"
    made = opened(shard_spec(tmp_path, index=str(elsewhere)))
    assert made.splits["train"].index.folder.parent == elsewhere
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = opened(shard_spec(tmp_path))
    cache = tmp_path / "cache" / "mimo-launch" / "index"
    assert made.splits["train"].index.folder.parent == cache


def test_processes_make_the_same_index_as_one(tmp_path: Path, monkeypatch: Any) -> None:
    write_shards(tmp_path, samples=30, bad=5, shards=3)
    made = shard_spec(tmp_path)
    alone = opened(made).splits["train"].index
    want = {name: column.copy() for name, column in alone.columns.items()}
    bad = list(alone.bad())
    shutil.rmtree(alone.folder)
    monkeypatch.setattr("mimo_launch.data.index.indexer.SMALL", 0)
    together = opened(made).splits["train"].index
    assert list(together.bad()) == bad
    for name, column in together.columns.items():
        assert np.array_equal(column, want[name]), name


def test_too_many_bad_records_and_no_records_are_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=10, bad=5, shards=1)
    with pytest.raises(NotTrainable, match=r"are bad, but `data.max_bad_samples` allows 3;"):
        opened(shard_spec(tmp_path, max_bad_samples=3))
    write_shard(tmp_path / "000.tar", [("x", {"txt": "no conversation"})])
    with pytest.raises(NotTrainable, match="hold no usable sample: 1 are bad"):
        opened(shard_spec(tmp_path))


def test_a_shard_that_changed_after_indexing_is_bad_not_wrong(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=10, bad=0, shards=1)
    found = opened(shard_spec(tmp_path))
    path = tmp_path / "000.tar"
    path.write_bytes(path.read_bytes()[:4096])
    with pytest.raises(BadSample, match=r"000.tar 000009: EOFError: the file ends"):
        found.text("train", 9)


def test_captions_are_read_from_text_members(tmp_path: Path) -> None:
    records = [("a", {"jpg": image_bytes(8, 8), "txt": "two cats"}), ("b", {"txt": " "})]
    write_shard(tmp_path / "a.tar", records)
    made = with_vocab(shard_spec(tmp_path, template="caption"))
    found = build_dataset(made)
    assert found.num_samples("train") == 1
    plan = found.describe("train", 0)
    tokens, labels = found.text("train", 0)
    assert plan.spans["vision"][0].position == 0
    assert plan.num_labels == plan.num_tokens - 4
    assert labels[3] == tokens[4]


def test_nothing_predicts_the_first_token_of_a_text(tmp_path: Path) -> None:
    """All of it is learnt, and no token or image comes before it."""
    write_shard(tmp_path / "a.tar", [("a", {"txt": "two cats"}), ("b", {"txt": "the red house"})])
    found = opened(shard_spec(tmp_path, {"language": box()}, template="caption"))
    for index in range(2):
        plan, (tokens, labels) = found.describe("train", index), found.text("train", index)
        assert plan.num_labels == plan.num_tokens - 1 > 1
        assert labels[: plan.num_labels].tolist() == tokens[1 : plan.num_tokens].tolist()
        assert (labels[plan.num_labels :] == IGNORE_LABEL).all()


def test_the_first_answer_of_a_sample_ends_before_a_special_token(tmp_path: Path) -> None:
    said = ["the red house", "two cats"]
    turns = [
        {"role": role, "content": text}
        for each in said
        for role, text in (("user", "What is it?"), ("assistant", each))
    ]
    write_shard(tmp_path / "a.tar", [("a", {"json": {"messages": turns}})])
    found = opened(shard_spec(tmp_path))
    assert found.words(found.answer("train", 0)) == said[0]
    _, labels = found.text("train", 0)
    # What it ends with is learnt, but no part of it.
    after = int((labels != IGNORE_LABEL).argmax()) + len(found.answer("train", 0))
    assert labels[after] in found.answer_ends
    assert not found.scores


def test_a_caption_ends_with_the_token_that_transformers_finds(tmp_path: Path) -> None:
    """Older folders name it in another file. A folder without one learns no end, and is told so."""
    from transformers import PreTrainedTokenizerFast

    write_shard(tmp_path / "a.tar", [("a", {"txt": "a cat"})])
    made = shard_spec(tmp_path, template="caption")
    folder = tmp_path / "tokenizer"
    for said, token in (({}, None), ({"added_tokens_decoder": {}}, None), ({}, "</s>")):
        (folder / "tokenizer_config.json").write_text(json.dumps(said))
        more = {} if token is None and not said else {"eos_token": {"content": "</s>"}}
        (folder / "special_tokens_map.json").write_text(json.dumps(more))
        theirs = PreTrainedTokenizerFast.from_pretrained(folder)
        assert theirs.eos_token == token
        found = opened(made)
        _, labels = found.text("train", 0)
        last = labels[found.length("train", 0) - 2]
        assert (last == theirs.convert_tokens_to_ids("</s>")) == (token is not None)
        assert ["no `eos_token`" in each for each in found.notes] == [True] * (token is None)


def test_a_caption_of_a_picture_that_is_not_read_is_bad(tmp_path: Path) -> None:
    """Else its text would be learnt without it."""
    records = [("svg", {"svg": b"<svg/>", "txt": "a cat"}), ("no", {"txt": "only text"})]
    write_shard(tmp_path / "a.tar", records)
    found = opened(shard_spec(tmp_path, template="caption"))
    assert found.name("train", 0) == "a.tar no"
    (bad,) = found.splits["train"].index.bad()
    assert bad["why"].startswith("it has no image or clip; its .svg is not read: write")


@pytest.mark.parametrize("fixed", [False, True])
def test_a_clip_that_is_not_heard_to_its_end_is_bad(tmp_path: Path, fixed: bool) -> None:
    """Else the words of the rest would be learnt without being heard."""
    said = [{"role": "user", "content": "<audio>"}, {"role": "assistant", "content": "ho"}]
    lengths = {"fits": 16_000, "frame": 16_159, "long": 16_160, "slow": 8_080}
    records = [
        (
            key,
            {"wav": clip_bytes(n, 8_000 if key == "slow" else 16_000), "json": {"messages": said}},
        )
        for key, n in lengths.items()
    ]
    write_shard(tmp_path / "a.tar", records)
    audio = {"kind": "audio", "mels": 80, "frames": 100, "fixed_length": fixed}
    found = opened(shard_spec(tmp_path, {"sound": box(model=audio)}))
    names = [found.name("train", index) for index in range(found.num_samples("train"))]
    assert names == ["a.tar fits", "a.tar frame"]
    assert [image.shape for i in (0, 1) for image in found.images("train", i, "sound")] == [
        (80, 100), (80, 100)
    ]  # fmt: skip
    bad = {each["key"]: each["why"] for each in found.splits["train"].index.bad()}
    assert bad.keys() == {"long", "slow"}
    assert all(
        "for `sound`, a clip of 1.01 s, but at most 1 s are encoded" in why for why in bad.values()
    )


def test_threads_read_what_one_reads_one_after_another(tmp_path: Path) -> None:
    """Texts, pixels and reasons; records that only decoding shows to be bad are named."""
    write_shards(tmp_path, samples=30, bad=10, shards=2)
    made = with_vocab(shard_spec(tmp_path))
    dataset = build_dataset(made)
    ids = tuple(range(dataset.num_samples("train")))
    source = step_inputs(dataset, "train", ids, 0)
    reads = Reads(ids, ids, (), {"vision": ids})
    alone, reasons = read_step(source, reads, made, lambda: None)
    with ThreadPoolExecutor(4) as threads:
        beats: list[None] = []
        together, same = read_step(source, reads, made, lambda: beats.append(None), threads=threads)
    assert len(beats) == 3 * len(ids)
    assert same == reasons
    assert [re.match(r"00\d.tar bad-00: .*truncated", why) for why in reasons.values()]
    assert len(reasons) == 1
    assert alone.pixels.keys() == together.pixels.keys()
    for number in ids:
        assert np.array_equal(alone.texts[number], together.texts[number])
    for key, patches in alone.pixels.items():
        for one, other in zip(patches, together.pixels[key], strict=True):
            assert bool((one.values == other.values).all())


def test_an_error_that_is_no_damage_is_not_hidden_by_threads(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=4, bad=0, shards=1)
    made = with_vocab(shard_spec(tmp_path))
    dataset: Any = build_dataset(made)
    dataset.text = lambda split, index: {}["a bug"]
    source = step_inputs(dataset, "train", (0, 1), 0)
    with ThreadPoolExecutor(2) as threads, pytest.raises(KeyError, match="a bug"):
        read_step(source, Reads((0, 1), (), (), {}), made, lambda: None, threads=threads)


def make_one(made: Spec, gate: Barrier, heard: Connection) -> None:
    gate.wait()
    said: list[IndexProgress] = []
    found = opened(made, said)
    heard.send((found.num_samples("train"), [each.why for each in said if not each.done]))


def test_of_two_processes_one_makes_the_index(tmp_path: Path) -> None:
    """The other one waits for it, or finds it made."""
    write_shards(tmp_path, samples=60, bad=0, shards=3)
    made, context = shard_spec(tmp_path), get_context("fork")
    gate, ends = context.Barrier(2), [context.Pipe() for _ in range(2)]
    processes = [context.Process(target=make_one, args=(made, gate, end)) for _, end in ends]
    for process in processes:
        process.start()
    told = [end.recv() for end, _ in ends]
    for process in processes:
        process.join()
    assert [count for count, _ in told] == [60, 60]
    whys = sorted(why for _, said in told for why in said)
    assert whys.count("no index yet") == 1
    assert set(whys) <= {"no index yet", "another process does it, waiting"}
    assert len([each for each in (tmp_path / ".mimo-index").iterdir() if each.is_dir()]) == 1


def test_what_is_found_is_said_before_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shards(tmp_path, samples=20, bad=10, shards=2)
    made = with_vocab(shard_spec(tmp_path))
    ready_shards(made, Console(), speaks=True)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "data: indexing 2 shards (train): no index yet"
    assert said[1].startswith("data: 21 samples (train); 9 bad, see ")
    ready_shards(made, Console(), speaks=True)
    assert capsys.readouterr().err.splitlines() == said[1:]
    ready_shards(made, Console(), speaks=False)
    assert capsys.readouterr().err == ""
    few = made.model_copy(update={"data": made.data.model_copy(update={"max_bad_samples": 8})})
    with pytest.raises(typer.Exit) as ended:
        ready_shards(few, Console(), speaks=True)
    assert ended.value.exit_code == 1
    assert "error: 9 records of the data (train) are bad" in capsys.readouterr().err
