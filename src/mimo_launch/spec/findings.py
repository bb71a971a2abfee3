"""Reports faults of single keys and values: unknown, missing, of the wrong type, not allowed.

Decides: code, headline and remedy of each.
Relies on: `wording` for types and near misses.
Leaves: finding the faults to `parse`, faults of overrides to `overrides`.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any

from mimo_launch.diag.diagnostic import Diagnostic, YamlPath
from mimo_launch.spec.base import AXES, LANGUAGE
from mimo_launch.spec.foreign_words import kind_of_model, not_here, why_other
from mimo_launch.spec.module import looks_like_class_path, nearest_class_path
from mimo_launch.spec.near_words import close_matches
from mimo_launch.spec.renaming import Renamed
from mimo_launch.spec.value_guesses import choices_of, guess_in_spec
from mimo_launch.spec.wording import allowed_types, expected, flow, found, json_type, listing

_FALSE = ("no", "off", "n", "never", "none")
_TRUE = ("yes", "on", "y", "all")


def section_name(path: YamlPath) -> str:
    """Return the name of a section in a headline."""
    return f"`{'.'.join(map(str, path))}`" if path else "the spec"


def unknown_key(
    path: YamlPath,
    known: Collection[str],
    free: Collection[str],
    kinds: Sequence[str] = (),
    meant: Renamed | None = None,
    unfit: Collection[str] = (),
) -> Diagnostic:
    """Report a key that its section does not have; `free` are the known keys not yet used.

    `unfit` are known keys that cannot take its value, `kinds` other kinds of the section that do
    have the key. `meant` is help that names another key.
    """
    key = str(path[-1])
    near = _alike(key, free) or _alike(key, known)
    near = [each for each in near if each not in unfit]
    glued = re.fullmatch(r"(\w+):(\S+)", key)
    if glued and glued[1] in known:
        help_ = f"write `{glued[1]}: {glued[2]}`, with a space after the `:`"
    elif meant is not None:
        help_ = meant.help
    elif kinds:
        others = listing([f"`kind: {kind}`" for kind in kinds])
        help_ = f"only {others} has it: write that kind, or delete `{key}`"
    elif near:
        help_ = f"did you mean {listing([f'`{name}`' for name in near])}?"
    elif "options" in known:
        help_ = f"write it under `options`, which is passed on to your class: {{{key}: ...}}"
    else:
        names = ", ".join(f"`{name}`" for name in known)
        help_ = f"none of the keys here is sure to mean it; they are {names}"
    return Diagnostic(
        code="unknown-key",
        headline=f"{section_name(path[:-1])} has no key `{key}`",
        path=path,
        at_key=True,
        why="a key that nothing reads would silently leave its default in force",
        help=help_,
    )


def _alike(key: str, known: Collection[str]) -> list[str]:
    """Return the keys that this one may misspell; a key with one more word is another key."""
    plain = key.lower().replace("-", "_")
    return [name for name in close_matches(key, known) if _is_slip(plain.split("_"), name)]


def _is_slip(words: list[str], name: str) -> bool:
    """Return whether a key misspells a name: its words are similar, and none is added."""
    ours = name.split("_")
    if len(words) > len(ours):
        return not (words[: len(ours)] == ours or words[-len(ours) :] == ours)
    pairs = zip(words, ours, strict=False)
    return len(words) < len(ours) or all(
        one == two or close_matches(one, [two]) for one, two in pairs
    )


def is_spelling(key: str, known: Collection[str]) -> bool:
    """Return whether a key is a known one, but for case or for `-` in place of `_`."""
    plain = key.lower().replace("-", "_")
    return plain in (name.lower() for name in known)


def missing_key(
    path: YamlPath, key: str, schema: dict[str, Any], *, others: bool = False
) -> Diagnostic:
    """Report a missing required key, at the key of its section.

    With `others` the section has unknown keys, and one of them may be meant: an example would
    replace its value.
    """
    return Diagnostic(
        code="missing-key",
        headline=f"{section_name(path)} lacks `{key}`",
        path=path,
        at_key=True,
        why=_meaning(key, schema) or "this key has no default",
        help=f"add `{key}`, perhaps with the value of an unknown key"
        if others
        else f"add `{key}: {_example(schema)}`",
    )


def missing_kind(path: YamlPath, kinds: Sequence[str]) -> Diagnostic:
    """Report a section without a kind; `kinds` are the kinds that have most of its keys."""
    return Diagnostic(
        code="missing-key",
        headline=f"{section_name(path)} lacks `kind`",
        path=path,
        at_key=True,
        why="`kind`: the kind decides the other keys",
        help=f"add {listing([f'`kind: {kind}`' for kind in kinds]).replace(' or ', ', or ')}",
    )


def bad_leaf(
    path: YamlPath, value: Any, schema: dict[str, Any], message: str = "", data: Any = None
) -> Diagnostic:
    """Report a value of the wrong type, or one of the right type that is not allowed.

    `data` is the whole spec, as far as it is known.
    """
    # `tp`, or `betas[1]` for an item of a list.
    name = f"{path[-2]}[{path[-1]}]" if isinstance(path[-1], int) else str(path[-1])
    wanted = expected(schema)
    if json_type(value) not in allowed_types(schema):
        return Diagnostic(
            code="wrong-type",
            headline=f"`{name}` is {found(value)}; it must be {wanted}",
            path=path,
            why=_meaning(name, schema) or "a value is never converted silently",
            help=_value_help(path, value, schema, data),
        )
    reason = f" ({message})" if message else ""
    return Diagnostic(
        code="bad-value",
        headline=f"`{name}` is `{value}`{reason}; it must be {wanted}",
        path=path,
        why=_meaning(name, schema) or "no other value has a meaning here",
        help=_value_help(path, value, schema, data),
    )


def not_a_section(
    path: YamlPath, value: Any, words: Sequence[str | bool] = (), only_line: str | None = None
) -> Diagnostic:
    """Report a single value or a list where a mapping, or one of `words`, is needed.

    `only_line` is the one key of the section that can take the value, with the value.
    """
    key = path[-1] if path else "modules"
    said, known = str(value).lower(), [str(word).lower() for word in words]
    if value is False or said in _FALSE:
        said = next(iter(known), "")
    elif said in _TRUE and "true" in known:
        said = "true"
    wanted = listing(["a mapping", *(f"`{word}`" for word in known)])
    return Diagnostic(
        code="wrong-type",
        headline=f"{section_name(path)} is {found(value)}; it must be {wanted}",
        path=path,
        why="this section groups settings under names",
        help=f"write `{key}: {said}`"
        if said in known
        else f"write `{key}: {{{only_line}}}`"
        if only_line is not None
        else not_here(known, value) or f"write `{key}: {{...}}`, or indented `key: value` lines",
    )


def bad_module_name(path: YamlPath) -> Diagnostic:
    """Report a module name that would not work in paths, files and metrics."""
    return Diagnostic(
        code="bad-value",
        headline=f"`{path[-1]}` is not a module name; it must be lower-case letters, digits and "
        "`_`, at most 64",
        path=path,
        at_key=True,
        why="module names appear in `--set` paths, in metrics and in files",
        help="write a name such as `vision` or `audio_2`",
    )


def too_many_modules(path: YamlPath, number: int, most: int) -> Diagnostic:
    """Report a spec with more modules than any model has."""
    return Diagnostic(
        code="bad-value",
        headline=f"`modules` has {number:,} modules; it must have at most {most}",
        path=path,
        at_key=True,
        why="each module has its own grid, groups and bridge",
        help="merge encoders that read the same inputs into one",
    )


def unknown_kind(path: YamlPath, value: Any, kinds: list[str], *, own: bool) -> Diagnostic:
    """Report a `kind` that names no variant of its section; with `own`, a class may be one."""
    words = listing([f"`{kind}`" for kind in kinds] + ["`package.module:Name`"] * own)
    if not isinstance(value, str):
        return bad_leaf(path, value, {"enum": kinds})
    why = "the kind decides which keys the section has, so its other keys were not checked"
    near = close_matches(value, kinds)
    if own and looks_like_class_path(value, kinds):
        near = [guess] if (guess := nearest_class_path(value)) else []
        why = "your own class is written `package.module:Name`, with the module as in `import`"
    guess = f"did you mean {listing([f'`{kind}`' for kind in near])}?" if near else ""
    family = kind_of_model(value, speaks=path[1] == LANGUAGE) if path[:1] == ("modules",) else ""
    if family in kinds and not near:
        guess = (
            f"write `kind: {family}`; `mimo-launch init --model FOLDER` writes all keys of a model "
            "from its folder"
        )
    return Diagnostic(
        code="unknown-kind",
        headline=f"{section_name(path[:-1])} has no kind `{value}`",
        path=path,
        why=why,
        help=guess or f"write {words}",
    )


def _meaning(name: str, schema: dict[str, Any]) -> str:
    text = str(schema.get("description", ""))
    # `AdamW's` and `RMSNorm` stay as they are.
    first = text.partition(" ")[0]
    start = text[:1].lower() if first[1:].islower() or len(first) == 1 else text[:1]
    return f"`{name}`: {start}{text[1:].rstrip('.')}" if text else ""


def _example(schema: dict[str, Any]) -> str:
    if schema.get("examples"):
        example = schema["examples"][0]
        return example if isinstance(example, str) else flow(example)
    if schema.get("default") is not None:
        return flow(schema["default"])
    if "const" in schema or "enum" in schema:
        return str(schema.get("const", schema.get("enum", [""])[0]))
    return "..."


def _value_help(path: YamlPath, value: Any, schema: dict[str, Any], data: Any) -> str:
    """Return the line to write instead, or only words if no line surely keeps the meaning."""
    key, choices = str(path[-1]), choices_of(schema)
    guesses = [_line(key, guess) for guess in guess_in_spec(path, value, schema, data)]
    if guesses:
        quoted = isinstance(value, str) and guesses[0] == _line(key, value.strip())
        why = why_other(choices, value)
        lines = listing(guesses).replace(" or ", ", or ")
        return f"write {lines}{' without quotes' * quoted}{f' ({why})' * bool(why)}"
    said = not_here(choices, value)
    if value == "auto" and key in AXES:
        said = "only `dp` can be `auto`: write the number of ranks that share the work"
    if said:
        return said
    near = close_matches(value, choices) if isinstance(value, str) else []
    if near:
        return f"did you mean {listing([f'`{choice}`' for choice in near])}?"
    example = _example(schema)
    if example == "..." or choices or "`" in expected(schema):
        other = "; for another GPU leave it out and write its `gpu_memory`"
        return f"write {expected(schema)}{other * (key == 'gpu')}"
    is_number = isinstance(value, int | float)
    # A user who writes 0 for a count from 1 does not want the feature: 1 is the nearest value.
    if is_number and value == 0 and example == "1":
        return f"write {_line(key, example)}"
    # A user who wrote a number needs no example of one, which would mean something else.
    shown = "" if is_number else f", such as {_line(key, example)}"
    return f"write {expected(schema)}{shown}"


def _line(key: str, value: str) -> str:
    """Return a line of the spec, or an item of a list, in quotes."""
    return f"`{value}`" if key.isdecimal() else f"`{key}: {value}`"
