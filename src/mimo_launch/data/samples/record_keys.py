"""The keys of records, messages and parts in users' data, and how each is handled: one table.

Decides: which keys say whether a message is learnt, which make a sample bad and what to write
instead, and the names of roles in other formats. Any other key of a message is for the chat
template; if the template does not read it, it counts as ignored, like any other key of a record.
Leaves: reading texts to `messages` and `records`, counting to `indexer`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from mimo_launch.data.dataset import BadSample

# Names of speakers in ShareGPT, LLaVA, OpenAssistant and others.
ROLES = {
    "human": "user",
    "prompter": "user",
    **dict.fromkeys(("gpt", "model", "chatgpt", "bot", "ai", "chatbot"), "assistant"),
}
# Roles of messages that are tool calls as JSON text (LLaMA-Factory, ms-swift).
CALLS = ("function_call", "tool_call")
# Roles of tool results; a template that does not know such a name gets `tool`.
RESULTS = ("observation", "tool_response", "function", "function_response")
# Roles that are never learnt.
NOT_ANSWERS = frozenset({"system", "developer", "user", "tool", "ipython", *RESULTS})
# Keys that say whether a message is learnt, with the value that means yes: from ms-swift, OpenAI,
# Axolotl and torchtune.
LEARNT = {
    "loss": True, "loss_scale": True, "train": True, "training": True, "weight": True,
    "masked": False,
}  # fmt: skip
_SAY = "write `loss: true` or `loss: false` in place of it"
_WHOLE = "an answer is learnt or left out as a whole: cut it into messages, with `loss: false`"
# Other keys of a message that change what is learnt, and what to write instead.
REFUSED = {
    **dict.fromkeys(("train_detail", "training_detail"), _WHOLE),
    "refusal": "write its text as `content`",
}
# Words in unknown keys that are about the loss, but may mean learnt or not learnt.
_ABOUT_LOSS = frozenset(
    {"loss", "train", "trainable", "training", "weight", "mask", "masked", "learn", "learnt"}
)
# Keys that older records have in place of `tool_calls` and `tools`.
OLD_CALL, OLD_TOOLS = "function_call", "functions"


def in_loss(keys: Mapping[str, Any], where: str) -> bool | None:
    """Return whether the keys of a message say that it is learnt; None if they do not say.

    Raises: BadSample if a key is not understood, or two keys contradict.
    """
    said: dict[str, bool] = {}
    for key, value in keys.items():
        if value is None:
            continue
        if key in LEARNT:
            if not isinstance(value, int | float) or value not in (0, 1):
                raise BadSample(
                    f"`{key}` of {where} is {_shown(value)}: an answer is learnt or not, so write "
                    f"true or false, 1 or 0"
                )
            said[key] = bool(value) == LEARNT[key]
        elif key in REFUSED:
            raise BadSample(f"`{key}` of {where} is not supported: {REFUSED[key]}")
        elif _is_about_loss(key):
            raise BadSample(f"it is unclear what `{key}` of {where} means for the loss: {_SAY}")
    if len(set(said.values())) > 1:
        raise BadSample(f"{' and '.join(f'`{key}`' for key in said)} of {where} contradict")
    return next(iter(said.values()), None)


def whole_sample_keys(record: Mapping[str, Any]) -> list[str]:
    """Return the keys of a record that say that the sample is learnt.

    Raises: BadSample if the sample has a weight, or is not to be learnt.
    """
    found = [key for key in LEARNT if isinstance(record.get(key), int | float)]
    for key in found:
        if (value := record[key]) == LEARNT[key]:
            continue
        says = f"its JSON says `{key}: {_shown(value)}`"
        if value in (0, 1):
            raise BadSample(f"{says}, so nothing of it is learnt: take it out of the shards")
        instead = ""
        if value in range(2, 100):
            instead = f", and put it in a shard that `data` names {value:g} times"
        raise BadSample(f"{says}, but samples have no weights: leave the key out{instead}")
    return found


def ignored_keys(found: Mapping[str, Any], *known: str) -> Iterator[str]:
    """Yield the keys that have a value and are not among the `known` keys."""
    for key, value in found.items():
        if key not in known and value not in (None, "", [], {}):
            yield f"`{key[:40]}`"


def calls_of(text: Any, where: str) -> list[dict[str, Any]]:
    """Return the tool calls in a message that is JSON text. Raises: BadSample."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        found = None
    calls = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, dict) and "name" in call for call in calls):
        raise BadSample(
            f"{where} is no call of a tool: write JSON text such as "
            '{"name": "f", "arguments": {}}, or the role assistant with `tool_calls`'
        )
    return [{"type": "function", "function": call} for call in calls]


@lru_cache(maxsize=1024)
def _is_about_loss(key: str) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", key)
    return not _ABOUT_LOSS.isdisjoint(word.lower() for word in words)


def _shown(value: Any) -> str:
    return json.dumps(value)[:40]
