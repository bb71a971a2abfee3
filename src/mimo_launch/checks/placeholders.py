"""Checks of the tokens that stand for rows of encoders.

Decides: which ids a `placeholder` may be.
Relies on: `kinds.vocabulary` for the vocabulary and the ids that are taken by default.
Leaves: what a tokenizer calls them to the data.
"""

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.kinds.vocabulary import DIGITS_BASE_VOCAB, PAD, placeholder_id, vocab_size
from mimo_launch.layout.encoder_placement import LANGUAGE
from mimo_launch.spec.model import DigitsData, Spec


def placeholder_is_free(spec: Spec, name: str) -> Findings:
    """A given placeholder is in the vocabulary, no other encoder's, and no word."""
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
    others = list(spec.encoders)
    before = others[: others.index(name)]
    # Of two that were given the second one is to blame.
    taken = {
        placeholder_id(spec, other): other
        for other in others
        if other in before or spec.encoders[other].placeholder is None
    }
    used = {*taken, given}
    free = next((x for x in reversed(range(size)) if x not in used and not _role(spec, x)), 0)
    if given in taken:
        by_default = spec.encoders[taken[given]].placeholder is None
        yield Diagnostic(
            code="placeholder-taken",
            headline=f"`{name}`: placeholder {given} is that of `{taken[given]}`, too",
            path=path,
            why="a token stands for rows of one encoder"
            + ("; those without a `placeholder` own the last ids" if by_default else ""),
            help=f"write `placeholder: {free}`",
            related=(Related(path=("modules", taken[given]), label="the other encoder"),),
        )
    elif role := _role(spec, given):
        yield Diagnostic(
            code="placeholder-is-word",
            headline=f"`{name}`: placeholder {given} {role}",
            path=path,
            why="wherever the token stands, a row of the encoder goes",
            help=f"write `placeholder: {free}`, or delete the line",
            related=(Related(path=("data", "kind"), label="these texts"),),
        )


def _role(spec: Spec, token: int) -> str:
    """Return what else a token is, empty if it is free."""
    if token == PAD:
        return "pads sequences"
    if isinstance(spec.data, DigitsData) and token < DIGITS_BASE_VOCAB:
        return "is a word of the digits"
    return ""
