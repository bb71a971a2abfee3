"""What `mimo-launch data` finds: counts by hand, bad records by id, samples as models see them."""

import io
import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.damage import damaged
from tests.support.shards import planted, sample, tokenizer_folder, write_shard
from tests.support.specs import box, spec
from tokenizers import Tokenizer, decoders

from mimo_launch.cli.data_tables import as_text, page, png, record_text
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.order.sample_order import (
    GlobalOrder,
    global_order,
    make_step_data,
    records_of,
)
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, placeholder_id
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.step_views import Imbalance, StepViews
from mimo_launch.spec.spec import Spec
from mimo_launch.survey import reading_speed
from mimo_launch.survey.index_statistics import Evenness, find_facts, first_steps
from mimo_launch.survey.reading_speed import read_steps, survey
from mimo_launch.survey.shown_samples import ShownPiece, ShownRecord, show_samples

GRIDS = {"vision": box(0, dp=2), "language": box(2, tp=2)}


def made_with(**data: Any) -> Spec:
    """Synthetic data for vision dp 2 in front of language."""
    given = {"kind": "synthetic", "samples": 200, "text_only": 0.3, "max_images": 3, **data}
    return spec(GRIDS, microbatches=2, mbs=4, seq=64, data=given)


def digits() -> Spec:
    model = {"patch": 4}
    modules = {"vision": box(0, dp=2, model=model), "language": box(2, model={"vocab": "digits"})}
    return spec(modules, mbs=4, seq=48, data={"kind": "digits", "text_only": 0.4})


def test_facts_are_those_of_every_record_counted_by_hand() -> None:
    made = made_with()
    dataset = build_dataset(made)
    facts = find_facts(made, build_layout(made), dataset, most=1000)
    samples = [dataset.describe("train", index) for index in range(200)]
    lengths = sorted(described.num_tokens for described in samples)
    rows = sorted(s.rows for described in samples for s in described.spans.get("vision", ()))
    assert (facts.records, facts.surveyed, facts.tokens) == (200, 200, sum(lengths))
    assert facts.labels == sum(described.num_labels for described in samples)
    assert (facts.lengths.min, facts.lengths.max) == (lengths[0], lengths[-1])
    assert lengths[98] <= facts.lengths.p50 <= lengths[101]
    assert lengths[8] <= facts.lengths.p5 <= lengths[12]
    vision = facts.modalities["vision"]
    assert (vision.items, vision.rows) == (len(rows), sum(rows))
    assert vision.without == sum(not described.spans for described in samples) > 0
    assert vision.per_item is not None
    assert vision.per_item.max == rows[-1]
    assert facts.filling.alone == sum(lengths) / (200 * 64)
    assert not facts.filling.is_packed


def test_filling_is_what_packing_does() -> None:
    made = made_with(packing=True)
    dataset = build_dataset(made)
    filling = find_facts(made, build_layout(made), dataset, most=1000).filling
    order, place, packs = global_order(made, dataset), 0, 0
    while place < 200:
        # The last step reaches into the next epoch.
        packs += sum(set(records_of(s)) <= set(range(200)) for s in order.take(place))
        place = order.after(place)
    tokens = sum(dataset.length("train", index) for index in range(200))
    assert filling.is_packed
    assert filling.packed == pytest.approx(tokens / (packs * 64), rel=0.1)
    assert 200 / packs == pytest.approx(filling.records_per_pack, rel=0.1)
    assert filling.packed > 1.2 * filling.alone


def test_balance_is_told_of_the_mean_and_of_the_worst_step() -> None:
    made = made_with()
    found = survey(made, build_dataset(made), records=9, steps=1, show=0)
    uneven = Evenness.of([Imbalance(1.5, 1.25), Imbalance(2.5, 1.0)])
    text = as_text(replace(found, facts=replace(found.facts, evenness={"vision": uneven})), None)
    assert "most patches over mean 2.00 -> 1.12 (worst of 2 steps: 2.50 -> 1.25)" in text


def test_the_first_step_is_read_although_it_needs_more_than_there_is() -> None:
    made = made_with()
    steps = [step for step, *_ in first_steps(made, build_dataset(made), 5, end=3)]
    assert steps == [0]


def test_processors_of_a_host_share_what_its_ranks_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four ranks needs a second of Python for its part of a step."""
    made = made_with()
    seconds = count()
    monkeypatch.setattr(reading_speed.time, "process_time", lambda: float(next(seconds)))
    monkeypatch.setattr(reading_speed.os, "sched_getaffinity", lambda _: range(6))
    speeds = {}
    for per_host in (2, 4, 8):
        of_hosts = spec(
            GRIDS, microbatches=2, mbs=4, seq=64, data=made.data.model_dump(),
            nodes={"gpus": per_host},
        )  # fmt: skip
        found = read_steps(of_hosts, build_layout(of_hosts), build_dataset(of_hosts), 3).speed
        speeds[found.host_ranks] = found.together / found.tokens
    # Three steps; of two hosts each reads half.
    assert speeds == {2: pytest.approx(6 / (2 * 3)), 4: pytest.approx(6 / (4 * 3))}


def test_a_graph_is_shown_with_what_it_makes_and_what_no_text_has() -> None:
    """A tower behind a connector has no tokens in the text, nor has what a generator makes."""
    made = spec(
        {
            "vision": box(0, dp=2),
            "merger": box(2, model={"kind": "connector", "queries": 3}, reads=["vision"]),
            "language": box(3),
            "drawer": box(0, dp=2, model={"kind": "flow"}, reads=["language"]),
        },
        mbs=4,
        seq=64,
        data={"kind": "synthetic", "samples": 64, "image": [2, 4]},
    )
    dataset = build_dataset(made)
    found = survey(made, dataset, records=64, steps=1, show=4)
    in_text = {name: each.in_text for name, each in found.facts.modalities.items()}
    assert in_text == {"vision": False, "merger": True, "drawer": False}
    assert found.facts.evenness.keys() == {"vision", "drawer"}
    assert found.read.bad == {}
    records = [record for shown in found.shown for record in shown.records]
    kinds = [[piece.encoder for piece in record.pieces if piece.encoder] for record in records]
    assert ["vision", "merger", "drawer"] in kinds or ["drawer", "vision", "merger"] in kinds
    for record in records:
        assert record.name == f"record {record.id}"
        tokens = sum(p.tokens for p in record.pieces if p.encoder not in ("vision", "drawer"))
        assert tokens == record.tokens
        assert record.images.keys() == {"vision", "drawer"}
    assert "merger 1: 1 x 3 = 3 rows" in page(found)


def test_a_part_of_the_records_is_the_first_in_the_order_of_training() -> None:
    made = made_with()
    dataset = build_dataset(made)
    facts = find_facts(made, build_layout(made), dataset, most=50)
    ids = GlobalOrder(200, 1, made.train.seed).between(0, 50).tolist()
    assert facts.tokens == sum(dataset.length("train", index) for index in ids)
    assert (facts.records, facts.surveyed) == (200, 50)


def test_evenness_is_that_of_the_first_steps() -> None:
    made = made_with()
    layout, dataset = build_layout(made), build_dataset(made)
    found = find_facts(made, layout, dataset, most=40).evenness["vision"]
    samples = [data for _, _, data in first_steps(made, dataset, 5, 200)]
    seen = [StepViews(layout, data).imbalance(layout["vision"]) for data in samples]
    assert found.steps == 5
    assert found.worst.before == max(each.before for each in seen)
    assert found.mean.after == pytest.approx(sum(each.after for each in seen) / 5)
    assert found.mean.after < found.mean.before


def test_records_that_cannot_be_read_are_named_and_the_others_are_read() -> None:
    made = made_with(packing=True)
    order = global_order(made, build_dataset(made))
    first = [index for sample in order.take(0) for index in records_of(sample)]
    faults: dict[tuple[str, str, int], Exception] = {
        ("text", "train", first[3]): BadSample("no text"),
        ("images", "train", first[0]): OSError("gone"),
    }
    read = read_steps(made, build_layout(made), damaged(made, faults), 1)  # type: ignore[arg-type]
    assert read.bad == {first[3]: "no text", first[0]: "OSError: gone"}
    assert read.records == len(first)


def test_speed_counts_what_ranks_read() -> None:
    made = made_with()
    found = read_steps(made, build_layout(made), build_dataset(made), 3).speed
    dataset = build_dataset(made)
    ids = [index for step in range(3) for index in GlobalOrder(200, 8, 0).ids(step)]
    assert found.tokens == sum(dataset.length("train", index) for index in ids)
    assert found.alone == pytest.approx(found.tokens / (3 * found.slowest_s))
    assert found.slowest in {("vision",), ("language",)}
    assert found.host_ranks == 4
    assert found.tokens_per_s == min(found.alone, found.together) > 0


def test_a_record_is_shown_as_the_model_sees_it() -> None:
    made = digits()
    dataset = build_dataset(made)
    strip = next(i for i in range(99) if dataset.describe("train", i).spans)
    words = next(i for i in range(99) if not dataset.describe("train", i).spans)
    data = make_step_data(dataset, "train", ((strip, words),), 0)
    [shown] = show_samples(made, dataset, data.samples, 1)
    assert [record.name for record in shown.records] == [f"record {strip}", f"record {words}"]
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    for record, index in zip(shown.records, (strip, words), strict=True):
        _, labels = dataset.text("train", index)
        answer = [int(token) - 4 for token in labels[labels != IGNORE_LABEL][:-1]]
        said = "<bos> " + (
            f"<vision 1: 2 x {2 * len(answer)} = {4 * len(answer)} rows>"
            if index == strip
            else " ".join(names[digit] for digit in answer)
        )
        learnt = " ".join(map(str, answer))
        assert record_text(record) == f"{said} <ask> [[{learnt} <eos>]]"
        assert sum(piece.tokens for piece in record.pieces) == record.tokens
    assert shown.padding == 48 - sum(record.tokens for record in shown.records)
    assert len(shown.records[0].images["vision"]) == 1


def test_learnt_pieces_are_those_that_are_predicted() -> None:
    made = made_with()
    dataset = build_dataset(made)
    for index in range(20):
        data = make_step_data(dataset, "train", (index,), 0)
        [shown] = show_samples(made, dataset, data.samples, 1)
        [record] = shown.records
        tokens, labels = dataset.text("train", index)
        learnt = [
            t for piece in record.pieces if piece.kind == "learnt" for t in piece.text.split()
        ]
        assert learnt == [str(label) for label in labels if label >= 0]
        assert sum(piece.tokens for piece in record.pieces) == data.samples[0].num_tokens
        texts = [p for piece in record.pieces if piece.kind != "rows" for p in piece.text.split()]
        placeholder = placeholder_id(made, "vision")
        wanted = [token for token in tokens[: record.tokens].tolist() if token != placeholder]
        assert texts == [str(token) for token in wanted]


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 5, 7), (2, 4, 4), (6, 9)])
def test_an_image_is_drawn_from_its_least_to_its_largest_value(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with Image.open(io.BytesIO(png(array))) as image:
        pixels = np.asarray(image)
    grey = array[::-1] if array.ndim == 2 else array.transpose(1, 2, 0)
    if array.ndim == 3 and shape[0] != 3:
        grey = array[0]
    wanted = (grey - grey.min()) / (grey.max() - grey.min()) * 255
    assert np.abs(pixels - wanted).max() <= 0.51
    assert png(np.zeros((1, 2, 2), np.float32)).startswith(b"\x89PNG")


def test_shards_are_shown_with_their_text_images_and_what_was_left_out(tmp_path: Path) -> None:
    tokenizer_folder(tmp_path / "tokenizer")
    records = [(f"{number:03}", sample(number)) for number in range(1, 40)]
    truncated, why, is_seen_late = planted(0)
    missing, _, _ = planted(1)
    assert is_seen_late
    write_shard(tmp_path / "a.tar", [*records, ("cut", truncated), ("none", missing)])
    vision = {"kind": "vit", "patch": 2, "shuffle": 2, "channels": 3}
    data = {
        "kind": "webdataset", "shards": str(tmp_path / "a.tar"), "template": "chat",
        "tokenizer": str(tmp_path / "tokenizer"), "max_rows": 24, "packing": True,
    }  # fmt: skip
    modules = {"vision": box(0, model=vision), "language": box(0, model={"vocab": 400})}
    made = spec(modules, mbs=8, seq=256, data=data)
    found = survey(made, build_dataset(made), records=100, steps=9, show=3)
    assert found.facts.records == 40
    assert found.left_out is not None
    assert found.left_out.bad == 1
    assert list(found.left_out.first_bad) == ["a.tar none"]
    [reason] = found.read.bad.values()
    assert "a.tar cut" in reason
    assert why in reason
    texts = [record_text(record) for shown in found.shown for record in shown.records]
    assert len(texts) > 3
    for record in (record for shown in found.shown for record in shown.records if not record.bad):
        text = record_text(record)
        assert "What is number" in text
        assert "[[" in text
        learnt = text[text.index("[[") :]
        assert "It is" in learnt
        assert "What is" not in learnt
        assert text.count(" rows>") == len(record.images["vision"])
    drawn = page(found)
    assert drawn.count("data:image/png;base64,") == sum(
        len(record.images.get("vision", ())) for shown in found.shown for record in shown.records
    )
    assert "<mark>" in drawn
    assert "&lt;|im_start|&gt;" in drawn
    assert "<|im_start|>" not in drawn


def conversations(folder: Path, **data: Any) -> Spec:
    """A spec of language alone over two sources of a few conversations."""
    tokenizer_folder(folder / "tokenizer")
    for name in ("chats", "charts"):
        said = [{"role": "user", "content": f"Say  \u732b of {name}."}]
        said += [{"role": "assistant", "content": f" \u732b\u72ac, {name}"}]
        lines = [json.dumps({"messages": said * (1 + number)}) + "\n" for number in range(4)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    sources = [str(folder / f"{name}.jsonl") for name in ("chats", "charts")]
    data = {
        "kind": "files", "sources": sources, "template": "chat",
        "tokenizer": str(folder / "tokenizer"), **data,
    }  # fmt: skip
    return spec({"language": box(0, model={"vocab": 400})}, mbs=8, seq=256, data=data)


def first_shown(made: Spec) -> list[ShownRecord]:
    found = survey(made, build_dataset(made), records=8, steps=1, show=8)
    return [record for shown in found.shown for record in shown.records]


def test_pieces_joined_are_the_text_of_the_template(tmp_path: Path) -> None:
    """Also with a decoder that strips the blank of the first word, as Llama's does."""
    made = conversations(tmp_path)
    file = str(tmp_path / "tokenizer" / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    tokenizer.save(file)
    shown = first_shown(made)
    assert len(shown) == 8
    for record in shown:
        name = record.source
        turn = "<|im_start|>user\nSay  \u732b of {0}.<|im_end|>\n<|im_start|>assistant\n"
        turn += "[[ \u732b\u72ac, {0}<|im_end|>]]\n"
        times = int(record.name.removeprefix(f"{name}.jsonl line "))
        assert record_text(record) == turn.format(name).replace("\n", "\\n") * times


def test_a_long_text_is_shown_without_its_middle() -> None:
    piece = ShownPiece("learnt", "a" * 600 + "b" * 1000 + "c" * 600, 3)
    shown = record_text(ShownRecord(0, "x", 3, [piece]))
    assert shown == f"[[{'a' * 500} ... 1,200 characters ... {'c' * 500}]]"


def test_the_line_of_a_record_says_what_is_cut(tmp_path: Path) -> None:
    whole = {record.name: record for record in first_shown(conversations(tmp_path))}
    made = conversations(tmp_path, too_long="truncate")
    made = made.model_copy(update={"batch": made.batch.model_copy(update={"seq": 128})})
    found = survey(made, build_dataset(made), records=8, steps=1, show=8)
    shown = [record for sample in found.shown for record in sample.records]
    lines = as_text(found, None).splitlines()
    assert len(shown) == 8
    for record in shown:
        before = whole[record.name]
        line = f"  {record.name} ({record.source}), {min(before.tokens, 128)} tokens, "
        line += f"{sum(p.tokens for p in record.pieces if p.kind == 'learnt')} learnt"
        if (left_out := before.tokens - 128) > 0:
            line += f"; cut: {left_out} of {before.tokens} tokens are left out"
        assert line in lines
    assert sum("cut:" in line for line in lines) == sum(e.tokens > 128 for e in whole.values()) > 0
