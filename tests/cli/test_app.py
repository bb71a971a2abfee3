"""What all commands share: help, version, usage errors, internal errors, speed."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from mimo_launch import __version__
from mimo_launch.cli import app
from mimo_launch.cli.shared.console import Color, Console
from mimo_launch.diag.diagnostic import all_codes
from mimo_launch.spec.yaml_source import read_text

Cli = Callable[[str], tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"


def test_help_shows_examples_first_and_every_command(run_cli: Cli) -> None:
    code, out, err = run_cli("--help")
    assert (code, err) == (0, "")
    assert out.index("Examples:") < out.index("Options:")
    assert all(f"\n  {name} " in out for name in app.COMMANDS)
    assert run_cli("") == (0, out, "")


@pytest.mark.parametrize("name", app.COMMANDS)
def test_each_command_has_help_with_examples(run_cli: Cli, name: str) -> None:
    code, out, _ = run_cli(f"{name} --help")
    assert code == 0
    assert f"mimo-launch {name}" in out.partition("Options:")[0].partition("Examples:")[2]


def test_version(run_cli: Cli) -> None:
    assert run_cli("--version") == (0, f"mimo-launch {__version__}\n", "")


def test_our_own_fault_is_told_apart(run_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback appears only with -v."""

    def broken(*args: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("mimo_launch.checks.load_and_check.load_and_check", broken)
    code, out, err = run_cli("validate valid.yaml")
    assert (code, out) == (1, "")
    assert err.startswith("internal error: ZeroDivisionError: planted\n")
    assert f"version: {__version__}" in err
    assert "command: mimo-launch validate valid.yaml" in err
    assert "Traceback" not in err
    assert "Traceback" in run_cli("-v validate valid.yaml")[2]


@pytest.mark.parametrize(
    "args", ["validate", "validate valid.yaml --nprok 4", "validate --nproc 0 a"]
)
def test_wrong_usage_exits_with_2(run_cli: Cli, args: str) -> None:
    code, out, err = run_cli(args)
    assert (code, out) == (2, "")
    assert err.startswith("error[usage]: ")
    assert err.endswith("   = help: mimo-launch validate --help\n")


def test_a_value_that_is_no_choice_is_told_without_the_name_of_an_exception(run_cli: Cli) -> None:
    code, _, err = run_cli("train valid.yaml --device tpu")
    assert (code, "error[usage]: " in err, "tpu" in err) == (2, True, True)
    assert "Value error" not in err


def test_help_says_what_happens_without_an_option(run_cli: Cli) -> None:
    """typer prints only defaults that are values; the others stand in the text."""
    for command, options in {
        "init": "--gpu-memory --data --tokenizer --seq --global-batch --steps",
        "plan": "--nproc --trace-ranks",
        "train": "--nproc --console-ranks --nnodes",
    }.items():
        out = run_cli(f"{command} --help")[1].partition("Options:")[2]
        texts = re.split(r"\n  (?=-)", out)
        for option in options.split():
            (text,) = [each for each in texts if each.startswith(f"{option} ")]
            assert "default" in text.lower(), text


def test_interrupt_exits_with_130(run_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mimo_launch.checks.load_and_check.load_and_check", interrupted)
    assert run_cli("validate valid.yaml")[0] == 130


@pytest.mark.parametrize(
    "links",
    [
        {"__cause__": KeyboardInterrupt()},
        {"__context__": KeyboardInterrupt()},
        {"__cause__": OSError(), "__context__": KeyboardInterrupt()},
    ],
    ids=["its cause", "handled", "handled beside a cause"],
)
def test_an_interrupt_that_became_another_error_is_no_fault_of_ours(
    run_cli: Cli, monkeypatch: pytest.MonkeyPatch, links: dict[str, BaseException]
) -> None:
    """Ctrl-C while a package is imported."""

    def interrupted(*args: object) -> None:
        error = ImportError("the package could not be imported")
        for link, other in links.items():
            setattr(error, link, other)
        raise RuntimeError("no such backend") from error

    monkeypatch.setattr("mimo_launch.checks.load_and_check.load_and_check", interrupted)
    code, _, err = run_cli("validate valid.yaml")
    assert code == 130
    assert "internal error" not in err


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_streams_that_are_closed_from_the_start_are_no_fault(closed: str) -> None:
    command = f"{sys.executable} -m mimo_launch validate none.yaml {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "internal error" not in done.stdout + done.stderr


class Terminal:
    """A stream that says whether it is a terminal."""

    def __init__(self, *, is_tty: bool) -> None:
        self.is_tty = is_tty

    def isatty(self) -> bool:
        return self.is_tty


@pytest.mark.parametrize(
    ("color", "is_tty", "environ", "wanted"),
    [
        (Color.AUTO, True, {}, True),
        (Color.AUTO, False, {}, False),
        (Color.AUTO, True, {"NO_COLOR": "1"}, False),
        (Color.AUTO, True, {"NO_COLOR": ""}, True),
        (Color.AUTO, False, {"FORCE_COLOR": "1"}, True),
        (Color.AUTO, True, {"TERM": "dumb"}, False),
        (Color.ALWAYS, False, {"NO_COLOR": "1"}, True),
        (Color.NEVER, True, {"FORCE_COLOR": "1"}, False),
    ],
)
def test_color(color: Color, is_tty: bool, environ: dict[str, str], wanted: bool) -> None:
    assert Console(color).colors(Terminal(is_tty=is_tty), environ) is wanted


def test_color_always_colors(run_cli: Cli) -> None:
    assert "\x1b[1;31merror[" in run_cli("--color always validate ten_mistakes.yaml")[2]
    assert "\x1b" not in run_cli("--color never validate ten_mistakes.yaml")[2]


def test_explain_lists_every_code(run_cli: Cli) -> None:
    out = run_cli("explain")[1]
    # A meaning that is longer than a line goes on in the next one.
    codes = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert codes == sorted(all_codes())


@pytest.mark.parametrize("name", sorted(all_codes()))
def test_explain_prints_the_page(run_cli: Cli, name: str) -> None:
    code, out, _ = run_cli(f"explain {name}")
    assert code == 0
    assert out == (ROOT / "docs" / "errors" / f"{name}.md").read_text(encoding="utf-8")


def test_schema_is_a_json_schema_of_the_spec(run_cli: Cli) -> None:
    schema = json.loads(run_cli("schema")[1])
    assert set(schema["required"]) == {"version", "name", "modules", "batch", "data"}
    assert "global" in schema["$defs"]["BatchSpec"]["properties"]
    sections = schema["$defs"].values()
    keys = [(key, each) for part in sections for key, each in part["properties"].items()]
    assert all("description" in each for key, each in keys if key != "kind")


def test_the_schema_beside_the_shipped_specs_accepts_them(run_cli: Cli) -> None:
    file = ROOT / "topologies" / "spec.schema.json"
    text = file.read_text("utf-8")
    assert run_cli("schema")[1] == text, "run: mimo-launch schema > topologies/spec.schema.json"
    validator = jsonschema.Draft202012Validator(json.loads(text))
    for path in sorted((ROOT / "topologies").rglob("*.yaml")):
        spec = path.read_text("utf-8")
        named = re.search(r"^# yaml-language-server: \$schema=(\S+)$", spec, re.MULTILINE)
        assert named, path
        assert (path.parent / named[1]).resolve() == file
        assert validator.is_valid(read_text(spec).data), path


@pytest.mark.parametrize(
    "args", ["--help", "validate valid.yaml", "validate ten_mistakes.yaml", "explain", "schema"]
)
def test_leaves_torch_and_numpy_alone(args: str) -> None:
    """They cost a second at import; a login node may not even have a working torch."""
    code = (
        "import sys; from mimo_launch.cli.app import run; run(sys.argv[1:]);"
        "heavy = {'torch', 'numpy', 'rich.console'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *args.split()],
        cwd=FIXTURES,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_run_that_does_not_fit_into_the_host_starts_nothing(run_cli: Cli, tmp_path: Path) -> None:
    vocab = "--set data.kind=synthetic --set modules.language.model.vocab=100000000"
    code, out, err = run_cli(f"train tiny_train.yaml --runs {tmp_path}/runs --device cpu {vocab}")
    assert (code, out.count("\n")) == (2, 1)
    assert "ranks of this host need about" in err
    assert "a smaller `vocab`" in err
    assert not (tmp_path / "runs").exists()
