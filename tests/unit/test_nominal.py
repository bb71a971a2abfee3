"""The nominal step, against the data sets whose average sample it stands for."""

import pytest
from hypothesis import given, settings
from tests.support.specs import box, layout_specs, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.data.sample_sizes import longest_sample
from mimo_launch.spec.spec import Spec

ENCODERS = {
    "vision": box(0, dp=2, model={"patch": 4}),
    "glance": box(2, model={"patch": 8}),
    "language": box(3, tp=2),
}


def digits(**data: object) -> Spec:
    return spec(
        ENCODERS | {"language": box(3, tp=2, model={"vocab": "digits"})},
        microbatches=2,
        mbs=2,
        seq=64,
        data={"kind": "digits", **data},
    )


@pytest.mark.parametrize("num_digits", [1, 3, 6])
def test_digits_of_one_length_are_all_nominal(num_digits: int) -> None:
    made = digits(min_digits=num_digits, max_digits=num_digits, text_only=0.0)
    nominal = nominal_step_data(made).samples[0]
    for index in range(8):
        real = build_dataset(made).describe("train", index)
        assert dict(real.spans) == nominal.spans
        assert (real.num_tokens, real.num_labels) == (nominal.num_tokens, nominal.num_labels)


def test_spelled_digits_have_no_rows() -> None:
    made = digits(min_digits=3, max_digits=3, text_only=1.0)
    nominal = nominal_step_data(made).samples[0]
    real = build_dataset(made).describe("train", 0)
    assert not nominal.spans
    assert (real.num_tokens, real.num_labels) == (nominal.num_tokens, nominal.num_labels)


@pytest.mark.parametrize(("text_only", "labels"), [(0.0, 5), (1.0, 6)])
def test_three_in_five_pairs_of_text_tokens_are_labels(text_only: float, labels: int) -> None:
    """11 tokens are 10 pairs; an image parts one of them."""
    data = {"kind": "synthetic", "min_text": 11, "max_text": 11, "text_only": text_only}
    made = spec(ENCODERS, seq=64, mbs=4, data=data | {"image": [2, 2]})
    assert nominal_step_data(made).samples[0].num_labels == labels


def test_mean_number_of_digits_is_rounded_up() -> None:
    data = nominal_step_data(digits(min_digits=1, max_digits=6, text_only=0.1))
    assert len(data.samples) == 4
    assert list(data.samples) == [data.samples[0]] * 4 == [*data.samples[1:], data.samples[-1]]
    for sample in data.samples:
        # 4 digits of 2 x 2 patches; glance sees one patch per digit, right after them.
        assert sample.rows("vision") == 16
        assert sample.rows("glance") == 4
        assert [span.position for span in sample.spans["vision"]] == [1]
        assert [span.position for span in sample.spans["glance"]] == [17]


def test_a_pack_holds_as_many_records_as_fit() -> None:
    """A strip of 4 digits has 27 tokens: BOS, 16 and 4 rows, ASK, 4 digits, EOS."""
    [sample, *_] = nominal_step_data(digits(packing=True)).samples
    assert [record.num_tokens for record in sample.records] == [27, 27]
    assert (sample.num_tokens, sample.num_labels) == (54, 10)
    assert sample.rows("vision") == 32
    assert [span.position for span in sample.spans["vision"]] == [1, 28]


@pytest.mark.parametrize(("largest", "images"), [(1, 1), (3, 1), (12, 1), (12, 3)])
def test_nominal_rows_are_the_mean_or_the_most_that_synthetic_data_give(
    largest: int, images: int
) -> None:
    data = {"kind": "synthetic", "text_only": 0.0, "max_patches": largest, "max_images": images}
    made = spec({"vision": box(0)}, data=data, seq=64)
    dataset = build_dataset(made)
    real = [dataset.describe("train", index).rows("vision") for index in range(200)]
    nominal, worst = (
        nominal_step_data(made, worst=worst).samples[0].rows("vision") for worst in (False, True)
    )
    # Means of images and of their number are rounded.
    assert nominal == pytest.approx(sum(real) / len(real), rel=0.2, abs=0.6)
    assert max(real) <= worst == largest * images


def test_synthetic_images_of_one_size_are_all_nominal() -> None:
    data = {"kind": "synthetic", "image": [4, 6], "min_images": 2, "max_images": 2, "text_only": 0}
    vision = box(0, model={"shuffle": 2})
    made = spec({"vision": vision}, data={**data, "min_text": 8}, seq=20)
    nominal = nominal_step_data(made).samples[0]
    assert [span.position for span in nominal.spans["vision"]] == [1, 7]
    for index in range(8):
        real = build_dataset(made).describe("train", index)
        sizes = [[(s.height, s.width) for s in p.spans["vision"]] for p in (real, nominal)]
        assert sizes[0] == sizes[1] == [(2, 3), (2, 3)]
        assert (real.rows("vision"), real.num_tokens) == (12, nominal.num_tokens)


@settings(max_examples=50, deadline=None)
@given(layout_specs(8, supported_only=False))
def test_nominal_samples_fit_the_sequence(made: Spec) -> None:
    worst = nominal_step_data(made, worst=True).samples
    for sample in (*nominal_step_data(made).samples[:1], *worst[:1]):
        spans = [span for spans in sample.spans.values() for span in spans]
        assert sample.num_labels >= 1
        assert 2 <= sample.num_tokens <= made.batch.seq
        assert sample.num_labels < sample.num_tokens
        assert sum(span.rows for span in spans) + 2 <= sample.num_tokens
        assert all(span.position + span.rows < sample.num_tokens for span in spans)
    assert longest_sample(made) <= made.batch.seq


def test_a_nominal_sample_draws_an_image_of_each_digit_as_real_ones_do() -> None:
    made = spec(
        {
            "vision": box(0, model={"patch": 4}),
            "language": box(0, model={"vocab": "digits"}),
            "drawer": box(0, model={"kind": "flow", "patch": 2}, reads=["language"]),
        },
        data={"kind": "digits", "tasks": ["read", "draw"], "min_digits": 3, "max_digits": 3},
        seq=32,
    )
    drawn = nominal_step_data(made).samples[0].spans["drawer"]
    dataset = build_dataset(made)
    real = (dataset.describe("train", index).spans.get("drawer", ()) for index in range(50))
    assert drawn == next(spans for spans in real if spans)
