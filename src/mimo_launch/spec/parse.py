"""Turns plain data into the sound parts of a spec, and reports every fault.

Decides: which parts are sound. Each section is validated by itself; a faulty part is left out of
the result, and reading it there raises `MissingPartError`, so that checks of the rest still run.
Relies on: the models for types and defaults, `findings` for words.
Leaves: files to `load`, checks of more than one key to `checks`.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from types import MappingProxyType
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from mimo_launch.diag.diagnostic import Diagnostic, YamlPath
from mimo_launch.spec import findings
from mimo_launch.spec.base import (
    AXES,
    CLASS_PATH,
    LANGUAGE,
    OPEN_DP,
    Grid,
    Places,
    Ranks,
    Strict,
    rank_range,
)
from mimo_launch.spec.fields import (
    field_schema,
    item_schema,
    leaf_adapter,
    listed_section,
    may_be_kind_alone,
    may_have,
    section_per_name,
    takes,
)
from mimo_launch.spec.foreign_words import synonym
from mimo_launch.spec.near_words import close_matches
from mimo_launch.spec.of_kind import kind_of, models_in, words_in
from mimo_launch.spec.renaming import Renamed, rename_help
from mimo_launch.spec.sections import NodesSpec
from mimo_launch.spec.spec import MAX_MODULES, MODULE_NAME, ModuleSpec, Spec
from mimo_launch.spec.value_guesses import guess_values
from mimo_launch.spec.yaml_source import UNREADABLE

S = TypeVar("S", bound=Strict)
_MOST_FAULTS = 1000
_KIND = Renamed("did you mean `kind`?")
_RANKS: TypeAdapter[str] = TypeAdapter(Ranks, config={"strict": True})
_PLACES: TypeAdapter[int] = TypeAdapter(Places, config={"strict": True})


def read_spec(data: dict[str, Any]) -> tuple[Spec, tuple[Diagnostic, ...]]:
    """Return the sound parts of a spec, and every fault of the others."""
    modules = data.get("modules") if isinstance(data, dict) else None
    if isinstance(modules, dict):
        data = {**data, "modules": {name: _with_dp(each) for name, each in modules.items()}}
    return _read(Spec, data, _Reader(data))


def read_module(data: dict[str, Any]) -> tuple[ModuleSpec, tuple[Diagnostic, ...]]:
    """Do the same for one module."""
    return _read(ModuleSpec, _with_dp(data), _Reader())


def _read(cls: type[S], data: Any, reader: "_Reader") -> tuple[S, tuple[Diagnostic, ...]]:
    try:
        section = reader.section(cls, data, ())
    except _Enough:
        section = _construct(cls, {}, set(cls.model_fields))
    return section, tuple(reader.faults())


class _Enough(Exception):
    """There are more faults than a user would read: the data are not a spec."""


class _Reader:
    def __init__(self, data: Any = None) -> None:
        """Take the whole spec, if any: its unknown keys may be meant for another section."""
        self.diagnostics: list[Diagnostic] = []
        self._data = data
        self._missing: dict[Diagnostic, YamlPath] = {}
        self._meant: set[YamlPath] = set()

    def faults(self) -> list[Diagnostic]:
        """Return the faults, except missing keys that an unknown key was meant to be."""
        above = {path[:size] for path in self._meant for size in range(1, len(path) + 1)}
        return [each for each in self.diagnostics if self._missing.get(each) not in above]

    def _report(self, fault: Diagnostic) -> None:
        self.diagnostics.append(fault)
        if len(self.diagnostics) >= _MOST_FAULTS:
            raise _Enough

    def section(
        self,
        cls: type[S],
        data: Any,
        path: YamlPath,
        words: Sequence[str | bool] = (),
        others: Mapping[str, type[Strict]] = MappingProxyType({}),
    ) -> S:
        """Return a section; leave out and report its faulty parts.

        One of `words` may replace it. `others` are its other kinds.
        """
        if not isinstance(data, dict):
            # True turns a section on; with all defaults no line is needed.
            is_whole = data is True and not any(f.is_required() for f in cls.model_fields.values())
            self._not_a_section(path, data, words, "" if is_whole else _only_line_for(cls, data))
            return _construct(cls, {}, set(cls.model_fields))
        with suppress(ValidationError):
            return cls.model_validate(data)
        known = {field.alias or name: (name, field) for name, field in cls.model_fields.items()}
        of_kinds = {*known, *(key for other in others.values() for key in other.model_fields)}
        # Keys that an unknown one may mean.
        suspects = {
            key
            for word, value in data.items()
            if word not in known
            for key in self._unknown_key((*path, word), value, known, others, data)
        }
        values: dict[str, Any] = {}
        left_out: set[str] = set()
        for key, (name, field) in known.items():
            if key in data:
                values[key] = self._field(field, data[key], (*path, key))
                if values[key] is UNREADABLE:
                    left_out.add(name)
            elif key in suspects:
                left_out.add(name)
            elif field.is_required():
                left_out.add(name)
                schema = field_schema(field)
                fault = findings.missing_key(path, key, schema, others=bool({*data} - of_kinds))
                self._missing[fault] = (*path, key)
                self._report(fault)
        return _construct(cls, values, left_out)

    def _unknown_key(
        self,
        path: YamlPath,
        value: Any,
        known: Mapping[str, tuple[str, FieldInfo]],
        others: Mapping[str, type[Strict]],
        data: Mapping[str, Any],
    ) -> list[str]:
        """Report an unknown key; return the known keys without a value that it may mean."""
        key, free = str(path[-1]), [each for each in known if each not in data]
        kinds = [kind for kind, other in others.items() if key in other.model_fields]
        unfit = [name for name, (_, field) in known.items() if not may_have(field, value)]
        near = [name for name in close_matches(key, free) if name not in unfit]
        meant = None
        if self._data is not None and not kinds and not findings.is_spelling(key, known):
            meant = rename_help(path, value, self._data)
        self._report(findings.unknown_key(path, known, free, kinds, meant, unfit))
        if meant is None:
            # In a grid any size may be meant.
            return near if near or not set(known) <= set(AXES) else free
        self._meant.update(meant.targets)
        depth = len(path) - 1
        return [str(each[depth]) for each in meant.targets if each[:depth] == path[:-1]]

    def _field(self, field: FieldInfo, value: Any, path: YamlPath) -> Any:
        """Return the value of a key, or UNREADABLE."""
        if value is UNREADABLE:
            return value
        models, is_optional = models_in(field.annotation)
        if section_per_name(field.annotation):
            return self._modules(value, path)
        if (item := listed_section(field.annotation)) is not None or not models:
            return self._list(item, field, value, path) if item else self._leaf(field, value, path)
        words = words_in(field.annotation)
        is_single = not isinstance(value, dict) and takes(field, value)
        if is_single or (value is None and is_optional):
            return value
        if len(models) == 1:
            return self.section(models[0], value, path, words or ["null"] * is_optional)
        if isinstance(value, str) and may_be_kind_alone(field):
            value = {"kind": value}
        return self._variant(models, value, path)

    def _list(self, item: type[Strict], field: FieldInfo, value: Any, path: YamlPath) -> Any:
        """Return a list of sections, or such lists by name; UNREADABLE if any is faulty."""
        with suppress(ValidationError):
            return leaf_adapter(field).validate_python(value)
        before = len(self.diagnostics)
        for at, part in value.items() if isinstance(value, dict) else [((), value)]:
            below = (*path, at) if at else path
            for number, each in enumerate(part if isinstance(part, list) else ()):
                if isinstance(each, dict):
                    self.section(item, each, (*below, number))
        # What is faulty may be the list itself, or an item that is no section.
        return UNREADABLE if len(self.diagnostics) > before else self._leaf(field, value, path)

    def _not_a_section(
        self, path: YamlPath, value: Any, words: Sequence[str | bool] = (), meant: str | None = None
    ) -> None:
        if value is not UNREADABLE:
            self._report(findings.not_a_section(path, value, words, meant))

    def _modules(self, value: Any, path: YamlPath) -> Any:
        if not isinstance(value, dict):
            self._not_a_section(path, value)
            return UNREADABLE
        if len(value) > MAX_MODULES:
            self._report(findings.too_many_modules(path, len(value), MAX_MODULES))
            return UNREADABLE
        for name in value:
            if not re.fullmatch(MODULE_NAME, name):
                self._report(findings.bad_module_name((*path, name)))
        return {
            name: self.section(ModuleSpec, module, (*path, name)) for name, module in value.items()
        }

    def _variant(self, models: list[type[Strict]], value: Any, path: YamlPath) -> Any:
        """Return the variant that `kind` names, or UNREADABLE if it names none."""
        if not isinstance(value, dict):
            self._not_a_section(path, value)
            return UNREADABLE
        kinds = {kind_of(cls): cls for cls in models}
        of_own = kinds.pop(None, None)
        if "kind" not in value:
            self._missing_kind(kinds, value, path)
            return UNREADABLE
        kind = value["kind"]
        if isinstance(kind, str) and kind in kinds:
            others = {str(name): other for name, other in kinds.items()}
            return self.section(kinds[kind], value, path, others=others)
        if of_own is not None and isinstance(kind, str) and re.fullmatch(CLASS_PATH, kind):
            return self.section(of_own, value, path)
        if kind is not UNREADABLE:
            at = (*path, "kind")
            known = [str(each) for each, cls in kinds.items() if _may_stand(cls, path)]
            own = of_own is not None and path[-2:-1] != (LANGUAGE,)
            self._report(findings.unknown_kind(at, kind, known, own=own))
        return UNREADABLE

    def _missing_kind(
        self, kinds: Mapping[str | None, type[Strict]], value: dict[str, Any], path: YamlPath
    ) -> None:
        """Report a section without a kind; offer the kinds that have most of its keys."""
        typos = [key for key in value if "kind" in close_matches(key, ["kind"])]
        synonyms = [key for key in value if (each := synonym("", key)) and each.key == "kind"]
        if typos or synonyms:
            at = (*path, (typos or synonyms)[0])
            self._report(findings.unknown_key(at, ["kind"], ["kind"], meant=_KIND))
            return
        notes = [key for key in value if (each := synonym(str(path[-1]), key)) and each.note]
        if notes:
            # A kind that does not read these words would train on something else.
            at = (*path, notes[0])
            meant = rename_help(at, value[notes[0]], self._data)
            self._report(findings.unknown_key(at, [], [], meant=meant))
            return
        fault = findings.missing_kind(path, _fitting_kinds(kinds, value, path))
        self._missing[fault] = (*path, "kind")
        self._report(fault)

    def _leaf(self, field: FieldInfo, value: Any, path: YamlPath) -> Any:
        try:
            return leaf_adapter(field).validate_python(value)
        except ValidationError as error:
            first: dict[int | None, Any] = {}
            for each in error.errors(include_url=False):
                index = each["loc"][0] if each["loc"] else None
                is_item = isinstance(index, int) and isinstance(value, list) and index < len(value)
                first.setdefault(index if is_item else None, each)  # type: ignore[arg-type]
        schema = field_schema(field)
        for index, each in first.items():
            at, item, of = path, value, schema
            if index is not None:
                at, item, of = (*path, index), value[index], item_schema(schema, index)
            if item is not UNREADABLE:
                cause = each.get("ctx", {}).get("error")
                message = str(cause) if isinstance(cause, ValueError) else ""
                message = "" if message == "not a range" else message
                self._report(findings.bad_leaf(at, item, of, message, self._data))
        return UNREADABLE


def _fitting_kinds(
    kinds: Mapping[str | None, type[Strict]], value: Mapping[str, Any], path: YamlPath
) -> list[str]:
    """Return the kinds that have most keys of a section, and require fewest that it lacks."""
    unfit = {
        str(kind): sum(key not in cls.model_fields for key in value)
        + sum(each.is_required() and key not in value for key, each in cls.model_fields.items())
        for kind, cls in kinds.items()
        if _may_stand(cls, path)
    }
    read = {name for cls in kinds.values() for name in cls.model_fields}
    # Keys that no kind has do not say which kind is meant.
    least = min(unfit.values()) if read & {*value} or not value else max(unfit.values())
    return [kind for kind, number in unfit.items() if number <= least]


def _may_stand(kind: type[Strict], path: YamlPath) -> bool:
    """Return whether a kind is allowed at a path: language models only in `language`."""
    speaks = path[-2:] == (LANGUAGE, "model")
    return path[-1] != "model" or kind.speaks == speaks


def _with_dp(module: Any) -> Any:
    """Return the data of a module, with an open `dp` replaced by its number."""
    grid = module.get("grid") if isinstance(module, dict) else None
    if not isinstance(grid, dict) or grid.get("dp") not in OPEN_DP:
        return module
    others = [grid.get(axis, 1) for axis in AXES if axis != "dp"]
    # Faults of ranks and other sizes are reported elsewhere; dp is then unknown.
    size: Any = UNREADABLE
    with suppress(ValidationError):
        ranks = len(rank_range(_RANKS.validate_python(module.get("ranks"))))
        size = max(1, ranks // prod(_PLACES.validate_python(each) for each in others))
    return {**module, "grid": {**grid, "dp": size}}


def _only_line_for(cls: type[Strict], value: Any) -> str | None:
    """Return the one key of a section that takes a value, with it; None if several do, or none."""
    if len(cls.model_fields) == 1 and not isinstance(value, bool):
        ((key, only),) = cls.model_fields.items()
        with suppress(ValidationError):
            return f"{key}: {getattr(cls.model_validate({key: value}), key)}"
        return next(
            (f"{key}: {each}" for each in guess_values(key, value, field_schema(only))), None
        )
    if cls is NodesSpec:
        return None  # A number may be one of hosts, or of GPUs.
    if cls is Grid and value in OPEN_DP:
        return f"dp: {value}"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    found = []
    for name, field in cls.model_fields.items():
        key = field.alias or name
        with suppress(ValidationError):
            # A whole number is meant for a key of whole numbers.
            if type(getattr(cls.model_validate({key: value}), name)) is type(value):
                found.append(key)
    return f"{found[0]}: {value}" if len(found) == 1 else None


def _construct(cls: type[S], values: dict[str, Any], left_out: set[str]) -> S:
    section = cast(S, cls.model_construct(**values))
    for name in left_out:
        # Reading the attribute now raises MissingPartError, defaults included.
        section.__dict__.pop(name, None)
    return section
