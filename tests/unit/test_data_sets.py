"""The samples themselves: what they hold, and that plan, tokens and pixels tell one story."""

import hashlib
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from mimo_launch.data import sample_sizes, synthetic_draws
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Dataset
from mimo_launch.data.digit_images import image_split, load_digits
from mimo_launch.data.digits import DigitStrips
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.data.shared_images import temporal_patches
from mimo_launch.data.synthetic import SyntheticSamples
from mimo_launch.kinds import vocabulary as tok
from mimo_launch.spec.spec import Spec

DIGITS = {"kind": "digits"}
SYNTHETIC = {"kind": "synthetic"}
PATCHES = [(4,), (2,), (8,), (4, 8), (8, 2)]
SPLITS = ("train", "heldout")


def make_spec(data: dict[str, Any], patches=(4,), seed=0, seq=256, dp=1, channels=1) -> Spec:
    vit = {"kind": "vit", "layers": 1, "hidden": 8, "heads": 1, "channels": channels}
    modules: dict[str, Any] = {
        f"eye{i}": {"model": {**vit, "patch": patch}, "ranks": f"0-{dp - 1}", "grid": {"dp": dp}}
        for i, patch in enumerate(patches)
    }
    vocab = "digits" if data["kind"] == "digits" else 50
    modules["language"] = {
        "model": {"kind": "decoder", "layers": 1, "hidden": 8, "heads": 1, "vocab": vocab},
        "ranks": "0",
    }
    spec = {
        "version": 1,
        "name": "t",
        "modules": modules,
        "batch": {"global": 32, "seq": seq},
        "data": data,
        "train": {"seed": seed},
    }
    return Spec.model_validate(spec, strict=False)


def fingerprint(dataset: Dataset, encoders: list[str], split: str = "train", num: int = 40) -> str:
    sha = hashlib.sha256()
    for index in range(num):
        sha.update(repr(dataset.describe(split, index)).encode())
        for array in dataset.text(split, index):
            sha.update(array.tobytes())
        for encoder in encoders:
            for image in dataset.images(split, index, encoder):
                sha.update(image.tobytes())
    return sha.hexdigest()


def test_shipped_digits_are_the_uci_test_set():
    images, labels = load_digits()
    assert (images.shape, images.dtype, labels.dtype) == ((1797, 8, 8), np.uint8, np.uint8)
    assert images.max() == 16
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    image_sha = "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"
    label_sha = "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0"
    assert hashlib.sha256(images.tobytes()).hexdigest() == image_sha
    assert hashlib.sha256(labels.tobytes()).hexdigest() == label_sha


def test_train_and_heldout_images_share_nothing():
    images, labels = load_digits()
    split = image_split()
    train, heldout = (set(split[name]) for name in SPLITS)
    assert train.isdisjoint(heldout)
    assert train | heldout == set(range(len(images)))
    assert len(heldout) / len(images) == pytest.approx(0.2, abs=0.005)
    assert (np.bincount(labels[list(heldout)]) >= 34).all()
    pixels = [{images[i].tobytes() for i in side} for side in (train, heldout)]
    assert pixels[0].isdisjoint(pixels[1])


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("patches", PATCHES)
def test_a_strip_shows_the_digits_of_its_labels(split, patches):
    dataset = build_dataset(make_spec(DIGITS, patches))
    images, digits = load_digits()
    known = {images[i].tobytes(): int(digits[i]) for i in image_split()[split]}
    for index in range(150):
        _, labels = dataset.text(split, index)
        target = labels[labels != tok.IGNORE_LABEL]
        assert target[-1] == tok.EOS
        scored = not patches or dataset.describe(split, index).spans
        assert dataset.answer(split, index) == (tuple(target[:-1]) if scored else ())
        for number, patch in enumerate(patches):
            for strip in dataset.images(split, index, f"eye{number}"):
                (span,) = dataset.describe(split, index).spans[f"eye{number}"]
                assert strip.shape == (1, span.height * patch, span.width * patch)
                raw = (strip[0] * 16 + 5).astype(np.uint8)
                shown = [known[raw[:, x : x + 8].tobytes()] for x in range(0, raw.shape[1], 8)]
                assert shown == (target[:-1] - tok.FIRST_DIGIT).tolist()


def test_strips_have_the_written_form():
    dataset = build_dataset(make_spec(DIGITS, (4, 8)))
    seen = set()
    for index in range(300):
        tokens, labels = dataset.text("train", index)
        described = dataset.describe("train", index)
        answer = labels[labels != tok.IGNORE_LABEL][:-1].tolist()
        digits = [token - tok.FIRST_DIGIT for token in answer]
        seen.add(len(digits))
        middle = [tok.FIRST_WORD + d for d in digits]
        if described.spans:
            middle = [24] * (4 * len(digits)) + [25] * len(digits)
        expected = [tok.BOS, *middle, tok.ASK, *answer, tok.EOS]
        assert tokens[: described.num_tokens].tolist() == expected
        assert not tokens[described.num_tokens :].any()
        ask = expected.index(tok.ASK)
        places = np.flatnonzero(labels != tok.IGNORE_LABEL)
        assert places.tolist() == list(range(ask, ask + len(digits) + 1))
        assert labels[places].tolist() == [*answer, tok.EOS]
    assert seen == set(range(1, 7))


def test_text_only_share_pixel_scale_and_channels():
    dataset = build_dataset(make_spec(DIGITS, channels=3))
    text_only = [not dataset.describe("train", i).spans for i in range(5000)]
    assert np.mean(text_only) == pytest.approx(0.1, abs=0.02)
    strips = [s for i in range(500) for s in dataset.images("train", i, "eye0")]
    pixels = np.concatenate([strip.reshape(3, -1) for strip in strips], axis=1)
    assert pixels.dtype == np.float32
    assert (pixels[0] == pixels[2]).all()
    assert abs(pixels.mean()) < 0.03
    assert (pixels.min(), pixels.max()) == (-5 / 16, 11 / 16)
    for share, spans in ((0.0, 200), (1.0, 0)):
        other = build_dataset(make_spec({**DIGITS, "text_only": share}))
        assert sum(bool(other.describe("train", i).spans) for i in range(200)) == spans


def test_without_an_encoder_every_strip_is_spelled():
    dataset = build_dataset(make_spec({**DIGITS, "text_only": 0.0}, patches=()))
    tokens, _ = dataset.text("train", 0)
    assert tok.FIRST_WORD <= tokens[1] < tok.FIRST_WORD + 10


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("patches", [*PATCHES, ()])
@pytest.mark.parametrize(
    "data", [DIGITS, SYNTHETIC, {**SYNTHETIC, "max_patches": 2}, {**SYNTHETIC, "max_images": 3}]
)
def test_plan_agrees_with_tokens_and_images(data, patches, split):
    spec = make_spec(data, patches)
    spec = make_spec(
        data, patches, seq=sample_sizes.longest_sample(spec) + (0 if patches == (4,) else 9)
    )
    dataset = build_dataset(spec)
    for index in range(200):
        described = dataset.describe(split, index)
        tokens, labels = dataset.text(split, index)
        assert tokens.shape == labels.shape == (spec.batch.seq,)
        assert tokens.dtype == labels.dtype == np.int64
        assert 2 <= described.num_tokens <= spec.batch.seq
        assert (tokens[described.num_tokens :] == tok.PAD).all()
        placed = np.flatnonzero(labels != tok.IGNORE_LABEL)
        assert len(placed) == described.num_labels > 0
        assert placed[-1] + 1 < described.num_tokens
        assert (labels[placed] == tokens[placed + 1]).all()
        assert (labels < tok.vocab_size(spec) - len(patches)).all()
        assert described.id == index
        for number, patch in enumerate(patches):
            name = f"eye{number}"
            here = np.flatnonzero(tokens == tok.placeholder_id(spec, name))
            spans = described.spans.get(name, ())
            rows = [p for s in spans for p in range(s.position, s.position + s.rows)]
            assert here.tolist() == rows
            assert len(spans) <= data.get("max_images", 1)
            assert all(s.rows <= sample_sizes.largest_image(spec, name).rows for s in spans)
            shapes = [image.shape for image in dataset.images(split, index, name)]
            assert shapes == [(1, s.height * patch, s.width * patch) for s in spans]
            assert [image.shape for image in dataset.images(split, index, name, {1})] == shapes[1:2]


def with_shuffle(spec: Spec, **sides: int) -> Spec:
    """Return the spec with these sides of the squares that become rows, by encoder."""
    modules = dict(spec.modules)
    for name, side in sides.items():
        model = modules[name].model.model_copy(update={"shuffle": side})
        modules[name] = modules[name].model_copy(update={"model": model})
    return spec.model_copy(update={"modules": modules})


@pytest.mark.parametrize("data", [DIGITS, {**SYNTHETIC, "max_patches": 20, "max_images": 2}])
def test_pixel_shuffle_divides_rows_and_keeps_whole_squares(data):
    plain = make_spec({**data, "text_only": 0.0}, (2, 2))
    dataset = build_dataset(with_shuffle(plain, eye0=2))
    for index in range(50):
        described = dataset.describe("train", index)
        tokens, _ = dataset.text("train", index)
        for name, side in (("eye0", 4), ("eye1", 2)):
            images = dataset.images("train", index, name)
            assert [i.shape[1] % side + i.shape[2] % side for i in images] == [0] * len(images)
            rows = sum(image.size // side**2 for image in images)
            assert rows == described.rows(name)
            placed = tokens == tok.placeholder_id(plain, name)
            assert placed.sum() == rows
        if data is DIGITS:
            assert described.rows("eye1") == 4 * described.rows("eye0")
    spec = with_shuffle(plain, eye0=2)
    assert sample_sizes.longest_sample(spec) < sample_sizes.longest_sample(plain)


def test_images_of_a_given_size_and_number_fill_the_sequence():
    data = {**SYNTHETIC, "image": [4, 6], "min_images": 2, "max_images": 3, "text_only": 0.0}
    spec = with_shuffle(make_spec({**data, "min_text": 10}, (4,)), eye0=2)
    assert sample_sizes.longest_sample(spec) == 3 * 6 + 10
    dataset = build_dataset(with_shuffle(make_spec({**data, "min_text": 10}, seq=28), eye0=2))
    numbers = set()
    for index in range(60):
        spans = dataset.describe("train", index).spans["eye0"]
        numbers.add(len(spans))
        assert {(span.height, span.width) for span in spans} == {(2, 3)}
        images = dataset.images("train", index, "eye0")
        assert [image.shape for image in images] == [(1, 16, 24)] * len(spans)
        assert dataset.describe("train", index).num_tokens >= 6 * len(spans) + 10
    assert numbers == {2, 3}
    with pytest.raises(ValueError, match="no image or clip holds"):
        build_dataset(with_shuffle(make_spec(SYNTHETIC), eye0=4))


def test_texts_have_as_many_tokens_as_the_spec_says():
    spec = make_spec({**SYNTHETIC, "min_text": 5, "max_text": 7, "text_only": 1.0}, seq=64)
    dataset = build_dataset(spec)
    assert {dataset.length("train", index) for index in range(60)} == {5, 6, 7}
    assert nominal_step_data(spec).samples[0].num_tokens == 6
    assert nominal_step_data(spec, worst=True).samples[0].num_tokens == 7


def test_synthetic_samples_vary_in_every_way():
    spec = make_spec(SYNTHETIC, (4, 2), seq=48)
    dataset = build_dataset(spec)
    samples = [dataset.describe("train", index) for index in range(400)]
    assert len({described.num_tokens for described in samples}) > 20
    assert {"".join(sorted(described.spans)) for described in samples} == {
        "",
        "eye0",
        "eye1",
        "eye0eye1",
    }
    none = np.mean([not described.rows("eye0") for described in samples])
    assert none == pytest.approx(0.1, abs=0.05)
    spans = [span for described in samples for (span,) in described.spans.values()]
    assert {span.height for span in spans} == {1, 2, 3}
    assert {span.width for span in spans} == set(range(1, 13))
    assert max(span.rows for span in spans) == 12
    assert len({span.position for span in spans}) > 20
    both = [described.spans for described in samples if len(described.spans) == 2]
    first = [s["eye0"][0].position < s["eye1"][0].position for s in both]
    assert 0.35 < np.mean(first) < 0.65
    for described in samples:
        _, labels = dataset.text("train", described.id)
        last = max((s.position for (s,) in described.spans.values()), default=0)
        assert (labels[last:] != tok.IGNORE_LABEL).any(), "no label depends on the last image"
    drawn = [image for n in range(200) for image in dataset.images("train", n, "eye0")]
    pixels = np.concatenate([image.ravel() for image in drawn])
    assert abs(pixels.mean()) < 0.05
    assert pixels.std() == pytest.approx(1, abs=0.05)
    assert dataset.answer("train", 0) == ()


def test_no_two_synthetic_images_are_alike():
    data = {**SYNTHETIC, "image": [4, 4], "max_images": 2}
    dataset = build_dataset(make_spec(data, (4, 4)))
    images = [
        image.tobytes()
        for split in SPLITS
        for index in range(50)
        for eye in ("eye0", "eye1")
        for image in dataset.images(split, index, eye)
    ]
    assert len(set(images)) == len(images) > 200


@pytest.mark.parametrize("data", [DIGITS, SYNTHETIC])
def test_a_sample_depends_on_seed_split_and_index_only(data):
    eyes = ["eye0", "eye1"]
    first = make_spec(data, (4, 8), dp=1)
    prints = {fingerprint(build_dataset(make_spec(data, (4, 8), dp=dp)), eyes) for dp in (1, 4)}
    backwards = build_dataset(first)
    for index in reversed(range(3000)):
        backwards.describe("train", index)
    prints.add(fingerprint(backwards, eyes))
    assert len(prints) == 1
    other = build_dataset(make_spec(data, (4, 8), seed=1))
    assert fingerprint(other, eyes) not in prints
    same = [fingerprint(d, eyes, "heldout") for d in (backwards, other)]
    assert same[0] == same[1]
    assert same[0] not in prints


def test_samples_are_the_same_in_another_process():
    specs = [make_spec(data, (4, 8), seed=3) for data in (DIGITS, SYNTHETIC)]
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import test_data_sets as t\n"
        "from mimo_launch.spec.spec import Spec\n"
        "specs = [t.make_spec(d, (4, 8), seed=3) for d in (t.DIGITS, t.SYNTHETIC)]\n"
        "prints = [t.fingerprint(t.build_dataset(s), list(s.encoders)) for s in specs]\n"
        "print(json.dumps([prints, 'torch' in sys.modules]))"
    )
    folder = __file__.rpartition("/")[0]
    out = subprocess.run(
        [sys.executable, "-c", code, folder], check=True, capture_output=True, text=True
    )
    prints = [fingerprint(build_dataset(spec), list(spec.encoders)) for spec in specs]
    assert json.loads(out.stdout) == [prints, False]


def test_impossible_specs_and_indices_are_refused():
    for kind in (DigitStrips, SyntheticSamples):
        data = DIGITS if kind is DigitStrips else {**SYNTHETIC, "samples": 9}
        dataset = build_dataset(make_spec(data))
        assert isinstance(dataset, kind)
        number = dataset.num_samples("train")
        for bad in (-1, number):
            with pytest.raises(IndexError, match=rf"^sample {bad} of {number} \(train\)$"):
                dataset.describe("train", bad)
        with pytest.raises(ValueError, match="seq"):
            build_dataset(make_spec(data, seq=8))
    with pytest.raises(ValueError, match="does not divide"):
        build_dataset(make_spec(DIGITS, (3,)))
    with pytest.raises(ValueError, match="exceeds"):
        build_dataset(make_spec({**DIGITS, "min_digits": 5, "max_digits": 4}))


def test_documents_are_cut_between_text_that_no_label_crosses():
    spec = make_spec({**SYNTHETIC, "max_documents": 4}, (4, 2), seq=60)
    dataset = build_dataset(spec)
    counts = set()
    for index in range(300):
        documents = dataset.documents("train", index)
        tokens, labels = dataset.text("train", index)
        described = dataset.describe("train", index)
        assert documents.shape == tokens.shape
        cuts = np.flatnonzero(np.diff(documents)) + 1
        assert (np.diff(documents)[cuts - 1] == 1).all()
        assert (labels[cuts - 1] == tok.IGNORE_LABEL).all()
        assert all(cut < described.num_tokens for cut in cuts)
        inside = {
            row
            for spans in described.spans.values()
            for s in spans
            for row in range(s.position, s.position + s.rows)
        }
        assert not inside & set(cuts.tolist())
        counts.add(len(cuts))
    assert counts == {0, 1, 2, 3}
    assert not build_dataset(make_spec(DIGITS)).documents("train", 3).any()


def test_images_of_one_size_are_looked_up_in_the_graph_once(monkeypatch):
    """A step has many thousand images, of few sizes; every rank describes all of them."""
    asked: list[str] = []

    def counted(spec, name, number, size_of):
        asked.append(name)
        return temporal_patches(spec, name, number, size_of)

    monkeypatch.setattr(synthetic_draws, "temporal_patches", counted)
    dataset = build_dataset(make_spec(SYNTHETIC | {"image": [4, 4]}))
    described = [dataset.describe("train", index) for index in range(50)]
    assert sum(bool(sample.spans) for sample in described) > 10
    assert asked == ["eye0"]
