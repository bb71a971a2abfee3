"""Bridges as permutations of rows, against a walk over every token position.

The oracle below knows the definitions only: it places each row by arithmetic on its position and
its number, one row at a time, and shares no code with `layout.row_owners` or
`layout.bridge_routing`.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.support.specs import box, brief, layout_specs, spec

from mimo_launch.layout.bridge_routing import Transfer, components, route
from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.layout.row_owners import row_cut
from mimo_launch.layout.step_data import ImageSpan, SampleData, StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.spec.spec import Spec

CASES = settings(max_examples=25, deadline=None)


class Row(NamedTuple):
    """One row of a sample on its way from a rank to a rank."""

    src: int
    src_place: int
    dst: int
    microbatch: int
    dst_place: int


def step_data(made: Spec, images: dict[int, dict[str, list[tuple[int, int]]]]) -> StepData:
    """Build the plan in which sample s has, per encoder, images at (position, rows)."""
    return StepData(
        0,
        tuple(
            SampleData(
                sample,
                made.batch.seq,
                1,
                {
                    encoder: tuple(ImageSpan(position, 1, rows) for position, rows in spans)
                    for encoder, spans in images.get(sample, {}).items()
                },
            )
            for sample in range(made.batch.global_)
        ),
    )


@st.composite
def cases(draw: st.DrawFn, *, all_have_rows: bool = False) -> tuple[Spec, Layout, StepData]:
    """A layout with at least one encoder, and a step of samples with images anywhere or nowhere."""
    made = draw(layout_specs(16, supported_only=False))
    if not made.encoders:
        made = spec({"vision": box(0, dp=2), "language": box(1, tp=2)}, mbs=2, seq=8)
    longer = made.batch.seq * draw(st.integers(1, 3))
    batch = made.batch.model_copy(update={"seq": longer})
    made = made.model_copy(update={"batch": batch})
    seldom = 1.0 if all_have_rows else draw(st.sampled_from([0.1, 0.5, 1.0]))
    random = Random(draw(st.integers(0, 2**20)))
    images: dict[int, dict[str, list[tuple[int, int]]]] = {}
    for sample in range(made.batch.global_):
        images[sample] = {encoder: [] for encoder in made.encoders}
        position = 0
        # Images of all encoders in any order, side by side or with text between them.
        turns = random.choices(list(made.encoders), k=random.randint(0, 3))
        if all_have_rows:
            turns = random.sample(list(made.encoders), k=len(made.encoders))
        for encoder in turns:
            gap = 0 if all_have_rows else random.choice([0, 0, 1, random.randrange(longer)])
            rows = 1 if all_have_rows else random.randint(1, longer)
            rows = min(rows, longer - position - gap)
            if rows > 0 and random.random() < seldom:
                images[sample][encoder].append((position + gap, rows))
                position += gap + rows
    note(brief(made))
    return made, build_layout(made), step_data(made, images)


def rank_of(made: Spec, name: str, **coords: int) -> int:
    """Rank of a module at some coordinates, the first axis of its order counting fastest."""
    module = made.modules[name]
    rank, step = module.rank_range.start, 1
    for axis in module.order:
        rank += coords.get(axis, 0) * step
        step *= getattr(module.grid, axis)
    return rank


def fair_share(number: int, total: int, parts: int) -> tuple[int, int]:
    """(part, place in it) of item `number` of `total`, cut as evenly as can be."""
    part = next(p for p in range(parts) if number < total * (p + 1) // parts)
    return part, number - total * part // parts


def sent_from(
    made: Spec, layout: Layout, data: StepData, encoder: str
) -> dict[tuple, tuple[int, int]]:
    """(sample, row) -> (rank, place among the rows it owns of that group), of every group.

    Which samples a replica encodes is tested in `test_owners`.
    """
    module, views = made.modules[encoder], StepViews(layout, data)
    found = {}
    for group in range(made.schedule.microbatches // layout[encoder].group_size):
        for replica in range(module.grid.dp):
            rows = [
                (sample, row)
                for sample in views.encoder(encoder, replica, group).samples
                for row in range(data.samples[sample].rows(encoder))
            ]
            for number, key in enumerate(rows):
                # Padded so that cp ranks, and tp ranks where they cut tokens, hold equally many.
                cuts = module.grid.cp * (module.grid.tp if module.sequence_parallel else 1)
                size = -(-len(rows) // cuts) * cuts // module.grid.cp
                cp, inside = divmod(number, size)
                if module.sequence_parallel:
                    tp, place = divmod(inside, size // module.grid.tp)
                else:
                    held = min(size, len(rows) - cp * size)
                    tp, place = fair_share(inside, held, module.grid.tp)
                rank = rank_of(made, encoder, tp=tp, cp=cp, dp=replica, pp=module.grid.pp - 1)
                found[key] = rank, place
    return found


def due_at(made: Spec, data: StepData, encoder: str) -> dict[tuple, tuple[int, int, int]]:
    """(sample, row) -> (rank, microbatch, place among the rows that rank receives for it)."""
    grid, seq = made.language.grid, made.batch.seq
    mbs = made.batch.global_ // (grid.dp * made.schedule.microbatches)
    chunk = seq // (2 * grid.cp) if grid.cp > 1 else seq
    found = {}
    for first in range(0, made.batch.global_, mbs):
        replica, microbatch = divmod(first // mbs, made.schedule.microbatches)
        # Every token of the microbatch: which cp rank holds it, and where in its token list.
        lists: dict[int, list[tuple[int, tuple[int, int]]]] = {cp: [] for cp in range(grid.cp)}
        for item in range(mbs):
            sample, row = first + item, 0
            for span in data.samples[sample].spans.get(encoder, ()):
                for token in range(span.position, span.position + span.rows):
                    number, inside = divmod(token, chunk)
                    mirrored = number >= grid.cp
                    cp = 2 * grid.cp - 1 - number if mirrored else number
                    place = item * seq // grid.cp + mirrored * chunk + inside
                    lists[cp].append((place, (sample, row)))
                    row += 1
        for cp, tokens in lists.items():
            tokens.sort()
            count: Counter[int] = Counter()
            for number, (place, key) in enumerate(tokens):
                if made.language.sequence_parallel and grid.tp > 1:
                    tp = place // (mbs * seq // grid.cp // grid.tp)
                else:
                    tp, _ = fair_share(number, len(tokens), grid.tp)
                rank = rank_of(made, "language", tp=tp, cp=cp, dp=replica)
                found[key] = rank, microbatch, count[tp]
                count[tp] += 1
    return found


def rows_of(transfers: tuple[Transfer, ...]) -> list[Row]:
    """Every row of some transfers by itself."""
    return [
        Row(t.src, t.src_start + i, t.dst, t.dst_forward, t.dst_start + i)
        for t in transfers
        for i in range(t.num_rows)
    ]


def groups_of(layout: Layout) -> Iterator[tuple[str, int, range]]:
    """Every (encoder, group, microbatches of the group) of a step."""
    for encoder in layout.encoders:
        k = encoder.group_size
        for group in range(layout.samples.microbatches // k):
            yield encoder.name, group, range(group * k, (group + 1) * k)


@pytest.mark.parametrize(
    ("made", "images", "transfers"),
    [
        pytest.param(
            # Sample 0 has 3 rows and sample 1 has 2; the tp ranks of language take 2 and 3 of them.
            spec({"vision": box(0, dp=2), "language": box(2, tp=2)}, mbs=2, seq=8),
            {0: {"vision": [(1, 3)]}, 1: {"vision": [(0, 1), (5, 1)]}},
            [
                Transfer(0, 2, 0, 0, dst_forward=0, dst_start=0, num_rows=2),
                Transfer(0, 3, 0, 2, dst_forward=0, dst_start=0, num_rows=1),
                Transfer(1, 3, 0, 0, dst_forward=0, dst_start=1, num_rows=1),
                Transfer(1, 3, 0, 1, dst_forward=0, dst_start=2, num_rows=1),
            ],
            id="fan-in 2:1, rows shared over tp",
        ),
        pytest.param(
            # 5 rows are padded to 6: ranks 0 and 1 own 3 and 2. Rank 2 holds tokens 0-3.
            spec(
                {
                    "vision": box(0, tp=2, sequence_parallel=True),
                    "language": box(2, tp=2, sequence_parallel=True),
                },
                seq=8,
            ),
            {0: {"vision": [(2, 5)]}},
            [
                Transfer(0, 2, 0, 0, dst_forward=0, dst_start=0, num_rows=2),
                Transfer(0, 3, 0, 2, dst_forward=0, dst_start=0, num_rows=1),
                Transfer(1, 3, 0, 0, dst_forward=0, dst_start=1, num_rows=2),
            ],
            id="sequence parallel on both sides",
        ),
        pytest.param(
            # Rank 1 holds tokens 0, 1, 6, 7 and rank 2 tokens 2, 3, 4, 5: two chunks each.
            spec({"vision": box(0), "language": box(1, cp=2)}, seq=8),
            {0: {"vision": [(1, 6)]}},
            [
                Transfer(0, 1, 0, 0, dst_forward=0, dst_start=0, num_rows=1),
                Transfer(0, 1, 0, 5, dst_forward=0, dst_start=1, num_rows=1),
                Transfer(0, 2, 0, 1, dst_forward=0, dst_start=0, num_rows=2),
                Transfer(0, 2, 0, 3, dst_forward=0, dst_start=2, num_rows=2),
            ],
            id="zigzag over cp",
        ),
        pytest.param(
            spec({"vision": box(0), "language": box(0, dp=2)}, microbatches=2, seq=4),
            {0: {"vision": [(0, 1)]}, 1: {"vision": [(0, 2)]}, 3: {"vision": [(3, 1)]}},
            [
                Transfer(0, 0, 0, 0, dst_forward=0, dst_start=0, num_rows=1),
                Transfer(0, 0, 0, 1, dst_forward=1, dst_start=0, num_rows=2),
                Transfer(0, 1, 0, 3, dst_forward=1, dst_start=0, num_rows=1),
            ],
            id="fan-out 1:2 from a shared rank, samples without rows",
        ),
    ],
)
def test_transfers_are_those_of_the_table(made, images, transfers):
    layout = build_layout(made)
    assert list(route(StepViews(layout, step_data(made, images)), "vision", 0)) == transfers


@CASES
@given(cases())
def test_every_row_goes_once_from_its_owner_to_the_rank_of_its_token(case):
    """Oracle: every row of every sample placed by hand, on both sides."""
    made, layout, data = case
    views = StepViews(layout, data)
    for encoder in layout.encoders:
        sent = sent_from(made, layout, data, encoder.name)
        due = due_at(made, data, encoder.name)
        assert sent.keys() == due.keys()
        num_groups = layout.samples.microbatches // encoder.group_size
        moved = [
            row for group in range(num_groups) for row in rows_of(route(views, encoder.name, group))
        ]
        assert sorted(moved) == sorted(Row(*sent[key], *due[key]) for key in sent)
        for group in range(num_groups):
            microbatches = {t.dst_forward for t in route(views, encoder.name, group)}
            assert {m // encoder.group_size for m in microbatches} <= {group}


@CASES
@given(cases())
def test_every_owned_row_leaves_once_and_every_due_row_arrives_once(case):
    _, layout, data = case
    views = StepViews(layout, data)
    language = layout.language.grid
    for name, group, microbatches in groups_of(layout):
        module = layout[name]
        rows = rows_of(route(views, name, group))
        leaving = Counter((row.src, row.src_place) for row in rows)
        owned = set()
        for rank in module.stage_ranks(len(module.stages) - 1):
            at = module.grid.coords_of(rank)
            total = views.encoder(name, at["dp"], group).num_rows
            cut = row_cut(module, total, at["cp"], at["tp"])
            owned |= {(rank, place) for place in range(len(cut))}
        assert leaving == Counter(owned)
        arriving = Counter((row.dst, row.microbatch, row.dst_place) for row in rows)
        due = set()
        for rank in layout.language.stage_ranks(0):
            at = language.coords_of(rank)
            for microbatch in microbatches:
                cut = views.language(at["dp"], microbatch).cuts(name, at["cp"])[at["tp"]]
                size = sum(run.num_rows for run in cut)
                due |= {(rank, microbatch, place) for place in range(size)}
        assert arriving == Counter(due)


@CASES
@given(cases())
def test_the_route_of_one_rank_is_the_whole_filtered(case):
    """Also: sender and receiver pack the rows between them in one order."""
    _, layout, data = case
    views = StepViews(layout, data)
    for name, group, _ in groups_of(layout):
        whole = route(views, name, group)
        mine = {r: route(views, name, group, rank=r) for r in range(layout.world_size)}
        for rank, transfers in mine.items():
            assert transfers == tuple(t for t in whole if rank in (t.src, t.dst))
        for src, dst in {(t.src, t.dst) for t in whole}:
            packed, unpacked = (
                [t for t in mine[rank] if (t.src, t.dst) == (src, dst)] for rank in (src, dst)
            )
            assert packed == unpacked
            assert packed == sorted(packed, key=lambda t: (t.dst_forward, t.dst_start))


@CASES
@given(cases())
def test_places_of_the_tp_ranks_together_are_the_token_list(case):
    """What the tp ranks own, one after another, is every placeholder of the list in order."""
    _, layout, data = case
    views = StepViews(layout, data)
    language, mbs = layout.language.grid, layout.samples.microbatch_size
    for name, _, microbatches in groups_of(layout):
        for replica in range(language.size("dp")):
            for microbatch in microbatches:
                for cp in range(language.size("cp")):
                    view = views.language(replica, microbatch)
                    runs = view.runs(name, cp)
                    places = [run.place + i for run in runs for i in range(run.num_rows)]
                    assert places == sorted(set(places))
                    cuts = view.cuts(name, cp)
                    assert all(run.num_rows for cut in cuts for run in cut)
                    width = mbs * layout.seq // language.size("cp") // language.size("tp")
                    shift = width if layout.language.sequence_parallel else 0
                    assert places == [
                        tp * shift + run.place + i
                        for tp, cut in enumerate(cuts)
                        for run in cut
                        for i in range(run.num_rows)
                    ]


def joined(pairs: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Connected components of a graph whose edges are tuples of ranks."""
    found: list[set[int]] = []
    for ranks in pairs:
        together = set(ranks).union(*(part for part in found if part & set(ranks)))
        found = [part for part in found if not part & together] + [together]
    return {tuple(sorted(part)) for part in found}


def replicas(layout: Layout, name: str) -> list[tuple[int, ...]]:
    """Ranks at each end of a bridge, replica by replica."""
    module, language = layout[name], layout.language
    last = len(module.stages) - 1
    return [module.grid.slice(dp=e, pp=last) for e in range(module.grid.size("dp"))] + [
        language.grid.slice(dp=d, pp=0) for d in range(language.grid.size("dp"))
    ]


@CASES
@given(cases(all_have_rows=True))
def test_components_are_what_the_rows_of_all_samples_connect(case):
    _, layout, data = case
    views = StepViews(layout, data)
    for encoder in layout.encoders:
        edges = [
            (t.src, t.dst)
            for name, group, _ in groups_of(layout)
            if name == encoder.name
            for t in route(views, name, group)
        ]
        # With one row a sample the even cut stays, but it need not.
        ends = replicas(layout, encoder.name)
        if encoder.balance == "all":
            edges = [tuple(rank for ranks in ends for rank in ranks)]
        assert set(components(layout, encoder.name)) == joined(edges + ends)


@CASES
@given(cases())
def test_no_row_leaves_its_component(case):
    _, layout, data = case
    views = StepViews(layout, data)
    for name, group, _ in groups_of(layout):
        parts = components(layout, name)
        ranks = [rank for part in parts for rank in part]
        assert sorted(ranks) == sorted({r for ends in replicas(layout, name) for r in ends})
        home = {rank: part for part in parts for rank in part}
        assert all(home[t.src] is home[t.dst] for t in route(views, name, group))


@pytest.mark.parametrize(
    ("made", "parts"),
    [
        (spec({"vision": box(0, dp=4), "language": box(4, dp=2)}, mbs=2), {(0, 1, 4), (2, 3, 5)}),
        (spec({"vision": box(0), "language": box(1, dp=3)}), {(0, 1, 2, 3)}),
        (spec({"vision": box(0, tp=2), "language": box(0, dp=2)}), {(0, 1)}),
        (spec({"vision": box(0, dp=2), "language": box(0, dp=2)}), {(0,), (1,)}),
        (spec({"vision": box(0, dp=2), "language": box(2, dp=3)}, mbs=2), {(0, 1, 2, 3, 4)}),
        # Only the last stage of vision and the first of language touch the bridge.
        (spec({"vision": box(0, pp=2), "language": box(2, pp=2)}), {(1, 2)}),
        # Rank 1 holds vision's replica 1 and language's replica 0: one exchange, not two.
        (spec({"vision": box(0, dp=2), "language": box(1, dp=2)}), {(0, 1, 2)}),
    ],
)
def test_components_are_those_of_the_table(made, parts):
    assert set(components(build_layout(made), "vision")) == parts
