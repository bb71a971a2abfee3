"""Which encoders run between the phases of language; how many microbatches modules take at once.

Decides: both, from the ranks only.
Relies on: the spec's types only.
Leaves: the order of work to `schedule`.
"""

from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import ModuleSpec, Spec


def runs_in_phases(spec: Spec, encoder: str) -> bool:
    """Return whether an encoder runs between language phases rather than in front of its pipeline.

    It does if it has a rank in common with language. So do encoders that share ranks with each
    other if one of them has several stages: in a pipeline the order of their stages would differ
    between ranks, and their collectives would wait for each other.
    """
    modules = spec.modules
    upstream = [n for n in spec.encoders if not shares_ranks(spec, n)]
    if encoder not in upstream:
        return True
    cluster, found = {encoder}, [encoder]
    while found:
        one = found.pop()
        more = [n for n in upstream if n not in cluster and _overlap(modules[n], modules[one])]
        cluster.update(more)
        found += more
    return len(cluster) > 1 and any(modules[name].grid.pp > 1 for name in cluster)


def shares_ranks(spec: Spec, name: str) -> bool:
    """Return whether a module has a rank in common with language."""
    return _overlap(spec.modules[name], spec.language)


def _overlap(one: ModuleSpec, other: ModuleSpec) -> bool:
    mine, theirs = one.rank_range, other.rank_range
    return mine.start < theirs.stop and theirs.start < mine.stop


def group_size(spec: Spec, name: str) -> int:
    """Return k, the microbatches that a module works on at once."""
    if name in spec.generators:
        return (spec.schedule.generator_microbatches or 1) if shares_ranks(spec, name) else 1
    if name == LANGUAGE or not runs_in_phases(spec, name):
        return 1
    return spec.schedule.encoder_microbatches or spec.schedule.microbatches
