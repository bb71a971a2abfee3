"""Random graphs of modules: programs end, and rows go from where they are made to their readers.

The oracle below places each row by arithmetic on its number, one row at a time, and shares no code
with `layout.row_owners` or `layout.bridge_routing`. Which samples a replica encodes is tested in
`test_owners`.
"""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from tests.support.graphs import connector, graph_specs
from tests.support.specs import box, brief, spec
from tests.unit.test_routing import Row, fair_share, rank_of, rows_of

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.layout.balance import replica_links, replica_sources
from mimo_launch.layout.bridge_routing import components, route
from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.step_data import StepData, packed
from mimo_launch.layout.step_views import StepViews
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec

# Without shrinking, which takes minutes: these specs are small.
CASES = settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# A row is known by its sample and by its number among those that its module makes of the sample.
Key = tuple[int, int]


def first_step(made: Spec) -> StepData:
    """Describe the first records of the data, two in a sample if they are packed and fit."""
    dataset, samples = build_dataset(made), []
    for number in range(made.batch.global_):
        pair = [dataset.describe("train", 2 * number + i) for i in range(2)]
        fits = made.data.packing and sum(each.num_tokens for each in pair) <= made.batch.seq
        samples.append(packed(pair if fits else pair[:1]))
    return StepData(0, tuple(samples))


def cut_over_tp(made: Spec, name: str, keys: list[Key], shard_of: list[int]) -> Iterator[int]:
    """Yield the tp rank that owns each row at the tokens of a cp rank, in their order."""
    module = made.modules[name]
    for number, shard in zip(range(len(keys)), shard_of, strict=True):
        if module.sequence_parallel and module.grid.tp > 1:
            yield shard
        else:
            yield fair_share(number, len(keys), module.grid.tp)[0]


Owned = dict[Key, tuple[int, int, int]]


def owned_by(
    made: Spec, name: str, place: dict[str, int], forward: int, cut: list[tuple[int, Key, int]]
) -> Owned:
    """(cp rank, row, shard of it) in order -> row: (rank, forward, place among those it owns)."""
    found: Owned = {}
    for cp in range(made.modules[name].grid.cp):
        here = [(key, shard) for at, key, shard in cut if at == cp]
        keys, shards = [key for key, _ in here], [shard for _, shard in here]
        count: Counter[int] = Counter()
        for key, tp in zip(keys, cut_over_tp(made, name, keys, shards), strict=True):
            found[key] = rank_of(made, name, tp=tp, cp=cp, **place), forward, count[tp]
            count[tp] += 1
    return found


def of_language(made: Spec, data: StepData, other: str, pp: int) -> Owned:
    """Place the rows at the tokens of language, for each microbatch of each replica."""
    grid, seq = made.language.grid, made.batch.seq
    mbs = made.batch.global_ // (grid.dp * made.schedule.microbatches)
    chunk = seq // (2 * grid.cp) if grid.cp > 1 else seq
    found: Owned = {}
    for first in range(0, made.batch.global_, mbs):
        replica, microbatch = divmod(first // mbs, made.schedule.microbatches)
        runs: dict[tuple[int, int, int], list[tuple[int, Key]]] = {}
        for item in range(mbs):
            sample, row = first + item, 0
            for image, span in enumerate(data.samples[sample].spans.get(other, ())):
                length = span.rows if span.reads is None else span.reads
                for token in range(span.position, span.position + length):
                    number, inside = divmod(token, chunk)
                    mirrored = number >= grid.cp
                    cp = 2 * grid.cp - 1 - number if mirrored else number
                    place = item * seq // grid.cp + mirrored * chunk + inside
                    key = sample, image, number
                    runs.setdefault(key, []).append((place, (sample, row)))
                    row += 1
        cut = []
        # Texts of two images to make may overlap: a run is known by where it begins.
        for (_, _, number), run in sorted(runs.items(), key=lambda each: each[1][0][0]):
            cp = min(number, 2 * grid.cp - 1 - number)
            size = mbs * seq // grid.cp // grid.tp if made.language.sequence_parallel else seq * mbs
            cut += [(cp, key, place // size) for place, key in run]
        found |= owned_by(made, "language", {"dp": replica, "pp": pp}, microbatch, cut)
    return found


def read_by(made: Spec, views: StepViews, data: StepData, bridge: Bridge) -> Owned:
    """Place the rows at the tokens of an encoder or a generator that reads them."""
    name, module = bridge.target, made.modules[bridge.target]
    sources, model = made.sources_of(name), module.model
    makes = model.kind in ("flow", "talker")
    beside = makes or model.queries is not None
    in_turn = makes or model.merge == "rows"
    per_cp = module.grid.tp if module.sequence_parallel else 1
    found: Owned = {}
    for forward in range(made.schedule.microbatches // bridge.target_group):
        for replica in range(module.grid.dp):
            samples = views.encoder(name, replica, forward).samples
            number, numbers = 0, list[tuple[Key, int]]()
            for sample in samples:
                spans, row = data.samples[sample].spans, 0
                for image, span in enumerate(spans.get(name, ())):
                    sizes = {
                        each: span.reads if each == "language" else spans[each][image].rows
                        for each in sources
                    }
                    before = sum(sizes[each] for each in sources[: sources.index(bridge.source)])
                    for i in range(sizes[bridge.source]):
                        numbers.append(((sample, row), number + i + before * in_turn))
                        row += 1
                    number += sum(sizes.values()) if in_turn else sizes[sources[0]]
            own = sum(data.samples[sample].rows(name) for sample in samples)
            total = number if beside else own
            size = max(1, -(-total // (module.grid.cp * per_cp)))
            cut = [(*divmod(n // size, per_cp), key) for key, n in numbers]
            place = {"dp": replica, "pp": 0}
            found |= owned_by(made, name, place, forward, [(cp, key, tp) for cp, tp, key in cut])
    return found


def made_by(made: Spec, views: StepViews, data: StepData, bridge: Bridge) -> Owned:
    """Place the rows that an encoder makes."""
    name, module = bridge.source, made.modules[bridge.source]
    per_cp = module.grid.tp if module.sequence_parallel else 1
    found: Owned = {}
    for forward in range(made.schedule.microbatches // bridge.source_group):
        for replica in range(module.grid.dp):
            samples = views.encoder(name, replica, forward).samples
            keys = [(s, row) for s in samples for row in range(data.samples[s].rows(name))]
            # Padded so that cp ranks, and tp ranks where they cut tokens, hold equally many.
            size = max(1, -(-len(keys) // (module.grid.cp * per_cp)))
            if per_cp == 1:
                size = max(1, -(-len(keys) // module.grid.cp))
            cut = [(*divmod(n // size, per_cp), key) for n, key in enumerate(keys)]
            place = {"dp": replica, "pp": module.grid.pp - 1}
            found |= owned_by(made, name, place, forward, [(cp, key, tp) for cp, tp, key in cut])
    return found


def test_all_that_see_an_image_in_common_see_the_same_images() -> None:
    """Of two encoders that have no reader in common but language, a connector reads both."""
    towers = connector("vision", "depth", merge="width")
    modules = {"vision": box(0), "depth": box(0), "merger": box(0, **towers)}
    language = box(0, reads=["vision", "depth", "merger"])
    made = spec(
        {**modules, "language": language}, mbs=8, max_images=3, max_patches=8, text_only=0.5
    )
    counts = set()
    for sample in first_step(made).samples:
        sizes = [[(i.height, i.width) for i in sample.spans.get(n, ())] for n in modules]
        assert sizes[0] == sizes[1] == sizes[2]
        counts.add(len(sizes[0]))
    assert len(counts) > 2


def test_groups_of_other_sizes_stay_within_a_language_replica() -> None:
    """So few ranks meet at a bridge as the samples allow."""
    modules = {
        "vision": box(0, dp=2),
        "merger": box(4, dp=2, **connector("vision")),
        "language": box(4, dp=2, reads=["merger"]),
    }
    layout = build_layout(spec(modules, mbs=4, microbatches=4, encoder_microbatches=2))
    bridge = layout.bridges["vision>merger"]
    assert (bridge.source_group, bridge.target_group) == (1, 2)
    assert replica_links(layout, "vision>merger") == (range(1), range(1, 2))


@pytest.mark.parametrize(("first", "groups"), [(0, (2, 1)), (2, (1, 2))])
def test_even_cuts_of_groups_of_other_sizes_are_linked(first: int, groups: tuple[int, int]) -> None:
    """A replica with half of two microbatches meets both that have half of each of them."""
    even = {"dp": 2, "balance": "none"}
    modules = {
        "vision": box(first, **even),
        "merger": box(2 - first, **even, **connector("vision")),
        "language": box(0, tp=2, reads=["merger"]),
    }
    layout = build_layout(spec(modules, mbs=2, microbatches=2))
    bridge = layout.bridges["vision>merger"]
    assert (bridge.source_group, bridge.target_group) == groups
    assert replica_links(layout, "vision>merger") == (range(2), range(2))


def transfers_of(layout: Layout, bridge: Bridge) -> range:
    return range(layout.samples.microbatches // bridge.group_size)


@CASES
@given(graph_specs())
def test_every_row_of_every_bridge_goes_once_from_its_owner_to_where_it_is_read(made: Spec) -> None:
    """Oracle: every row placed by hand, on both sides. So do the parts that a rank asks for."""
    note(brief(made))
    layout, data = build_layout(made), first_step(made)
    views = StepViews(layout, data)
    for name, bridge in layout.bridges.items():
        last = made.language.grid.pp - 1
        sent = (
            of_language(made, data, bridge.target, last)
            if bridge.source == "language"
            else made_by(made, views, data, bridge)
        )
        due = (
            of_language(made, data, bridge.source, 0)
            if bridge.target == "language"
            else read_by(made, views, data, bridge)
        )
        assert sent.keys() == due.keys()
        moved: list[Row] = []
        sources, targets = replica_links(layout, name), replica_sources(layout, name)
        for index in transfers_of(layout, bridge):
            whole = route(views, name, index)
            moved += rows_of(whole)
            for rank in range(layout.world_size):
                mine = tuple(each for each in whole if rank in (each.src, each.dst))
                assert route(views, name, index, rank=rank) == mine
            home = {rank: part for part in components(layout, name) for rank in part}
            for each in whole:
                assert each.src_forward in bridge.sources(index)
                assert each.dst_forward in bridge.targets(index)
                ends = (
                    layout[bridge.source].grid.index("dp", each.src),
                    layout[bridge.target].grid.index("dp", each.dst),
                )
                assert ends[1] in sources[ends[0]]
                assert ends[0] in targets[ends[1]]
                assert home[each.src] is home[each.dst]
        wanted = [
            Row(sent[key][0], sent[key][2], due[key][0], due[key][1], due[key][2]) for key in sent
        ]
        assert sorted(moved) == sorted(wanted)


@CASES
@given(graph_specs())
def test_the_programs_of_every_graph_end(made: Spec) -> None:
    assert not [finding for finding in check(made) if finding.is_error]
    Plan.of(made).prove()
