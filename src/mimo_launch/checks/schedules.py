"""Checks of the schedule kind against the pipeline that it runs.

Decides: which kinds go with which grids, microbatches and virtual stages.
Relies on: `layout` for encoders that run in phases.
Leaves: layers per stage to `widths`, groups of microbatches to `batch`.
"""

from mimo_launch.checks.rule import Findings, next_multiple, no_effect
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.layout.samples import runs_in_phases
from mimo_launch.layout.space import divisors
from mimo_launch.schedule.orders import ORDERS
from mimo_launch.spec.base import LANGUAGE, Axis
from mimo_launch.spec.spec import Spec

_KIND = ("schedule", "kind")
_VIRTUAL = ("schedule", "virtual_stages")
_PP = ("modules", LANGUAGE, "grid", Axis.PP)


def virtual_stages_used(spec: Spec) -> Findings:
    """Only interleaved 1F1B can run several stages of one module on a rank."""
    kind, virtual = spec.schedule.kind, spec.schedule.virtual_stages
    if virtual == 1 or ORDERS[kind].interleaves:
        return
    yield Diagnostic(
        code="virtual-stages-without-interleaved",
        headline=f"`virtual_stages: {virtual}` with `kind: {kind}`",
        path=_VIRTUAL,
        why="only `interleaved` runs several stages of the language model on one rank",
        help="write `kind: interleaved`, or delete `virtual_stages`",
        related=(Related(_KIND, "one stage per rank"),),
    )


def interleaved_has_stages(spec: Spec) -> Findings:
    """Interleaving needs several ranks, and several stages on each."""
    pp, virtual = spec.language.grid.pp, spec.schedule.virtual_stages
    if not ORDERS[spec.schedule.kind].interleaves or (pp > 1 and virtual > 1):
        return
    instead = "write `virtual_stages: 2`, or `kind: 1f1b`" if pp > 1 else "write `kind: 1f1b`"
    yield Diagnostic(
        code="interleaved-without-stages",
        headline=f"`kind: interleaved` with language pp {pp} and {virtual} virtual "
        f"stage{'s' * (virtual > 1)} per rank",
        path=_KIND,
        why="microbatches take turns between the stages of a rank while other ranks work",
        help=instead,
        related=(Related(_PP, f"pp {pp}"),),
    )


def interleaved_runs_whole(spec: Spec) -> Findings:
    """Interleaving runs microbatches in groups that are a multiple of pp.

    Graphs other than stars need no such groups: all work has one order there.
    """
    if not ORDERS[spec.schedule.kind].interleaves or not spec.is_star:
        return
    pp, total = spec.language.grid.pp, spec.schedule.microbatches
    k = spec.schedule.encoder_microbatches
    in_phases = any(runs_in_phases(spec, name) for name in spec.encoders)
    together = k if in_phases and k is not None else total
    if together % pp == 0:
        return
    is_group = together != total
    key = "encoder_microbatches" if is_group else "microbatches"
    legal = [each for each in divisors(total) if each % pp == 0]
    fits = legal[0] if is_group and legal else next_multiple(together, pp)
    yield Diagnostic(
        code="interleaved-microbatches-uneven",
        headline=f"`{key}` {together} is not a multiple of language pp {pp}",
        path=("schedule", key),
        why="under `interleaved`, each rank runs pp microbatches through one of its stages, then "
        "through the next" + (", and the pipeline drains after each group" if is_group else ""),
        help=f"write `{key}: {fits}`, or `kind: 1f1b`",
        related=(Related(_PP, f"pp {pp}"),),
    )


def bubbles_are_filled(spec: Spec) -> Findings:
    """Bubble filling needs a pipeline and an encoder on its ranks (a warning)."""
    if not ORDERS[spec.schedule.kind].fills_bubbles:
        return
    # In graphs other than stars it also sets how far encoders on shared ranks run ahead.
    is_piped = spec.language.grid.pp > 1 or not spec.is_star
    if is_piped and any(runs_in_phases(spec, name) for name in spec.encoders):
        return
    yield no_effect(
        _KIND,
        "`kind: bubble_filling` does nothing: "
        + ("no encoder shares ranks with language" if is_piped else "language has pp 1"),
        "it places the work of encoders into the idle time of the language pipeline that runs "
        "on the same ranks; without that it is 1f1b",
        "write `kind: 1f1b`",
    )


def bubbles_need_no_gather(spec: Spec, name: str) -> Findings:
    """Replicas at different places of a pipeline cannot gather weights at every forward.

    In graphs other than stars they can: all replicas run in one order.
    """
    module = spec.modules[name]
    fills = ORDERS[spec.schedule.kind].fills_bubbles and spec.language.grid.pp > 1 and spec.is_star
    replicas = module.grid.dp * module.grid.cp
    if name == LANGUAGE or not fills or not runs_in_phases(spec, name):
        return
    if not module.fsdp.every_backward or replicas == 1:
        return
    yield Diagnostic(
        code="full-sharding-in-bubbles",
        headline=f"`sharding: full` of `{name}` with `kind: bubble_filling`",
        path=("modules", name, "sharding"),
        why=f"its {replicas} shards would be gathered at every forward, by ranks that are idle at "
        "different times",
        help="write `sharding: optimizer`, or `kind: 1f1b`",
        related=(Related(_KIND, "the encoder runs in idle slots"),),
    )
