"""The page of a plan says what the plan says, of every rank once, and needs nothing else."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from tests.support.reports import build_rank_reports, build_report
from tests.support.specs import box, hybrid, layout_specs, spec
from tests.support.timelines import DEEP, SHARED

from mimo_launch.diag.quantities import bytes_text, percent, ranks_text
from mimo_launch.drawing import plan_page as page_file
from mimo_launch.drawing.answer_text import (
    FITS_TITLE,
    LOSSES_TITLE,
    facts_of,
    fitting_of,
    losses_of,
    tried_of,
)
from mimo_launch.drawing.plan_page import plan_page
from mimo_launch.drawing.rank_cells import COPIES, RECEIVES, SENDS, RankCells, rank_cells
from mimo_launch.drawing.rank_map import STYLE
from mimo_launch.drawing.rows import Report
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.actions import Kind
from mimo_launch.spec.sections import NodesSpec
from mimo_launch.spec.spec import Spec

CASES = settings(max_examples=12, deadline=None)
GRAPH = spec(
    {
        "vision": box(0, dp=2),
        "merger": box(0, tp=2, model={"kind": "connector", "queries": 3}, reads=["vision"]),
        "language": box(2, pp=2, reads=["vision", "merger"]),
        "drawer": box(0, dp=2, model={"kind": "flow"}, reads=["language"]),
    },
    microbatches=2,
    mbs=2,
)
VOID = {"meta", "br"}
HOSTILE = "</style></title><script>alert(1)</script><img src=x onerror=a()> ' \" & \x00"


class Page(HTMLParser):
    """The elements, texts and tables of a page; all elements must end where they should."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.heading = ""
        self.cells: dict[str, list[list[str]]] = {}
        self.texts: list[str] = []
        self.after_code = False
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "h2":
            self.heading = ""
        elif tag == "tr":
            self.cells.setdefault(self.heading, []).append([])
        elif tag in ("td", "th"):
            self.cells[self.heading][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.after_code = tag == "code"

    def handle_data(self, data: str) -> None:
        if self.texts and (self.after_code or self.open[-1:] == ["code"]):
            self.texts[-1] += data  # Code stands in a sentence.
        else:
            self.texts.append(data)
        self.after_code = False
        if "h2" in self.open:
            self.heading += data
        elif {"td", "th"} & set(self.open):
            self.cells[self.heading][-1][-1] += data

    def table(self, heading: str) -> list[dict[str, str]]:
        """Return the rows of the table below a heading, by their columns."""
        columns, *rows = self.cells[heading]
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def with_class(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of the elements whose first class is `name`."""
        return [
            each for _, each in self.elements if (each.get("class") or "").split()[:1] == [name]
        ]


def made(job: Spec) -> tuple[Plan, Report, Page]:
    plan = Plan.of(job)
    report = build_report(plan)
    return plan, report, Page(plan_page(plan, report))


@CASES
@example(DEEP)
@example(SHARED)
@given(layout_specs())
def test_every_module_group_bridge_and_class_is_there_once(job: Spec) -> None:
    _, report, page = made(job)
    assert [row["module"] for row in page.table("Modules")] == [row.name for row in report.modules]
    classes = page.table("Classes of alike ranks")
    assert sum(int(row["number"]) for row in classes) == report.header.world_size
    assert len({row["ranks"] for row in classes}) == len(classes)
    if report.groups:
        rows = [(row["module"], row["axes"]) for row in page.table("Groups")]
        assert rows == [(row.module, " x ".join(row.axes)) for row in report.groups]
    if report.bridges:
        counts = [int(row["rows"]) for row in page.table("Bridges (rows of one step)")]
        assert counts == [row.rows for row in report.bridges]
    for row in report.schedule.timeline:
        if row.work:
            assert any(text.startswith(ranks_text(row.ranks)) for text in page.texts)
    assert len(page.with_class("box")) == sum(len(row.work) for row in report.schedule.timeline)


@CASES
@example(DEEP)
@example(SHARED)
@given(layout_specs())
def test_cells_tell_of_a_rank_what_its_own_plan_says(job: Spec) -> None:
    plan = Plan.of(job)
    cells = rank_cells(plan, build_report(plan))
    assert [cell.ranks for cell in cells.cells] == [(rank,) for rank in range(len(cells.cell_of))]
    ways = {"send": SENDS, "receive": RECEIVES, "copy": COPIES}
    alone = build_rank_reports(plan, range(len(cells.cells)))
    for rank, (cell, mine) in enumerate(zip(cells.cells, alone, strict=True)):
        assert cell.groups == mine.groups
        assert cell.row == mine.rank
        want = Counter[tuple[str, int]]()
        for peer in mine.peers:
            want[ways[peer.way], peer.peer] += sum(peer.rows)
        got = Counter[tuple[str, int]]()
        for each in cell.traffic:
            if each.is_bridge:
                got.update({(each.way, other): number for other, number in each.amounts.items()})
        assert got == want
        channels = {
            (SENDS, each.dst) if each.src == rank else (RECEIVES, each.src)
            for each in plan.rank(rank).channels
            if not each.is_bridge
        }
        edges = [each for each in cell.traffic if not each.is_bridge]
        assert {(each.way, other) for each in edges for other in each.amounts} == channels


def assert_what_is_sent_is_received(cells: RankCells) -> None:
    moved: dict[str, Counter[tuple[str, str, int, int]]] = {SENDS: Counter(), RECEIVES: Counter()}
    for number, cell in enumerate(cells.cells):
        for each in cell.traffic:
            for other, amount in each.amounts.items():
                ends = (number, other) if each.way == SENDS else (other, number)
                if each.way != COPIES:
                    moved[each.way][each.edge, each.unit, *ends] += amount
    assert moved[SENDS] == moved[RECEIVES]
    assert moved[SENDS]


def test_cells_of_a_pipeline_agree_on_what_moves() -> None:
    plan = Plan.of(DEEP)
    cells = rank_cells(plan, build_report(plan))
    assert_what_is_sent_is_received(cells)
    first = {(t.edge, t.way, t.unit): t.amounts for t in cells.cells[4].traffic}
    # Four microbatches go on to the second stage, and their gradients come back.
    assert first["stages of language", SENDS, "activations"] == {8: 4}
    assert first["stages of language", RECEIVES, "gradients"] == {8: 4}


def test_the_bubble_of_a_rank_is_in_estimated_time_as_that_of_the_step() -> None:
    """Model units have another, of which the page says nothing."""
    deep = {"layers": 12}
    job = spec({"vision": box(0, dp=2), "language": box(2, pp=2, model=deep)}, mbs=2)
    _, report, page = made(job)
    shares = [percent(each.bubble) for each in report.estimates.ranks]
    assert [row["bubble"] for row in page.table("Classes of alike ranks")] == shares
    assert shares != [percent(row.bubble) for row in report.schedule.timeline]


@pytest.mark.parametrize("per_node", [2, 4, 5])
def test_hosts_hold_every_rank_once(per_node: int) -> None:
    modules = {"vision": box(0, dp=4), "language": box(4, tp=2, dp=2)}
    job = spec(modules, mbs=2, nodes={"gpus": per_node})
    plan, _, page = made(job)
    cells = rank_cells(plan, build_report(plan))
    assert [number for row in cells.hosts for number in row.cells] == list(range(8))
    assert [row.hosts for row in cells.hosts] == [(host,) for host in range(-(-8 // per_node))]
    assert [each["aria-label"] for each in page.with_class("cell")] == [
        f"rank {rank}: {'vision' if rank < 4 else 'language'}" for rank in range(8)
    ]
    assert len(page.with_class("about")) == 8


def test_pointing_at_a_rank_marks_its_groups_and_partners() -> None:
    plan = Plan.of(SHARED)
    text = plan_page(plan, build_report(plan))
    rules = re.findall(r"\.map:has\(:is\(([^)]*)\):is\(:hover,:focus\)\) (.*)", text)
    shown = dict.fromkeys(range(6), "")
    for pointed, rest in rules:
        for rank in re.findall(r"\.u(\d+)", pointed):
            shown[int(rank)] += rest + "\n"
    for rank, rest in shown.items():
        assert re.findall(r"\.a(\d+)\{", rest) == [str(rank)]
    # language tp 2 dp 2 on 0-3.
    assert ":is(.u0,.u1):not(:hover,:focus){outline:3px solid #1c7ed6}" in shown[1]
    assert ":is(.u1,.u3):not(:hover,:focus){outline:3px dashed #2b8a3e}" in shown[1]
    sent = {link.dst for bridge in build_report(plan).bridges for link in bridge.links
            if link.src == 4}  # fmt: skip
    partners = ",".join(f".u{rank}" for rank in sorted(sent))
    assert f":is({partners}){{box-shadow" in shown[4]


def test_groups_of_all_axes_are_marked() -> None:
    """ep 2, experts split over tp 2, and two replicas of them, in each of two stages."""
    experts = {"tp": 2, "ep": 2}
    model = hybrid({"tp": 2}, "ME*MEE") | {"moe": {"experts": 8, "top_k": 2, "width": 8}}
    language = box(0, tp=2, cp=2, dp=2, pp=2, sequence_parallel=True, model=model, experts=experts)
    _, _, page = made(spec({"language": language}, microbatches=4, mbs=2))
    axes = {row["axes"] for row in page.table("Groups")}
    assert axes == {"tp", "cp", "dp x cp", "pp", "ep", "expert_tp", "expert_dp"}
    assert {f"{each} group" for each in axes} <= set(page.texts)


def test_graphs_have_roles_bridges_and_losses() -> None:
    _, _, page = made(GRAPH)
    assert [row["role"] for row in page.table("Modules")] == [
        "encoder", "connector", "language", "generator"
    ]  # fmt: skip
    ends = [row["bridge"] for row in page.table("Bridges (rows of one step)")]
    assert len(ends) == len(set(ends)) == 4
    assert "language -> drawer" in ends
    (losses,) = (heading for heading in page.cells if heading.startswith("Losses"))
    assert [row["module"] for row in page.table(losses)] == ["language", "drawer"]
    assert any("bridge language -> drawer: receives" in text for text in page.texts)


def test_the_answer_is_that_of_the_first_screen() -> None:
    plan = Plan.of(SHARED)
    report = build_report(plan, advice=True, tokens=10**9)
    page = Page(plan_page(plan, report))
    words = "\n".join(page.texts)
    assert all(text.replace("`", "") in words for text in facts_of(report).values())
    for loss in losses_of(report.answer):
        assert loss.head in words
        assert "\n".join(loss.settings) in words
    assert any(loss.settings for loss in losses_of(report.answer))
    assert words.index("memory") < words.index("Hosts and ranks")


def test_the_page_of_a_job_that_does_not_fit_says_what_fits() -> None:
    made = SHARED.model_copy(update={"nodes": NodesSpec(gpus=8, gpu_memory="1.6GB")})
    plan = Plan.of(made)
    report = build_report(plan, advice=True, fits=False)
    assert report.fitting is not None
    page = Page(plan_page(plan, report))
    words = "\n".join(page.texts)
    assert FITS_TITLE in words
    assert LOSSES_TITLE not in words
    for change in fitting_of(report, report.fitting):
        assert change.head in words
        assert "\n".join(change.settings) in words
    assert "".join(tried_of(report.fitting)) in words


def test_idle_ranks_are_shown() -> None:
    _, _, page = made(spec({"vision": box(0), "language": box(1)}, idle_ranks="2-3"))
    assert [row["holds"] for row in page.table("Classes of alike ranks")][-1] == "idle"
    labels = [each["aria-label"] for each in page.with_class("cell")]
    assert labels[2:] == ["rank 2: idle", "rank 3: idle"]


def resources(page: Page) -> Iterator[str]:
    """Yield what a page would load or run."""
    for tag, attrs in page.elements:
        if tag in ("script", "link", "img", "iframe", "object", "embed", "base", "form"):
            yield tag
        yield from (name for name in attrs if name in ("src", "href") or name.startswith("on"))


@pytest.mark.parametrize("job", [DEEP, SHARED])
def test_page_loads_and_runs_nothing(job: Spec) -> None:
    plan, report, page = made(job)
    text = plan_page(plan, report)
    assert not list(resources(page))
    assert "http" not in text
    assert "@import" not in text
    assert {url[:2] for url in re.findall(r"url\(([^)]*)\)", text)} <= {"#h"}


def test_text_of_a_spec_is_escaped() -> None:
    plan = Plan.of(SHARED.model_copy(update={"name": HOSTILE}))
    report = build_report(plan)
    vision, *others = report.modules
    report = replace(
        report,
        modules=(replace(vision, kind=HOSTILE, reads=(HOSTILE,)), *others),
        estimates=replace(report.estimates, device=HOSTILE),
        bridges=tuple(replace(row, source=HOSTILE) for row in report.bridges),
    )
    page = Page(plan_page(plan, report))
    assert not list(resources(page))
    assert page.table("Modules")[0]["kind"] == HOSTILE.replace("\x00", "\ufffd")
    assert sum("alert(1)" in text for text in page.texts) >= 5


def test_module_names_hold_nothing_to_escape() -> None:
    """Names of modules reach style sheets and classes as numbers only; the spec refuses markup."""
    with pytest.raises(ValueError, match="String should match pattern"):
        spec({"<b>": box(0), "language": box(1)})


@pytest.mark.parametrize(
    "job",
    [
        spec(
            {"vision": box(0, dp=2048), "language": box(2048, tp=8, dp=64, pp=16)},
            microbatches=32,
            mbs=32,
            nodes={"gpus": 8},
        ),
        spec(
            {"vision": box(0, dp=10240), "language": box(0, tp=8, dp=80, pp=16)},
            kind="bubble_filling",
            microbatches=128,
            nodes={"gpus": 8},
        ),
    ],
    ids=["disjoint", "bubbles filled"],
)
def test_10240_ranks_take_seconds_and_a_page(job: Spec) -> None:
    start = time.process_time()
    plan = Plan.of(job)
    report = build_report(plan, advice=True)
    text = plan_page(plan, report)
    # Measured: 3 to 4 s on one core, and 0.3 to 0.5 MB.
    assert time.process_time() - start < 7
    assert len(text.encode()) < 2_000_000
    page, cells = Page(text), rank_cells(plan, report)
    assert cells.has_classes
    assert sorted(rank for cell in cells.cells for rank in cell.ranks) == list(range(10240))
    classes = page.table("Classes of alike ranks")
    assert sum(int(row["number"].replace(",", "")) for row in classes) == 10240
    assert [row["class"] for row in classes] == [str(number) for number in range(len(classes))]
    assert len(page.with_class("about")) == len(classes)
    hosts = [host for row in cells.hosts for host in row.hosts]
    assert sorted(hosts) == list(range(1280))
    drawn = Counter(each["class"] for each in page.with_class("cell"))
    assert set(drawn) == {f"cell u{number}" for number in range(len(classes))}
    assert_what_is_sent_is_received(cells)
    assert not list(resources(page))


def test_classes_are_cells_where_hosts_are_unknown() -> None:
    modules = {"vision": box(0, dp=32), "language": box(32, tp=2, dp=8, pp=3)}
    plan, report, page = made(spec(modules, microbatches=4, mbs=4))
    assert [cell["aria-label"] for cell in page.with_class("cell")] == [
        "class 0, ranks 0-31: vision",
        "class 1, ranks 32-47: language",
        "class 2, ranks 48-63: language.1",
        "class 3, ranks 64-79: language.2",
    ]
    cells = rank_cells(plan, report)
    assert not cells.hosts
    assert_what_is_sent_is_received(cells)
    sent = [each for cell in cells.cells for each in cell.traffic if each.way == SENDS]
    rows = sum(sum(each.amounts.values()) for each in sent if each.is_bridge)
    # No rank has both ends.
    assert rows == report.bridges[0].rows > 128
    actions = [action for program in plan.training for slot in program for action in slot]
    kinds = Counter(action.kind for action in actions if action.stage is not None)
    for unit, kind in (("activations", Kind.SEND_F), ("gradients", Kind.SEND_B)):
        amounts = [sum(each.amounts.values()) for each in sent if each.unit == unit]
        assert sum(amounts) == kinds[kind] == 2 * 16 * 4


def test_a_long_step_is_drawn_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """In few elements: one for the boxes of a colour in a row, of ranks that hold the same."""
    monkeypatch.setattr(page_file, "MAX_BOXES", 10)
    _, report, page = made(SHARED)
    first = {row.role: row for row in reversed(report.schedule.timeline)}
    paths = [each["d"] or "" for each in page.with_class("box")]
    boxes = [map(float, box) for path in paths for box in re.findall(r"M(\S+) \S+?h([^v]+)v", path)]
    assert len(boxes) == sum(len(row.work) for row in first.values()) > 10
    assert len(paths) < len(boxes)
    ground = page.with_class("ground")[0]
    end = float(ground["x"] or 0) + float(ground["width"] or 0)
    assert max(map(sum, boxes)) == pytest.approx(end, abs=1)


@pytest.mark.parametrize("memory", ["1TB", "1GB"])
def test_memory_is_shown_as_bars_of_its_parts_and_where_a_gpu_ends(memory: str) -> None:
    job = spec({"vision": box(0), "language": box(1)}, nodes={"gpus": 2, "gpu_memory": memory})
    plan, report, _ = made(job)
    text = plan_page(plan, report)
    for row in report.estimates.ranks:
        bar = ", ".join(f"{part} {bytes_text(size)}" for part, size in row.memory.parts.items())
        assert bar in text
        assert sum(row.memory.parts.values()) == row.total_bytes
    limit = report.estimates.gpu_memory or 0
    is_over = any(row.total_bytes > limit for row in report.estimates.ranks)
    assert ('<b style="left:' in text) == is_over == (memory == "1GB")


def test_the_stages_of_a_rank_stand_inside_its_cell() -> None:
    """Eight numbers are wider than a cell for one: cells grow, and lines break after commas."""
    rule = re.search(r"\.cell \{([^}]*)\}", STYLE)
    assert rule is not None
    assert {"min-width", "min-height"} <= set(re.findall(r"([\w-]+):", rule[1]))
    assert not {"width", "height"} & set(re.findall(r"([\w-]+):", rule[1]))
    job = spec({"vision": box(0), "language": box(1, pp=2, model={"layers": 8})}, microbatches=2,
               kind="interleaved", virtual_stages=4)  # fmt: skip
    plan = Plan.of(job)
    assert "<small>0, 2, 4, 6</small>" in plan_page(plan, build_report(plan))
