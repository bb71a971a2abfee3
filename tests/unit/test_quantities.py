"""How numbers are written."""

import pytest

from mimo_launch.diag.quantities import role_text, tokens_text


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "1"),
        (999, "999"),
        (1000, "1k"),
        (20_000_000, "20M"),
        (500_000_000_000, "500B"),
        (1_500_000_000_000, "1.5T"),
        (3 * 10**15, "3,000T"),
    ],
)
def test_tokens_are_written_as_they_are_asked_for(number: int, words: str) -> None:
    assert tokens_text(number) == words


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ((), "idle"),
        (("vision.0", "language.0"), "vision + language"),
        (("vision.0", "language.1"), "vision + language.1"),
        (("language.0", "language.2", "language.4"), "language.0,2,4"),
        (("vision.0", "language.10", "language.30"), "vision + language.10,30"),
    ],
)
def test_what_a_rank_holds_names_each_module_once(role: tuple[str, ...], words: str) -> None:
    assert role_text(role) == words
