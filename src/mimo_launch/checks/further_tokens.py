"""Checks of multi-token prediction.

Decides: which sequences are too short for it, and where a token would see what it must predict.
Relies on: `kinds` for what tokens attend to.
Leaves: layers that a backend does not have to `backends`.
"""

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.spec import LanguageModel, Spec


def further_tokens_fit(spec: Spec, name: str, model: LanguageModel) -> Findings:
    """Every depth has a label, and no token sees what it predicts."""
    if model.mtp is None:
        return
    path = ("modules", name, "model")
    if model.mtp.depth >= spec.batch.seq - 1:
        yield Diagnostic(
            code="mtp-does-not-fit",
            headline=f"`{name}`: `mtp` predicts {model.mtp.depth} further tokens, but sequences "
            f"have {spec.batch.seq}",
            path=(*path, "mtp", "depth"),
            why="depth k learns the token k + 1 behind each, as far as there is one",
            help=f"write `depth: {max(1, min(4, spec.batch.seq - 2))}`, or a longer `batch.seq`",
            related=(Related(path=("batch", "seq"), label=f"seq {spec.batch.seq}"),),
        )
    if kind_of(model).attending.whole_images:
        yield Diagnostic(
            code="mtp-does-not-fit",
            headline=f"`{name}`: `mtp` cannot learn where tokens of an image see later ones",
            path=(*path, "mtp"),
            at_key=True,
            why="a depth reads the token ahead of each: tokens of an image that see its end would "
            "read the text that they are to predict",
            help="delete `mtp`, or `bidirectional_images`",
            related=(Related(path=(*path, "bidirectional_images"), label="they see later ones"),),
        )
