"""`frozen` makes what `dataclass(frozen=True)` makes; only type checkers refuse changes."""

import copy
import pickle
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from functools import cached_property

import pytest

from mimo_launch.diag.frozen import frozen


class Values:
    """The same class twice: by `frozen`, and by `dataclass`."""

    @frozen
    class Ours:
        name: str
        sizes: tuple[int, ...] = ()
        note: str = field(default="", compare=False, repr=False)
        kept: dict[str, int] = field(default_factory=dict, hash=False)

    @dataclass(frozen=True, slots=True)
    class Theirs:
        name: str
        sizes: tuple[int, ...] = ()
        note: str = field(default="", compare=False, repr=False)
        kept: dict[str, int] = field(default_factory=dict, hash=False)


class Made:
    """The same class twice, with fields that are given, counted, or made of others."""

    @frozen
    class Ours:
        last: list[int] = field(kw_only=True)
        first: int
        known: list[int] = field(default_factory=list)
        inside: list[int] = field(default_factory=list, init=False)
        fixed: int = field(default=3, init=False)
        double: int = field(init=False)

        def __post_init__(self):
            object.__setattr__(self, "double", 2 * self.first)

    @dataclass(frozen=True, slots=True)
    class Theirs:
        last: list[int] = field(kw_only=True)
        first: int
        known: list[int] = field(default_factory=list)
        inside: list[int] = field(default_factory=list, init=False)
        fixed: int = field(default=3, init=False)
        double: int = field(init=False)

        def __post_init__(self):
            object.__setattr__(self, "double", 2 * self.first)


@frozen(kw_only=True)
class Base:
    number: int = 0


@frozen
class Derived(Base):
    width: float


@frozen
class Empty:
    pass


ARGUMENTS = [("a",), ("b",), ("a", (1, 2)), ("a", (1, 2), "note"), ("a", (), "", {"b": 1})]


@pytest.mark.parametrize("args", ARGUMENTS, ids=str)
def test_values_are_those_of_a_dataclass(args):
    ours, theirs = Values.Ours(*args), Values.Theirs(*args)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert hash(ours) == hash(theirs)
    assert (asdict(ours), astuple(ours)) == (asdict(theirs), astuple(theirs))
    assert [each.name for each in fields(ours)] == [each.name for each in fields(theirs)]
    assert ours != theirs
    for others in ARGUMENTS:
        assert (ours == Values.Ours(*others)) == (theirs == Values.Theirs(*others))


@pytest.mark.parametrize("args", [(1,), (1, [2])], ids=str)
def test_values_are_made_as_those_of_a_dataclass(args):
    ours, theirs = Made.Ours(*args, last=[4]), Made.Theirs(*args, last=[4])
    assert astuple(ours) == astuple(theirs)
    again = Made.Ours(*args, last=[4])
    assert again.inside is not ours.inside
    assert (again.known is ours.known) == (len(args) > 1)


@pytest.mark.parametrize(
    ("args", "named"), [((), {}), ((1,), {}), ((1, [], 2), {"last": []}), ((1,), {"fixed": 1})]
)
def test_wrong_arguments_are_refused_in_the_words_of_python(args, named):
    texts = set()
    for cls in (Made.Ours, Made.Theirs):
        with pytest.raises(TypeError) as error:
            cls(*args, **named)
        texts.add(str(error.value).replace("Theirs", "Ours"))
    assert len(texts) == 1


def test_values_are_copied_and_sent():
    value = Values.Ours("a", (1,), "note", {"b": 2})
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert astuple(again) == astuple(value)
    assert replace(value, name="b") == Values.Ours("b", (1,), "", {"b": 2})


def test_a_derived_class_compares_and_shows_all_fields():
    assert repr(Derived(2.0, number=1)) == "Derived(number=1, width=2.0)"
    assert Derived(2.0, number=1) != Derived(2.0) != Base()
    assert len({Derived(2.0), Derived(2.0, number=0), Derived(3.0)}) == 2


def test_a_class_without_fields_has_one_value():
    assert Empty() == Empty()
    assert (hash(Empty()), repr(Empty())) == (hash(()), "Empty()")


def test_slots_refuse_other_names_and_their_absence_allows_cached_properties():
    with pytest.raises(AttributeError):
        Base().other = 1

    @frozen(slots=False)
    class Cached:
        number: int

        @cached_property
        def double(self):
            return 2 * self.number

    assert Cached(2).double == 4


def test_a_class_may_have_methods_of_its_own_or_be_compared_by_identity():
    @frozen
    class Own:
        number: int

        def __repr__(self):
            return "own"

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 7

    @frozen(eq=False)
    class Identity:
        number: int

    assert (repr(Own(1)), Own(1) == Own(2), hash(Own(1))) == ("own", True, 7)
    assert Identity(1) != Identity(1)
    assert len({Identity(1), Identity(1)}) == 2
