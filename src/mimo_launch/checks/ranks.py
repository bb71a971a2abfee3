"""Checks of modules, grids, ranks and their GPUs.

Decides: which ranks a spec may name, and how a grid must fill them; what memory a GPU can have.
Relies on: `RankGrid` for groups.
Leaves: what the ranks compute to the other files.
"""

from contextlib import suppress
from math import prod

from mimo_launch.checks.rule import Findings, no_effect
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.diag.quantities import bytes_text
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.rank_grid import RankGrid
from mimo_launch.spec.base import (
    AXES,
    LANGUAGE,
    Axis,
    MissingPartError,
    num_bytes,
    rank_range,
    rank_text,
)
from mimo_launch.spec.near_words import close_matches
from mimo_launch.spec.spec import ModuleSpec, Spec
from mimo_launch.spec.values import GPUS

# With more ranks than this, groups are not listed one by one just for a warning.
_MANY_RANKS = 100_000
# The nominal memory of a GPU and the memory that CUDA reports differ by less.
_ROUNDED = 0.10


def language_present(spec: Spec) -> Findings:
    """Some module computes the loss."""
    if LANGUAGE in spec.modules:
        return
    near = []
    for name, module in spec.modules.items():
        with suppress(MissingPartError):
            if kind_of(module.model).reads_tokens:
                near.append(name)
    near = near or close_matches(LANGUAGE, spec.modules)
    yield Diagnostic(
        code="no-language-module",
        headline="no module is called `language`",
        path=("modules", near[0]) if near else ("modules",),
        at_key=True,
        why="`language` computes the loss; every other module is an encoder that feeds it",
        help=f"rename `{near[0]}` to `language`"
        if near
        else "add `language:` with a decoder model",
    )


def kind_fits_role(spec: Spec, name: str) -> Findings:
    """`language` is a language model, and every other module is an encoder."""
    model = spec.modules[name].model
    if kind_of(model).reads_tokens == (name == LANGUAGE):
        return
    kind = model.kind
    if kind_of(model).is_custom:
        yield Diagnostic(
            code="not-supported-yet",
            headline=f"`{kind}` cannot be the language model: classes of your own are encoders",
            path=("modules", name, "model", "kind"),
            why="the protocol for language models from other packages is not settled",
            help="write `kind: decoder`, or rename the module",
        )
        return
    role, wanted = ("the language module", "decoder") if name == LANGUAGE else ("an encoder", "vit")
    yield Diagnostic(
        code="wrong-kind-for-role",
        headline=f"`{name}` is {role}, and `kind: {kind}` cannot be one",
        path=("modules", name, "model", "kind"),
        why="the module called `language` computes the loss; every other module feeds it rows",
        help=f"write `kind: {wanted}`, or rename the module",
    )


def grid_fills_ranks(spec: Spec, name: str) -> Findings:
    """Tp * cp * pp * dp is the number of ranks."""
    module = spec.modules[name]
    grid, num_ranks = module.grid, len(module.rank_range)
    if grid.num_ranks == num_ranks:
        return
    sizes = {Axis.TP: grid.tp, Axis.CP: grid.cp, Axis.PP: grid.pp, Axis.DP: grid.dp}
    heads = None
    with suppress(MissingPartError):
        heads = kind_of(module.model).cuts.heads
    fits = []
    for axis in (Axis.DP, Axis.TP):
        size, left = divmod(num_ranks, prod(n for other, n in sizes.items() if other != axis))
        if left == 0 and (axis == Axis.DP or heads is None or heads % size == 0):
            fits.append(f"`{axis}: {size}`")
    start = module.rank_range.start
    fits.append(f"`ranks: {rank_text(range(start, start + grid.num_ranks))}`")
    shown = " * ".join(f"{axis} {size}" for axis, size in sizes.items())
    held = f"{num_ranks} rank{'s' * (num_ranks != 1)}"
    yield Diagnostic(
        code="grid-size-mismatch",
        headline=f"`{name}`: {shown} = {grid.num_ranks}, but it has {held}",
        path=("modules", name, "grid"),
        at_key=True,
        why="each rank of a module has exactly one place on its grid",
        help=f"these fit: {', '.join(fits)}",
        related=(Related(("modules", name, "ranks"), held),),
    )


def order_is_permutation(spec: Spec, name: str) -> Findings:
    """`order` names each axis once."""
    order = spec.modules[name].order
    if sorted(order) == sorted(AXES):
        return
    twice = [axis for axis in AXES if order.count(axis) > 1]
    absent = [axis for axis in AXES if axis not in order]
    faults = [f"`{axis}` is repeated" for axis in twice] + [
        f"`{axis}` is missing" for axis in absent
    ]
    yield Diagnostic(
        code="order-not-permutation",
        headline=f"`{name}`: `order` must name each of tp, cp, dp, pp once; {', '.join(faults)}",
        path=("modules", name, "order"),
        why="the order decides the place of a rank on the grid; axes of size 1 must be named, too",
        help="write `order: [tp, cp, dp, pp]`",
    )


def shards_divide_replicas(spec: Spec, name: str) -> Findings:
    """`shard_over` divides dp, and leaves more than one copy."""
    module, path = spec.modules[name], ("modules", name, "shard_over")
    over, dp = module.shard_over, module.grid.dp
    if over is None:
        return
    if dp % over:
        fits = max(n for n in range(1, min(over, dp) + 1) if dp % n == 0)
        yield Diagnostic(
            code="shard-over-unlike-dp",
            headline=f"`{name}`: {dp} replicas are not copies of {over}",
            path=path,
            why="every copy of the weights is held by the same number of replicas (dp)",
            help=f"write `shard_over: {fits}`, or a dp that {over} divides",
        )
    elif over == dp:
        yield no_effect(
            path,
            f"`shard_over` of `{name}` does nothing, because dp is {dp}",
            "all replicas hold one copy of the weights together",
        )


def cp_inside_dp(spec: Spec, name: str) -> Findings:
    """Cp varies faster than dp."""
    order = spec.modules[name].order
    if order.index(Axis.CP) < order.index(Axis.DP):
        return
    fixed: list[str] = [axis for axis in order if axis != "cp"]
    fixed.insert(fixed.index(Axis.DP), Axis.CP)
    yield Diagnostic(
        code="cp-after-dp",
        headline=f"`{name}`: `order` puts cp after dp",
        path=("modules", name, "order"),
        why="by convention a replica's context-parallel ranks are adjacent, and other tools that "
        "interpret ranks or read checkpoints rely on it",
        help=f"write `order: [{', '.join(fixed)}]`",
    )


def idle_ranks_idle(spec: Spec, name: str) -> Findings:
    """No module uses a rank that is declared idle."""
    if spec.idle_ranks is None:
        return
    mine, idle = spec.modules[name].rank_range, rank_range(spec.idle_ranks)
    both = range(max(mine.start, idle.start), min(mine.stop, idle.stop))
    if not both:
        return
    yield Diagnostic(
        code="idle-rank-in-use",
        headline=f"`idle_ranks` names {_names(both)}, which `{name}` uses",
        path=("idle_ranks",),
        why="idle ranks hold no module",
        help="delete `idle_ranks`, or name only ranks that no module has",
        related=(Related(("modules", name, "ranks"), f"`{name}` is here"),),
    )


def no_holes(spec: Spec) -> Findings:
    """Each rank below the highest one holds a module or is declared idle."""
    spans = sorted(
        [(module.rank_range, name) for name, module in spec.modules.items()]
        + ([(rank_range(spec.idle_ranks), "")] if spec.idle_ranks is not None else []),
        key=lambda span: (span[0].start, span[0].stop),
    )
    holes, end = [], 0
    for ranks, name in spans:
        if ranks.start > end:
            holes.append((range(end, ranks.start), name))
        end = max(end, ranks.stop)
    for hole, name in holes:
        if len(holes) == 1 and spec.idle_ranks is None:
            help_ = f"add `idle_ranks: {rank_text(hole)}`, or give the ranks to a module"
        else:
            help_ = "move the modules together; `idle_ranks` names one range only"
        yield Diagnostic(
            code="unlisted-idle-rank",
            headline=f"no module uses {_names(hole)}, and `idle_ranks` does not list it",
            path=("modules", name, "ranks") if name else ("idle_ranks",),
            why="a process would be started that does nothing; more often a range is wrong",
            help=help_,
        )


def groups_inside_nodes(spec: Spec, name: str) -> Findings:
    """Tp and cp groups do not cross a host (a warning)."""
    if spec.nodes is None:
        return
    module, gpus = spec.modules[name], spec.nodes.gpus
    if len(module.rank_range) > _MANY_RANKS:
        return
    grid = RankGrid.of(module)
    for axis in (Axis.TP, Axis.CP):
        if grid.size(axis) == 1:
            continue
        # The first rank of the first group that crosses; a list of all groups takes long.
        last = (grid.size(axis) - 1) * grid.strides[axis]
        firsts = grid.slice(**{axis: 0})
        first = next((each for each in firsts if each // gpus != (each + last) // gpus), None)
        if first is None:
            continue
        crossing = grid.group_of(first, axis)
        ranks = ", ".join(map(str, crossing[:8])) + (", ..." if len(crossing) > 8 else "")
        yield Diagnostic(
            code="group-crosses-nodes",
            severity=Severity.WARNING,
            headline=f"`{name}`: the {axis} group of ranks {ranks} crosses hosts of {gpus} ranks",
            path=("modules", name, "grid", axis),
            why=f"every layer waits for {axis} traffic, which is many times slower between hosts",
            help=_inside_host(module, axis, gpus),
            related=(Related(("nodes", "gpus"), f"{gpus} ranks per host"),),
        )


def _inside_host(module: ModuleSpec, axis: str, gpus: int) -> str:
    """Return what to choose so that the groups of an axis lie inside hosts of `gpus` ranks."""
    inner = module.order[: module.order.index(axis) + 1]
    sizes = [f"{each} {getattr(module.grid, each)}" for each in inner]
    together = prod(getattr(module.grid, each) for each in inner)
    if gpus % together == 0:
        return f"choose ranks that start at a multiple of {together}"
    product = f"{' * '.join(sizes)} = {together}" if len(sizes) > 1 else sizes[0]
    return (
        f"choose sizes whose product divides {gpus} (a group of {axis} lies within "
        f"{product} ranks), and ranks that start at a multiple of it"
    )


def gpu_holds_memory(spec: Spec) -> Findings:
    """A GPU that is named has the memory that the spec gives; a rank may have less of it."""
    nodes = spec.nodes
    if nodes is None or nodes.gpu is None or nodes.gpu_memory is None:
        return
    size, has = num_bytes(nodes.gpu_memory), GPUS[nodes.gpu].memory
    if size <= (1 + _ROUNDED) * has:
        return
    larger = [f"`gpu: {name}`" for name, gpu in GPUS.items() if size <= (1 + _ROUNDED) * gpu.memory]
    others = f", or name another GPU: {', '.join(larger)}" if larger else ""
    yield Diagnostic(
        code="gpu-memory-beyond-gpu",
        headline=f"`gpu_memory` is {nodes.gpu_memory}, but `{nodes.gpu}` has {bytes_text(has)}",
        path=("nodes", "gpu_memory"),
        why="a plan that fits into memory that is not there would fail in its first step",
        help=f"delete `gpu_memory`{others}",
        related=(Related(("nodes", "gpu"), GPUS[nodes.gpu].name),),
    )


def world_fits(spec: Spec, world: int) -> Findings:
    """The job has exactly the ranks that the spec names."""
    names = {name: module.rank_range for name, module in spec.modules.items()}
    for name, ranks in names.items():
        if ranks.stop > world:
            yield Diagnostic(
                code="ranks-beyond-world",
                headline=f"`{name}` needs rank {ranks.stop - 1}; "
                f"the job has ranks 0 to {world - 1}",
                path=("modules", name, "ranks"),
                why="every rank that a module names is a process of the job",
                help=f"start {world_size(spec)} processes, or move `{name}` to lower ranks",
            )
    needed = world_size(spec)
    if needed == world or max(ranks.stop for ranks in names.values()) > world:
        return
    last = max(names, key=lambda name: names[name].stop)
    yield Diagnostic(
        code="world-size-mismatch",
        headline=f"the spec names ranks 0 to {needed - 1}, but the job has {world} processes",
        path=("idle_ranks",) if needed > world else ("modules", last, "ranks"),
        why="a process without a module would wait for the others until the end",
        help=f"start {needed} processes"
        + (
            f", or add `idle_ranks: {rank_text(range(needed, world))}`"
            if needed < world and spec.idle_ranks is None
            else ""
        ),
    )


def _names(ranks: range) -> str:
    return f"rank {rank_text(ranks)}" if len(ranks) == 1 else f"ranks {rank_text(ranks)}"
