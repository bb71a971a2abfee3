"""Whether a spec of many ranks is proved as itself: what its small spec loses without saying so."""

from itertools import combinations

from mimo_launch.checks.all_checks import check
from mimo_launch.layout.layout import build_layout
from mimo_launch.schedule.data_flow import fills_bubbles
from mimo_launch.spec.base import AXES, Axis, rank_range
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.coverage import not_proved


def silent_losses(made: Spec, small: Spec) -> list[str]:
    """Return what is wrong with a reduced spec: findings, and what it loses unsaid."""
    wrong = [finding.headline for finding in check(small) if finding.is_error]
    if wrong:
        return wrong
    said = {(remark.section, remark.key) for remark in not_proved(made, small)}
    pairs = [*_differing(_relations(made), _relations(small))]
    pairs += [(*fact, *rest) for fact, *rest in _differing(_sizes(made), _sizes(small))
              if fact not in said]  # fmt: skip
    return [" ".join(map(str, each)) for each in pairs]


def _differing(before, after):
    for fact in before:
        if before[fact] != after.get(fact):
            yield fact, before[fact], after.get(fact)


def _relations(made: Spec) -> dict[str, object]:
    """Return what no proof may lose, from sets of ranks and from the layout that is run."""
    layout, facts = build_layout(made), dict[str, object]()
    ranks = {f"`{name}`": set(module.rank_range) for name, module in made.modules.items()}
    if made.idle_ranks is not None:
        ranks["idle"] = set(rank_range(made.idle_ranks))
    for (one, mine), (other, theirs) in combinations(ranks.items(), 2):
        starts, ends = min(mine) - min(theirs), max(mine) - max(theirs)
        orders = [(way > 0) - (way < 0) for way in (starts, ends)]
        facts[f"ranks of {one} and {other}"] = bool(mine & theirs), orders
    for module in layout.modules:
        above = {axis for axis in AXES if module.grid.size(axis) > 1}
        facts[f"axes of `{module.name}`"] = above, made.modules[module.name].order
    for encoder in layout.encoders:
        groups = layout.samples.microbatches // encoder.group_size
        several = encoder.in_phases and groups > 1
        bubbles = fills_bubbles(layout, encoder)
        facts[f"schedule of `{encoder.name}`"] = encoder.in_phases, several, bubbles
    for bridge in layout.bridges.values():
        sizes = bridge.source_group, bridge.target_group
        several = [1 < size < layout.samples.microbatches for size in sizes]
        facts[f"transfers of `{bridge.name}`"] = several, sizes[0] > sizes[1], sizes[0] < sizes[1]
    return facts


def _sizes(made: Spec) -> dict[tuple[str, str], object]:
    """Return what may be lost if it is said, by section and key of the remark that says it."""
    layout, facts = build_layout(made), dict[tuple[str, str], object]()
    for module in layout.modules:
        for axis in AXES:
            facts[f"modules.{module.name}.grid", axis] = module.grid.size(axis)
    for name, bridge in layout.bridges.items():
        source, target = (layout[each].grid.size("dp") for each in (bridge.source, bridge.target))
        facts["layout", f"fan of `{name}`"] = source / target
    experts = layout.language.experts
    if experts is not None:
        facts["modules.language.experts", "tp"] = experts.size(Axis.EXPERT_TP)
        facts["modules.language.experts", "ep"] = experts.size(Axis.EP)
        facts["layout", "replicas of experts"] = experts.size(Axis.EXPERT_DP) > 1
    return facts
