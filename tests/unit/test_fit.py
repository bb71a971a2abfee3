"""Sizes of memory in a spec, and ranks that do not fit into it."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.reports import build_report
from tests.support.specs import box, spec

from mimo_launch.checks import memory
from mimo_launch.checks.all_checks import is_legal
from mimo_launch.checks.load_and_check import check_text, load_and_check
from mimo_launch.checks.memory import TOLERANCE, memory_findings, remedies
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.search.advice import LEAST_GAIN
from mimo_launch.search.answer import in_order, what_fits
from mimo_launch.search.changes import Change, changed
from mimo_launch.search.judge import Planned
from mimo_launch.spec.load import load_spec

SPEC = """
version: 1
name: fit
modules:
  vision:
    model: {kind: vit, layers: 24, hidden: 1024, heads: 16, patch: 16, channels: 3}
    ranks: 0-3
    grid: {dp: 4}
  language:
    model: {kind: decoder, layers: 16, hidden: 2048, heads: 16, vocab: 65536}
    ranks: 0-3
    grid: {dp: 4}
schedule: {microbatches: 4}
batch: {global: 16, seq: 2048}
data: {kind: synthetic, image: [32, 32]}
train: {steps: 5, precision: bf16}
"""


def nodes(text: str) -> str:
    return f"{SPEC}nodes: {{gpus: 8, gpu_memory: {text}}}\n"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("141GB", 141 * 10**9),
        ("80 GiB", 80 * 2**30),
        ("0.5TB", 5 * 10**11),
        ("141000MB", 141 * 10**9),
        ("143771MiB", 143771 * 2**20),
        ("1TiB", 2**40),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    made = check_text(nodes(text)).spec
    assert made is not None
    assert made.nodes is not None
    assert made.nodes.memory == size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("141", "a size such as `141GB` or `80GiB`"),
        ("141gb", "`gb` is not a unit"),
        ("141G", "`G` is not a unit; write MB, MiB, GB, GiB, TB or TiB"),
        ("GB", "a size is a number and a unit"),
        ("-3GB", "a size is a number and a unit"),
        ("1e3GB", "a size is a number and a unit"),
        ("0GB", "it is 0"),
        ("[141GB]", "a size such as"),
    ],
)
def test_anything_else_is_an_error(text: str, said: str) -> None:
    (found,) = check_text(nodes(text)).diagnostics
    assert found.path == ("nodes", "gpu_memory")
    assert said in f"{found.headline} {found.why} {found.help}"


def test_a_dumped_size_reads_back() -> None:
    made = check_text(nodes("80 GiB")).spec
    assert made is not None
    assert made.nodes is not None
    assert made.nodes.gpu_memory == "80GiB"


def write(folder: Path, text: str) -> Path:
    file = folder / "spec.yaml"
    file.write_text(text)
    return file


def test_both_sides_of_both_limits(tmp_path: Path) -> None:
    made = check_text(SPEC).spec
    assert made is not None
    (row,) = build_report(Plan.of(made)).estimates.ranks
    need = row.total_bytes

    def codes(limit: float) -> list[str]:
        text = nodes(f"{limit / 1e6:.0f}MB")
        return [item.code for item in load_and_check(write(tmp_path, text)).diagnostics]

    assert codes(need / (1 + TOLERANCE) * 0.999) == ["memory-too-small"]
    assert codes(need / (1 + TOLERANCE) * 1.001) == ["memory-tight"]
    assert codes(need / (1 - TOLERANCE) * 0.999) == ["memory-tight"]
    assert codes(need / (1 - TOLERANCE) * 1.001) == []


def test_a_spec_that_cannot_fit_is_none(tmp_path: Path) -> None:
    checked = load_and_check(write(tmp_path, nodes("10GB")))
    assert checked.spec is None
    (found,) = checked.diagnostics
    assert "ranks 0-3 (`vision` stage 0 and `language` stage 0) need about" in found.headline
    assert "but a GPU has 10.0 GB" in found.headline
    for part in ("weights", "gradients", "optimizer", "activations", "transfers"):
        assert part in str(found.why)
    assert [related.path for related in found.related] == [
        ("modules", "vision"),
        ("modules", "language"),
    ]


STAGES = """
version: 1
name: stages
modules:
  language:
    model: {kind: decoder, layers: 16, hidden: 2048, heads: 16, vocab: 65536}
    ranks: 0-3
    grid: {pp: 4}
schedule: {microbatches: 8}
batch: {global: 64, seq: 2048}
data: {kind: synthetic}
train: {steps: 5, precision: bf16}
nodes: {gpus: 8, gpu_memory: 20GB}
"""


def test_stages_of_the_same_modules_are_one_finding(tmp_path: Path) -> None:
    (found,) = load_and_check(write(tmp_path, STAGES)).diagnostics
    assert found.code == "memory-too-small"
    assert found.headline.startswith("rank 0 (`language` stage 0) needs about")
    assert found.headline.endswith("but a GPU has 20.0 GB; rank 1 needs more than it has, too")
    smaller = STAGES.replace("20GB", "12GB")
    (found,) = load_and_check(write(tmp_path, smaller)).diagnostics
    assert found.headline.endswith("but a GPU has 12.0 GB; ranks 1-3 need more than it has, too")
    # With few microbatches the last stage, which has the head, needs the most.
    head = STAGES.replace("microbatches: 8", "microbatches: 1").replace("65536", "1048576")
    (found,) = load_and_check(write(tmp_path, head)).diagnostics
    assert found.headline.startswith("rank 3 (`language` stage 3) needs about")
    # Those that just fit are not among them.
    made = load_spec(write(tmp_path, STAGES)).spec
    assert made is not None
    estimator = Estimator.of(Plan.of(made))
    second = max(estimator.memory(each).total for each in estimator.classes if 1 in each.ranks)
    just = STAGES.replace("20GB", f"{second // 10**6 + 1}MB")
    (found,) = load_and_check(write(tmp_path, just)).diagnostics
    assert "rank 1" not in found.headline


def test_changes_by_which_a_spec_fits_do_fit(tmp_path: Path) -> None:
    """Each of them is written into the spec, which then has no error."""
    file = write(tmp_path, STAGES.replace("20GB", "25GB"))
    spec = load_and_check(file).unfit
    assert spec is not None
    found = what_fits(Estimator.of(Plan.of(spec)))
    assert len(found.changes) > 1
    for change in found.changes:
        settings = [f"{path}={json.dumps(value)}" for path, value in change.settings.items()]
        checked = load_and_check(file, settings)
        assert checked.spec is not None
        estimates = Estimator.of(Plan.of(checked.spec)).estimates()
        assert estimates.step_seconds == pytest.approx(change.step_seconds)
        assert max(row.total_bytes for row in estimates.ranks) == change.needed_bytes


@pytest.mark.parametrize("memory", [pytest.param("60GB", marks=pytest.mark.sweep), "70GB"])
def test_changes_by_which_a_spec_fits_are_several_and_have_nothing_in_vain(memory: str) -> None:
    """Vision fits on its own ranks: cutting it otherwise there gains next to nothing."""
    file = Path("topologies/bench/r1_dp2_dp2.yaml")
    spec = load_and_check(file, [f"nodes.gpu_memory={memory}"]).unfit
    assert spec is not None
    found = what_fits(Estimator.of(Plan.of(spec))).changes
    assert len({frozenset(change.settings) for change in found}) == len(found) > 0
    for first, second in pairwise(found):
        # Within 2 % the shorter one is first.
        assert second.step_seconds > first.step_seconds / (1 + LEAST_GAIN)
        if second.step_seconds < first.step_seconds * (1 + LEAST_GAIN):
            assert len(second.settings) >= len(first.settings)
    kept = [each.settings for each in found if "modules.vision.ranks" not in each.settings]
    assert all("modules.vision.sharding" not in settings for settings in kept)
    assert spec.nodes is not None
    assert spec.nodes.memory is not None
    for change in found:
        for path in change.settings:
            less = {key: value for key, value in change.settings.items() if key != path}
            other = changed(spec, "", less)
            if other is None or not is_legal(other.spec):
                continue
            estimates = Estimator.of(Plan.of(other.spec)).estimates()
            needed = max(row.total_bytes for row in estimates.ranks)
            is_slower = estimates.step_seconds > change.step_seconds
            assert is_slower or needed > (1 - TOLERANCE) * spec.nodes.memory


def test_of_equally_fast_changes_the_shortest_is_first_and_none_sets_the_same_keys() -> None:
    def planned(seconds: float, *keys: str) -> Planned:
        estimates: Any = SimpleNamespace(step_seconds=seconds)
        return Planned(
            Change("", dict.fromkeys(keys, seconds), spec({"language": box()})), estimates
        )

    found = [
        planned(1.0, "a", "b"),
        planned(1.005, "b", "a"),
        planned(1.01, "c"),
        planned(1.03, "d"),
    ]
    order = [(each.estimates.step_seconds, *each.change.settings) for each in in_order(found)]
    assert order == [(1.01, "c"), (1.0, "a", "b"), (1.03, "d")]


def test_a_spec_with_another_error_is_not_one_that_does_not_fit(tmp_path: Path) -> None:
    assert load_and_check(write(tmp_path, STAGES.replace("layers: 16", "layers: 2"))).unfit is None
    assert load_and_check(write(tmp_path, STAGES.replace("20GB", "141GB"))).unfit is None


def test_a_warning_says_on_which_side_of_the_limit_the_estimate_is(tmp_path: Path) -> None:
    made = check_text(SPEC).spec
    assert made is not None
    need = build_report(Plan.of(made)).estimates.ranks[0].total_bytes
    above, below = (
        load_and_check(write(tmp_path, nodes(f"{limit / 1e6:.0f}MB"))).diagnostics[0].headline
        for limit in (0.95 * need, 1.05 * need)
    )
    assert "may not fit into the" in above
    large = SPEC.replace("global: 16", "global: 512")
    for key, value in (("gpu", "h100-80gb"), ("gpu_memory", "80GB")):
        text = f"{large}nodes: {{gpus: 8, {key}: {value}}}\n"
        assert load_and_check(write(tmp_path, text)).diagnostics[0].path == ("nodes", key)
    assert "close to the" in below


def test_help_names_what_saves_most_and_is_not_set_yet(tmp_path: Path) -> None:
    # Activations are most of it with four samples in a microbatch.
    text = nodes("10GB").replace("global: 16", "global: 64")
    (found,) = load_and_check(write(tmp_path, text)).diagnostics
    assert re.fullmatch(
        r"cut the step into more and smaller microbatches \(`schedule.microbatches`\), "
        r"or write `recompute: full` for `vision` \(then [\d.]+ GB there\), "
        r"or write `recompute: full` for `language` \(then [\d.]+ GB there\)",
        str(found.help),
    )
    # With one image at a time, and recomputing, it is state, and language has most of that.
    text = nodes("4GB").replace("grid:", "recompute: full\n    grid:")
    text = text.replace("microbatches: 4", "microbatches: 4, encoder_microbatches: 1")
    (found,) = load_and_check(write(tmp_path, text)).diagnostics
    help_ = str(found.help)
    assert "recompute" not in help_
    assert "encoder_microbatches" not in help_
    # That suffices, and the same for vision would not.
    assert "`sharding: full` for `language` (then" in help_
    assert "`sharding: full` for `vision`" not in help_


def test_groups_of_microbatches_that_fit_are_offered(tmp_path: Path) -> None:
    """Half of all microbatches at once would not fit; the largest number that does is named."""
    text = nodes("16GB").replace("microbatches: 4", "microbatches: 64")
    text = text.replace("global: 16", "global: 256")
    text = text.replace("grid:", "sharding: full\n    grid:")
    text = text.replace("image: [32, 32]", "image: [32, 32], max_images: 1")
    (found,) = load_and_check(write(tmp_path, text)).diagnostics
    offered = re.search(r"`encoder_microbatches: (\d+)`\) \(then ([\d.]+) GB there\)", found.help)
    assert offered is not None, found.help
    size = int(offered[1])
    assert size < 32
    assert float(offered[2]) < 16

    def fits(number: int) -> bool:
        changed = f"microbatches: 64, encoder_microbatches: {number}"
        done = load_and_check(write(tmp_path, text.replace("microbatches: 64", changed)))
        return not done.diagnostics

    assert (fits(size), fits(2 * size)) == (True, False)


@pytest.mark.parametrize(
    ("microbatches", "present", "vision", "offered"),
    [
        # Of the divisors of 9 below it.
        (9, 9, 4, 3),
        # Groups of 1, 2 and 3 have too few samples for 8 replicas of vision.
        (12, 12, 8, 6),
        (12, 6, 8, 4),
        (12, 4, 8, 2),
        (12, 2, 8, None),
    ],
)
def test_smaller_groups_of_microbatches_are_legal(
    microbatches: int,
    present: int,
    vision: int,
    offered: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "MAX_REMEDIES", 9)
    text = nodes("4GB").replace("grid:", "recompute: full\n    sharding: full\n    grid:")
    size = f"microbatches: {microbatches}, encoder_microbatches: {present}"
    text = text.replace("microbatches: 4", size).replace(
        "global: 16", f"global: {4 * microbatches}"
    )
    if vision == 8:
        text = text.replace("0-3", "0-7").replace("grid: {dp: 4}", "grid: {dp: 8}", 1)
        text = text.replace("grid: {dp: 4}", "grid: {dp: 4, tp: 2}")
    (found,) = load_and_check(write(tmp_path, text)).diagnostics
    if offered is None:
        assert "encoder_microbatches" not in str(found.help)
        return
    assert f"`encoder_microbatches: {offered}`" in str(found.help)
    assert "`offload: [activations]` for `vision` (then" in str(found.help)
    assert check_text(
        text.replace(size, f"microbatches: {microbatches}, encoder_microbatches: {offered}")
    ).spec


def test_smaller_groups_of_a_generator_are_offered_where_they_save() -> None:
    large = {"recompute": "full", "sharding": "full", "dp": 2}
    drawer = {"kind": "flow", "hidden": 512, "heads": 8, "layers": 8}
    made = spec(
        {
            "language": box(0, **large),
            "drawer": box(0, model=drawer, reads=["language"], **large),
        },
        microbatches=4,
        generator_microbatches=4,
        mbs=64,
        data={"kind": "synthetic", "image": [16, 16], "text_only": 0.0},
    )
    estimator = Estimator.of(Plan.of(made))
    [alike] = estimator.classes
    offers = remedies(estimator, alike, estimator.memory(alike))
    offered = "run fewer microbatches of `drawer` at once (`generator_microbatches: 2`) (then "
    assert any(each.startswith(offered) for each in offers)


def test_a_change_that_saves_less_than_is_shown_is_not_offered(tmp_path: Path) -> None:
    """Weights fill these ranks; recomputing a few tokens leaves as many GB."""
    text = nodes("2GB").replace("seq: 2048", "seq: 16").replace("image: [32, 32]", "image: [2, 2]")
    text = text.replace("hidden: 2048", "hidden: 4096").replace(
        "grid:", "sharding: full\n    grid:"
    )
    found = next(iter(load_and_check(write(tmp_path, text)).diagnostics))
    (needed,) = re.findall(r"need about ([\d.]+ GB)", found.headline)
    assert f"(then {needed} there)" not in str(found.help)


def test_a_change_that_only_just_fits_is_not_offered_beside_one_that_does(tmp_path: Path) -> None:
    """After it, `memory-tight` would say so: estimates are within 10 % of what is measured."""
    made = check_text(nodes("20GB")).spec
    assert made is not None
    estimator = Estimator.of(Plan.of(made))
    [alike] = estimator.classes
    offers = remedies(estimator, alike, estimator.memory(alike))
    sizes = [*thens(offers)]
    most, least = max(sizes), min(sizes)
    assert most / least > 1.15
    (found,) = load_and_check(write(tmp_path, nodes(f"{most / 0.95:.2f}GB"))).diagnostics
    assert [*thens([str(found.help)])] == [pytest.approx(least, rel=0.01)]


def thens(offers: list[str]) -> Iterator[float]:
    """Return the GB after each change that says how many there are."""
    for each in offers:
        yield from map(float, re.findall(r"\(then ([\d.]+) GB there\)", each))


def test_moments_on_the_host_are_offered_where_they_save_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of AdamW, which may lie there, and not twice."""
    monkeypatch.setattr(memory, "MAX_REMEDIES", 9)
    text = nodes("8GB").replace("0-3", "0").replace("dp: 4", "dp: 1")
    (found,) = load_and_check(write(tmp_path, text)).diagnostics
    assert "write `offload: [optimizer]` for `language` (then " in str(found.help)
    for optimizer in ("{kind: sgd}", "{offload: true}"):
        (found,) = load_and_check(write(tmp_path, f"{text}optimizer: {optimizer}\n")).diagnostics
        assert "offload: [optimizer]" not in str(found.help)


def test_sharding_that_the_schedule_forbids_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MAX_REMEDIES", 9)
    text = nodes("3GB").replace("grid: {dp: 4}\nschedule: {", "grid: {dp: 2, pp: 2}\nschedule: {")
    text = text.replace("grid:", "recompute: full\n    grid:")

    def helps(kind: str) -> str:
        changed = text.replace(
            "schedule: {", f"schedule: {{kind: {kind}, encoder_microbatches: 1, "
        )
        found = load_and_check(write(tmp_path, changed)).diagnostics
        assert {item.code for item in found} == {"memory-too-small"}
        return " ".join(str(item.help) for item in found)

    assert "write `sharding: full` for `vision`" in helps("1f1b")
    assert "write `sharding: full` for `vision`" not in helps("bubble_filling")


def test_constants_of_a_calibration_count(tmp_path: Path) -> None:
    made = check_text(SPEC).spec
    assert made is not None
    need = build_report(Plan.of(made)).estimates.ranks[0].total_bytes
    file = write(tmp_path, nodes(f"{1.2 * need / 1e6:.0f}MB"))
    assert load_and_check(file).diagnostics == ()
    more = replace(Calibration(), context_memory=0.5 * need / 1e9)
    (found,) = load_and_check(file, constants=more).diagnostics
    assert found.code == "memory-too-small"


def test_a_run_on_processors_needs_no_gpu_memory(tmp_path: Path) -> None:
    file = write(tmp_path, nodes("5GB"))
    assert load_and_check(file).spec is None
    checked = load_and_check(file, on_gpus=False)
    assert checked.spec is not None
    assert checked.diagnostics == ()


def test_nothing_is_said_without_a_size_or_beside_a_mistake(tmp_path: Path) -> None:
    assert load_and_check(write(tmp_path, SPEC)).diagnostics == ()
    faulty = nodes("10GB").replace("heads: 16", "heads: 7")
    assert "memory-too-small" not in {
        item.code for item in load_and_check(write(tmp_path, faulty)).diagnostics
    }


def test_thousands_of_ranks_are_judged_quickly(tmp_path: Path) -> None:
    text = nodes("10GB").replace("0-3", "0-4095").replace("dp: 4", "dp: 4096")
    made = load_spec(write(tmp_path, text.replace("global: 16", "global: 16384"))).spec
    assert made is not None
    start = time.process_time()
    (found,) = memory_findings(Estimator.of(Plan.of(made), Calibration()))
    # Measured: 0.1 to 0.8 s, by machine.
    assert time.process_time() - start < 3
    assert "ranks 0-4095" in found.headline
