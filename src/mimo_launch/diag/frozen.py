"""Frozen dataclasses that are made fast.

Decides: how values are compared and shown. `dataclass(frozen=True)` of Python 3.11 compiles six
methods of each class from text at each start. Here only `__init__` is compiled, which saves a tenth
of the time of `plan`, and a sixth of that of `validate`. Type checkers refuse a change of a value;
Python itself does not, because to ask at each field makes `__init__` three times as slow.
Relies on: `dataclasses`, so that `fields`, `replace` and `asdict` work.
Leaves: values that may change, or that users' code gets, to `dataclasses`.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(
    *, kw_only: bool = False, slots: bool = True, eq: bool = True
) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def frozen(
    cls: type[T] | None = None, /, *, kw_only: bool = False, slots: bool = True, eq: bool = True
) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass; with `slots` it cannot have cached properties."""

    def made(cls: type[T]) -> type[T]:
        found = dataclass(cls, repr=False, eq=False, kw_only=kw_only, slots=slots)
        for name, method in _methods(found, eq=eq).items():
            if name not in vars(found):
                setattr(found, name, method)
        return found

    return made if cls is None else made(cls)


def _methods(cls: Any, *, eq: bool) -> dict[str, Callable[..., Any]]:
    """Return the methods that a class gets unless it has its own."""
    if not eq:
        return {"__repr__": _text}
    compared = [each for each in fields(cls) if each.compare]
    values = _values([each.name for each in compared])
    hashed = _values([each.name for each in compared if each.hash is not False])

    def is_equal(self: Any, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    return {"__repr__": _text, "__eq__": is_equal, "__hash__": lambda self: hash(hashed(self))}


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gets the values of some fields."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda each: tuple([getattr(each, name) for name in names])


def _text(self: Any) -> str:
    """Return a value as the expression that makes it."""
    shown = [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"
