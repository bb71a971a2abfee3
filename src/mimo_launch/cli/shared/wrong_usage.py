"""Suggests what to write in place of a wrong command line.

Decides: which words are options, values and settings of the spec; that a command line is suggested
only if the command accepts it, and otherwise an explanation.
Relies on: `foreign_usage` for words of other launchers, `wrong_settings` for settings of the spec.
Leaves: printing to `app`, which imports this file only after an error.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimo_launch.cli.shared.foreign_usage import (
    COMMANDS,
    FORMATS,
    NO_COMMAND,
    OPTIONS,
    VALUES,
)
from mimo_launch.cli.shared.wrong_settings import MeantSettings
from mimo_launch.spec.value_guesses import guess_values

_SETTING = re.compile(r"[+~]{0,2}([A-Za-z_][\w.\[\]/]*)=(.*)", re.DOTALL)


def help_for(args: Sequence[str], commands: Mapping[str, Any]) -> str:
    """Return what to write in place of a wrong command line; "" if unknown.

    `commands` are click's commands, by name.
    """
    found = MeantSettings({})
    here = _CommandLine(commands, found)
    try:
        # A value in another unit may depend on other settings of the line: read the line again.
        for _ in range(3):
            found = MeantSettings(found.lines)
            here = _CommandLine(commands, found)
            here.read(list(args))
    except _OnlyWords as words:
        return str(words)
    if found.words or found.unknown:
        said = dict.fromkeys([*found.words, *found.renamed()])
        return "; ".join([*said, *dict.fromkeys(found.unknown)] if said else [])
    if twice := found.set_twice():
        return twice
    written = [*here.front, here.command, *here.rest]
    if not here.command or written == list(args) or not here.is_taken():
        return ""
    return " ".join([f"write `mimo-launch {shlex.join(written)}`", *dict.fromkeys(found.why)])


class _OnlyWords(Exception):
    """No command line does what the user meant."""


@dataclass(slots=True)
class _CommandLine:
    """A command line during its translation: options in front, a command, and the rest."""

    commands: Mapping[str, Any]
    settings: MeantSettings
    front: list[str] = field(default_factory=list)
    command: str = ""
    rest: list[str] = field(default_factory=list)
    plans_only: bool = False

    def is_taken(self) -> bool:
        """Return whether the program accepts the translated line."""
        if "--version" in self.front or {"--help", "-h"} & {*self.rest}:
            return True
        try:
            self.commands[self.command].make_context(self.command, list(self.rest))
        except Exception as error:
            if hasattr(error, "format_message"):
                return False
            raise
        return True

    def read(self, args: list[str]) -> None:
        """Translate every word of a command line. Raises: _OnlyWords."""
        args = self._without_command(args)
        spec = next((arg for arg in args if _is_file(arg)), "")
        while args:
            word = args.pop(0)
            name, equals, value = word.partition("=")
            ours = self._our_option(name)
            if word == "--" or ours == "--help":
                self.rest += [word, *args]
                break
            if ours:
                self._take(ours, value if equals else None, args)
            elif word.startswith("-") and len(word) > 1:
                self._translate(word, args, spec)
            elif (setting := _SETTING.fullmatch(word)) and not Path(word).exists():
                self._set(f"{setting[1]}={setting[2]}", spec)
            else:
                self.rest.append(word)
        if self.plans_only:
            self._plan_instead()

    def _without_command(self, args: list[str]) -> list[str]:
        """Find the command, perhaps under another name, and return the words around it."""
        theirs = {word: ours for ours, words in COMMANDS.items() for word in words.split()}
        for place, word in enumerate(args):
            if word in ("help", "version") and len(args) <= 2:
                end = ["--help"] if word == "help" else ["--version"]
                raise _OnlyWords(f"write `mimo-launch {shlex.join([*args[place + 1 :], *end])}`")
            if word in self.commands or word in theirs:
                self.command = word if word in self.commands else theirs[word]
                return self._front_of(args[:place]) + args[place + 1 :]
            for words, said in NO_COMMAND.items():
                if word in words.split():
                    raise _OnlyWords(said)
            if _is_file(word):
                line = shlex.join(["mimo-launch", "train", *args[place:]])
                raise _OnlyWords(f"name a command: `{line}` trains, `plan` shows what it would do")
            if not word.startswith("-") and not (place and args[place - 1].startswith("-")):
                raise _OnlyWords("")  # A misspelt command.
        return self._front_of(args)

    def _front_of(self, args: list[str]) -> list[str]:
        """Move options that all commands share to the front; return the other words."""
        left = []
        for place, word in enumerate(args):
            is_color = word.startswith("--color") or "--color" in args[place - 1 : place]
            if is_color or word in ("-v", "-vv", "--verbose"):
                self.front.append(word)
            else:
                left.append(word)
        return left

    def _options(self) -> dict[str, Any]:
        """Return the options of the command by name."""
        if self.command not in self.commands:
            return {}
        parameters = self.commands[self.command].params
        options = [each for each in parameters if each.param_type_name == "option"]
        return {
            "--help": None,
            "-h": None,
            **{name: each for each in options for name in (*each.opts, *each.secondary_opts)},
        }

    def _our_option(self, name: str) -> str:
        """Return the command's option that differs from `name` only in dashes and case, if any."""
        known = self._options()
        if name in known:
            return name
        plain = f"--{name.lstrip('-').lower().replace('_', '-')}"
        return plain if name.startswith("-") and len(name) > 2 and plain in known else ""

    def _take(self, name: str, value: str | None, args: list[str]) -> None:
        """Keep an option of the command, with its value translated."""
        option = self._options()[name]
        if option.is_flag or option.count:
            self.rest.append(name)
            if name == "--resume" and args and not _is_file(args[0]) and args[0][:1] != "-":
                self._translate("--load", args, "")
            return
        if value is None:
            value = self._value_of(name, args)
        ours = VALUES.get(name, {}).get(value, value)
        # Versions of typer and click name the type differently.
        of = str(getattr(option, "type_descriptor", getattr(option, "type", "")))
        if re.search(r"class 'int'|INT|IntRange", of) and not value.lstrip("-").isdecimal():
            ours = next(iter(guess_values("", value, {"type": "integer"})), ours)
        self.rest += [] if ours is None else [name, ours]
        if ours is not None and name in ("--set", "--steps"):
            line = ours if name == "--set" else f"train.steps={ours}"
            self.settings.lines[line] = line

    def _value_of(self, name: str, args: list[str]) -> str:
        """Take the next word as the value of an option; note if the value is missing."""
        if args and not args[0].startswith("--"):
            return args.pop(0)
        self.settings.words.append(f"`{name}` takes a value")
        return "..."

    def _translate(self, word: str, args: list[str], spec: str) -> None:
        """Translate an option that the command does not have."""
        name, equals, value = word.partition("=")
        plain = name.lstrip("-").replace("-", "_")
        found = next((each for words, each in OPTIONS.items() if plain in words.split()), None)
        template = None if found is None else self._first_of(found)
        if template is None:
            is_value = bool(args) and not args[0].startswith("-") and args[0] != spec
            value = value if equals else args.pop(0) if is_value else "true"
            self._set(f"{name.lstrip('-').replace('-', '_')}={value}", spec)
            return
        if "{}" in template and not equals:
            # A format without a file name, such as `--html`, gets a name here.
            is_file = plain not in FORMATS or (args and Path(args[0]).suffix[1:] in FORMATS)
            value = self._value_of(word, args) if is_file else f"{self.command}.{plain}"
        head, _, tail = template.partition(" ")
        tail = tail.replace("{}", value)
        if head == "<":
            self.front += tail.split()
        elif head == "@plan":
            self.plans_only = True
        elif head == "--set" and tail == value:
            self._set(value if "=" in value else f"{value}=", spec)
        elif head in ("{}", "RUN"):
            self.rest.append(value)
        elif head.startswith("--"):
            self.rest += [head, tail] if tail else [head]
        elif head != "#":
            self.settings.words.append(template.replace("{}", shlex.quote(value)))

    def _first_of(self, templates: Sequence[str]) -> str | None:
        """Return the first template that the command accepts; None if it accepts none."""
        known = self._options()
        for template in templates:
            head = template.partition(" ")[0]
            if head.startswith("--") and head not in known:
                continue
            if head in ("{}", "RUN") and not self._takes(head):
                continue
            if head == "@plan" and self.command not in ("plan", "train", "bench", "verify"):
                continue
            return template
        return None

    def _takes(self, head: str) -> bool:
        """Return whether the command takes a run, or for `{}` any argument."""
        parameters = self.commands[self.command].params if self.command else ()
        named = [each.metavar for each in parameters if each.param_type_name == "argument"]
        return bool(named) if head == "{}" else "RUN" in named

    def _plan_instead(self) -> None:
        """Replace the command by `plan`, and drop options that `plan` does not have."""
        before, self.rest = self.rest, []
        theirs, self.command = self._options(), "plan"
        while before:
            word = before.pop(0)
            option = theirs.get(word)
            value = [] if option is None or option.is_flag else [before.pop(0)]
            if option is None or self._our_option(word):
                self.rest += [word, *value]

    def _set(self, line: str, spec: str) -> None:
        """Translate a setting of the spec, `path=value`. Raises: _OnlyWords."""
        if "--set" not in self._options():
            raise _OnlyWords("")
        self.rest += self.settings.options_for(line, spec)


def _is_file(word: str) -> bool:
    """Return whether a word names a spec."""
    return not word.startswith("-") and word.endswith((".yaml", ".yml"))
