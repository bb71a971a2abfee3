"""Reading ahead: what counts as damage, and what stands in the place of a damaged sample."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.damage import damaged
from tests.support.graphs import flow
from tests.support.specs import box, spec

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.random_draws import noise_of
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD
from mimo_launch.layout.step_views import Reads
from mimo_launch.models.patches import cut_image, reader
from mimo_launch.train import prefetch
from mimo_launch.train.loader import MAX_REASON, ReadStep, read_step, step_inputs

MADE = spec({"vision": box(0)}, mbs=3, max_documents=4)
EVERYTHING = Reads(texts=(0, 1, 2), documents=(0, 1, 2), answers=(), images={"vision": (0, 1, 2)})


def read(faults: dict[tuple[str, str, int], Exception]) -> tuple[ReadStep, dict[int, str]]:
    source = step_inputs(damaged(MADE, faults), "train", (7, 8, 9), 0)
    return read_step(source, EVERYTHING, MADE, lambda: None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BadSample("not a\n  JPEG"), "not a JPEG"),
        (OSError("gone"), "OSError: gone"),
        (EOFError(), "EOFError"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), None),
        (BadSample("x" * MAX_REASON), "x" * MAX_REASON),
        (BadSample("x" * 1000), "x" * (MAX_REASON - 3) + "..."),
    ],
)
@pytest.mark.parametrize("what", ["text", "documents", "images"])
def test_damage_is_noted_with_its_reason(what: str, error: Exception, reason: str | None) -> None:
    _, reasons = read({(what, "train", 8): error})
    assert list(reasons) == [1]
    assert reason is None or reasons[1] == reason


def test_another_number_of_images_than_in_the_index_is_damage() -> None:
    dataset = damaged(MADE, {})
    dataset.images = lambda *asked: []
    source = step_inputs(dataset, "train", (7, 8, 9), 0)
    _, reasons = read_step(source, EVERYTHING, MADE, lambda: None)
    assert reasons == dict.fromkeys(range(3), "0 images for vision, the index has 1")


def test_other_errors_are_bugs() -> None:
    with pytest.raises(KeyError):
        read({("text", "train", 8): KeyError("column")})


def test_what_was_read_is_what_the_data_set_says() -> None:
    inputs, reasons = read({})
    source = step_inputs(damaged(MADE, {}), "train", (7, 8, 9), 0)
    assert reasons == {}
    for position in range(3):
        for mine, theirs in zip(inputs.text(position), source.text(position), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(inputs.documents(position), source.documents(position))
        [mine], [theirs] = inputs.images(position, "vision"), source.images(position, "vision")
        whole = cut_image(
            theirs, images=MADE.modules["vision"].model, dtype=torch.float64, pinned=False
        )
        assert mine.values.dtype == torch.float64
        assert torch.equal(mine.values, whole.values)
        assert torch.equal(mine.positions, whole.positions)


@pytest.mark.parametrize("ahead", [True, False])
def test_noise_follows_from_the_seed_the_step_and_the_sample(*, ahead: bool) -> None:
    """Read ahead, or drawn where it is used."""
    firsts = set()
    for seed, step, sample in ((0, 0, 7), (3, 0, 7), (3, 5, 7), (3, 5, 8)):
        made = spec({"flow": box(**flow()), "language": box()}, seed=seed)
        source = step_inputs(damaged(made, {}), "train", (sample,), step)
        reads = Reads((), (), (), {"flow": (0,)} if ahead else {})
        inputs, _ = read_step(source, reads, made, lambda: None)
        width = reader(made.modules["flow"].model).row_width
        [found] = inputs.noises(0, "flow", width)
        wanted = noise_of(seed, step, sample, 0, found.values.shape, heldout=False)
        assert np.array_equal(found.values, wanted.values)
        assert found.time == wanted.time
        firsts.add(found.values.flat[0])
    assert len(firsts) == 4


def test_a_sample_left_out_is_padding_and_the_others_stay() -> None:
    inputs, _ = read({("images", "train", 8): OSError()})
    left = inputs.without({1})
    tokens, labels = left.text(1)
    assert (tokens == PAD).all()
    assert (labels == IGNORE_LABEL).all()
    assert tokens.dtype == labels.dtype == np.int64
    assert not left.documents(1).any()
    assert (left.images(1, "vision"), left.answer(1)) == ([], ())
    empty = left.data.samples[1]
    assert (empty.id, empty.num_tokens, empty.num_labels, empty.rows("vision")) == (8, 0, 0, 0)
    assert left.data.samples[0] == inputs.data.samples[0]
    assert left.data.num_labels < inputs.data.num_labels


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda images: [*images, images[0]], "2 images for vision, the index has 1"),
        (lambda images: [], "0 images for vision, the index has 1"),
        (lambda images: [images[0][:, :, :-1]], "the index has"),
        (lambda images: [images[0][:-1]], "the index has"),
    ],
)
def test_images_that_are_not_those_of_the_index_are_damage(change: Any, words: str) -> None:
    """Else ranks would disagree on the number of rows, and hang."""
    dataset = damaged(MADE, {})
    correct = dataset._dataset.images
    dataset._dataset.images = lambda *args: change(correct(*args))  # type: ignore[method-assign]
    source = step_inputs(dataset, "train", (7,), 0)
    _, reasons = read_step(source, Reads((), (), (), {"vision": (0,)}), MADE, lambda: None)
    assert words in reasons[0]


def test_ranks_agree_on_the_reason_of_the_lowest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record once, in order."""
    told = [{}, {7: "of rank 1", 2: "cut off"}, {7: "of rank 2", 5: "gone"}]
    monkeypatch.setattr(prefetch, "gather_objects", lambda *_: told)
    most: Any = SimpleNamespace(wait=lambda: [2])
    nothing: Any = None
    found = prefetch.agree({}, most, nothing)
    assert list(found.items()) == [(2, "cut off"), (5, "gone"), (7, "of rank 1")]
