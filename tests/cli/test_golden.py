"""What each command says, word for word."""

from collections.abc import Callable
from pathlib import Path

import pytest

CASES = sorted((Path(__file__).parent / "golden").glob("*.txt"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_says_what_the_file_says(path: Path, golden: Callable[[Path], None]) -> None:
    golden(path)
