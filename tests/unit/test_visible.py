"""What others have named or said does not command the terminal."""

import io
import json

import pytest
from rich.console import Console as RichConsole

from mimo_launch.cli.run_screens import PlainProgress
from mimo_launch.cli.shared.console import Color, Console
from mimo_launch.train.events import BadSamples

EVIL = "\x1b]0;title\x07 \x1b[2J\x1b[8mhidden \x9b1A back\r over\x7f\x00"
SHOWN = "\\x1b]0;title\\x07 \\x1b[2J\\x1b[8mhidden \\u009b1A back\\x0d over\\u007f\\x00"


@pytest.mark.parametrize("color", list(Color))
def test_control_characters_are_shown(capsys: pytest.CaptureFixture[str], color: Color) -> None:
    console = Console(color=color)
    console.note(f"tab\t{EVIL}\n")
    console.answer(EVIL)
    assert capsys.readouterr() == (f"{SHOWN}\n", f"tab\t{SHOWN}\n\n")


def test_our_colours_stay(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(color=Color.ALWAYS)
    console.note("\x1b[1;31merror\x1b[0m \x1b[1;8mhidden", painted=True)
    console.answer("\x1b[1;31mred\x1b[0m", painted=True)
    shown = "\x1b[1;31mred\x1b[0m\n", "\x1b[1;31merror\x1b[0m \\x1b[1;8mhidden\n"
    assert capsys.readouterr() == shown


@pytest.mark.parametrize("color", list(Color))
def test_colours_of_others_are_shown(capsys: pytest.CaptureFixture[str], color: Color) -> None:
    """Stripped, they would leave the name of another file."""
    console = Console(color=color)
    console.note("esc\x1b[31mname.tar")
    console.answer("esc\x1b[31mname.tar")
    assert capsys.readouterr() == ("esc\\x1b[31mname.tar\n", "esc\\x1b[31mname.tar\n")


def test_json_stays_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Console().answer(json.dumps({"name": EVIL}, ensure_ascii=False))
    out = capsys.readouterr().out
    assert json.loads(out) == {"name": EVIL}
    assert not any(ord(char) < 10 or 0x7F <= ord(char) < 0xA0 for char in out)


def test_reasons_of_bad_samples_are_shown_in_the_progress() -> None:
    output = io.StringIO()
    progress = PlainProgress(RichConsole(file=output, force_terminal=True))
    progress(BadSamples(step=1, reasons={3: f"{EVIL}\x1b[31m.jpg"}, total=1))
    assert f"(3: {SHOWN}\\x1b[31m.jpg)" in output.getvalue()
