"""What a spec may say and this release cannot do yet.

Decides: the list; each entry disappears with the release that brings it.
Relies on: nothing.
Leaves: user classes as model kinds to `spec`, which cannot type them.
"""

from mimo_launch.diag.diagnostic import Diagnostic, YamlPath
from mimo_launch.layout.checks.rule import Findings
from mimo_launch.spec.model import Spec


def backend_supported(spec: Spec, name: str) -> Findings:
    """The layers are torch's."""
    backend = spec.modules[name].backend
    if backend != "torch":
        yield _later(
            ("modules", name, "backend"), f"`{name}`: backend {backend}", "write `backend: torch`"
        )


def _later(path: YamlPath, what: str, instead: str, *, at_key: bool = False) -> Diagnostic:
    return Diagnostic(
        code="not-supported-yet",
        headline=f"{what} is not supported yet",
        path=path,
        at_key=at_key,
        why="the spec has a place for it, this release does not do it",
        help=instead,
    )
