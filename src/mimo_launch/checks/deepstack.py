"""Checks of `deepstack`: layers of an encoder whose rows are added behind layers of language.

Decides: which layers of an encoder these may be, and how many layers language needs for them.
Relies on: `graph` for who reads an encoder.
Leaves: adding the rows to `models`.
"""

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec, VitModel


def layers_in_order(spec: Spec, name: str, model: VitModel) -> Findings:
    """The layers of an encoder exist, and come in their order."""
    found = [number for number in sorted(set(model.deepstack)) if number < model.layers]
    if list(model.deepstack) == found:
        return
    yield Diagnostic(
        code="deepstack-not-in-order",
        headline=f"`{name}`: layers {', '.join(map(str, model.deepstack))} are not some of its "
        f"{model.layers} layers, in order",
        path=("modules", name, "model", "deepstack"),
        why="the rows of the first one are added behind layer 0 of language, those of the next one "
        "behind layer 1; layers are counted from 0",
        help=f"write `deepstack: {found}`",
        related=(
            Related(path=("modules", name, "model", "layers"), label=f"{model.layers} layers"),
        ),
    )


def language_adds_rows(spec: Spec, name: str, model: VitModel) -> Findings:
    """Only language adds rows behind layers; behind its last layer no loss would see them."""
    number, layers = model.deep_rows, spec.language.model.layers
    if not number:
        return
    path = ("modules", name, "model", "deepstack")
    others = [each for each in spec.modules if each != LANGUAGE and name in spec.sources_of(each)]
    if others:
        yield Diagnostic(
            code="deepstack-not-added",
            headline=f"`{others[0]}` reads `{name}`, which sends rows of {number + 1} layers",
            path=path,
            why="only `language` adds rows behind its layers",
            help="delete `deepstack`",
            related=(Related(path=("modules", others[0]), label="reads it"),),
        )
    elif number >= layers:
        fits = f"`deepstack: {list(model.deepstack[: layers - 1])}`"
        yield Diagnostic(
            code="deepstack-not-added",
            headline=f"`{name}` sends rows for {number} layers of language, which has {layers}",
            path=path,
            why="rows are added behind the first layers, and what is added behind the last one "
            "reaches no loss: it is at the places of images",
            help=f"write {fits if layers > 1 else 'nothing: delete `deepstack`'}, or "
            f"`layers: {number + 1}` in `language`",
            related=(
                Related(path=("modules", LANGUAGE, "model", "layers"), label=f"{layers} layers"),
            ),
        )
