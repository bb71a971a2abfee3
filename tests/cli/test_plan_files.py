"""`plan --timeline`, `--trace` and `--html` from the outside, and pictures word for word.

The golden files come from one hand-made timeline, `two_ranks.json`, which no change of a schedule
touches; `pytest tests/cli --update-golden` draws them anew, and the picture of the docs, too.
"""

import contextlib
import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.timelines import parse_timeline

from mimo_launch.cli.app import run
from mimo_launch.diag.quantities import percent
from mimo_launch.drawing.spans import timeline_json
from mimo_launch.drawing.svg import render_svg
from mimo_launch.drawing.trace import render_trace

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden" / "timeline"
SPEC = "topologies/two_encoders.yaml"
Outputs = tuple[int, str, str]


@pytest.fixture(autouse=True)
def in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def same(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare text with a file, or write the file anew."""

    def check(path: Path, got: str) -> None:
        if request.config.getoption("--update-golden", default=False):
            path.write_text(got, encoding="utf-8")
        else:
            assert got == path.read_text(encoding="utf-8")

    return check


def call(capsys: pytest.CaptureFixture[str], *more: str, spec: str = SPEC) -> Outputs:
    code = run(["plan", spec, *more])
    return code, *capsys.readouterr()


def test_two_ranks_are_drawn_as_the_file_shows(same: Callable[[Path, str], None]) -> None:
    text = (GOLDEN / "two_ranks.json").read_text(encoding="utf-8")
    timeline = parse_timeline(text)
    assert timeline_json(timeline) == text
    same(GOLDEN / "two_ranks.svg", render_svg(timeline, name="two-ranks", plan_hash="0" * 12))
    same(GOLDEN / "two_ranks_trace.json", render_trace(timeline, name="two-ranks"))


@pytest.mark.parametrize(
    ("name", "more"), [("two_encoders", []), ("colocated_pp2", ["--model-units"])]
)
def test_picture_in_the_docs_is_what_plan_draws(
    name: str, more: list[str], same: Callable[[Path, str], None], tmp_path: Path
) -> None:
    svg = tmp_path / "step.svg"
    spec = str(ROOT / f"topologies/{name}.yaml")
    assert run(["plan", spec, "--no-advice", "--timeline", str(svg), *more]) == 0
    picture = ROOT / f"docs/img/{name.replace('_', '-')}.svg"
    same(picture, svg.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """The plan as JSON."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert run(["plan", str(ROOT / SPEC), "--json"]) == 0
    found: dict[str, Any] = json.loads(text.getvalue())
    return found


@pytest.mark.parametrize(
    "more", [["--no-advice"], ["--json"], ["--rank", "4"], ["--rank", "4", "--json"]]
)
def test_files_come_beside_the_usual_answer(
    more: list[str], facts: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg, trace = tmp_path / "step.svg", tmp_path / "step.json"
    code, usual, _ = call(capsys, *more)
    assert code == 0
    code, out, err = call(capsys, *more, "--timeline", str(svg), "--trace", str(trace))
    assert (code, out) == (0, usual)
    assert err == f"wrote {svg}\nwrote {trace}\n"
    words = " ".join(ET.fromstring(svg.read_text(encoding="utf-8")).itertext())
    assert facts["header"]["name"] in words
    assert f"plan {facts['header']['plan_hash']}" in words
    milliseconds = 1000 * facts["estimates"]["schedule_seconds"]
    assert f"planned step, estimated for {facts['estimates']['device']}" in words
    assert f"makespan {milliseconds:.6g} milliseconds" in words
    ranks = {e["pid"] for e in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]}
    assert ranks == ({4} if "--rank" in more else set(range(6)))


def test_files_have_the_bubble_that_is_estimated_or_that_of_model_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The picture, the page and the answer tell of one step."""
    svg, page, trace = tmp_path / "step.svg", tmp_path / "plan.html", tmp_path / "step.json"
    files = ("--timeline", str(svg), "--html", str(page), "--trace", str(trace))
    found = {}
    for more in ((), ("--model-units",)):
        code, out, _ = call(capsys, "--json", "--no-advice", *files, *more)
        assert code == 0
        plan = json.loads(out)
        words = " ".join(ET.fromstring(svg.read_text(encoding="utf-8")).itertext())
        other = json.loads(trace.read_text(encoding="utf-8"))["otherData"]
        found[more] = plan["schedule" if more else "estimates"]["bubble"]
        length = plan["schedule"]["makespan"] if more else plan["estimates"]["schedule_seconds"]
        share = percent(found[more])
        assert f"{'idle units' if more else 'bubble'} {share}" in words
        assert ("bubble" in words) == (not more)
        title = f"{share} of them idle" if more else f"bubble {share}"
        assert f"{title}</h2>" in page.read_text(encoding="utf-8")
        assert other["makespan"] == pytest.approx(length, rel=1e-6)
        assert other["unit"] == ("model units" if more else "estimated seconds")
    assert found[()] != found["--model-units",]


@pytest.mark.parametrize("more", [[], ["--json"], ["--full"]])
def test_page_comes_beside_the_usual_answer_and_has_the_first_screen(
    more: list[str], facts: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "plan.html"
    target.write_text("an old page", encoding="utf-8")
    _, usual, _ = call(capsys, *more)
    assert call(capsys, *more, "--html", str(target)) == (0, usual, f"wrote {target}\n")
    page = target.read_text(encoding="utf-8")
    losses = facts["answer"]["losses"]
    assert all(loss["what"] in page for loss in losses)
    changes = [loss["change"] for loss in losses if "change" in loss]
    assert changes
    assert all(change is None or change["text"] in page for change in changes)


def test_page_of_one_rank_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plan.html"
    code, out, err = call(capsys, "--rank", "1", "--html", str(target))
    assert (code, out) == (2, "")
    assert "leave out --rank" in err
    assert not target.exists()


MANY = """
version: 1
name: many
modules:
  vision:
    model: {kind: vit, layers: 1, hidden: 8, heads: 1, patch: 4}
    ranks: 0-127
    grid: {dp: 128}
  language:
    model: {kind: decoder, layers: 2, hidden: 8, heads: 2, kv_heads: 2, vocab: 100}
    ranks: 0-127
    grid: {tp: 2, pp: 2, dp: 32}
schedule: {kind: 1f1b, microbatches: 8}
batch: {global: 256, seq: 64}
data: {kind: synthetic}
"""


def test_a_trace_of_many_ranks_stays_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, trace = tmp_path / "spec.yaml", tmp_path / "step.json"
    spec.write_text(MANY, encoding="utf-8")
    files = ("--no-advice", "--trace", str(trace))
    code, _, err = call(capsys, *files, spec=str(spec))
    assert code == 0
    assert "2 of 128 ranks" in err
    assert trace.stat().st_size < 30_000
    code, _, err = call(capsys, *files, "--trace-ranks", "7-9", spec=str(spec))
    assert (code, err) == (0, f"wrote {trace}\n")
    ranks = {e["pid"] for e in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]}
    assert ranks == {7, 8, 9}
    assert call(capsys, *files, "--trace-ranks", "128", spec=str(spec))[0] == 2


@pytest.mark.parametrize("option", ["--timeline", "--trace", "--html"])
@pytest.mark.parametrize("target", [".", "missing/step"])
def test_unwritable_file_fails_without_an_answer(
    option: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / target
    code, out, err = call(capsys, "--no-advice", option, str(path))
    assert (code, out) == (1, "")
    assert err.startswith(f"error: cannot write {path}: ")
    assert f"give {option} a file" in err


def test_a_picture_of_another_format_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "--timeline", str(tmp_path / "step.pdf"))
    assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
    assert f"write --timeline {tmp_path}/step.svg" in err


def test_mistakes_come_before_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "step.svg"
    more = ["--set", "modules.vision.grid.dp=3", "--timeline", str(svg)]
    assert call(capsys, *more)[0] == 2
    assert call(capsys, "--rank", "6", "--timeline", str(svg))[0] == 2
    assert not svg.exists()


def test_no_file_is_written_over_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.yaml"
    text = Path(SPEC).read_text(encoding="utf-8")
    spec.write_text(text, encoding="utf-8")
    for option in ("--timeline", "--trace", "--html"):
        code, out, err = call(capsys, option, str(tmp_path / "." / "spec.yaml"), spec=str(spec))
        assert (code, out) == (2, "")
        assert "over the spec" in err
    assert spec.read_text(encoding="utf-8") == text
    both = str(tmp_path / "both")
    code, _, err = call(capsys, "--timeline", both, "--trace", both)
    assert code == 2
    assert "over the file of --timeline" in err
    code, _, err = call(capsys, "--trace", both, "--html", both)
    assert code == 2
    assert "over the file of --trace" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trace-ranks", "0"], "Add --trace step.json"),
        (["--model-units"], "Add --timeline step.svg"),
        (["--nnodes", "2"], "Add --nproc 8"),
    ],
)
def test_an_option_of_what_is_not_asked_for_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *options)
    assert (code, out) == (2, "")
    assert said in err
