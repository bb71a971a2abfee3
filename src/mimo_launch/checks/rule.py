"""Defines a check, and runs a table of checks.

Decides: which checks are skipped because a part they need is at fault.
Relies on: `MissingPartError`, raised by the sound part of a faulty spec.
Leaves: the checks themselves to their files.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from mimo_launch.diag.diagnostic import Diagnostic, Severity, YamlPath
from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import LANGUAGE, MissingPartError, Strict
from mimo_launch.spec.spec import Spec

Findings = Iterator[Diagnostic]
M = TypeVar("M")


@frozen
class ModuleRule:
    """A check of one module; skipped if the module, or language, has a finding in `needs`."""

    run: Callable[[Spec, str], Findings]
    needs: tuple[str, ...] = ()

    def findings(self, spec: Spec, name: str) -> Findings:
        """Return the findings about a module."""
        return self.run(spec, name)


@frozen
class ModelRule(Generic[M]):
    """A check of modules with a model of type `of`; it gets the model as third argument."""

    of: type[M]
    run: Callable[[Spec, str, M], Findings]
    needs: tuple[str, ...] = ()

    def findings(self, spec: Spec, name: str) -> Findings:
        """Yield the findings about a module."""
        model = spec.modules[name].model
        if isinstance(model, self.of):
            yield from self.run(spec, name, model)


@frozen
class SpecRule:
    """A check of the whole spec; skipped if any module has a finding in `needs`."""

    run: Callable[[Spec], Findings]
    needs: tuple[str, ...] = ()

    def findings(self, spec: Spec) -> Findings:
        """Return the findings about a spec."""
        return self.run(spec)


@frozen
class DataRule(Generic[M]):
    """A check of specs with data of type `of`; it gets the data as second argument."""

    of: type[M]
    run: Callable[[Spec, M], Findings]
    needs: tuple[str, ...] = ()

    def findings(self, spec: Spec) -> Findings:
        """Yield the findings about a spec."""
        if isinstance(spec.data, self.of):
            yield from self.run(spec, spec.data)


Rule = ModuleRule | ModelRule[Any] | SpecRule | DataRule[Any]


def run_rules(spec: Spec, rules: Sequence[Rule]) -> list[Diagnostic]:
    """Return the findings of all rules, in table order."""
    return [*findings_of(spec, rules)]


def findings_of(spec: Spec, rules: Sequence[Rule]) -> Findings:
    """Yield the findings of rules, in table order; no rule runs before its findings are wanted."""
    findings: list[Diagnostic] = []
    try:
        modules = tuple(spec.modules)
    except MissingPartError:
        modules = ()
    for rule in rules:
        before = len(findings)
        if isinstance(rule, SpecRule | DataRule):
            if not _has_any(findings, rule.needs, modules):
                _add(findings, rule.findings(spec))
        else:
            for name in modules:
                if not _has_any(findings, rule.needs, (name, LANGUAGE)):
                    _add(findings, rule.findings(spec, name))
        yield from findings[before:]


def _add(findings: list[Diagnostic], found: Findings) -> None:
    """Add what a check finds until it reads a faulty part of the spec."""
    try:
        findings.extend(found)
    except MissingPartError:
        return


def _has_any(findings: list[Diagnostic], codes: tuple[str, ...], modules: Sequence[str]) -> bool:
    return bool(findings and codes) and any(
        item.code in codes
        and item.severity is Severity.ERROR
        and (item.path[:1] != ("modules",) or len(item.path) == 1 or item.path[1] in modules)
        for item in findings
    )


def no_effect(
    path: YamlPath, headline: str, why: str, help_: str = "", *, at_key: bool = False
) -> Diagnostic:
    """Return a warning that a setting does nothing; `help_` is to delete the last key of `path`."""
    return Diagnostic(
        code="setting-without-effect",
        severity=Severity.WARNING,
        headline=headline,
        path=path,
        at_key=at_key,
        why=why,
        help=help_ or f"delete `{path[-1]}`",
    )


def idle_key(name: str, key: str, why: str, *above: str) -> Diagnostic:
    """Return a warning that a key of a module's model, `above` the key's parents, does nothing."""
    path = ("modules", name, "model", *above, key)
    return no_effect(path, f"`{key}` of `{name}` does nothing", why)


def set_keys(model: Strict, mark: type[M]) -> Iterator[tuple[str, M]]:
    """Yield the keys of a model that have another value than their default, and their marks."""
    for key, field in type(model).model_fields.items():
        marks = [each for each in field.metadata if isinstance(each, mark)]
        if marks and getattr(model, key) != field.default:
            yield from ((key, each) for each in marks)


def chosen_keys(section: Strict) -> set[str]:
    """Return the keys of a section that have another value than their default.

    So a saved spec, which has every default, gives the same keys as the spec that the user wrote.
    """
    fields = type(section).model_fields
    # `get_default` would copy each default; no section makes one by a call.
    return {key for key in section.model_fields_set if getattr(section, key) != fields[key].default}


def next_multiple(number: int, of: int) -> int:
    """Return the smallest multiple of `of` that is at least `number`."""
    return -(-number // of) * of
