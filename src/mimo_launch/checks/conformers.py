"""Checks of conformers: grids that keep clips whole, sizes of their convolutions.

Decides: what a `conformer` cannot do, because tokens read their neighbours.
Relies on: nothing.
Leaves: libraries of blocks to `backends`, dropout to `adapters`.
"""

from mimo_launch.checks.rule import Findings, next_multiple
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.spec.conformer import ConformerModel
from mimo_launch.spec.spec import Spec

# A token for eight of them.
_MOST_OF_PHI = 8 * 500
_WHY = "its convolutions and scores read the neighbours of a token, so a rank needs whole clips"


def clips_stay_whole(spec: Spec, name: str, model: ConformerModel) -> Findings:
    """The tokens of a clip are not cut over ranks, and no map has an update."""
    module, grid = spec.modules[name], spec.modules[name].grid
    kind = Related(("modules", name, "model", "kind"), f"kind: {model.kind}")
    if grid.cp > 1:
        axes = {"tp": grid.tp, "pp": grid.pp, "dp": grid.dp * grid.cp}
        sizes = ", ".join(f"{axis}: {size}" for axis, size in axes.items() if size > 1)
        yield Diagnostic(
            code="conformer-cannot",
            headline=f"`{name}` cannot cut clips over cp {grid.cp}",
            path=("modules", name, "grid", "cp"),
            why=_WHY,
            help=f"write `grid: {{{sizes}}}`",
            related=(kind,),
        )
    if module.sequence_parallel:
        yield Diagnostic(
            code="conformer-cannot",
            headline=f"`{name}` cannot cut clips over its tp ranks",
            path=("modules", name, "sequence_parallel"),
            why=_WHY,
            help="write `sequence_parallel: false`",
            related=(kind,),
        )
    if grid.pp > 1 and model.distance_bias is not None:
        sizes = ", ".join(
            f"{x}: {n}" for x, n in (("tp", grid.tp), ("dp", grid.dp * grid.pp)) if n > 1
        )
        yield Diagnostic(
            code="conformer-cannot",
            headline=f"`{name}` cannot cut its layers over pp {grid.pp}",
            path=("modules", name, "grid", "pp"),
            why="all its layers share the numbers of `distance_bias`, which one stage holds",
            help=f"write `grid: {{{sizes}}}`",
            related=(kind,),
        )
    if module.adapter is not None:
        yield Diagnostic(
            code="conformer-cannot",
            headline=f"`{name}` cannot have an adapter",
            path=("modules", name, "adapter"),
            why="the blocks of a `conformer` have no updates beside their maps",
            help="delete `adapter`; `frozen: except_projector` trains the projector alone",
            related=(kind,),
        )


def convolutions_have_middles(spec: Spec, name: str, model: ConformerModel) -> Findings:
    """Bands are halved three times, and as many tokens are before the middle one as after it."""
    del spec
    if model.mels % 8:
        yield Diagnostic(
            code="conformer-cannot",
            headline=f"`{name}`: {model.mels} mel bands are not a multiple of 8",
            path=("modules", name, "model", "mels"),
            why="three convolutions halve the bands",
            help=f"write `mels: {next_multiple(model.mels, 8)}`",
        )
    if model.kernel % 2 == 0 and not model.causal:
        yield Diagnostic(
            code="conformer-cannot",
            headline=f"`{name}`: kernel {model.kernel} is an even number",
            path=("modules", name, "model", "kernel"),
            why="a convolution sees as many tokens before its own token as after it",
            help=f"write `kernel: {model.kernel + 1}`",
        )
    if model.sound == "phi4" and model.frames > _MOST_OF_PHI:
        yield Diagnostic(
            code="conformer-cannot",
            headline=f"`{name}`: clips of {model.frames} frames are not cut as in Phi-4 multimodal",
            path=("modules", name, "model", "frames"),
            why=f"there, attention and convolutions begin anew after {_MOST_OF_PHI} frames",
            help=f"write `frames: {_MOST_OF_PHI}`",
        )
