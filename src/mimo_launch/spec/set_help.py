"""Words the help of findings about a `--set` as the `--set` to write.

Decides: which lines of a help are turned into an override.
Relies on: the place of a finding, which is an override or not.
Leaves: overrides whose path leads nowhere to `load`.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from mimo_launch.diag.diagnostic import Diagnostic, SpecSource

_GUESS = re.compile(r"did you mean `([^`]+)`(?: or `[^`]+`|, `[^`]+`)*\?")


def in_order(found: Iterable[Diagnostic], source: SpecSource) -> tuple[Diagnostic, ...]:
    """Return each finding once, in the order of their places, with help for where they stand."""
    return source.sorted(tuple(_worded(found, source)))


def _worded(found: Iterable[Diagnostic], source: SpecSource) -> Iterator[Diagnostic]:
    for item in found:
        override = source.place_of(item).override
        yield item if override is None else replace(item, help=_help(item, override))


def _help(item: Diagnostic, override: str) -> str:
    dotted, _, value = override.partition("=")
    keys, path = dotted.strip().split("."), [str(step) for step in item.path]
    if item.at_key and path == keys[: len(path)]:
        # One of the keys of its path is wrong.
        before, after = keys[: len(path) - 1], keys[len(path) :]
        return _GUESS.sub(lambda m: f"write {_set([*before, m[1], *after], value)}", item.help)
    if path != keys:
        return item.help
    help_ = _GUESS.sub(lambda m: f"write {_set(keys, m[1])}", item.help)
    line = rf"`{re.escape(path[-1])}: ([^`]+)`(?! in)"
    return re.sub(line, lambda m: _set(keys, m[1]), help_).removesuffix(" without quotes")


def _set(keys: list[str], value: str) -> str:
    return f"`--set {shlex.quote('.'.join(keys) + '=' + value)}`"
