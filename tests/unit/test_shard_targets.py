"""Shards in any graph: rows of connectors, target images of generators and what these read."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.graphs import connector, flow
from tests.support.shards import image_bytes, shard_data, tokenizer_folder, write_shard
from tests.support.specs import box, spec
from tests.unit.test_record_facts import assert_one_by_one

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.index.split_report import NotTrainable
from mimo_launch.data.shard_samples import ShardSamples
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, placeholder_id
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.spec.spec import Spec, UserData

VIT = {"kind": "vit", "patch": 2, "shuffle": 2, "channels": 3}
FLOW: dict[str, Any] = flow()
FLOW["model"] = {**FLOW["model"], "patch": 4, "channels": 3}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


def shard_spec(
    folder: Path, tokenizer: Path, modules: dict[str, Any], seq: int = 256, **data: Any
) -> Spec:
    """A spec over the shards of a folder."""
    modules = {"language": box(model={"vocab": 400}), **modules}
    return spec(modules, data=shard_data(folder, tokenizer, **{"max_rows": 24, **data}), seq=seq)


def opened(made: Spec) -> ShardSamples:
    assert isinstance(made.data, UserData)
    return ShardSamples(made, made.data)


def talk(asked: str, said: str) -> dict[str, Any]:
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    return {"messages": turns}


def read_tokens(found: ShardSamples, index: int, span: ImageSpan) -> list[int]:
    """Return the tokens whose rows a generator reads for an image."""
    assert span.reads is not None
    tokens, _ = found.text("train", index)
    return [int(each) for each in tokens[span.position : span.position + span.reads]]


def test_a_resampler_and_its_tower_get_the_images_of_shards(
    tmp_path: Path, tokenizer: Path
) -> None:
    images = {"png": image_bytes(16, 24, 1), "1.png": image_bytes(8, 12, 2)}
    text = talk("<image> and <image>?", "Two.")
    write_shard(tmp_path / "a.tar", [("x", {**images, "json": text})])
    modules = {
        "vision": box(model=VIT),
        "merger": box(**connector("vision", queries=3)),
        "other": box(model={**VIT, "patch": 4, "shuffle": 1}),
    }
    made = shard_spec(tmp_path, tokenizer, modules)
    found = opened(made)
    plan = found.describe("train", 0)
    sizes = {name: [(s.height, s.width) for s in spans] for name, spans in plan.spans.items()}
    assert sizes == {
        "vision": [(4, 6), (2, 3)], "merger": [(1, 3), (1, 3)], "other": [(4, 6), (2, 3)]
    }  # fmt: skip
    tokens, labels = found.text("train", 0)
    for name in ("merger", "other"):
        rows = np.zeros(256, dtype=bool)
        for span in plan.spans[name]:
            rows[span.position : span.position + span.rows] = True
        assert np.array_equal(tokens == placeholder_id(made, name), rows)
    assert [s.position for s in plan.spans["vision"]] == [s.position for s in plan.spans["merger"]]
    assert int((labels != IGNORE_LABEL).sum()) == plan.num_labels > 0
    # Fewer places in the text than the tower has rows: only those of language count.
    alone = opened(shard_spec(tmp_path, tokenizer, {"vision": box(model=VIT)}))
    merged = opened(
        shard_spec(
            tmp_path,
            tokenizer,
            {"vision": box(model=VIT), "merger": box(**connector("vision", queries=3))},
        )
    )
    assert alone.length("train", 0) - merged.length("train", 0) == 24 + 6 - 3 - 3
    assert [each.shape for each in merged.images("train", 0, "vision")] == [(3, 16, 24), (3, 8, 12)]


def test_a_generator_gets_target_images_and_the_rows_of_the_text_before_each(
    tmp_path: Path, tokenizer: Path
) -> None:
    shown, first, second = (image_bytes(8, 8, 1), image_bytes(16, 24, 2), image_bytes(8, 8, 3))
    text = talk("<image> Draw a dog and a cat.", "A dog: <target> and a cat: <target>")
    members = {"png": shown, "target.png": first, "target.1.png": second, "json": text}
    write_shard(tmp_path / "a.tar", [("x", members)])
    modules = {"vision": box(model=VIT), "drawer": box(**FLOW)}
    found = opened(shard_spec(tmp_path, tokenizer, modules, target_reads=5))
    assert_one_by_one(found)
    plan = found.describe("train", 0)
    assert [(s.height, s.width) for s in plan.spans["vision"]] == [(2, 2)]
    dog, cat = plan.spans["drawer"]
    assert [(s.height, s.width, s.reads) for s in (dog, cat)] == [(4, 6, 5), (2, 2, 5)]
    words = [found.words(read_tokens(found, 0, span)) for span in (dog, cat)]
    assert [each[-5:] for each in words] == ["dog: ", "cat: "]
    # Target markers leave no token, and no more rows than there are before an image are read.
    plain = {"png": shown, "json": talk("<image> Draw a dog and a cat.", "A dog:  and a cat: ")}
    write_shard(tmp_path / "plain" / "a.tar", [("x", plain)])
    same = opened(shard_spec(tmp_path / "plain", tokenizer, {"vision": box(model=VIT)}))
    assert abs(same.length("train", 0) - plan.num_tokens) <= 1
    every = opened(shard_spec(tmp_path, tokenizer, modules, target_reads=200))
    dog, cat = every.describe("train", 0).spans["drawer"]
    assert (dog.position, dog.reads) == (0, cat.position)


def test_target_images_are_about_as_spread_as_noise_and_are_written_as_they_were(
    tmp_path: Path, tokenizer: Path
) -> None:
    target = image_bytes(16, 24, 2)
    write_shard(tmp_path / "a.tar", [("x", {"target.png": target, "txt": "A dog."})])
    made = shard_spec(tmp_path, tokenizer, {"drawer": box(**FLOW)}, template="caption")
    found = opened(made)
    (image,) = found.images("train", 0, "drawer")
    assert image.shape == (3, 16, 24)
    assert -2 <= image.min() < -1
    assert 1 < image.max() <= 2
    wanted = np.asarray(Image.open(BytesIO(target))).transpose(2, 0, 1)
    assert np.array_equal(found.pixels("drawer", image), wanted)
    # Without a marker an image stands at the end, behind the token that ends the text.
    plan = found.describe("train", 0)
    (span,) = plan.spans["drawer"]
    assert span.position + (span.reads or 0) == plan.num_tokens


def test_a_target_under_the_name_of_a_generator_goes_to_that_one_alone(
    tmp_path: Path, tokenizer: Path
) -> None:
    both = {"target.png": image_bytes(8, 8), "target.painter.png": image_bytes(8, 16), "txt": "x"}
    samples = [
        ("a", both),
        ("b", {"target.png": image_bytes(8, 8), "txt": "x"}),
        ("c", {"target.painter.png": image_bytes(8, 16), "txt": "x"}),
        ("d", {"txt": "no image at all"}),
    ]
    write_shard(tmp_path / "a.tar", samples)
    modules = {"drawer": box(**FLOW), "painter": box(**FLOW)}
    found = opened(shard_spec(tmp_path, tokenizer, modules, template="caption"))
    sizes = [
        {name: spans[0].width for name, spans in found.describe("train", n).spans.items()}
        for n in range(4)
    ]
    assert sizes == [{"drawer": 2, "painter": 4}, {"drawer": 2, "painter": 2}, {"painter": 4}, {}]
    assert [len(found.images("train", n, "drawer")) for n in range(4)] == [1, 1, 0, 0]
    # Nobody shows targets, also where nothing generates.
    modules = {"vision": box(model=VIT)}
    seen = opened(shard_spec(tmp_path, tokenizer, modules, template="caption"))
    assert seen.num_samples("train") == 1


def damaged() -> Iterator[tuple[str, dict[str, Any]]]:
    image = image_bytes(8, 8)
    yield (
        "2 targets for `drawer` and 0 markers",
        {"target.1.png": image, "json": talk("?", "!")},
    )
    yield "1 target for `drawer` and 2 markers", {"json": talk("?", "<target> a <target>")}
    yield (
        "its .target.png cannot be read as an image",
        {"target.png": b"no", "json": talk("?", "!")},
    )
    yield "no text", {"target.1.png": image, "json": talk("?", "<target><target>")}


@pytest.mark.parametrize(("why", "members"), [*damaged()])
def test_targets_that_nothing_can_be_learnt_from_are_bad_samples(
    why: str, members: dict[str, Any], tmp_path: Path, tokenizer: Path
) -> None:
    write_shard(tmp_path / "a.tar", [("x", {"target.png": image_bytes(8, 8), **members})])
    with pytest.raises(NotTrainable, match=why):
        opened(shard_spec(tmp_path, tokenizer, {"drawer": box(**FLOW)}))


def test_a_connector_in_front_of_a_generator_gets_the_rows_of_its_targets(
    tmp_path: Path, tokenizer: Path
) -> None:
    write_shard(tmp_path / "a.tar", [("x", {"target.png": image_bytes(8, 8), "txt": "A dog."})])
    drawer = {**FLOW, "reads": ["adapter"]}
    modules = {"adapter": box(**connector("language", queries=3)), "drawer": box(**drawer)}
    found = opened(shard_spec(tmp_path, tokenizer, modules, template="caption", target_reads=4))
    spans = found.describe("train", 0).spans
    ((adapter,), (made,)) = spans["adapter"], spans["drawer"]
    assert (adapter.height, adapter.width, adapter.reads) == (1, 3, 4)
    assert (made.height, made.width) == (2, 2)
    assert (adapter.position, adapter.reads) == (made.position, made.reads)


def test_each_caption_of_a_list_asks_for_the_target_by_its_own_text(
    tmp_path: Path, tokenizer: Path
) -> None:
    texts = ["A dog.", "A small dog beside two cats.", "A dog, <target> and the text after it."]
    image = {"target.png": image_bytes(8, 12, 3)}
    write_shard(tmp_path / "lists" / "a.tar", [("x", {**image, "json": {"captions": texts}})])
    apart = [(f"x{n}", {**image, "json": {"caption": text}}) for n, text in enumerate(texts)]
    write_shard(tmp_path / "apart" / "a.tar", apart)
    found, wanted = (
        opened(shard_spec(tmp_path / name, tokenizer, {"drawer": box(**FLOW)}, template="caption"))
        for name in ("lists", "apart")
    )
    assert (found.num_samples("train"), wanted.num_samples("train")) == (1, 3)
    for n in range(3):
        assert found.describe("train", n).spans == wanted.describe("train", n).spans
        for ours, theirs in zip(found.text("train", n), wanted.text("train", n), strict=True):
            assert np.array_equal(ours, theirs)
        (ours,), (theirs,) = (each.images("train", n, "drawer") for each in (found, wanted))
        assert np.array_equal(ours, theirs)


def codes_bytes(codes: Any) -> bytes:
    out = BytesIO()
    np.save(out, codes)
    return out.getvalue()


def test_a_talker_gets_the_codes_of_a_clip(tmp_path: Path, tokenizer: Path) -> None:
    said = np.arange(14, dtype=np.uint16).reshape(2, 7) % 10
    good = {"target.npy": codes_bytes(said), "target.png": image_bytes(8, 8), "txt": "Hello."}
    far = {"target.npy": codes_bytes(said + 6), "txt": "Hello."}
    one = {"target.npy": codes_bytes(said[0]), "txt": "Hello."}
    real = {"target.npy": codes_bytes(said / 2), "txt": "Hello."}
    pickled = {"target.npy": codes_bytes(np.array([[{}]], dtype=object)), "txt": "Hello."}
    samples = {"a": good, "b": far, "c": one, "d": real, "e": pickled}
    write_shard(tmp_path / "a.tar", samples.items())
    talks = {"kind": "talker", "codebooks": 2, "vocab": 12}
    modules = {"talker": box(**flow(model=talks)), "drawer": box(**FLOW)}
    found = opened(shard_spec(tmp_path, tokenizer, modules, template="caption"))
    bad = {each["key"]: each["why"] for each in found.splits["train"].index.bad()}
    assert bad.keys() == {"c", "d", "e"}
    assert "its codes are of 1 codebooks, those of `talker` of 2" in bad["c"]
    assert "of float64, not [codebooks, frames]" in bad["d"]
    plan = found.describe("train", 0)
    assert [(s.height, s.width) for s in plan.spans["talker"]] == [(1, 8)]
    assert [(s.height, s.width) for s in plan.spans["drawer"]] == [(2, 2)]
    (codes,) = found.images("train", 0, "talker")
    assert codes.dtype == np.int64
    assert np.array_equal(codes, said)
    assert found.pixels("talker", codes) is None
    with pytest.raises(BadSample, match=r"a.tar b: its .target.npy has the code 10; `talker` says"):
        found.images("train", 1, "talker")


def test_a_target_whose_rows_are_cut_off_is_not_made(tmp_path: Path, tokenizer: Path) -> None:
    text = talk("Draw.", "A dog. <target> " + "a " * 40 + "cat. <target>")
    members = {"target.png": image_bytes(8, 8), "target.1.png": image_bytes(8, 8), "json": text}
    write_shard(tmp_path / "a.tar", [("x", members)])
    modules = {"drawer": box(**FLOW)}
    cut = opened(shard_spec(tmp_path, tokenizer, modules, seq=48, too_long="truncate"))
    assert_one_by_one(cut)
    assert len(cut.describe("train", 0).spans["drawer"]) == 1
    assert len(cut.images("train", 0, "drawer")) == 1


def test_towers_that_merge_by_width_must_agree_on_every_image(
    tmp_path: Path, tokenizer: Path
) -> None:
    good, bad = image_bytes(16, 24), image_bytes(20, 24)
    write_shard(
        tmp_path / "a.tar", [("g", {"png": good, "txt": "x"}), ("b", {"png": bad, "txt": "x"})]
    )
    modules = {
        "vision": box(model=VIT),
        "coarse": box(model={**VIT, "patch": 8, "shuffle": 1}),
        "merger": box(**connector("vision", "coarse", merge="width")),
    }
    with pytest.raises(NotTrainable, match=r"`merger` adds .* makes 24 and `coarse` makes 6"):
        opened(shard_spec(tmp_path, tokenizer, modules, template="caption"))
