"""Who encodes what: balanced, alike on all ranks, every sample once, and only inside islands."""

from collections import Counter
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.specs import box, layout_specs, spec

from mimo_launch.checks.all_checks import is_legal
from mimo_launch.layout import shares, step_views
from mimo_launch.layout.balance import (
    balanced,
    even_share,
    even_shares,
    replica_links,
    replica_sources,
    replicas_that_share,
)
from mimo_launch.layout.layout import Layout, ModuleLayout, build_layout
from mimo_launch.layout.shares import shared_out
from mimo_launch.layout.step_data import ImageSpan, SampleData, StepData, packed
from mimo_launch.layout.step_views import StepViews, reads_of


def step_of(rows: list[int], encoder: str = "vision") -> StepData:
    """A step whose sample s has one image of rows[s] rows, or none."""
    spans = [({encoder: (ImageSpan(0, 1, n),)} if n else {}) for n in rows]
    return StepData(0, tuple(SampleData(i, 1, 1, span) for i, span in enumerate(spans)))


def skewed(number: int, seed: int) -> list[int]:
    """Many small images, few large ones; about one in eight samples has none."""
    random = Random(seed)
    return [random.choice([0, *[1] * 7]) * int(random.lognormvariate(5, 1)) for _ in range(number)]


def owners(layout: Layout, data: StepData, module: ModuleLayout) -> list[list[tuple[int, ...]]]:
    """Samples by group and replica."""
    views = StepViews(layout, data)
    groups = layout.samples.microbatches // module.group_size
    replicas = range(module.grid.size("dp"))
    return [
        [views.encoder(module.name, replica, group).samples for replica in replicas]
        for group in range(groups)
    ]


def loads(data: StepData, table: list[list[tuple[int, ...]]]) -> list[int]:
    """Rows of each replica in the whole step."""
    return [
        sum(data.samples[s].rows("vision") for row in table for s in row[replica])
        for replica in range(len(table[0]))
    ]


def least_largest(costs: list[int], parts: int) -> int:
    """Try every way to share out."""
    return min(
        max(sum(c for c, at in zip(costs, places, strict=True) if at == p) for p in range(parts))
        for places in product(range(parts), repeat=len(costs))
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=7), st.integers(1, 3))
def test_shares_hold_each_item_once_and_are_near_the_best(costs, parts):
    shares = balanced(costs, [0] * parts)
    assert sorted(index for share in shares for index in share) == list(range(len(costs)))
    sums = [sum(costs[i] for i in share) for share in shares]
    # Graham's bound for sorted items; what follows it never makes the largest share larger.
    assert max(sums) * 3 * parts <= least_largest(costs, parts) * (4 * parts - 1)


def test_a_swap_mends_what_largest_first_does_to_few_sizes():
    """Largest first alone leaves 7 and 5."""
    costs = [3, 3, 2, 2, 2]
    assert [sum(costs[i] for i in share) for share in balanced(costs, [0, 0])] == [6, 6]


def test_a_share_that_gave_something_away_has_less():
    """The first swap makes both equal; with the larger one counted as before, another follows."""
    costs = [4, 7, 4, 9, 6]
    assert [sum(costs[i] for i in share) for share in balanced(costs, [0, 0])] == [15, 15]


@pytest.mark.parametrize(
    "costs", [[6, 26, 10, 28, 18, 23, 11], [7, 7, 9, 22, 13, 10, 27], [7, 8, 24, 10, 16, 18, 28]]
)
def test_of_the_swaps_that_help_the_one_that_leaves_least_apart_is_made(costs):
    """The smallest and the largest that help end in larger shares."""
    largest = max(sum(costs[i] for i in share) for share in balanced(costs, [0, 0]))
    assert largest == least_largest(costs, 2)


def test_a_group_with_a_large_sample_is_dealt_out_first():
    """The small samples of the group before it go to the other replica."""
    modules = {"vision": box(0, dp=2), "language": box(2, tp=2)}
    layout = build_layout(spec(modules, microbatches=2, mbs=4))
    step = step_of([3, 3, 3, 3, 12, 0, 0, 0])
    assert loads(step, owners(layout, step, layout["vision"])) == [12, 12]


def test_the_larger_share_of_a_group_goes_to_the_replica_that_has_less():
    """The whole share counts, not its first sample."""
    modules = {"vision": box(0, dp=2), "language": box(0, tp=2)}
    layout = build_layout(spec(modules, microbatches=2, mbs=4, encoder_microbatches=1))
    step = step_of([1, 2, 20, 20, 2, 2, 2, 5])
    assert loads(step, owners(layout, step, layout["vision"])) == [27, 27]


def test_what_a_worker_has_counts():
    assert balanced([4, 3, 3], [9, 0, 4]) == [[], [0, 1], [2]]


FAN_IN = {"vision": box(0, dp=4), "language": box(4)}
COLOCATED = {"vision": box(0, dp=4), "language": box(0, tp=4)}
UNEVEN = {"vision": box(0, dp=3), "language": box(3, dp=2)}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(spec(FAN_IN, microbatches=4, mbs=16), id="upstream, by microbatch"),
        pytest.param(spec(COLOCATED, microbatches=8, mbs=6), id="colocated, the step at once"),
        pytest.param(spec(UNEVEN, microbatches=2, mbs=12), id="dp 3 into dp 2"),
        pytest.param(
            spec({"vision": box(0, dp=4, balance="all"), "language": box(0, dp=4)}, mbs=12),
            id="one-to-one, all",
        ),
    ],
)
def test_the_largest_replica_of_a_skewed_step_is_near_the_mean(made, seed):
    """The even cut of the same steps is far from it."""
    layout, data = build_layout(made), step_of(skewed(made.batch.global_, seed))
    rows = [sample.rows("vision") for sample in data.samples]
    found = loads(data, owners(layout, data, layout["vision"]))
    mean = sum(rows) / len(found)
    largest = max(rows)
    assert largest < mean * 1.5
    assert max(found) <= max(1.10 * mean, largest)
    seen = StepViews(layout, data).imbalance(layout["vision"])
    assert seen.after == max(found) / mean
    even = owners(uneven := build_layout(_set(made, "none")), data, uneven["vision"])
    assert seen.before == max(loads(data, even)) / mean
    assert seen.before > 1.10


@pytest.mark.parametrize("seed", range(20))
def test_between_phases_every_group_is_even(seed):
    """Replicas wait for each other after each, so no group may make up for another."""
    layout = build_layout(spec(COLOCATED, microbatches=6, mbs=16, encoder_microbatches=2))
    data = step_of(skewed(layout.samples.global_batch, seed))
    for group in owners(layout, data, layout["vision"]):
        found = loads(data, [group])
        largest = max(data.samples[s].rows("vision") for part in group for s in part)
        assert max(found) <= max(1.10 * sum(found) / len(found), largest)


def _set(made, balance):
    vision = made.modules["vision"].model_copy(update={"balance": balance})
    return made.model_copy(update={"modules": {**made.modules, "vision": vision}})


@settings(max_examples=60, deadline=None)
@given(layout_specs(16, supported_only=False), st.integers(0, 99))
def test_each_sample_is_encoded_once_inside_its_island_and_ranks_read_just_that(made, seed):
    layout = build_layout(made)
    for module in layout.encoders:
        data = step_of(skewed(made.batch.global_, seed), module.name)
        again = step_of(skewed(made.batch.global_, seed), module.name)
        table = owners(layout, data, module)
        assert table == owners(build_layout(made), again, module)
        links, k = replica_links(layout, module.name), module.group_size
        for group, row in enumerate(table):
            due = [
                sample
                for replica in range(layout.samples.replicas)
                for microbatch in range(group * k, (group + 1) * k)
                for sample in layout.samples.language(replica, microbatch)
            ]
            assert sorted(sample for part in row for sample in part) == sorted(due)
            for replica, part in enumerate(row):
                homes = {layout.samples.locate(sample)[0] for sample in part}
                assert homes <= set(links[replica])
                assert list(part) == sorted(part, key=due.index)
        for rank in module.stage_ranks(0):
            replica = module.grid.index("dp", rank)
            mine = sorted(sample for row in table for sample in row[replica])
            assert (
                list(reads_of(StepViews(layout, data), rank, decode=False).images[module.name])
                == mine
            )


@settings(max_examples=50, deadline=None)
@given(layout_specs(16, supported_only=False), st.integers(0, 8))
def test_equal_images_stay_where_the_even_cut_has_them(made, rows):
    layout = build_layout(made)
    for module in layout.encoders:
        data = step_of([rows] * made.batch.global_, module.name)
        dp, k = module.grid.size("dp"), module.group_size
        assert owners(layout, data, module) == [
            [layout.samples.encoder(replica, dp, group, k) for replica in range(dp)]
            for group in range(layout.samples.microbatches // k)
        ]


@settings(max_examples=50, deadline=None)
@given(layout_specs(16, supported_only=False), st.integers(0, 99))
def test_the_even_cut_of_all_replicas_is_the_one_of_each(made, seed):
    layout = build_layout(made)
    for module in layout.encoders:
        data = step_of(skewed(made.batch.global_, seed), module.name)
        replicas, groups = range(module.grid.size("dp")), range(layout.num_groups(module))
        table = [[even_share(layout, module, r, group) for r in replicas] for group in groups]
        assert [even_shares(layout, module, group).tolist() for group in groups] == [
            [list(part) for part in row] for row in table
        ]
        rows = [[sum(data.rows(module.name, part)) for part in row] for row in table]
        assert StepViews(layout, data).even_loads(module).tolist() == [
            sum(each) for each in zip(*rows, strict=True)
        ]


def test_the_load_of_a_replica_deals_out_one_island(monkeypatch):
    """A rank pays for its own island, however many replicas a job has."""
    modules = {"vision": box(0, dp=64), "language": box(64, dp=32)}
    layout = build_layout(spec(modules, mbs=8))
    data, dealt = step_of(skewed(layout.samples.global_batch, 0)), list[int]()

    def counted(layout, data, module, island):
        dealt.append(island)
        return shared_out(layout, data, module, island)

    monkeypatch.setattr(step_views, "shared_out", counted)
    views, vision = StepViews(layout, data), layout["vision"]
    loads = [views.load(vision, 5), views.load(vision, 4)]
    assert dealt == [2]
    assert loads == [
        sum(data.rows("vision", views.encoder("vision", replica, 0).samples)) for replica in (5, 4)
    ]


def test_no_replica_exchanges_the_only_sample_of_a_group(monkeypatch):
    """Sharing out would return the even cut; a job of many ranks has no time for it."""
    modules = {"vision": box(0, dp=8), "language": box(0, tp=4, dp=2)}
    layouts = [
        build_layout(spec(modules, mbs=4, microbatches=3, encoder_microbatches=at_once))
        for at_once in (1, 3)
    ]
    data = step_of(skewed(24, 3))

    def evenly(layout):
        return tuple(
            tuple(even_share(layout, layout["vision"], replica, group) for replica in range(4, 8))
            for group in range(layout.num_groups(layout["vision"]))
        )

    one, several = (
        tuple(tuple(share.samples for share in group) for group in found)
        for found in (shared_out(each, data, each["vision"], 1) for each in layouts)
    )
    assert [one == evenly(layouts[0]), several == evenly(layouts[1])] == [True, False]
    monkeypatch.setattr(shares, "balanced", None)
    views = StepViews(layouts[0], data)
    assert one == tuple(
        tuple(views.encoder("vision", replica, group).samples for replica in range(4, 8))
        for group in range(3)
    )


def test_samples_that_cannot_be_read_move_no_other():
    layout = build_layout(spec(FAN_IN, mbs=16))
    data = step_of(skewed(16, 3))
    largest = max(data.samples, key=lambda sample: sample.rows("vision"))
    left = tuple(SampleData(s.id, 0, 0) if s is largest else s for s in data.samples)
    vision = layout["vision"]
    assert owners(layout, StepData(0, left, before_damage=data.samples), vision) == owners(
        layout, data, vision
    )
    assert owners(layout, StepData(0, left), vision) != owners(layout, data, vision)


@pytest.mark.parametrize(
    ("made", "sharing", "links"),
    [
        (FAN_IN, 4, [[0]] * 4),
        ({"vision": box(0, dp=4), "language": box(4, dp=2)}, 2, [[0], [0], [1], [1]]),
        (UNEVEN, 3, [[0, 1]] * 3),
        ({**UNEVEN, "vision": box(0, dp=3, balance="none")}, 1, [[0], [0, 1], [1]]),
        ({"vision": box(0, dp=2), "language": box(2, dp=4)}, 1, [[0, 1], [2, 3]]),
        ({"vision": box(0, dp=2), "language": box(0, dp=2)}, 1, [[0], [1]]),
        ({"vision": box(0, dp=2, balance="all"), "language": box(0, dp=2)}, 2, [[0, 1]] * 2),
    ],
)
def test_islands_are_those_of_the_table(made, sharing, links):
    layout = build_layout(spec(made, mbs=6))
    assert replicas_that_share(layout, layout["vision"]) == sharing
    assert [list(found) for found in replica_links(layout, "vision")] == links


@given(layout_specs())
@settings(max_examples=60)
def test_sources_are_links_read_backwards(made):
    layout = build_layout(made)
    for module in layout.encoders:
        links = replica_links(layout, module.name)
        assert [
            (source, target)
            for target, sources in enumerate(replica_sources(layout, module.name))
            for source in sources
        ] == sorted(
            ((source, target) for source, linked in enumerate(links) for target in linked),
            key=lambda pair: pair[::-1],
        )


def test_layouts_share_how_a_step_is_shared_out_only_where_it_is_the_same():
    """A search looks at hundreds of layouts, and most of them deal samples out alike."""
    rows, made = skewed(48, 3), []
    grids = [
        (dp, language, tp)
        for dp, language in ((4, 1), (4, 2), (2, 1), (3, 2), (6, 2))
        for tp in (1, 2)
    ]
    for (dp, language, tp), microbatches, apart in product(grids, (2, 4), (False, True)):
        boxes = {"vision": box(0, dp=dp), "language": box(apart * dp, dp=language, tp=tp)}
        size = 48 // (language * microbatches)
        for at_once in (1, 2):
            steps = {"microbatches": microbatches, "encoder_microbatches": at_once}
            made.append(spec(boxes, mbs=size, **steps))
    assert all(is_legal(each, files=False) for each in made)
    layouts = list(map(build_layout, made))
    once = step_of(rows)
    for layout in layouts:
        vision = layout["vision"]
        assert owners(layout, once, vision) == owners(layout, step_of(rows), vision)
    assert len(once.shares) < len(layouts)


def step_of_several(rows: list[list[int]]) -> StepData:
    """A step whose sample s has images of so many rows each, in one line."""
    spans = [{"vision": tuple(ImageSpan(0, 1, n) for n in each)} for each in rows]
    return StepData(0, tuple(SampleData(i, 1, 1, span) for i, span in enumerate(spans)))


def several(number: int, seed: int) -> list[list[int]]:
    """Samples of no image up to 12, with few large ones."""
    random = Random(seed)
    return [
        [int(random.lognormvariate(4, 1)) for _ in range(random.randint(0, 12))]
        for _ in range(number)
    ]


@settings(max_examples=60, deadline=None)
@given(layout_specs(16, supported_only=False), st.integers(0, 99))
def test_each_image_is_encoded_once_inside_its_island_and_ranks_read_just_that(made, seed):
    layout = build_layout(made)
    for module in layout.encoders:
        name, rows = module.name, several(made.batch.global_, seed)
        spans = [
            {each.name: tuple(ImageSpan(0, 1, n) for n in own) for each in layout.encoders}
            for own in rows
        ]
        data = StepData(0, tuple(SampleData(i, 1, 1, span) for i, span in enumerate(spans)))
        views, links = StepViews(layout, data), replica_links(layout, module.name)
        counts: Counter[tuple[int, int]] = Counter()
        loads = []
        for replica in range(module.grid.size("dp")):
            mine: Counter[tuple[int, int]] = Counter()
            for group in range(layout.num_groups(module)):
                view = views.encoder(name, replica, group)
                every = {
                    sample: view.own(sample, range(len(rows[sample]))) for sample in view.samples
                }
                mine.update((sample, at) for sample, own in every.items() for at in own)
                homes = {layout.samples.locate(sample)[0] for sample in view.samples}
                assert homes <= set(links[replica])
                assert [image.rows for image in view.images] == [
                    rows[sample][at] for sample, own in every.items() for at in own
                ]
                assert list(view.samples) == [*every]
                assert not view.split or module.splits_samples
            counts += mine
            loads.append(sum(rows[sample][at] for sample, at in mine))
            for rank in module.grid.slice(dp=replica):
                reads = reads_of(views, rank, decode=False)
                if name in reads.images:
                    assert {
                        (sample, at)
                        for sample in reads.images[name]
                        for at in reads.split[name].get(sample, range(len(rows[sample])))
                    } == mine.keys()
        assert counts == {(s, at): 1 for s, own in enumerate(rows) for at in range(len(own))}
        assert loads == [views.load(module, replica) for replica in range(len(loads))]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("made", [FAN_IN, COLOCATED])
def test_replicas_with_a_sample_of_many_images_are_even(made, seed):
    """With whole samples they are far from it."""
    layout, random = build_layout(spec(made, microbatches=1, mbs=4)), Random(seed)
    rows = [[random.randint(100, 500) for _ in range(random.randint(8, 64))] for _ in range(4)]
    data = step_of_several(rows)
    found, mean = StepViews(layout, data), sum(map(sum, rows)) / 4
    loads = [found.load(layout["vision"], replica) for replica in range(4)]
    assert max(loads) <= 1.01 * mean
    whole = step_of([*map(sum, rows)])
    assert StepViews(layout, whole).imbalance(layout["vision"]).after > 1.01


def test_samples_are_whole_where_that_is_as_even():
    layout = build_layout(spec(COLOCATED, microbatches=2, mbs=4))
    data = step_of_several([[3, 4]] * 4 + [[5, 1, 1]] * 4)
    assert owners(layout, data, layout["vision"]) == [[(0, 1), (2, 3), (4, 5), (6, 7)]]
    views = StepViews(layout, data)
    assert not any(views.encoder("vision", replica, 0).split for replica in range(4))


def test_few_samples_are_split():
    """One of 40 rows among three of 4: the largest is enough."""
    layout = build_layout(spec(COLOCATED, microbatches=1, mbs=4))
    data = step_of_several([[2, 2], [1] * 40, [2, 2], [1, 3]])
    views = StepViews(layout, data)
    found = [views.encoder("vision", replica, 0) for replica in range(4)]
    assert {sample for view in found for sample in view.split} == {1}
    assert [view.num_rows for view in found] == [13] * 4


def test_the_images_of_a_video_stay_together():
    """It is decoded as a whole, and so is a picture that is cut into images."""
    layout = build_layout(spec(COLOCATED, microbatches=1, mbs=4))
    video = tuple(ImageSpan(0, 1, 5, joined=at not in (0, 8)) for at in range(12))
    others = step_of_several([[1]] * 3).samples
    data = StepData(0, (SampleData(0, 1, 1, {"vision": video}), *others))
    assert data.rows_of_media("vision", 0) == [40, 20]
    views = StepViews(layout, data)
    found = [views.encoder("vision", replica, 0) for replica in range(4)]
    parts = [sorted(view.places(0)) for view in found if 0 in view.split]
    assert sorted(parts) == [[*range(8)], [*range(8, 12)]]
    assert sorted(view.num_rows for view in found) == [1, 2, 20, 40]


def test_records_that_cannot_be_read_move_no_image():
    """Of a pack, too: images of its other records stay with their replicas."""
    layout = build_layout(spec(COLOCATED, microbatches=1, mbs=4))
    records = [[9, 1, 7], [30, 2], [4, 4, 4, 5], [8]]
    each = [
        SampleData(n, 4, 1, {"vision": tuple(ImageSpan(0, 1, rows) for rows in own)})
        for n, own in enumerate(records)
    ]
    data = StepData(0, (packed(each), *step_of_several([[1], [2], [3]]).samples))
    left = data.without([1])
    found: list[Counter[int]] = []
    for step in (data, left):
        views = StepViews(layout, step)
        of_replicas = [views.encoder("vision", replica, 0) for replica in range(4)]
        assert sum(0 in view.split for view in of_replicas) > 1
        found.append([Counter(image.rows for image in view.images) for view in of_replicas])
    gone = Counter(records[1])
    assert sum((a - b for a, b in zip(*found, strict=True)), Counter()) == gone
    assert not any(b - a for a, b in zip(*found, strict=True))
