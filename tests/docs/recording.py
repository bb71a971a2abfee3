"""Records a command on a terminal as an animated SVG, which shows what really happened.

`pip install pyte`, then, in an empty folder with a copy of the spec:

    python -m tests.docs.recording OUT.svg mimo-launch train quickstart.yaml --nproc 8

The command runs at its own speed on a pseudo-terminal. What its screen shows is kept whenever it
changes; the picture shows some of these screens, evenly chosen, and repeats them. It begins with
a screen of some lines; without animation it is the last one.
"""

import codecs
import os
import pty
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from fcntl import ioctl
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyte

WIDTH, HEIGHT = 90, 22
CHAR, LINE, MARGIN = 7.8, 17, 14
FRAMES, SECONDS, LAST_SECONDS, LEAST_LINES = 24, 12.0, 4.0, 5
# A screen that changes twice within this time is kept once.
SETTLED = 0.2
PALETTE = {
    "default": "#d4d4d4", "black": "#6e7681", "red": "#f47067", "green": "#57ab5a",
    "brown": "#c69026", "yellow": "#c69026", "blue": "#6cb6ff", "magenta": "#dcbdfb",
    "cyan": "#56d4dd", "white": "#ffffff",
}  # fmt: skip
Screen = tuple[tuple[tuple[str, str, bool], ...], ...]


def record(command: Sequence[str]) -> list[Screen]:
    """Return the screens that a command shows, in order. Raises: SystemExit if it fails."""
    screen = pyte.Screen(WIDTH, HEIGHT)
    stream, decode = pyte.Stream(screen), codecs.getincrementaldecoder("utf-8")("replace").decode
    screens: list[Screen] = []
    stream.feed(f"$ {shlex.join(command)}\r\n")
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    kept = time.monotonic()
    while True:
        if select.select([ours], [], [], SETTLED)[0]:
            try:
                data = os.read(ours, 65536)
            except OSError:
                break
            if not data:
                break
            stream.feed(decode(data))
        if time.monotonic() - kept >= SETTLED:
            kept = time.monotonic()
            screens.append(_shown(screen))
    if process.wait():
        sys.exit(f"{shlex.join(command)} failed with {process.returncode}")
    screens.append(_shown(screen))
    # With a line or two it would look like an empty box.
    said = [shown for shown in screens if sum(map(_has_text, shown)) >= LEAST_LINES]
    return [shown for shown, _ in groupby(said)]


def _has_text(line: tuple[tuple[str, str, bool], ...]) -> bool:
    return any(text.strip() for text, _, _ in line)


def _shown(screen: Any) -> Screen:
    """Return the lines of a screen as pieces of text, each with its colour and weight."""
    return tuple(
        tuple(
            ("".join(char.data for char in run), color, bold)
            for (color, bold), run in groupby(
                (screen.buffer[line][column] for column in range(WIDTH)),
                key=lambda char: (char.fg, char.bold),
            )
        )
        for line in range(HEIGHT)
    )


def picture(screens: Sequence[Screen]) -> str:
    """Return an animated SVG of at most `FRAMES` screens; the last one stays longest."""
    steps = min(FRAMES, len(screens))
    chosen = [screens[round(i * (len(screens) - 1) / max(1, steps - 1))] for i in range(steps)]
    height = 2 * MARGIN + LINE * HEIGHT
    width = 2 * MARGIN + CHAR * WIDTH
    total = SECONDS + LAST_SECONDS
    starts = [i * SECONDS / max(1, steps - 1) for i in range(steps)]
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" '
            'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" '
            'font-size="13" role="img">',
            "<title>A recorded terminal</title>",
            "<style>",
            "text { white-space: pre; } .f { visibility: hidden; }",
            *_visible(starts, total),
            f".f{steps - 1} {{ visibility: visible; }}",
            "@media (prefers-reduced-motion: reduce) { .f { animation: none !important; } }",
            "</style>",
            f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#1c2128"/>',
            *(line for i, shown in enumerate(chosen) for line in _frame(i, shown)),
            "</svg>",
            "",
        ]
    )


def _visible(starts: Sequence[float], total: float) -> Iterator[str]:
    """Yield the style of each frame: when it begins to be seen, and when it ends."""
    for i, start in enumerate(starts):
        begin = 100 * start / total
        end = 100 * (starts[i + 1] if i + 1 < len(starts) else total) / total
        before = "0% { visibility: hidden; } " if i else ""
        after = f"{end:.2f}% {{ visibility: hidden; }} " if end < 100 else ""
        yield (
            f"@keyframes k{i} {{ {before}{begin:.2f}% {{ visibility: visible; }} {after}}} "
            f".f{i} {{ animation: k{i} {total:g}s step-end infinite; }}"
        )


def _frame(number: int, shown: Screen) -> Iterator[str]:
    yield f'<g class="f f{number}">'
    for row, pieces in enumerate(shown):
        y, column = MARGIN + LINE * (row + 0.75), 0
        for text, color, bold in pieces:
            at, column = column, column + len(text)
            if not text.strip():
                continue
            left = text[: len(text) - len(text.lstrip())]
            words = text.strip()
            fill = PALETTE.get(color, PALETTE["default"] if len(color) != 6 else f"#{color}")
            yield (
                f'<text x="{MARGIN + CHAR * (at + len(left)):.1f}" y="{y:.1f}" fill="{fill}" '
                f'textLength="{CHAR * len(words):.1f}"'
                + ' font-weight="bold"' * bold
                + f">{escape(words)}</text>"
            )
    yield "</g>"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(record(sys.argv[2:])), encoding="utf-8")
