"""Frozen dataclasses that are made fast.

Decides: how values are made, compared and shown. `dataclass(frozen=True)` of Python 3.11 compiles
six methods of each class from text at each start. Here only `__init__` is compiled, and only when
the first value is made, which most classes never see. Type checkers refuse a change of a value;
Python itself does not, because to ask at each field makes `__init__` three times as slow.
Relies on: `dataclasses`, so that `fields`, `replace` and `asdict` work.
Leaves: values that may change, or that users' code gets, to `dataclasses`.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, cast, dataclass_transform, overload

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
        found = dataclass(cls, init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)
        for name, method in _methods(found, eq=eq).items():
            if name not in vars(found):
                setattr(found, name, method)
        return found

    return made if cls is None else made(cls)


def _methods(cls: Any, *, eq: bool) -> dict[str, Callable[..., Any]]:
    """Return the methods that a class gets unless it has its own."""

    def first_init(self: Any, *args: Any, **named: Any) -> None:
        cls.__init__ = _init_of(cls)
        cls.__init__(self, *args, **named)

    methods: dict[str, Callable[..., Any]] = {"__init__": first_init, "__repr__": _text}
    if not eq:
        return methods
    compared = [each for each in fields(cls) if each.compare]
    values = _values([each.name for each in compared])
    hashed = _values([each.name for each in compared if each.hash is not False])

    def is_equal(self: Any, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    return {**methods, "__eq__": is_equal, "__hash__": lambda self: hash(hashed(self))}


def _init_of(cls: Any) -> Callable[..., None]:
    """Return the `__init__` that `dataclass` would make."""
    names: dict[str, Any] = {"MISSING": MISSING}
    by_place, by_name, lines = ["self"], ["*"], ["pass"]
    for each in fields(cls):
        name, value, default, own = each.name, each.name, "", f"DEFAULT_{each.name}"
        if each.default is not MISSING:
            names[own], default = each.default, own
            value = name if each.init else own
        elif each.default_factory is not MISSING:
            names[own], default = each.default_factory, "MISSING"
            value = f"{own}() if {name} is MISSING else {name}" if each.init else f"{own}()"
        if each.init:
            parameters = by_name if each.kw_only else by_place
            parameters.append(f"{name}={default}" if default else name)
        if each.init or default:
            lines.append(f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = by_place + by_name if by_name[1:] else by_place
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines), names)
    names["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return cast("Callable[..., None]", names["__init__"])


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gets the values of some fields."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda each: tuple([getattr(each, name) for name in names])


def _text(self: Any) -> str:
    """Return a value as the expression that makes it."""
    shown = [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"
