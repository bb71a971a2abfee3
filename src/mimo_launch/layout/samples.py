"""The division of work: samples of replicas, groups of microbatches, forwards along a bridge.

Decides: ownership of samples, as one formula for fan-in, one-to-one and fan-out; which encoders run
between the phases of language, and the group size of each module, from the ranks only; the names of
bridges, and the forwards at both ends that a transfer connects.
Relies on: the spec's types; divisibility, proved by `checks`.
Leaves: moving samples among encoder replicas to `balance`, rows inside a sample to `row_owners`,
the rows of a transfer to `bridge_routing`, the order of work to `schedule`.

Language replica d owns a contiguous share of the step's samples, cut into microbatches of `mbs`:
sample (d, j, i) has index (d * microbatches + j) * mbs + i. Encoders run on groups of k
consecutive microbatches; inside a group the samples of all replicas, in (d, j, i) order, are cut
evenly over the encoder's dp.
"""

from typing import TYPE_CHECKING

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import ModuleSpec, Spec

if TYPE_CHECKING:
    from mimo_launch.layout.step_data import Int64s


@frozen
class SampleMap:
    """Ownership of the samples of one step."""

    global_batch: int
    replicas: int
    microbatches: int

    @property
    def microbatch_size(self) -> int:
        """Samples in one microbatch of one language replica."""
        return self.global_batch // (self.replicas * self.microbatches)

    def language(self, replica: int, microbatch: int) -> range:
        """Return the samples of one microbatch of one language replica."""
        size = self.microbatch_size
        start = (replica * self.microbatches + microbatch) * size
        return range(start, start + size)

    def share(self, num_replicas: int, group_size: int) -> int:
        """Return how many samples of one group an encoder replica gets by the even cut."""
        return self.replicas * group_size * self.microbatch_size // num_replicas

    def encoder(
        self, replica: int, num_replicas: int, group: int, group_size: int
    ) -> tuple[int, ...]:
        """Return the samples of one group that one encoder replica gets by the even cut."""
        size, share = self.microbatch_size, self.share(num_replicas, group_size)
        per_language, of_language = group_size * size, self.microbatches * size
        samples, position, end = list[int](), replica * share, (replica + 1) * share
        while position < end:
            language, inside = divmod(position, per_language)
            number = min(per_language - inside, end - position)
            first = language * of_language + group * per_language + inside
            samples += range(first, first + number)
            position += number
        return tuple(samples)

    def of_group(self, group: int, group_size: int) -> "Int64s":
        """Return the samples of one group of all language replicas, in the order of the cut."""
        import numpy as np

        microbatches = np.arange(self.global_batch).reshape(self.replicas, self.microbatches, -1)
        here = slice(group * group_size, (group + 1) * group_size)
        return microbatches[:, here].reshape(-1)

    def locate(self, sample: int) -> tuple[int, int, int]:
        """Return (replica, microbatch, item) of a sample."""
        slot, item = divmod(sample, self.microbatch_size)
        replica, microbatch = divmod(slot, self.microbatches)
        return replica, microbatch, item


def runs_in_phases(spec: Spec, encoder: str) -> bool:
    """Return whether an encoder runs between language phases rather than before the pipeline.

    It does if it has a rank in common with language. So do encoders that share ranks with each
    other if one of them has several stages: in a pipeline the order of their stages would differ
    between ranks, and their collectives would deadlock.
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


def grouped_encoders(spec: Spec) -> list[str]:
    """Return the encoders to which `encoder_microbatches` applies.

    These are the encoders in phases if there are any: encoders upstream of them run inside a phase,
    where larger groups would leave nothing to overlap.
    """
    in_phases = [name for name in spec.encoders if runs_in_phases(spec, name)]
    return in_phases or list(spec.encoders)


def group_size(spec: Spec, name: str) -> int:
    """Return k, the number of microbatches in a group of a module."""
    if name in spec.generators:
        return (spec.schedule.generator_microbatches or 1) if shares_ranks(spec, name) else 1
    if name not in grouped_encoders(spec):
        return 1
    own = spec.schedule.microbatches if runs_in_phases(spec, name) else 1
    return spec.schedule.encoder_microbatches or own


@frozen
class Bridge:
    """The path of rows from one module to another that reads them.

    A forward of the source is on `source_group` microbatches, a forward of the target on
    `target_group`; the smaller divides the larger. A transfer covers the larger number.
    """

    source: str
    target: str
    source_group: int
    target_group: int

    @property
    def name(self) -> str:
        """The source, followed by the target unless that is language."""
        return self.source if self.target == LANGUAGE else f"{self.source}>{self.target}"

    @property
    def group_size(self) -> int:
        """Number of microbatches of one transfer."""
        return max(self.source_group, self.target_group)

    def of_source(self, forward: int) -> int:
        """Return the transfer that takes the rows of a forward of the source."""
        return forward * self.source_group // self.group_size

    def of_target(self, forward: int) -> int:
        """Return the transfer that brings the rows of a forward of the target."""
        return forward * self.target_group // self.group_size

    def sources(self, transfer: int) -> range:
        """Return the forwards of the source that make the rows of a transfer."""
        number = self.group_size // self.source_group
        return range(transfer * number, (transfer + 1) * number)

    def targets(self, transfer: int) -> range:
        """Return the forwards of the target that read the rows of a transfer."""
        number = self.group_size // self.target_group
        return range(transfer * number, (transfer + 1) * number)
