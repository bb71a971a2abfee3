"""Records of a question and an answer, as messages: ms-swift, Alpaca and TRL write them so.

Decides: how the keys of each form become turns; that no answer in a `prompt` is learnt;
that a part of a question in another form makes the record bad, because nothing else would tell.
Leaves: the meaning of turns to `messages`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.messages import type_of
from mimo_launch.data.samples.record_keys import CALLS, ROLES
from mimo_launch.data.sources.record_shapes import FORMS

_EARLIER = "history"
# TRL's KTO has answers of both kinds.
_IS_GOOD = "label"
# Roles of messages that are learnt. A tuple: a role may be any JSON.
_ANSWERING = ("assistant", *CALLS, *(name for name, role in ROLES.items() if role == "assistant"))


def turns_of(record: Mapping[str, Any]) -> tuple[list[Any], tuple[str, ...]] | None:
    """Return the turns of a question and its answer, and their keys; None if it has none.

    Raises: BadSample.
    """
    for asked, said in FORMS:
        if asked[0] not in record or said not in record:
            continue
        if said == "completion" and record.get(_IS_GOOD) is False:
            raise BadSample(f"its JSON says `{_IS_GOOD}: false` of its answer: take the record out")
        turns = [turn for pair in _earlier(record) for turn in _pair(*pair)]
        turns += _pair(_question(record, asked), record[said])
        return turns, (*asked, said, _EARLIER)
    return None


def _earlier(record: Mapping[str, Any]) -> list[Any]:
    """Return pairs of earlier questions and answers. Raises: BadSample."""
    found = record.get(_EARLIER) or []
    if isinstance(found, list) and all(isinstance(x, list) and len(x) == 2 for x in found):
        return found
    raise BadSample(
        f"`{_EARLIER}` of its JSON is {type_of(found)}, not a list of pairs such as "
        '`["a question", "its answer"]`'
    )


def _question(record: Mapping[str, Any], asked: tuple[str, ...]) -> Any:
    """Return a question of one key, or of several, one line each. Raises: BadSample."""
    found = {key: record[key] for key in asked if record.get(key) not in (None, "")}
    if len(found) < 2:
        return next(iter(found.values()), "")
    for key, value in found.items():
        if not isinstance(value, str):
            raise BadSample(f"`{key}` of its JSON is {type_of(value)}, not text")
    return "\n".join(found.values())


def _pair(question: Any, answer: Any) -> Iterator[Any]:
    """Yield a question and its answer as turns; either may be a list of messages."""
    if _is_messages(question):
        yield from ({**turn, "loss": False} if _answers(turn) else turn for turn in question)
    else:
        yield {"role": "user", "content": question}
    if _is_messages(answer):
        yield from answer
    else:
        yield {"role": "assistant", "content": answer}


def _is_messages(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(x, dict) and "role" in x for x in found)


def _answers(turn: Mapping[str, Any]) -> bool:
    return turn["role"] in _ANSWERING
