"""The work of one step as its samples are dealt out on a layout, by module, replica and forward.

Decides: which replicas are looked at, and for which of them the others wait.
Relies on: `layout.step_views`, by which a run deals out samples; `workload` for one forward.
Leaves: seconds to `cost_model`, bytes to `memory_peak`, the choice of steps to
`data.expected_steps`.

The slowest replica decides how long a step takes. Encoders that run between the phases of language
wait for each other in every group, so of each group the largest share counts. Other replicas wait
for each other at the end of a step, so the replica with the most work in a step counts.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import field, replace
from functools import cached_property

from mimo_launch.data.expected_steps import expected_steps
from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.workload import (
    rows_received,
    rows_sent,
    tokens_held,
    workload,
)
from mimo_launch.kinds.layer import Workload
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec

# Samples of one step that are looked at for its time, and for its memory, where the fullest replica
# counts; with more samples, evenly spaced replicas are.
FOR_TIME, FOR_MEMORY = 128, 1024

Forwards = tuple[Workload, ...]


@frozen
class ModuleWork:
    """The work of a module in a step.

    `forwards` are those for which its replicas wait; `total` is all work of `replicas` replicas as
    one forward. Equal work has the same `key`.
    """

    forwards: Forwards
    total: Workload
    replicas: int
    key: Hashable


@frozen(eq=False, slots=False)
class StepWork:
    """The work of the modules of a layout in one step."""

    layout: Layout
    data: StepData
    # Equal work is one object, for all steps that share these.
    same: dict[Hashable, Workload] = field(default_factory=dict)
    most_samples: int = FOR_TIME
    _forwards: dict[tuple[str, int], Forwards] = field(default_factory=dict, init=False)
    _rows: dict[tuple[str, str, int], tuple[int, ...]] = field(default_factory=dict, init=False)

    @cached_property
    def views(self) -> StepViews:
        """The samples of each replica, as a run deals them out, with the places of images."""
        return StepViews(self.layout, self.data)

    @cached_property
    def _outline(self) -> StepViews:
        """The same without places, on which no work depends."""
        return StepViews(self.layout, self.data.outline)

    @property
    def key(self) -> Hashable:
        """A key that steps share if they take the same time."""
        modules = self.layout.modules
        works = (self.slowest(each) for each in modules)
        rows = tuple(map(self.most_rows, self.layout.bridges.values()))
        return tuple(each.key for work in works for each in work), rows, self.data.num_records

    def replicas(self, module: ModuleLayout) -> range:
        """Return the replicas of a module that are looked at, evenly spaced."""
        number = module.grid.size(Axis.DP)
        most = max(1, self.most_samples * number // self.layout.samples.global_batch)
        return range(0, number, -(-number // most))

    def forwards(self, module: ModuleLayout, replica: int) -> Forwards:
        """Return the forwards of a replica in order; equal ones are one object."""
        key = module.name, replica
        if key not in self._forwards:
            made = (
                workload(self._outline, module, replica, forward)
                for forward in range(self.layout.num_groups(module))
            )
            self._forwards[key] = tuple(self.same.setdefault(each.key, each) for each in made)
        return self._forwards[key]

    def tokens_held(self, module: ModuleLayout, replica: int) -> tuple[int, ...]:
        """Return the tokens that a rank of a replica holds in each forward."""
        return tuple(
            tokens_held(self._outline, module, replica, forward)
            for forward in range(self.layout.num_groups(module))
        )

    def slowest(self, module: ModuleLayout) -> Forwards:
        """Return the forwards of a module for which its replicas wait."""
        of_replicas = [self.forwards(module, each) for each in self.replicas(module)]
        if module.in_phases:
            return tuple(max(group, key=_size) for group in zip(*of_replicas, strict=True))
        return max(of_replicas, key=_size_of_all)

    def work(self, module: ModuleLayout) -> ModuleWork:
        """Return the work of a module, all of it that of the replicas that are looked at."""
        forwards, replicas = self.slowest(module), self.replicas(module)
        total = merged([w for each in replicas for w in self.forwards(module, each)])
        key = tuple(each.key for each in forwards), total.key, len(replicas)
        return ModuleWork(forwards, total, len(replicas), key)

    def forwards_on(self, module: ModuleLayout, rank: int) -> Forwards:
        """Return the forwards of the replica that a rank belongs to."""
        return self.forwards(module, module.grid.index(Axis.DP, rank))

    def sent(self, bridge: Bridge, replica: int) -> tuple[int, ...]:
        """Return the rows that a rank of a replica of a bridge's source sends in each transfer."""
        return self._of_transfers(rows_sent, bridge, replica)

    def received(self, bridge: Bridge, replica: int) -> tuple[int, ...]:
        """Return the rows that a rank of a replica of its target receives in each transfer."""
        return self._of_transfers(rows_received, bridge, replica)

    def no_rows(self, bridge: Bridge) -> tuple[int, ...]:
        """Return 0 for each transfer of a bridge."""
        return (0,) * (self.layout.samples.microbatches // bridge.group_size)

    @cached_property
    def texts(self) -> tuple[float, float]:
        """Texts that a rank of language reads, and their tokens, the mean of its replicas."""
        language, found = self.layout.language, list[int]()
        replicas = self.replicas(language)
        for replica in replicas:
            for microbatch in range(self.layout.num_groups(language)):
                found += self._outline.language(replica, microbatch).samples
        texts, tokens = self.data.texts(found)
        return texts / len(replicas), max(0, tokens) / len(replicas)

    def most_rows(self, bridge: Bridge) -> tuple[int, ...]:
        """Return the most rows that a rank sends or receives in each transfer of a bridge."""
        source, target = self.layout[bridge.source], self.layout[bridge.target]
        sent = [self.sent(bridge, each) for each in self.replicas(source)]
        received = [self.received(bridge, each) for each in self.replicas(target)]
        return tuple(map(max, zip(*sent, *received, strict=True)))

    def _of_transfers(
        self, of: Callable[[StepViews, Bridge, int, int], int], bridge: Bridge, replica: int
    ) -> tuple[int, ...]:
        key = of.__name__, bridge.name, replica
        if key not in self._rows:
            numbers = range(len(self.no_rows(bridge)))
            self._rows[key] = tuple(of(self._outline, bridge, replica, each) for each in numbers)
        return self._rows[key]


def first_work(spec: Spec, layout: Layout) -> StepWork:
    """Return the work of the first step that stands for a run."""
    return StepWork(layout, expected_steps(spec, layout).sampled[0])


def merged(works: Sequence[Workload]) -> Workload:
    """Return one forward with all of the work of some; their operations add up."""
    times = Counter(map(id, works))
    found = [(each, times[id(each)]) for each in {id(each): each for each in works}.values()]

    def counted(name: str) -> Counter[int]:
        total: Counter[int] = Counter()
        for each, number in found:
            for length, many in getattr(each, name).items():
                total[length] += many * number
        return total

    def added(numbers: Iterable[int]) -> int:
        return sum(each * number for each, (_, number) in zip(numbers, found, strict=True))

    return replace(
        works[0],
        spans=counted("spans"),
        windows=counted("windows"),
        blocks=counted("blocks"),
        held=added(each.held for each, _ in found),
        extra_tokens=added(each.extra_tokens for each, _ in found),
        rows=added(each.rows for each, _ in found),
        reads=tuple(map(added, zip(*(each.reads for each, _ in found), strict=True))),
    )


def _size(work: Workload) -> tuple[int, int]:
    """Return how large a forward is: its tokens with padding, then its pairs of tokens."""
    return work.held, sum(length**2 * number for length, number in work.spans.items())


def _size_of_all(works: Forwards) -> tuple[int, int]:
    sizes = [_size(each) for each in works]
    return sum(held for held, _ in sizes), sum(pairs for _, pairs in sizes)
