"""Checks of the tokens that stand for rows of encoders.

Decides: which ids a `placeholder` may be.
Relies on: `tokens` for the vocabulary and the ids that are taken by default.
Leaves: what a tokenizer calls them to the data.
"""

from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.layout.checks.rule import Findings
from mimo_launch.layout.layout import LANGUAGE
from mimo_launch.layout.tokens import DIGITS_BASE_VOCAB, placeholder_id, vocab_size
from mimo_launch.spec.model import DigitsData, Spec


def placeholder_is_free(spec: Spec, name: str) -> Findings:
    """A given placeholder is in the vocabulary, no other encoder's, and no word of the digits."""
    given, path = spec.modules[name].placeholder, ("modules", name, "placeholder")
    if given is None:
        return
    if name == LANGUAGE:
        yield Diagnostic(
            code="setting-without-effect",
            severity=Severity.WARNING,
            headline=f"`placeholder` of `{LANGUAGE}` does nothing",
            path=path,
            why="it is the token that stands for a row of an encoder",
            help="delete `placeholder`",
        )
        return
    size, vocab = vocab_size(spec), ("modules", LANGUAGE, "model", "vocab")
    if given >= size:
        yield Diagnostic(
            code="placeholder-outside-vocab",
            headline=f"`{name}`: placeholder {given} is outside the vocabulary of {size} tokens",
            path=path,
            why="it stands in the text where a row of the encoder goes",
            help=f"write `placeholder: {size - 1}`, or a larger `vocab`",
            related=(Related(path=vocab, label=f"{size} tokens, from 0 on"),),
        )
        return
    taken = {
        placeholder_id(spec, other): other
        for other in spec.encoders
        if other != name
        and (
            list(spec.encoders).index(other) < list(spec.encoders).index(name)
            or spec.encoders[other].placeholder is None
        )
    }
    free = next(
        (x for x in reversed(range(size)) if x not in {*taken, given} and not _is_word(spec, x)), 0
    )
    if given in taken:
        yield Diagnostic(
            code="placeholder-taken",
            headline=f"`{name}`: placeholder {given} is that of `{taken[given]}`, too",
            path=path,
            why="a token stands for rows of one encoder"
            + (
                "; those without a `placeholder` own the last ids"
                if spec.encoders[taken[given]].placeholder is None
                else ""
            ),
            help=f"write `placeholder: {free}`",
            related=(Related(path=("modules", taken[given]), label="the other encoder"),),
        )
    elif _is_word(spec, given):
        yield Diagnostic(
            code="placeholder-is-word",
            headline=f"`{name}`: placeholder {given} is a word of the digits",
            path=path,
            why=f"texts of `kind: digits` are made of the tokens below {DIGITS_BASE_VOCAB}",
            help=f"write `placeholder: {free}`, or delete the line",
            related=(Related(path=("data", "kind"), label="these texts"),),
        )


def _is_word(spec: Spec, token: int) -> bool:
    return isinstance(spec.data, DigitsData) and token < DIGITS_BASE_VOCAB
