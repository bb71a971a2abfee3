"""Hostile specs: valid ones of this repository, mutated by seed. Imports no torch.

A mutation works on characters, on lines, on tokens, or on the values that the YAML stands for.
Half of the specs get only changes that a user might make, so that many stay valid.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
NUMBERS = (
    "0", "1", "2", "3", "-1", "7", "0.5", "1e-3", "1e400", "-0", ".nan", ".inf", "65536", "1000000",
    "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "9" * 40, "0x10",
    "1_000", "12:30", "0o7",
)  # fmt: skip
WORDS = (
    "null", "true", "yes", "''", "~", "[]", "{}", "[1, 2]", "{kind: x}", "*a", "&a x", "!!int 3",
    "0-3", "0-99999999", "1048575", "0-1048575", "5-2", "x" * 300, "x" * 5000, '"\\0"', '"\\e[2J"',
    '"\\ud800"', "../up", "/dev/zero", "/dev/stdin", "/**/*", "**", "{0..99999999}.tar",
    "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}.tar",
    "vit", "connector", "flow", "decoder", "hybrid", "audio", "digits", "synthetic", "webdataset",
    "a.b:C", "M*-E" * 3, "M" * 5000, "99999999TB", "80GB",
)  # fmt: skip
DEEP = 4000
CHARACTERS = "\t\n\r :,-[]{}#&*!|>'\"%@`?\\<\x00\x07\x1b\x85\u2028\ufeff\U0001f600é0a"
BLOCKS = (
    "a0: &a0 {x: 1}\n"
    + "\n".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)),
    "a0: &a0 [x]\n"
    + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)),
    "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 2000)),
    "a0: &a0 {x: 1}\n" + "\n".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}" for n in range(1, 2000)),
    "a: &a {<<: [{<<: *a}]}\nb: {<<: *a}",
    "\n".join(f"k: {n}" for n in range(9000)),
    "\n".join(f"k{n}: {n}" for n in range(9000)),
    "deep: " + "[" * 5000,
    "deep: " + "{a: " * 500 + "1" + "}" * 500,
    "long: [" + ", ".join(["{a: 1, a: 2}"] * 2000) + "]",
    "---\nversion: 1",
)  # fmt: skip


@cache
def valid_texts() -> tuple[str, ...]:
    """Specs that `validate` accepts."""
    fixtures = ROOT / "tests" / "fixtures"
    files = [*sorted((ROOT / "topologies").rglob("*.yaml")), fixtures / "valid.yaml"]
    return tuple(file.read_text(encoding="utf-8") for file in files)


@cache
def texts() -> tuple[str, ...]:
    """All specs that mutations start from: those of mistakes as well."""
    files = sorted((ROOT / "tests" / "fixtures" / "errors").glob("*.yaml"))
    mistakes = [file.read_text("utf-8", "replace") for file in files if file.is_file()]
    return (*valid_texts(), *valid_texts(), *mistakes)


def mutated(seed: int, number: int) -> str:
    """Return one mutated spec, the same for the same seed and number."""
    rng = Random(f"{seed}-{number}")
    kinds: tuple[Callable[[str, Random], str], ...]
    if number % 2:
        text, kinds = rng.choice(valid_texts()), (_size, _size, _setting)
    else:
        text = rng.choice(texts())
        kinds = (_character, _line, _token, _token, _value, _value, _block)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        text = rng.choice(kinds)(text, rng)
    return text


def _character(text: str, rng: Random) -> str:
    at = rng.randrange(len(text) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at] + text[at + rng.randint(1, 3) :]
    if kind == 1:
        return text[:at] + rng.choice(CHARACTERS) * rng.choice((1, 1, 2, 400)) + text[at:]
    if kind == 2:
        return text[:at]
    return text[:at] + text[max(0, at - rng.randint(1, 40)) : at] + text[at:]


def _line(text: str, rng: Random) -> str:
    lines = text.split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines[at:at] = [lines[at]] * rng.choice((1, 2, 1000))
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        lines[at] = " " * rng.randint(1, 8) + lines[at]
    else:
        lines[at] = lines[at].lstrip() + rng.choice(("", " # x", "#" * 100_000))
    return "\n".join(lines)


def _tokens(text: str) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    if text.count("[") + text.count("{") > DEEP:
        return found  # The time of PyYAML's scanner is quadratic in the depth.
    with suppress(yaml.YAMLError):
        found.extend(
            (token.start_mark.index, token.end_mark.index)
            for token in yaml.scan(text)
            if isinstance(token, yaml.ScalarToken)
        )
    return found


def _token(text: str, rng: Random) -> str:
    found = _tokens(text)
    if not found:
        return text
    start, stop = rng.choice(found)
    if rng.random() < 0.2:
        first, last = rng.choice(found)
        new = text[first:last]
    else:
        new = rng.choice(rng.choice((NUMBERS, WORDS)))
    return text[:start] + new + text[stop:]


def _size(text: str, rng: Random) -> str:
    """Change a whole number a little, as a user might; or a lot, as one who mistypes it."""
    found = [(a, b) for a, b in _tokens(text) if text[a:b].isdecimal()]
    if not found:
        return text
    start, stop = rng.choice(found)
    value = int(text[start:stop])
    near = (value + 1, max(0, value - 1), value * 2, value // 2, value * 3, value * 16)
    far = (value * 64, value * 1000, value * 10**6)
    return text[:start] + str(rng.choice(near if rng.random() < 0.9 else far)) + text[stop:]


SETTINGS = (
    ("train.precision", "bf16"), ("train.seed", 7), ("train.count_zero_grads", True),
    ("optimizer.kind", "sgd"), ("optimizer.clip", 0.5), ("optimizer.weight_decay", 0.1),
    ("schedule.kind", "gpipe"), ("schedule.kind", "bubble_filling"), ("schedule.kind", "1f1b"),
    ("schedule.microbatches", 1), ("schedule.microbatches", 4), ("batch.seq", 128),
    ("batch.global", 24), ("batch.global", 48), ("data.packing", True), ("data.text_only", 0.5),
    ("modules.vision.sharding", "full"), ("modules.language.sharding", "full"),
    ("modules.vision.frozen", True), ("modules.language.recompute", "full"),
    ("modules.language.model.layers", 3), ("modules.language.model.heads", 8),
    ("modules.language.model.tied", True), ("modules.vision.model.layers", 3),
    ("modules.vision.model.projector", "linear"), ("modules.vision.balance", "all"),
    ("modules.language.model.qk_norm", True), ("modules.vision.model.class_token", True),
    ("modules.language.optimizer", {"lr": 0.0}), ("eval", {"samples": 8}),
    ("nodes", {"gpus": 2, "gpu_memory": "80GB"}), ("idle_ranks", "8"),
)  # fmt: skip
_BLOCKS = {"layers": 1, "hidden": 16, "heads": 2}
MERGER: dict[str, Any] = {
    "model": {"kind": "connector", **_BLOCKS}, "ranks": "0", "reads": ["vision"],
}  # fmt: skip
DRAWER: dict[str, Any] = {
    "model": {"kind": "flow", "patch": 4, **_BLOCKS}, "ranks": "0", "reads": ["language"],
}  # fmt: skip
# Changes of the graph of modules.
GRAPHS: tuple[tuple[str, Any], ...] = (
    ("modules.vision.reads", ["language"]), ("modules.vision.reads", ["audio", "vision"]),
    ("modules.language.reads", ["vision"]), ("modules.language.reads", ["vision", "merger"]),
    ("modules.merger", MERGER), ("modules.merger", {**MERGER, "ranks": "8"}),
    ("modules.merger.model", {**MERGER["model"], "queries": 3}),
    ("modules.merger.model.merge", "width"), ("modules.merger.reads", ["vision", "audio"]),
    ("modules.drawer", DRAWER), ("modules.drawer.reads", ["language", "merger"]),
    ("data.tasks", ["read", "draw"]), ("schedule.generator_microbatches", 2),
)  # fmt: skip


def _setting(text: str, rng: Random) -> str:
    data = _data(text)
    if data is None:
        return text
    path, value = rng.choice(rng.choice((SETTINGS, GRAPHS)))
    *parents, last = path.split(".")
    for key in parents:
        if not isinstance(data.get(key), dict):
            return text
        data = data[key]
    root = _data(text)
    place: Any = root
    for key in parents:
        place = place[key]
    place[last] = value
    return yaml.safe_dump(root, sort_keys=False)


def _data(text: str) -> dict[str, Any] | None:
    if "<<" in text or "*a" in text:
        return None  # PyYAML itself would not end.
    try:
        data = yaml.safe_load(text)
        # As a tree: aliases would be changed in several places.
        return json.loads(json.dumps(data)) if isinstance(data, dict) else None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return None


def _paths(data: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    found: list[tuple[Any, ...]] = []
    for key, value in items:
        found.append((*prefix, key))
        if isinstance(value, dict | list):
            found += _paths(value, (*prefix, key))
    return found


def _value(text: str, rng: Random) -> str:
    """Put another value, or a part of another spec, in some place; or leave it out."""
    data = _data(text) if len(text) < 20_000 else None
    paths = _paths(data) if data else []
    if not paths:
        return text
    path = rng.choice(paths)
    parent: Any = data
    for key in path[:-1]:
        parent = parent[key]
    kind = rng.randrange(4)
    if kind == 0:
        del parent[path[-1]]
    elif kind == 1:
        parent[path[-1]] = [parent[path[-1]]] * rng.choice((1, 2, 300))
    elif kind == 2:
        other = _data(rng.choice(texts())) or {}
        found = _paths(other)
        value: Any = other
        for key in rng.choice(found) if found else ():
            value = value[key]
        parent[path[-1]] = value
    else:
        values: tuple[Any, ...] = (None, True, -1, 0, 10**9, 2**63, 1e308, "x", "", [], {}, [[]])
        parent[path[-1]] = rng.choice(values)
    return json.dumps(data, indent=1) if rng.random() < 0.3 else yaml.safe_dump(data)


def _block(text: str, rng: Random) -> str:
    block = rng.choice(BLOCKS)
    return f"{text}\n{block}\n" if rng.random() < 0.7 else f"{block}\n{text}"
