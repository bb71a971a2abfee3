"""How numbers are written."""

import pytest

from mimo_launch.diag.quantities import tokens_text


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
