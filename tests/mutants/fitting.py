"""Records which tests run which functions, in forked ranks, too: a plugin of pytest.

A trace sees calls only, and marks each function in memory that forked ranks share. What a fixture
of a module ran counts for every test that uses it. Commands started as processes are not seen.
"""

import ast
import hashlib
import json
import mmap
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

SOURCES = Path("src/mimo_launch")
# The default suite without commands and documentation.
SUITES = ("tests/unit", "tests/distributed")


def functions(tree: ast.Module) -> list[tuple[int, int]]:
    """Return the first line, decorators included, and the last of each function."""
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return [
        (min([n.lineno, *(d.lineno for d in n.decorator_list)]), n.end_lineno or 0) for n in found
    ]


def recorded(folder: Path) -> dict[str, Any]:
    """Return functions and tests as they are recorded in a folder, and record them if they changed.

    Takes as long as the suites, and half as long again.
    """
    digest = hashlib.sha256()
    chosen = [*Path("tests").rglob("test_*.py"), Path("tests/seldom.txt")]
    for path in sorted([*SOURCES.rglob("*.py"), *chosen]):
        digest.update(path.read_bytes())
    files = {
        suite: folder / f"{suite.replace('/', '-')}-{digest.hexdigest()[:12]}.json"
        for suite in SUITES
    }
    missing = [
        subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", __name__, "--fitting", file, suite]
        )
        for suite, file in files.items()
        if not file.exists()
    ]
    for process in missing:
        process.wait()
    parts = [json.loads(file.read_text()) for file in files.values()]
    tests = {name: test for part in parts for name, test in part["tests"].items()}
    return {"functions": parts[0]["functions"], "tests": tests}


class Recorder:
    """Keeps, for each test, its seconds and the functions that ran."""

    def __init__(self, out: Path) -> None:
        self.out, self.names, self.tests = out, [], {}
        self.unfit: set[str] = set()
        self.tables: dict[str, dict[int, int]] = {}
        for path in sorted(SOURCES.rglob("*.py")):
            lines = [first for first, _ in functions(ast.parse(path.read_text()))]
            self.tables[str(path.resolve())] = {
                line: len(self.names) + i for i, line in enumerate(lines)
            }
            self.names += [f"{path}:{line}" for line in lines]
        self.marks = mmap.mmap(-1, len(self.names))  # Shared with processes that are forked.
        self.by_fixture: dict[Any, set[int]] = {}
        sys.settrace(self.saw)
        threading.settrace(self.saw)

    def saw(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        table = self.tables.get(code.co_filename)
        if table is not None:
            index = table.get(code.co_firstlineno)
            if index is not None:
                self.marks[index] = 1

    def marked(self) -> set[int]:
        return {i for i, mark in enumerate(self.marks[:]) if mark}

    def clear(self) -> None:
        self.marks[:] = bytes(len(self.names))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        before = self.marked() if fixturedef.scope != "function" else set()
        result = yield
        if fixturedef.scope != "function":
            self.by_fixture[fixturedef] = self.marked() - before
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        self.clear()
        sys.settrace(self.saw)  # Python drops it where a test runs out of stack.
        started = time.monotonic()
        result = yield
        seconds = time.monotonic() - started
        ran = self.marked()
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            ran |= self.by_fixture.get(fixtures[-1], set())
        self.tests[item.nodeid] = {"seconds": round(seconds, 3), "ran": sorted(ran)}
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.unfit.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        tests = {name: test for name, test in self.tests.items() if name not in self.unfit}
        self.out.write_text(json.dumps({"functions": self.names, "tests": tests}))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fitting", type=Path, help="where to write which tests run which functions")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fitting"):
        config.pluginmanager.register(Recorder(config.getoption("--fitting")))
