"""Records of a question and an answer, as messages: ms-swift, Alpaca and TRL write them so.

Decides: the keys of each form, and how they become turns; that no answer in a `prompt` is learnt.
Leaves: the meaning of turns to `messages`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

# The keys of the question, one line each, and the key of the answer.
_FORMS = (
    (("query",), "response"),
    (("instruction", "input"), "output"),
    (("prompt",), "completion"),
)
_EARLIER = "history"


def turns_of(record: Mapping[str, Any]) -> tuple[list[Any], tuple[str, ...]] | None:
    """Return the turns of a question and its answer, and their keys; None if it has none."""
    for asked, said in _FORMS:
        if asked[0] not in record or said not in record:
            continue
        questions = [record[key] for key in asked if record.get(key) not in (None, "")]
        earlier, keys = record.get(_EARLIER), (*asked, said)
        turns: list[Any] = []
        if isinstance(earlier, list) and all(isinstance(x, list) and len(x) == 2 for x in earlier):
            turns += (turn for pair in earlier for turn in _pair(*pair))
            keys = (*keys, _EARLIER)
        if len(questions) > 1 and all(isinstance(each, str) for each in questions):
            questions = ["\n".join(questions)]
        question = questions[0] if questions else ""
        return [*turns, *_pair(question, record[said])], keys
    return None


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
    return bool(turn["role"] == "assistant")
