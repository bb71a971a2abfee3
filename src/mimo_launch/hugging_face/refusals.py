"""Settings of a configuration that our modules do not compute, each rule with a description.

Decides: how a family declares them, and how messages name them: `key: value`.
Relies on: `folder` for values in a few characters.
Leaves: the rules to the families, the page that lists them to `families_page`.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.folder import Config, section, short


@frozen
class Refusal:
    """A refused setting in words, and the function that finds it, as `key: value`.

    `key` is the setting, for a rule about a single one.
    """

    words: str
    found: Callable[[Config], Iterator[str]]
    key: str = ""

    def after(self, prepared: Callable[[Config], Config]) -> "Refusal":
        """Return the rule for configurations that are prepared first."""
        return replace(self, found=lambda config: self.found(prepared(config)))

    def inside(self, part: str) -> "Refusal":
        """Return the rule for a section of a configuration, whose name its words begin with."""

        def found(config: Config) -> Iterator[str]:
            yield from (f"{part}.{each}" for each in self.found(section(config, part)))

        return Refusal(self.words.replace("`", f"`{part}.", 1), found, f"{part}.{self.key}")


@frozen
class Refusals:
    """The rules of a family, in the order in which they are reported."""

    rules: tuple[Refusal, ...] = ()

    def __call__(self, config: Config) -> Iterator[str]:
        """Yield, as `key: value`, the settings that are not computed. Raises: ConfigError."""
        for rule in self.rules:
            yield from rule.found(config)

    def __add__(self, other: "Refusals") -> "Refusals":
        """Return the rules of both."""
        return Refusals(self.rules + other.rules)

    def without(self, *keys: str) -> "Refusals":
        """Return the rules except those for these keys, which mean something else in a family."""
        return Refusals(tuple(rule for rule in self.rules if rule.key not in keys))

    def after(self, prepared: Callable[[Config], Config]) -> "Refusals":
        """Return the rules for configurations that are prepared first, as with defaults.

        Use `without` for rules about a setting that `prepared` removes: they can find nothing.
        """
        return Refusals(tuple(rule.after(prepared) for rule in self.rules))

    def inside(self, part: str) -> "Refusals":
        """Return the rules for a section of a configuration, which they name."""
        return Refusals(tuple(rule.inside(part) for rule in self.rules))


NOTHING = Refusals()


def refusals(*rules: Refusal) -> Refusals:
    """Return the rules of a family."""
    return Refusals(rules)


def only(key: str, value: Any) -> Refusal:
    """Return the rule of a setting with one computed value, which is also its default."""
    return one_of(key, (value,), value)


def off(key: str) -> Refusal:
    """Return the rule of a setting that must be 0 or missing."""

    def found(config: Config) -> Iterator[str]:
        if said := config.get(key):
            yield f"{key}: {short(said)}"

    return Refusal(f"`{key}` other than `0`", found, key)


def one_of(key: str, computed: Collection[Any], default: Any) -> Refusal:
    """Return the rule of a setting with some computed values."""

    def found(config: Config) -> Iterator[str]:
        if (said := config.get(key, default)) not in computed:
            yield f"{key}: {short(said)}"

    return Refusal(f"`{key}` other than {listed(computed)}", found, key)


def where(
    key: str,
    words: str,
    is_refused: Callable[[Config], bool],
    default: Any = None,
    *,
    beside: str = "",
) -> Refusal:
    """Return the rule of a setting that is not computed in some configurations.

    `words` follow the key in the list. `default` is the value of a missing setting, `beside`
    another setting, as `key: value`, without which it would be computed.
    """

    def found(config: Config) -> Iterator[str]:
        if is_refused(config):
            said = f"{key}: {short(config.get(key, default))}"
            yield f"{said} with {beside}" if beside else said

    return Refusal(f"`{key}` {words}", found, key)


def of_type(part: str, *types: str) -> Refusal:
    """Return the rule that a part is of one of some types; without a type it is of the first."""

    def found(config: Config) -> Iterator[str]:
        if (said := section(config, part).get("model_type", types[0])) not in types:
            yield f"{part}.model_type: {short(said)}"

    return Refusal(f"`{part}.model_type` other than {listed(types)}", found)


def layer_types(computed: tuple[str, ...], said: Callable[[Config], Collection[Any]]) -> Refusal:
    """Return the rule for the kinds of layers, which `said` finds in a configuration."""
    known = frozenset(computed)

    def found(config: Config) -> Iterator[str]:
        yield from dict.fromkeys(
            f"layer_types: {short(each)}" for each in said(config) if each not in known
        )

    return Refusal(f"`layer_types` other than {listed(computed)}", found)


def left_out(parts: str) -> Refusal:
    """Return the rule of a whole model with parts that are left out; it refuses nothing."""
    return Refusal(f"{parts} (left out)", lambda _: iter(()))


def listed(values: Collection[Any]) -> str:
    """Return values as Markdown, written as in `config.json`."""
    texts = [f"`{short(value)}`" for value in values]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
