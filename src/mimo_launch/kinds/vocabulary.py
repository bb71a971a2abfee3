"""Token ids, and the widths at the ends of modules, that follow from the spec alone.

Decides: the vocabulary of the digits task, and the placeholder token of each encoder.
Relies on: the spec's types.
Leaves: making samples to `data`.
"""

from collections.abc import Hashable
from dataclasses import field
from functools import lru_cache

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.layer import Ends, ReadState
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import DigitsData, Spec

PAD, BOS, EOS, ASK = 0, 1, 2, 3
FIRST_DIGIT = 4
FIRST_WORD = 14
DIGITS_BASE_VOCAB = 24
# One more token asks for a drawing, if strips are also drawn.
DRAW = 24
DIGIT_SIDE = 8
IGNORE_LABEL = -100


def vocab_size(spec: Spec) -> int:
    """Return the number of real tokens, placeholders included and padding excluded."""
    vocab = kind_of(spec.language.model).text.vocab
    return num_words(spec) + len(spec.sources_of(LANGUAGE)) if vocab == "digits" else vocab


def num_words(spec: Spec) -> int:
    """Return the number of tokens of the digits data, placeholders excluded."""
    draws = isinstance(spec.data, DigitsData) and "draw" in spec.data.tasks
    return DIGITS_BASE_VOCAB + draws


def padded_vocab_size(spec: Spec) -> int:
    """Return the rows of embedding and head: the vocabulary rounded up to `vocab_multiple`."""
    multiple = kind_of(spec.language.model).text.vocab_multiple
    return -(-vocab_size(spec) // multiple) * multiple


def placeholder_id(spec: Spec, encoder: str) -> int:
    """Return the placeholder token for a row of `encoder`: from the spec, or one of the last ids.

    The last ids belong, in order, to the modules that language reads and that have none in the
    spec.
    """
    given = spec.modules[encoder].placeholder
    if given is not None:
        return given
    last = _with_last_ids(spec)
    return vocab_size(spec) - len(last) + last.index(encoder)


def readers_of_language(spec: Spec) -> tuple[tuple[str, ReadState], ...]:
    """Return the generators that read more of language than its last states, and what."""
    read = (
        (name, kind_of(module.model).reading.of_language)
        for name, module in spec.generators.items()
        if LANGUAGE in spec.sources_of(name)
    )
    return tuple((name, each) for name, each in read if each != ReadState())


def num_last_placeholders(spec: Spec) -> int:
    """Return the number of ids at the end of the vocabulary that are placeholders for rows."""
    return len(_with_last_ids(spec))


def _with_last_ids(spec: Spec) -> list[str]:
    return [name for name in spec.sources_of(LANGUAGE) if spec.modules[name].placeholder is None]


@frozen
class _Models:
    """The models of a spec and what they read: the key under which `_ends` is cached."""

    spec: Spec = field(compare=False)
    held: tuple[Hashable, ...]

    @classmethod
    def of(cls, spec: Spec) -> "_Models":
        modules = spec.modules.items()
        held = [(name, each.model, each.reads) for name, each in modules]
        return cls(spec, (num_words(spec), *held))


def ends_of(spec: Spec, module: str, *, is_first: bool, is_last: bool) -> Ends:
    """Return the ends that a stage of a module has, and their widths."""
    return _ends(_Models.of(spec), module, is_first=is_first, is_last=is_last)


# A plan asks for these thousands of times.
@lru_cache(maxsize=128)
def _ends(models: _Models, module: str, *, is_first: bool, is_last: bool) -> Ends:
    spec = models.spec
    return Ends(
        is_first=is_first,
        is_last=is_last,
        vocab=padded_vocab_size(spec),
        words=vocab_size(spec),
        row_width=spec.row_width(module),
        sources=tuple((name, spec.row_width(name)) for name in spec.sources_of(module)),
        readers=readers_of_language(spec) if module == LANGUAGE else (),
        deep_rows=spec.deep_rows,
    )
