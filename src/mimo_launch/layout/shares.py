"""The samples of a step that each replica of an encoder encodes, and the media of split samples.

Decides: the replica of each sample inside an island, and which samples are split: their media
(pictures, videos or clips) go to several replicas.
Relies on: `balance` for islands, the even cut and the heuristic; the StepData for costs.
Leaves: the work of one replica to `replica_views`.

Whole samples are dealt out first. Only if the largest share is then too large are samples of
several media dealt out medium by medium: those that are too large for any share or else the largest
one, then twice as many, and so on. So few samples are split, and no share gets larger. No row of an
encoder depends on another image, so this moves terms of sums only, as balancing does. A medium
stays whole because it is decoded as a whole.

# Invariant: a pure function of (Layout, StepData as indexed), so all ranks get the same result, and
# an unreadable sample does not move any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import add
from types import MappingProxyType
from typing import NamedTuple, Protocol

from mimo_launch.layout.balance import GOOD_ENOUGH, balanced, replicas_that_share
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.spec.base import Axis


class Share(NamedTuple):
    """What a replica encodes for a group: samples, of those in `split` only some media.

    The media of a sample are numbered from the one with the most rows on, in the sample as indexed.
    `rows` are those of all of it, as indexed.
    """

    samples: tuple[int, ...]
    rows: int
    split: Mapping[int, tuple[int, ...]] = MappingProxyType({})


Shares = tuple[Share, ...]
# In place of the number of a medium.
_WHOLE = -1


class Costs(Protocol):
    """What is known of samples to deal them out; see `StepData`, which has it of all of a step."""

    def rows(self, module: str, samples: Sequence[int]) -> list[int]:
        """Return the number of rows that a module makes of each of these samples, as indexed."""

    def rows_of_media(self, module: str, sample: int) -> list[int]:
        """Return the rows of each medium of a sample, the most first, as indexed."""


def shared_out(
    layout: Layout, data: Costs, module: ModuleLayout, island: int
) -> tuple[Shares, ...]:
    """Return the shares of an island, by group and by replica inside the island."""
    inside = replicas_that_share(layout, module)
    islands, groups = module.grid.size(Axis.DP) // inside, range(layout.num_groups(module))
    # By the even cut, the samples of an island follow each other as those of one replica would.
    lines = [layout.samples.encoder(island, islands, each, module.group_size) for each in groups]
    members, share = [*chain.from_iterable(lines)], len(lines[0]) // inside
    costs = dict(zip(members, data.rows(module.name, members), strict=True))
    dealer = _Dealer(data, module, costs, [0] * inside)
    evens = [
        tuple(dealer.whole(line[at : at + share]) for at in range(0, len(line), share))
        for line in lines
    ]
    if not module.in_phases:
        return tuple(dealer.best(evens))
    found = dict[int, Shares]()
    for group in dealer.largest_first(evens):
        (found[group],) = dealer.best([evens[group]])
        dealer.loads = [*map(add, dealer.loads, _rows_of(found[group]))]
    return tuple(found[group] for group in groups)


class _Deal(NamedTuple):
    """How a group is dealt out: the rows of each replica, and the numbers of its items.

    An item is a sample, and the number of one of its media or `_WHOLE`. The even cut has none.
    """

    rows: Sequence[int]
    items: Sequence[tuple[int, int]] = ()
    taken: Sequence[Sequence[int]] = ()


def _rows_of(shares: Shares) -> list[int]:
    return [share.rows for share in shares]


def _most(groups: Sequence[_Deal]) -> int:
    """Return the most rows of a replica in some groups."""
    return max(map(sum, zip(*(deal.rows for deal in groups), strict=True)))


@dataclass
class _Dealer:
    """Deals out the samples of an island, of which `loads` are the rows of earlier groups.

    Between phases replicas wait for each other, so each group is balanced alone, and its largest
    share goes to the replica with the least load. Before a pipeline they wait only at the end of a
    step, so one group can compensate for another.
    """

    data: Costs
    module: ModuleLayout
    costs: Mapping[int, int]
    loads: list[int]
    _media: dict[int, list[int]] = field(default_factory=dict)

    def whole(self, samples: Sequence[int]) -> Share:
        """Return a share of whole samples."""
        return Share(tuple(samples), sum(map(self.costs.__getitem__, samples)))

    def best(self, evens: Sequence[Shares]) -> list[Shares]:
        """Return the shares of some groups: of whole samples, unless the largest is too large.

        `evens` are those by the even cut.
        """
        turns = self.largest_first(evens)
        found = self._deal(evens, turns, frozenset())
        most, mean = _most(found), sum(share.rows for even in evens for share in even)
        enough = GOOD_ENOUGH * mean / len(self.loads)
        several = self._of_several(evens) if most > enough else []
        # All that are too large by themselves; then twice as many, and so on.
        number = max(1, sum(self.costs[sample] > enough for sample in several))
        while most > enough and number < 2 * len(several):
            again = self._deal(evens, turns, frozenset(several[:number]))
            if (less := _most(again)) < most:
                found, most = again, less
            number *= 2
        return [*map(self._made, evens, found)]

    def largest_first(self, evens: Sequence[Shares]) -> list[int]:
        """Return groups with a large sample first: the others compensate for it."""
        largest = [
            max(self.costs[sample] for share in even for sample in share.samples) for even in evens
        ]
        return sorted(range(len(evens)), key=lambda group: (-largest[group], group))

    def _rows(self, sample: int) -> list[int]:
        """Return the rows of each medium of a sample."""
        if sample not in self._media:
            self._media[sample] = self.data.rows_of_media(self.module.name, sample)
        return self._media[sample]

    def _of_several(self, evens: Sequence[Shares]) -> list[int]:
        """Return the samples of several media, the one with the most rows first."""
        if not self.module.splits_samples:
            return []
        members = (sample for even in evens for share in even for sample in share.samples)
        several = [each for each in members if len(self._rows(each)) > 1]
        return sorted(several, key=lambda sample: (-self.costs[sample], sample))

    def _deal(
        self, evens: Sequence[Shares], turns: Sequence[int], split: frozenset[int]
    ) -> list[_Deal]:
        """Deal out some groups in turn, with the media of the samples in `split` apart."""
        loads, found = self.loads, dict[int, _Deal]()
        for group in turns:
            found[group] = self._deal_group(evens[group], loads, split)
            loads = [*map(add, loads, found[group].rows)]
        return [found[group] for group in range(len(evens))]

    def _deal_group(self, even: Shares, loads: Sequence[int], split: frozenset[int]) -> _Deal:
        """Deal out one group.

        The even cut is kept if it is as good.
        """
        alone, costs, kept = self.module.in_phases, self.costs, _rows_of(even)
        before = [0] * len(even) if alone else loads
        evenly = [*map(add, before, kept)]
        line = [sample for share in even for sample in share.samples]
        here = split.intersection(line)
        # Already perfect, for example if all samples are alike; or replicas would only exchange
        # their samples.
        if len(set(evenly)) == 1 or (alone and len(line) == len(even) and not here):
            return _Deal(kept)
        items, own = list[tuple[int, int]](), list[int]()
        for sample in line:
            if sample in here:
                own += (rows := self._rows(sample))
                items += [(sample, number) for number in range(len(rows))]
            elif costs[sample]:
                own.append(costs[sample])
                items.append((sample, _WHOLE))
        taken = balanced(own, before)
        sums = [sum([own[each] for each in share]) for share in taken]
        if alone:
            most_first = sorted(range(len(even)), key=sums.__getitem__, reverse=True)
            least_first = sorted(range(len(even)), key=loads.__getitem__)
            turned = dict(zip(least_first, most_first, strict=True))
            taken = [taken[turned[each]] for each in range(len(even))]
            sums = [sums[turned[each]] for each in range(len(even))]
        made = [*map(add, before, sums)]
        is_better = sorted(made, reverse=True) < sorted(evenly, reverse=True)
        return _Deal(sums, items, taken) if is_better else _Deal(kept)

    def _made(self, even: Shares, deal: _Deal) -> Shares:
        """Return the shares of a group. Samples without rows stay where the even cut puts them."""
        if not deal.taken:
            return even
        line = [sample for share in even for sample in share.samples]
        made = []
        for was, share, rows in zip(even, deal.taken, deal.rows, strict=True):
            # The media that the replica takes of each sample.
            media = {sample: list[int]() for sample in was.samples if not self.costs[sample]}
            for each in sorted(share):
                sample, number = deal.items[each]
                media.setdefault(sample, []).append(number)
            samples = tuple([sample for sample in line if sample in media])
            parts = {
                sample: tuple(media[sample])
                for sample in samples
                if media[sample] not in ([], [_WHOLE])
                and len(media[sample]) < len(self._rows(sample))
            }
            made.append(Share(samples, rows, parts))
        return tuple(made)
