"""Translates settings of the spec in a wrong command line into `--set` options.

Decides: which setting a word means; when only an explanation helps.
Relies on: the findings about a `--set` of the same name, which say what is meant.
Leaves: the rest of the line to `wrong_usage`.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mimo_launch.spec.load import load_spec, load_text

# Replaces a spec that cannot be read.
_NO_SPEC = "version: 1\nmodules: {language: {}}\n"


@dataclass(slots=True)
class MeantSettings:
    """The settings of a command line: as the user wrote them, with the line of a `--set` for each.

    `words` explain what no setting can express, `why` what differs slightly, and `unknown` lists
    words of no known trainer. `known` are the settings from an earlier reading of the line.
    """

    known: Mapping[str, str]
    lines: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def renamed(self) -> list[str]:
        """Return the `--set` for each setting that the user wrote in another way."""
        changed = [each for each in self.lines.items() if each[0] != each[1]]
        return [f"`{asked}` is `--set {shlex.quote(line)}`" for asked, line in changed] + self.why

    def set_twice(self) -> str:
        """Return a message if two words set one setting to different values, else ""."""
        found: dict[str, tuple[str, str]] = {}
        for asked, line in self.lines.items():
            path = line.partition("=")[0]
            other, before = found.setdefault(path, (asked, line))
            if before != line and (asked != line or other != before):
                return f"`{other}` means `{before}` and `{asked}` means `{line}`: write one of them"
        return ""

    def options_for(self, line: str, spec: str, asked: str = "") -> list[str]:
        """Return the `--set` that a setting `path=value` means; none if it is explained instead.

        `asked` is the setting as the user wrote it, if different; `spec` names the spec.
        """
        asked = asked or line
        path = line.partition("=")[0]
        faults = self._faults(line, spec, asked)
        if not faults:
            is_new = line not in self.lines.values()
            self.lines[asked] = line
            return ["--set", line] if is_new else []
        said = min(faults, key=lambda each: each.startswith("add "))
        offers = re.findall(r"`--set ([^`]+)`", said)
        meant_for = shlex.split(offers[0])[0] if len(offers) == 1 else line
        if said.startswith("add "):  # Another key is missing.
            self.words.append(f"`--set {shlex.quote(line)}` is meant, and another key: {said}")
        elif meant_for != line:
            self.why += re.findall(r"` (\([^`]+\))$", said)
            return self.options_for(meant_for, spec, asked)
        elif said.startswith(("none of", "did you mean")):  # Probably a misspelt option.
            self.unknown.append(f"nothing here is sure to mean `{path}`")
        elif said.startswith("delete it: "):
            self.why.append(f"(without `{line}`: {said.removeprefix('delete it: ')})")
        else:
            is_shared = said.startswith("write `--set modules.")
            self.words.append("each module has its own: " * is_shared + said)
        return []

    def _faults(self, line: str, spec: str, asked: str) -> list[str]:
        """Return the help of each finding about a setting, among the settings known so far."""
        # Settings from an earlier reading may decide what this one means. Options of other trainers
        # also go into `train`, as unknown keys, because a guess may need their values.
        lines = [
            each
            for theirs, ours in self.known.items()
            if theirs != asked
            for each in (ours, f"train.{theirs}")
            if each == ours or "." not in theirs.partition("=")[0]
        ]
        lines.append(line)
        loaded = (
            load_spec(spec, lines) if Path(spec).is_file() else load_text(_NO_SPEC, overrides=lines)
        )
        return [
            item.help
            for item in loaded.diagnostics
            if item.is_error and loaded.source.place_of(item).override == line
        ]
