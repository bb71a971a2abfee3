"""Says what a proof leaves open: whatever differs between the spec asked for and the spec proved.

Decides: which differences are none, because no number of a run depends on the setting.
Relies on: both specs, compared key by key, so that nothing which is made small goes unsaid;
`relations` for what follows from the sizes of grids.
Leaves: making specs small to `shrink` and `regrid`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

from mimo_launch.spec.model import Spec
from mimo_launch.verify.relations import consequences, differing

# Settings that no number of a run depends on, and the one that its modules repeat.
SILENT = (
    "name", "log.*", "nodes*", "init_from", "train.log_every", "train.timeout",
    "train.max_skipped", "train.on_write_error", "checkpoint*", "eval.every", "eval.samples",
    "data.decode_threads", "data.max_bad_samples",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that is not proved: `key` of `section` is `asked`, and `proved` was tried.

    Both are values as JSON has them. A section is a path of the spec, or what else is compared.
    """

    section: str
    key: str
    asked: Any
    proved: Any


def not_proved(asked: Spec, proved: Spec) -> tuple[Remark, ...]:
    """Return everything of `asked` that a proof of `proved` says nothing about."""
    settings = _settings(_as_json(asked), _as_json(proved), "")
    follows = differing(consequences(asked), consequences(proved))
    return (*settings, *(Remark("layout", *each) for each in follows))


def lines_of(remarks: Iterable[Remark]) -> Iterator[str]:
    """Yield a line for each section of which something is not proved."""
    for section, found in groupby(remarks, key=lambda remark: remark.section):
        parts = [f"{r.key} {_words(r.asked)} (proved: {_words(r.proved)})" for r in found]
        yield f"not proved: {section}: {', '.join(parts)}"


def _as_json(spec: Spec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True)


def _settings(asked: dict[str, Any], proved: dict[str, Any], section: str) -> Iterator[Remark]:
    """Yield the settings that differ; of a section of another kind, the kind alone."""
    same_kind = asked.get("kind") == proved.get("kind")
    keys = list(dict.fromkeys((*asked, *proved))) if same_kind else ["kind"]
    inner = []
    for key in keys:
        old, new = asked.get(key), proved.get(key)
        path = f"{section}.{key}" if section else key
        if old == new or any(fnmatchcase(path, pattern) for pattern in SILENT):
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            inner.append((old, new, path))
        else:
            yield Remark(section or "spec", key, old, new)
    for old, new, path in inner:
        yield from _settings(old, new, path)


def _words(value: Any) -> str:
    """Return a value in few words."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {_words(v)}' for k, v in value.items() if v is not None)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_words, value))}]"
    return str(value)
