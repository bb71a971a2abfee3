"""Checks whether the ranks fit into the memory of their GPUs or host, and says what to change.

Decides: how far an estimate may exceed the memory before it is an error; which changes are offered,
in the order of what they save.
Relies on: `estimate.estimates` for bytes, and for what a change saves; `all_checks` for legal
changes.
Leaves: showing the findings to `diag.text`; the memory of a host to the callers.
"""

from bisect import bisect_right
from collections.abc import Iterator

from mimo_launch.checks import all_checks
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.diag.quantities import bytes_text, named_ranks, ranks_text
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rank_classes import RankClass
from mimo_launch.estimate.rows import Estimates, MemoryRow
from mimo_launch.layout.space import divisors
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.wording import flow

# Estimates are within 10 % of what is measured: beyond that, the ranks cannot fit.
TOLERANCE = 0.10
MAX_REMEDIES = 3


def memory_findings(estimator: Estimator) -> Iterator[Diagnostic]:
    """Yield a finding for ranks of the same modules that need about the memory of a GPU, or more.

    It is about the ranks that need the most, and names the others.
    """
    if (limit := estimator.spec.gpu_memory) is None:
        return
    by_modules: dict[tuple[str, ...], list[tuple[RankClass, MemoryRow]]] = {}
    for alike, memory in _near(estimator, limit):
        by_modules.setdefault(_names(alike), []).append((alike, memory))
    for found in by_modules.values():
        found.sort(key=lambda each: -each[1].total)
        yield _finding(estimator, found, limit)


def fits(estimator: Estimator) -> bool:
    """Return whether `memory_findings` would yield nothing, without spending time on help."""
    if (limit := estimator.spec.gpu_memory) is None:
        return True
    is_small = estimator.least_bytes <= (1 - TOLERANCE) * limit
    return is_small and not any(_near(estimator, limit))


def _near(estimator: Estimator, limit: int) -> Iterator[tuple[RankClass, MemoryRow]]:
    """Yield the classes of ranks that need about a limit, or more."""
    for alike in estimator.classes:
        memory = estimator.memory(alike)
        if memory.total > (1 - TOLERANCE) * limit:
            yield alike, memory


def _finding(
    estimator: Estimator, found: list[tuple[RankClass, MemoryRow]], limit: int
) -> Diagnostic:
    """Return the finding about classes of ranks; the first class needs the most."""
    (alike, memory), *others = found
    is_error = memory.total > (1 + TOLERANCE) * limit
    near = "close to" if memory.total <= limit else "which may not fit into"
    verdict = f"{near} the {bytes_text(limit)} of a GPU"
    if is_error:
        verdict = f"but a GPU has {bytes_text(limit)}"
    too_many = [rank for ranks, m in others if m.total > limit for rank in ranks.ranks]
    if too_many:
        need = "need" if len(too_many) > 1 else "needs"
        verdict += f"; {named_ranks(sorted(too_many))} {need} more than it has, too"
    holds = " and ".join(f"`{name}` stage {stage}" for name, stage in alike.role)
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "transfers": memory.transfers,
        "the rest": memory.workspace + memory.reserve + memory.device,
    }
    shown = ", ".join(f"{bytes_text(size)} {name}" for name, size in parts.items())
    who = f"{named_ranks(alike.ranks)} ({holds}) need{'s' * (len(alike.ranks) == 1)}"
    nodes = estimator.spec.nodes
    return Diagnostic(
        code="memory-too-small" if is_error else "memory-tight",
        severity=Severity.ERROR if is_error else Severity.WARNING,
        headline=f"{who} about {bytes_text(memory.total)}, {verdict}",
        path=("nodes", "gpu" if nodes is None or nodes.gpu_memory is None else "gpu_memory"),
        why=f"estimated for {estimator.expected.basis}: {shown}",
        help=", or ".join(remedies(estimator, alike, memory)[:MAX_REMEDIES]),
        related=tuple(
            Related(("modules", name), f"on {ranks_text(alike.ranks)}") for name in _names(alike)
        ),
    )


def remedies(estimator: Estimator, alike: RankClass, memory: MemoryRow) -> list[str]:
    """Return changes that save memory on the ranks `alike`, which need `memory`; the best first.

    If some changes leave room for the tolerance, the others are left out; if none does but some
    fit, those that do not fit are left out.
    """
    limit = estimator.spec.gpu_memory or memory.total
    state = memory.weights + memory.gradients + memory.optimizer
    names = " or ".join(f"`{name}`" for name in _names(alike))
    # Twice the ranks, or microbatches of half the size, save half.
    offers = [(state // 2, f"give {names} more tp, pp or dp ranks")]
    if estimator.layout.samples.microbatch_size > 1:
        text = "cut the step into more and smaller microbatches (`schedule.microbatches`)"
        offers.append(((memory.activations + memory.transfers) // 2, text))
    changes = _legal_changes(estimator, alike)
    needed = [(changed.memory(alike).total, text) for changed, text in changes]
    bars = (1 - TOLERANCE) * limit, limit
    met = next((bar for bar in bars if any(total <= bar for total, _ in needed)), memory.total)
    offers += [
        (memory.total - total, f"{text} (then {bytes_text(total)} there)")
        for total, text in needed
        if bytes_text(total) != bytes_text(memory.total) and total < memory.total and total <= met
    ]
    return [text for _, text in sorted(offers, key=lambda offer: -offer[0])]


def _names(alike: RankClass) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name, _ in alike.role))


def _legal_changes(estimator: Estimator, alike: RankClass) -> Iterator[tuple[Estimator, str]]:
    """Yield legal changes that save memory on some ranks.

    First come full recomputation and full sharding of modules that do not use it, moments on the
    host, and for modules that recompute the rest of their activations there; then the largest
    groups of microbatches that are smaller than now, and that leave room if any do.
    """
    spec, layout = estimator.spec, estimator.layout
    for name in _names(alike):
        module = spec.modules[name]
        stays = module.recomputes and not module.offloads
        here = not spec.offloads_moments(name)
        applies = {
            ("recompute", "full"): not module.recomputes,
            ("offload", ("activations", *module.offload)): stays,
            ("offload", (*module.offload, "optimizer")): here,
            ("sharding", "full"): module.grid.dp * module.grid.cp > 1
            and not module.fsdp.every_backward,
        }
        for key, value in (setting for setting, applied in applies.items() if applied):
            other = {**spec.modules, name: module.model_copy(update={key: value})}
            changed = spec.model_copy(update={"modules": other})
            if _is_legal(changed):
                shown = value if isinstance(value, str) else flow(value)
                # A layout has other units of weights under other sharding.
                yield estimator.on(Plan.of(changed)), f"write `{key}: {shown}` for `{name}`"
    ways = (
        ("encoder_microbatches", "encode fewer microbatches of", spec.encoders),
        ("generator_microbatches", "run fewer microbatches of", spec.generators),
    )
    for key, does, modules in ways:
        sizes = {name: layout[name].group_size for name in _names(alike) if name in modules}
        now = max(sizes.values(), default=1)
        legal = [
            n
            for n in divisors(layout.samples.microbatches)
            if n < now and _with_groups(spec, key, n)
        ]
        if legal:
            size, grouped = _largest_that_fits(estimator, alike, key, legal)
            names = " and ".join(f"`{name}`" for name in sizes)
            yield grouped, f"{does} {names} at once (`{key}: {size}`)"


def _with_groups(spec: Spec, key: str, size: int) -> Spec | None:
    """Return a spec with groups of microbatches of a size; None if that is not legal."""
    schedule = spec.schedule.model_copy(update={key: size})
    changed = spec.model_copy(update={"schedule": schedule})
    return changed if _is_legal(changed) else None


def _largest_that_fits(
    estimator: Estimator, alike: RankClass, key: str, sizes: list[int]
) -> tuple[int, Estimator]:
    """Return the largest legal group size that leaves room on some ranks, with its estimator.

    If none does, return the largest of all, since smaller groups mean smaller products.
    """

    def at(size: int) -> Estimator:
        changed = _with_groups(estimator.spec, key, size) or estimator.spec
        return estimator.on(Plan.of(changed))

    bar = (1 - TOLERANCE) * (estimator.spec.gpu_memory or 0)
    # Larger groups never need less.
    number = bisect_right(sizes, bar, key=lambda size: at(size).memory(alike).total)
    best = sizes[(number or len(sizes)) - 1]
    return best, at(best)


def _is_legal(spec: Spec) -> bool:
    return all_checks.is_legal(spec, files=False)


def memory_lacking(
    estimates: Estimates, ranks: range, memory: int, *, have_gpus: bool = False
) -> list[str]:
    """Return why `ranks` cannot share `memory` bytes and what to do; empty if they can.

    Ranks that `have_gpus` need only what is offloaded.
    """
    shares = [
        (len([rank for rank in row.ranks if rank in ranks]), row.memory) for row in estimates.ranks
    ]
    parts = {
        "weights": sum(n * m.weights for n, m in shares),
        "gradients": sum(n * m.gradients for n, m in shares),
        "optimizer": sum(n * m.optimizer for n, m in shares),
        "activations": sum(n * m.activations for n, m in shares),
    }
    offloaded = {"offloaded": sum(n * m.host for n, m in shares)}
    parts = offloaded if have_gpus else parts | offloaded
    needed = sum(parts.values())
    if needed <= (1 + TOLERANCE) * memory:
        return []
    shown = ", ".join(f"{bytes_text(size)} {name}" for name, size in parts.items() if size)
    # Change the two largest parts.
    model = "a smaller `vocab`, `hidden` or `layers`"
    changes = {
        "weights": model,
        "gradients": model,
        "optimizer": model,
        "activations": "a smaller `batch.seq`, or `recompute: full`",
        "offloaded": "`offload: []` of some modules, or `recompute: full` of those that offload",
    }
    largest = sorted(parts, key=lambda name: parts[name], reverse=True)[:2]
    smaller = ", ".join(dict.fromkeys(changes[name] for name in largest))
    return [
        f"error: the {len(ranks)} ranks of this host need about {bytes_text(needed)}, "
        f"but it has {bytes_text(memory)}",
        f"   = why:  estimated for the largest step: {shown}",
        f"   = help: {smaller}, or more hosts",
    ]
