"""Checks of per-layer embeddings: one pipeline stage, and a token of the vocabulary for rows.

Decides: both.
Relies on: `layout.stages` for the cut into stages.
Leaves: nothing.
"""

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.kinds.vocabulary import vocab_size
from mimo_launch.layout.stages import num_stages
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import DecoderModel, Spec

_KEY = "per_layer_embeddings"


def vectors_in_one_stage(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """Per-layer embeddings do not cross the edges of pipeline stages."""
    number = num_stages(spec, name)
    if model.per_layer_embeddings is None or number == 1:
        return
    yield Diagnostic(
        code="per-layer-over-stages",
        headline=f"`{name}`: `{_KEY}` over {number} pipeline stages",
        path=("modules", name, "grid", Axis.PP),
        why="the embeddings of all layers are made of what enters the first one, on its stage",
        help="write `pp: 1`",
        related=(Related(("modules", name, "model", _KEY), "made for all layers at once"),),
    )


def padding_is_in_vocabulary(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """Rows of encoders read the table at a token that it has."""
    own, size = model.per_layer_embeddings, vocab_size(spec)
    if own is None or own.padding < size:
        return
    path = ("modules", name, "model")
    yield Diagnostic(
        code="padding-outside-vocab",
        headline=f"`{name}`: `{_KEY}.padding` {own.padding} is outside the vocabulary of {size} "
        "tokens",
        path=(*path, _KEY, "padding"),
        why="tokens that stand for rows of encoders have the embeddings of this one",
        help=f"write `padding: {size - 1}`, or a larger `vocab`",
        related=(Related((*path, "vocab"), f"{size} tokens, from 0 on"),),
    )
