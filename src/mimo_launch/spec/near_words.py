"""The known words that a misspelt one may mean.

Decides: how alike two words are; that shortened and lengthened names count as slips, too.
Relies on: `difflib`.
Leaves: which words are known at a place, and the message, to `findings`.
"""

import difflib
from collections.abc import Iterable

from mimo_launch.spec.wording import listing

# No name is this long, and long words take long to compare.
_MAX_WORD = 100


def close_matches(word: str, known: Iterable[str]) -> list[str]:
    """Return every known word that a misspelt one may mean, best first."""
    names = list(known)
    if len(word) > _MAX_WORD:
        return []
    lower = {name.lower().replace("-", "_"): name for name in names}
    plain = word.lower().replace("-", "_")
    if plain in lower:
        return [lower[plain]]
    near = [lower[each] for each in difflib.get_close_matches(plain, lower, n=4, cutoff=0.65)]
    # Shortened and lengthened names are common slips, too: `sequence`, `micro_batches`.
    squeezed = plain.replace("_", "")
    for name in names:
        short, long = sorted((squeezed, name.lower().replace("_", "")), key=len)
        if len(short) >= 3 and long.startswith(short) and name not in near:
            near.append(name)
    return near


def did_you_mean(word: str, known: Iterable[str], before: str = "") -> str:
    """Return `did you mean ...?` with every close match after the text `before`, or nothing."""
    near = [f"`{before}{name}`" for name in close_matches(word, known)]
    return f"did you mean {listing(near)}?" if near else ""
