"""`mimo-launch report`: files that show what runs did, and clear words where they cannot."""

import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.support.histories import step, write

from mimo_launch.cli.report_figure import COLORS, DASHES, Charts
from mimo_launch.train.history import read_history

Cli = Callable[[str], tuple[int, str, str]]
SPEC = Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml"


class Outside(HTMLParser):
    """Notes everything that a browser would fetch, and every script."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "iframe", "img", "object", "embed"):
            self.found.append(tag)
        self.found += [
            f"{name}={value}"
            for name, value in attrs
            if (name in ("src", "href", "xlink:href") and not str(value).startswith("#"))
            or name.startswith("on")
        ]


def outside(text: str) -> list[str]:
    parser = Outside()
    parser.feed(text)
    urls = [each for each in re.findall(r"url\((.*?)\)", text) if not each.startswith("#")]
    return [*parser.found, *urls, *re.findall(r"@import.*", text)]


def test_html_goes_into_the_first_run_and_fetches_nothing(
    run_cli: Cli, runs: Callable[..., Path]
) -> None:
    first, second = runs("first"), runs("second", steps=20)
    code, out, err = run_cli(f"report {first} {second}")
    assert (code, err) == (0, "")
    assert out == f"wrote {first / 'report.html'}\n"
    text = (first / "report.html").read_text(encoding="utf-8")
    assert outside(text) == []
    assert "color-scheme: light dark" in text
    for words in ("loss (dots: evaluation)", "gradient norm", "learning rate", "tokens/s"):
        assert f">{words}</text>" in text
    # Both are in the legend and in the table.
    assert all(text.count(f">{name}<") == 2 for name in ("first", "second"))


@pytest.mark.parametrize(("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_the_suffix_says_what_the_file_becomes(
    run_cli: Cli, runs: Callable[..., Path], tmp_path: Path, suffix: str, begin: bytes
) -> None:
    target = tmp_path / f"drawn.{suffix}"
    assert run_cli(f"report {runs('one')} --smooth 5 -o {target}")[0] == 0
    raw = target.read_bytes()
    assert raw.startswith(begin)
    if suffix == "svg":
        assert outside(raw.decode()) == []
        assert ElementTree.fromstring(raw).tag.endswith("svg")


def test_the_same_runs_give_the_same_file(run_cli: Cli, runs: Callable[..., Path]) -> None:
    run = runs("one")
    texts = []
    for _ in range(2):
        run_cli(f"report {run}")
        texts.append((run / "report.html").read_bytes())
    assert texts[0] == texts[1]


def test_smoothing_keeps_the_raw_line_behind(runs: Callable[..., Path]) -> None:
    run = read_history(runs("one"))
    raw, mean = (Charts([run], smooth).loss().lines for smooth in (1, 10))
    assert [line.look.faint for line in raw if not line.look.dots] == [False]
    assert [line.look.faint for line in mean if not line.look.dots] == [True, False]
    assert mean[1].values[-1] == pytest.approx(sum(4.0 / n for n in range(31, 41)) / 10)


def test_losses_of_several_modules_are_drawn_with_dashes(tmp_path: Path) -> None:
    losses = ({"language": 1.0, "drawer": 3.0}, {"language": 0.5, "drawer": 2.0})
    write(tmp_path, *(step(n, losses=each) for n, each in enumerate(losses, 1)))
    loss = Charts([read_history(tmp_path)], 1).loss()
    drawn = {line.name: (line.look.dash, line.values) for line in loss.lines}
    assert drawn["language"] == (loss.legend["language"].dash, [1.0, 0.5])
    assert drawn["drawer"] == (loss.legend["drawer"].dash, [3.0, 2.0])
    assert list(loss.legend) == ["weighted sum", "language", "drawer"]
    assert len({look.dash for look in loss.legend.values()}) == 3


def test_frozen_modules_have_no_norm_to_draw(runs: Callable[..., Path]) -> None:
    """`vision` of these records has norm 0; on a logarithmic axis it would be nowhere."""
    norms = Charts([read_history(runs("one"))], 1).norms()
    assert (norms.is_log, list(norms.legend)) == (True, ["language"])


def test_several_runs_share_the_dash_of_a_module(runs: Callable[..., Path]) -> None:
    """A run is a colour, a module a dash; a learning rate that all modules share is one line."""
    two = [read_history(runs("one")), read_history(runs("two"))]
    _, _, rates, speed = Charts(two, 1).all()
    looks = [(line.look.color, line.look.dash) for line in rates.lines]
    assert looks == [(color, dash) for color in COLORS[:2] for dash in DASHES[:2]]
    assert [line.look.color for line in speed.lines] == list(COLORS[:2])
    shared = {"lrs": {"vision": 1e-3, "language": 1e-3}}
    for run in two:
        write(run.run, step(1, **shared))
    two = [read_history(run.run) for run in two]
    assert len(Charts(two, 1).learning_rates().lines) == 2


def test_numbers_on_the_axes_are_plain(run_cli: Cli, runs: Callable[..., Path]) -> None:
    run = runs("one")
    lines = (run / "metrics.jsonl").read_text().replace('"language": 2.0', '"language": 2000.0', 9)
    write(run, lines)
    assert run_cli(f"report {run}")[0] == 0
    text = (run / "report.html").read_text(encoding="utf-8")
    assert ">1000</text>" in text


def test_names_are_shown_as_they_are(
    run_cli: Cli, runs: Callable[..., Path], tmp_path: Path
) -> None:
    """Markup, formulas, letters of other scripts."""
    names = ["<script>alert(1)</script>", "a$b$ \\frac", "_hidden", "{braces}", "\u8a13\u7df4"]
    places = []
    for number, name in enumerate(names):
        # A slash separates folders.
        places.append(runs(name.replace("/", "\u2215") + f".{number}"))
    target = tmp_path / "all.html"
    quoted = shlex.join(map(str, places))
    code, _, err = run_cli(f"report {quoted} -o {target}")
    assert (code, err) == (0, "")
    text = target.read_text(encoding="utf-8")
    assert outside(text) == []
    assert "&lt;script&gt;" in text
    for shown in ("a$b$ \\frac", "_hidden", "{braces}", "\u8a13\u7df4"):
        assert text.count(shown) >= 2


def test_runs_of_one_name_are_told_apart(
    run_cli: Cli, runs: Callable[..., Path], tmp_path: Path
) -> None:
    one = runs("one")
    other = runs("elsewhere/one")
    target = tmp_path / "both.html"
    assert run_cli(f"report {one} {other} {one} -o {target}")[0] == 0
    text = target.read_text(encoding="utf-8")
    assert re.findall("<th>(.*?)</th>", text) == ["", str(one), str(other)]


def resumed(run: Path, step: int, *changes: str) -> None:
    """Note in the metrics of a run that it was resumed."""
    record = {"step": step, "resumed_from": "checkpoints/step", "changes": changes}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def test_a_resumed_run_is_marked_where_and_says_what_changed(
    run_cli: Cli, runs: Callable[..., Path]
) -> None:
    run = runs("one")
    resumed(run, 10)
    resumed(run, 30, "optimizer.lr: 0.001 -> 0.002")
    for chart in Charts([read_history(run)], 1).all():
        assert [mark[0] for mark in chart.marks] == [10, 30]
        assert chart.below == "step, dotted where resumed"
    assert run_cli(f"report {run}")[0] == 0
    text = (run / "report.html").read_text(encoding="utf-8")
    assert "<td>resumed after</td><td>10, 30</td>" in text
    assert "<td>one</td><td>10</td><td>no setting changed</td>" in text
    assert "<td>one</td><td>30</td><td>optimizer.lr: 0.001 -&gt; 0.002</td>" in text


def test_runs_of_several_specs_show_the_settings_that_differ(
    run_cli: Cli, runs: Callable[..., Path], tmp_path: Path
) -> None:
    """Defaults count, names do not; a run without a spec is not taken for one without settings."""
    text = SPEC.read_text()
    places = [runs(name) for name in ("one", "two", "three")]
    (places[0] / "spec.yaml").write_text(text)
    changed = text.replace("name: tiny", "name: other").replace("steps: 4", "steps: 8")
    (places[1] / "spec.yaml").write_text(f"{changed}optimizer: {{lr: 0.002}}\n")
    target = tmp_path / "all.html"
    assert run_cli(f"report {shlex.join(map(str, places))} -o {target}")[0] == 0
    shown = target.read_text(encoding="utf-8").partition("Settings that differ")[2]
    found = [re.findall("<td>(.*?)</td>", line) for line in shown.splitlines() if "<td>" in line]
    assert found == [
        ["optimizer.lr", "0.0003", "0.002", "?"],
        ["train.steps", "4", "8", "?"],
    ]
    # A section that one run has and the other has not: each of their keys is of one run.
    (places[1] / "spec.yaml").write_text(f"{text}log: {{wandb: {{project: p}}}}\n")
    assert run_cli(f"report {places[0]} {places[1]} -o {target}")[0] == 0
    shown = target.read_text(encoding="utf-8").partition("Settings that differ")[2]
    for row in (("log.wandb", "null", "-"), ("log.wandb.project", "-", "p")):
        assert "".join(f"<td>{each}</td>" for each in row) in shown
    assert run_cli(f"report {places[0]} {places[2]} -o {target}")[0] == 0
    assert "<p>None, in the specs of these runs" in target.read_text(encoding="utf-8")


def test_a_page_fits_a_narrow_screen(run_cli: Cli, runs: Callable[..., Path]) -> None:
    """Panels are elements of their own, which stand below each other; tables scroll."""
    one = runs("one")
    assert run_cli(f"report {one} {runs('two')}")[0] == 0
    text = (one / "report.html").read_text(encoding="utf-8")
    assert text.count("<svg") == 4
    assert 'name="viewport"' in text
    assert "repeat(auto-fit" in text
    assert text.count("<table>") == text.count('<div class="wide">') == 1


def test_a_run_of_one_step_that_failed_is_drawn(
    run_cli: Cli, runs: Callable[..., Path], tmp_path: Path
) -> None:
    run = tmp_path / "short"
    run.mkdir()
    write(run, step(1, math.nan))
    for suffix in ("html", "png"):
        assert run_cli(f"report {run} --smooth 3 -o {tmp_path}/r.{suffix}")[0] == 0


def test_lines_that_are_no_records_are_told(run_cli: Cli, runs: Callable[..., Path]) -> None:
    run = runs("one")
    with (run / "metrics.jsonl").open("a") as file:
        file.write("garbage\n")
    code, _, err = run_cli(f"report {run / 'metrics.jsonl'}")
    assert code == 0
    assert err == f"warning: {run}/metrics.jsonl: left out 1 line, no record of a step\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "there is no {}/metrics.jsonl"), ("", "{}/metrics.jsonl holds no step")],
)
def test_a_run_that_cannot_be_shown_exits_with_2(
    run_cli: Cli, tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        write(tmp_path, content)
    code, out, err = run_cli(f"report {tmp_path}")
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first == "error: " + words.format(tmp_path)
    assert second.startswith("   = help: ")


def test_an_unknown_suffix_is_refused(run_cli: Cli, runs: Callable[..., Path]) -> None:
    """Above all that of the metrics themselves."""
    run = runs("one")
    before = (run / "metrics.jsonl").read_bytes()
    code, _, err = run_cli(f"report {run} -o {run}/metrics.jsonl")
    assert code == 2
    assert ".html, .png, .svg" in err
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_file_that_cannot_be_written_exits_with_1(
    run_cli: Cli, runs: Callable[..., Path], tmp_path: Path
) -> None:
    code, out, err = run_cli(f"report {runs('one')} -o {tmp_path}/nowhere/r.html")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: cannot write {tmp_path}/nowhere/r.html: No such file")


def test_without_pillow_only_png_is_refused(
    run_cli: Cli, runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    run = runs("one")
    code, out, err = run_cli(f"report {run} -o {run}/a.png")
    assert (code, out) == (2, "")
    assert "pip install 'pillow>=11.3'" in err
    assert run_cli(f"report {run} -o {run}/a.svg")[0] == 0


def test_torch_is_left_alone(runs: Callable[..., Path]) -> None:
    code = (
        "import sys; from mimo_launch.cli.app import run; code = run(['report', sys.argv[1]]);"
        "sys.exit(code or ('imported torch' if 'torch' in sys.modules else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(runs("one"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
