"""The samples of a step that each replica of an encoder encodes, and the media of split samples.

Decides: the replica of each sample inside an island, and which samples are split: their media
(pictures, videos or clips) go to several replicas.
Relies on: `balance` for islands, the even cut and the heuristic; the StepData for costs.
Leaves: the work of one replica to `replica_views`.

Whole samples are dealt out first. Only if the largest share is then too large are the samples of
several media with the most rows dealt out medium by medium: one of them, two, four, and so on. So
few samples are split, and no share gets larger. No row of an encoder depends on another image, so
this moves terms of sums only, as balancing does. A medium stays whole because it is decoded as a
whole.

# Invariant: a pure function of (Layout, StepData as indexed), so all ranks get the same result, and
# an unreadable sample does not move any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from mimo_launch.layout.balance import GOOD_ENOUGH, balanced, replicas_that_share
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.step_data import StepData
from mimo_launch.spec.base import Axis


class Share(NamedTuple):
    """What a replica encodes for a group: samples, of those in `split` only some media.

    The media of a sample are numbered from the one with the most rows on, in the sample as indexed.
    """

    samples: tuple[int, ...]
    split: Mapping[int, tuple[int, ...]] = MappingProxyType({})

    def rows(self, data: StepData, module: str) -> int:
        """Return the number of rows that a module makes of it, as indexed."""
        found = sum(data.rows(module, [each for each in self.samples if each not in self.split]))
        for sample, numbers in self.split.items():
            rows = data.rows_of_media(module, sample)
            found += sum(rows[number] for number in numbers)
        return found


Shares = tuple[Share, ...]
Even = Sequence[Sequence[int]]
# In place of the number of a medium.
_WHOLE = -1


def shared_out(
    layout: Layout, data: StepData, module: ModuleLayout, island: int
) -> tuple[Shares, ...]:
    """Return the shares of an island, by group and by replica inside the island."""
    inside = replicas_that_share(layout, module)
    islands, groups = module.grid.size(Axis.DP) // inside, range(layout.num_groups(module))
    # By the even cut, the samples of an island follow each other as those of one replica would.
    lines = [layout.samples.encoder(island, islands, each, module.group_size) for each in groups]
    members, share = [*chain.from_iterable(lines)], len(lines[0]) // inside
    evens = [[line[at : at + share] for at in range(0, len(line), share)] for line in lines]
    costs = dict(zip(members, data.rows(module.name, members), strict=True))
    dealer = _Dealer(data, module, costs, [0] * inside)
    if not module.in_phases:
        return tuple(dealer.best(evens))
    found = dict[int, Shares]()
    for group in dealer.largest_first(evens):
        (found[group],) = dealer.best([evens[group]])
        dealer.loads = dealer.added(dealer.loads, found[group])
    return tuple(found[group] for group in groups)


@dataclass
class _Dealer:
    """Deals out the samples of an island, of which `loads` are the rows of earlier groups.

    Between phases replicas wait for each other, so each group is balanced alone, and its largest
    share goes to the replica with the least load. Before a pipeline they wait only at the end of a
    step, so one group can compensate for another.
    """

    data: StepData
    module: ModuleLayout
    costs: Mapping[int, int]
    loads: list[int]
    _media: dict[int, list[int]] = field(default_factory=dict)

    def best(self, evens: Sequence[Even]) -> list[Shares]:
        """Return the shares of some groups: of whole samples, unless the largest is too large."""
        found = self._deal(evens, frozenset())
        most = self._most(found)
        mean = sum(self.costs[each] for even in evens for part in even for each in part)
        enough, number = GOOD_ENOUGH * mean / len(self.loads), 1
        several = self._of_several(evens) if most > enough else []
        while most > enough and number < 2 * len(several):
            again = self._deal(evens, frozenset(several[:number]))
            if (less := self._most(again)) < most:
                found, most = again, less
            number *= 2
        return found

    def largest_first(self, evens: Sequence[Even]) -> list[int]:
        """Return groups with a large sample first: the others compensate for it."""
        largest = [max(map(self.costs.__getitem__, chain.from_iterable(even))) for even in evens]
        return sorted(range(len(evens)), key=lambda group: (-largest[group], group))

    def added(self, loads: Sequence[int], shares: Shares) -> list[int]:
        """Return loads with those of shares."""
        return [load + self._cost(share) for load, share in zip(loads, shares, strict=True)]

    def _cost(self, share: Share) -> int:
        whole = sum(self.costs[each] for each in share.samples if each not in share.split)
        return whole + sum(
            self._rows(sample)[each] for sample, numbers in share.split.items() for each in numbers
        )

    def _rows(self, sample: int) -> list[int]:
        """Return the rows of each medium of a sample."""
        if sample not in self._media:
            self._media[sample] = self.data.rows_of_media(self.module.name, sample)
        return self._media[sample]

    def _most(self, groups: Sequence[Shares]) -> int:
        """Return the most rows of a replica in some groups."""
        return max(sum(map(self._cost, shares)) for shares in zip(*groups, strict=True))

    def _of_several(self, evens: Sequence[Even]) -> list[int]:
        """Return the samples of several media, the one with the most rows first."""
        if not self.module.splits_samples:
            return []
        members = chain.from_iterable(chain.from_iterable(evens))
        several = [each for each in members if len(self._rows(each)) > 1]
        return sorted(several, key=lambda sample: (-self.costs[sample], sample))

    def _deal(self, evens: Sequence[Even], split: frozenset[int]) -> list[Shares]:
        """Return the shares of some groups if the media of the samples in `split` are apart."""
        loads, found = self.loads, dict[int, Shares]()
        for group in self.largest_first(evens):
            found[group] = self._deal_group(evens[group], loads, split)
            loads = self.added(loads, found[group])
        return [found[group] for group in range(len(evens))]

    def _deal_group(self, even: Even, loads: Sequence[int], split: frozenset[int]) -> Shares:
        """Return the shares of one group.

        The even cut is kept if it is as good. Samples without rows stay where it puts them.
        """
        alone, cut = self.module.in_phases, tuple(Share(tuple(part)) for part in even)
        before = [0] * len(even) if alone else loads
        evenly = self.added(before, cut)
        line = [*chain.from_iterable(even)]
        here = split.intersection(line)
        # Already perfect, for example if all samples are alike; or replicas would only exchange
        # their samples.
        if len(set(evenly)) == 1 or (alone and len(even[0]) == 1 and not here):
            return cut
        items = [
            (sample, number)
            for sample in line
            if self.costs[sample]
            for number in (range(len(self._rows(sample))) if sample in here else (_WHOLE,))
        ]
        own = [
            self.costs[sample] if number == _WHOLE else self._rows(sample)[number]
            for sample, number in items
        ]
        shares = balanced(own, before)
        if alone:
            most_first = sorted(shares, key=lambda share: -sum(own[each] for each in share))
            least_first = sorted(range(len(even)), key=lambda replica: loads[replica])
            for replica, share in zip(least_first, most_first, strict=True):
                shares[replica] = share
        # By replica, the media that it takes of each sample.
        taken = [
            {sample: list[int]() for sample in part if not self.costs[sample]} for part in even
        ]
        for mine, share in zip(taken, shares, strict=True):
            for sample, number in (items[each] for each in sorted(share)):
                mine.setdefault(sample, []).append(number)
        made = tuple(self._share(line, here, mine) for mine in taken)
        is_better = sorted(self.added(before, made), reverse=True) < sorted(evenly, reverse=True)
        return made if is_better else cut

    def _share(
        self, line: Sequence[int], split: frozenset[int], taken: Mapping[int, Sequence[int]]
    ) -> Share:
        parts = {
            sample: tuple(numbers)
            for sample, numbers in taken.items()
            if sample in split and len(numbers) < len(self._rows(sample))
        }
        return Share(tuple(sample for sample in line if sample in taken), parts)
