"""What to change in a spec so that a rank needs less memory.

Decides: which changes are offered, and in which order: that which saves most first.
Relies on: `estimate.estimates` for what a change saves, `checks.all_checks` for changes that are
legal.
Leaves: how many are shown to `memory`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mimo_launch.checks import all_checks
from mimo_launch.estimate.estimates import Estimator, RankClass
from mimo_launch.estimate.rows import MemoryRow
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.model import Spec


def remedies(estimator: Estimator, alike: RankClass, memory: MemoryRow) -> list[str]:
    """Return what to change where the ranks `alike` need `memory`, that which saves most first."""
    state = memory.weights + memory.gradients + memory.optimizer
    names = " or ".join(f"`{name}`" for name in _names(alike))
    # Twice the ranks, or microbatches of half the size, leave half.
    offers = [(state // 2, f"give {names} more tp, pp or dp ranks")]
    if estimator.layout.samples.microbatch_size > 1:
        text = "cut the step into more and smaller microbatches (`schedule.microbatches`)"
        offers.append(((memory.activations + memory.transfers) // 2, text))
    for changed, text in (*_settings(estimator, alike), *_smaller_groups(estimator, alike)):
        saved = memory.total - changed.memory(alike).total
        if saved > 0:
            offers.append((saved, text))
    return [text for _, text in sorted(offers, key=lambda offer: -offer[0])]


def _names(alike: RankClass) -> list[str]:
    return list(dict.fromkeys(name for name, _ in alike.role))


def _settings(estimator: Estimator, alike: RankClass) -> Iterator[tuple[Estimator, str]]:
    """Yield modules that recompute, or shard everything, where they do not yet."""
    for name in _names(alike):
        module = estimator.spec.modules[name]
        for key, applies in (("recompute", True), ("sharding", module.grid.dp > 1)):
            if not applies or getattr(module, key) == "full":
                continue
            changed = module.model_copy(update={key: "full"})
            modules = {**estimator.spec.modules, name: changed}
            spec = estimator.spec.model_copy(update={"modules": modules})
            if _is_legal(spec):
                yield replace(estimator, spec=spec), f"write `{key}: full` for `{name}`"


def _smaller_groups(estimator: Estimator, alike: RankClass) -> Iterator[tuple[Estimator, str]]:
    """Yield the largest group of microbatches below the present one that encoders can work on."""
    spec, layout = estimator.spec, estimator.layout
    sizes = {name: layout[name].group_size for name in _names(alike) if layout[name].in_phases}
    for size in range(max(sizes.values(), default=1) - 1, 0, -1):
        changed = _with_schedule(spec, encoder_microbatches=size)
        if layout.samples.microbatches % size or not _is_legal(changed):
            continue
        names = " and ".join(f"`{name}`" for name in sizes)
        text = f"encode fewer microbatches of {names} at once (`encoder_microbatches: {size}`)"
        yield Estimator.of(Plan.of(changed), estimator.constants), text
        return


def _with_schedule(spec: Spec, **update: Any) -> Spec:
    return spec.model_copy(update={"schedule": spec.schedule.model_copy(update=update)})


def _is_legal(spec: Spec) -> bool:
    return not any(found.is_error for found in all_checks.check(spec))
