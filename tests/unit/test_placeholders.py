"""Tokens that stand for rows: the last ids, or those that the spec gives."""

from typing import Any

import numpy as np
import pytest
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.kinds.vocabulary import placeholder_id, vocab_size
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.shrink import shrink


def asked(vision: int | None, depth: int | None, vocab: int = 12, **more: Any) -> Spec:
    modules = {
        "vision": box(0, placeholder=vision),
        "depth": box(0, placeholder=depth),
        "language": box(0, model={"vocab": vocab}),
    }
    return spec(modules, **more)


def merged(*names: str) -> str:
    model = "`model: {kind: connector, ...}`"
    return f", or merge both in a module with {model} and `reads: [{', '.join(names)}]`"


def codes(made: Spec) -> list[str]:
    return [item.code for item in check(made) if item.is_error]


@pytest.mark.parametrize(
    ("given", "ids"),
    [((None, None), (10, 11)), ((4, None), (4, 11)), ((None, 4), (11, 4)), ((1, 11), (1, 11))],
)
def test_those_that_nobody_gives_are_the_last_ids(
    given: tuple[int | None, int | None], ids: tuple[int, int]
) -> None:
    made = asked(*given)
    assert codes(made) == []
    assert tuple(placeholder_id(made, name) for name in ("vision", "depth")) == ids


@pytest.mark.parametrize(
    ("given", "code", "help_"),
    [
        ((12, None), "placeholder-outside-vocab", "write `placeholder: 11`, or a larger `vocab`"),
        ((5, 5), "placeholder-taken", "write `placeholder: 11`" + merged("vision", "depth")),
        ((0, None), "placeholder-is-word", "write `placeholder: 10`, or delete the line"),
        ((11, None), "placeholder-taken", "write `placeholder: 10`" + merged("depth", "vision")),
    ],
)
def test_a_placeholder_is_in_the_vocabulary_and_of_one_encoder(
    given: tuple[int | None, int | None], code: str, help_: str
) -> None:
    made = asked(*given)
    [item] = [item for item in check(made) if item.is_error]
    assert (item.code, item.help) == (code, help_)


def test_words_of_the_digits_are_no_placeholders() -> None:
    data = {"kind": "digits", "max_digits": 1}
    model = {"patch": 4}
    for token, found in ((23, ["placeholder-is-word"]), (24, [])):
        modules = {
            "vision": box(0, placeholder=token, model=model),
            "language": box(0, model={"vocab": 25}),
        }
        assert codes(spec(modules, data=data)) == found


def test_language_has_none() -> None:
    made = spec({"vision": box(0), "language": box(0, placeholder=3)})
    found = {item.path: item.code for item in check(made)}
    assert found[("modules", "language", "placeholder")] == "setting-without-effect"


@pytest.mark.parametrize("given", [(None, None), (3, 7), (1, None)])
def test_text_never_holds_a_placeholder(given: tuple[int | None, int | None]) -> None:
    """And all other words occur, so that none is lost to the placeholders amid them."""
    made = asked(*given, max_images=2, seq=64)
    data = build_dataset(made)
    ids = {name: placeholder_id(made, name) for name in ("vision", "depth")}
    words = set()
    for index in range(60):
        described, (tokens, _) = data.describe("train", index), data.text("train", index)
        for name, token in ids.items():
            rows = np.flatnonzero(tokens == token)
            spans = described.spans.get(name, ())
            assert rows.tolist() == [s.position + i for s in spans for i in range(s.rows)]
        words |= set(tokens[: described.num_tokens].tolist())
    assert words == set(range(vocab_size(made)))


def test_a_proof_keeps_given_placeholders_amid_the_words() -> None:
    small = shrink(asked(29_000, 31_000, vocab=32_000))
    assert codes(small) == []
    assert [placeholder_id(small, name) for name in ("vision", "depth")] == [2, 3]
    digits = shrink(
        spec(
            {
                "vision": box(0, placeholder=900, model={"patch": 4}),
                "language": box(0, model={"vocab": 1000}),
            },
            data={"kind": "digits", "max_digits": 1},
        )
    )
    assert codes(digits) == []
