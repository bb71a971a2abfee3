"""A diagnostic is a value: what is wrong, where in the YAML, why, and what to write instead.

Decides: the shape of every message about a spec.
Relies on: nothing; checks attach a YAML path, the renderer looks up line and column.
Leaves: wording of the long explanations to `codes`, drawing to `text`.
"""

from dataclasses import dataclass
from enum import StrEnum

MAX_TEXT = 1000
YamlPath = tuple[str | int, ...]


def shortened(text: str, most: int = 60) -> str:
    """Return a text with its middle left out if it is long."""
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


class Severity(StrEnum):
    """How bad a finding is: an error stops the command, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """A second place that takes part in a finding, with a short label."""

    path: YamlPath
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding about one spec.

    `path` leads to the offending value, e.g. `("modules", "vision", "grid", "tp")`; with `at_key`
    the key is meant rather than its value. A path that is not in the file (a missing key, a
    default) falls back to its nearest parent that is. `line` and `column` (1-based) are set only
    when the YAML itself could not be read, so that no path exists.
    """

    code: str
    headline: str
    path: YamlPath = ()
    at_key: bool = False
    why: str = ""
    help: str = ""
    related: tuple[Related, ...] = ()
    severity: Severity = Severity.ERROR
    line: int | None = None
    column: int | None = None

    def __post_init__(self) -> None:
        # They quote the file, in which a word may be as long as the file itself.
        for name in ("headline", "why", "help"):
            object.__setattr__(self, name, shortened(getattr(self, name), MAX_TEXT))

    @property
    def is_error(self) -> bool:
        """Whether this finding makes the spec unusable."""
        return self.severity is Severity.ERROR
