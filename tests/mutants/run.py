"""Mutation testing: `python -m tests.mutants.run`, or `nox -s mutants`.

Mutants are drawn evenly over the areas, and within each over the operators. Each runs the tests
that run its function on a copy of the sources, in a process forked off one that has imported torch;
the first failure ends it. `--resume` goes on with the report of a run that was interrupted;
`--again` runs those again that were not rejected, with more `--seconds` or better tests.
"""

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import pydantic
import pytest
import rich
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor
import yaml
from tests.mutants.fitting import SOURCES, functions, recorded
from tests.mutants.operators import GPU_ONLY, Mutant, compiles, mutants, required_keywords

# What every child would otherwise import for seconds.
IMPORTED = (pydantic, rich, yaml, torch)
AREAS = {
    "layout": ["layout/*.py"],
    "schedule": ["schedule/*.py"],
    "comm": ["comm/*.py"],
    "layers": ["layers/*.py", "models/*.py"],
    "runtime": ["runtime/*.py"],
    "optimizer": ["optimizer/*.py"],
    "checkpoint": ["checkpoint/*.py"],
    "data order": [
        "train/loader.py",
        *(f"data/{n}.py" for n in ("sample_order", "pack*", "random_draws")),
    ],
}
FOLDER = Path(".mutants")
# How much longer than recorded tests may take, and how long everything else.
PATIENCE, GRACE_SECONDS = 4, 120
REJECTED = ("rejected", "timeout")


@dataclass(frozen=True)
class Running:
    """A process that runs the tests of a mutant."""

    area: str
    mutant: Mutant
    folder: Path
    began: float
    deadline: float


def drawn(seed: int, each: int) -> list[tuple[str, Mutant]]:
    """Return so many mutants of each area, the same for the same seed and sources."""
    required, chosen = required_keywords(SOURCES), []
    for area, patterns in AREAS.items():
        dice, by_operator = random.Random(f"{seed}/{area}"), defaultdict(list)
        for path in sorted(chain.from_iterable(SOURCES.glob(p) for p in patterns)):
            for mutant in mutants(path, required) if path.stem not in GPU_ONLY else ():
                by_operator[mutant.operator].append(mutant)
        piles = [dice.sample(pile, len(pile)) for _, pile in sorted(by_operator.items())]
        turns = (
            mutant for turn in zip_longest(*piles) for mutant in turn if mutant and compiles(mutant)
        )
        chosen += [(area, mutant) for mutant in islice(turns, each)]
    return chosen


def fitting(mutant: Mutant, record: dict[str, Any], most: float) -> list[str]:
    """Return the tests that run the function of a mutant; outside of functions, those of its file.

    One of each test function comes first, then their other parameters; the fastest first. They stop
    after so many seconds, as recorded.
    """
    spans = functions(ast.parse(Path(mutant.path).read_text()))
    around = [first for first, last in spans if first <= mutant.line <= last]
    prefix = f"{mutant.path}:{max(around)}" if around else f"{mutant.path}:"
    names, tests = record["functions"], record["tests"]
    wanted = {
        n
        for n, name in enumerate(names)
        if name == prefix or (not around and name.startswith(prefix))
    }
    found = [name for name, test in tests.items() if not wanted.isdisjoint(test["ran"])]
    turns: Counter[str] = Counter()
    keys = {}
    for name in sorted(found, key=lambda name: tests[name]["seconds"]):
        function = name.partition("[")[0]
        keys[name] = (turns[function], tests[name]["seconds"])
        turns[function] += 1
    chosen, left = [], most
    for name in sorted(found, key=keys.__getitem__):
        if left > 0:
            chosen.append(name)
            left -= tests[name]["seconds"]
    return chosen


class Chosen:
    """Runs these tests only, in this order; notes the one that fails."""

    def __init__(self, names: list[str], note: Path) -> None:
        self.places, self.note = {name: place for place, name in enumerate(names)}, note

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = [item for item in items if item.nodeid in self.places]
        items[:] = sorted(kept, key=lambda item: self.places[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.note.write_text(report.nodeid)


def start(mutant: Mutant, tests: list[str], folder: Path) -> int:
    """Fork a process that runs the tests on a copy of the sources with the mutant."""
    source = folder / "src"
    shutil.copytree(SOURCES, source / SOURCES.name)
    changed = folder / mutant.path
    changed.write_bytes(mutant.apply(changed.read_bytes()))
    if child := os.fork():
        return child
    status = 3
    try:
        os.setsid()
        out = os.open(folder / "out", os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        others = [p for p in sys.path if Path(p).resolve() != SOURCES.parent.resolve()]
        sys.path[:] = [str(source), *others]
        os.environ.update(PYTHONPATH=str(source), HYPOTHESIS_STORAGE_DIRECTORY=str(folder))
        files = dict.fromkeys(name.partition("::")[0] for name in tests)
        options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}"]
        status = int(pytest.main([*options, *files], [Chosen(tests, folder / "failed")]))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def run_all(chosen: list[tuple[str, Mutant]], jobs: int, most: float, report: Path) -> None:
    """Run the mutants that the report does not have yet, and add them to it."""
    done = {line["mutant"] for line in read(report)}
    record = recorded(FOLDER)
    waiting = [(area, mutant) for area, mutant in chosen if str(mutant) not in done]
    running: dict[int, Running] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            area, mutant = waiting.pop(0)
            tests, folder = fitting(mutant, record, most), Path(tempfile.mkdtemp(prefix="mutant-"))
            seconds = sum(record["tests"][name]["seconds"] for name in tests)
            now = time.monotonic()
            new = Running(area, mutant, folder, now, now + GRACE_SECONDS + PATIENCE * seconds)
            if tests:
                running[start(mutant, tests, folder)] = new
            else:
                write(report, new, "untested", "")
        time.sleep(0.1)
        for child, each in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended and time.monotonic() < each.deadline:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            if not ended:
                os.waitpid(child, 0)
            note = each.folder / "failed"
            by = note.read_text() if note.exists() else ""
            passed = ended and os.waitstatus_to_exitcode(status) == 0
            write(report, each, "survived" if passed else "rejected" if ended else "timeout", by)
            shutil.rmtree(each.folder, ignore_errors=True)
            del running[child]


def read(report: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []


def write(report: Path, each: Running, outcome: str, by: str) -> None:
    seconds = round(time.monotonic() - each.began, 1)
    line = {"mutant": str(each.mutant), "area": each.area, "outcome": outcome, "by": by}
    with report.open("a") as file:
        file.write(json.dumps({**line, "seconds": seconds, **asdict(each.mutant)}) + "\n")
    print(f"{outcome:8} {seconds:6.1f} s  {each.mutant}  {by}", flush=True)


def show(report: Path) -> None:
    """Print how many of each area and operator were rejected, and what was not."""
    lines = read(report)
    for column in ("area", "operator"):
        print(f"\n{column:20} mutants rejected")
        for name in sorted({line[column] for line in lines}):
            own = [line["outcome"] in REJECTED for line in lines if line[column] == name]
            print(f"{name:20} {len(own):7} {sum(own):8}")
    outcomes = Counter(line["outcome"] for line in lines)
    total = sum(outcomes[each] for each in REJECTED)
    print(
        f"\n{total} of {len(lines)} rejected ({total / max(1, len(lines)):.1%}): {dict(outcomes)}"
    )
    for line in lines:
        if line["outcome"] not in REJECTED:
            print(f"{line['outcome']}: {line['mutant']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=26, help="mutants per area")
    parser.add_argument("--area", choices=AREAS, help="this area only")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=240, help="of tests that a mutant meets")
    parser.add_argument("--resume", action="store_true", help="keep what the report has")
    parser.add_argument("--again", action="store_true", help="of that, only what was rejected")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    report = FOLDER / "report.jsonl"
    kept = read(report) if options.resume or options.again else []
    kept = [line for line in kept if line["outcome"] in REJECTED or not options.again]
    report.write_text("".join(json.dumps(line) + "\n" for line in kept))
    chosen = [(a, m) for a, m in drawn(options.seed, options.each) if options.area in (None, a)]
    control = FOLDER / "control.jsonl"
    control.unlink(missing_ok=True)
    nothing = replace(chosen[0][1], operator="nothing", start=0, stop=0, after="")
    run_all([("control", nothing)], 1, options.seconds, control)
    if read(control)[0]["outcome"] != "survived":
        raise SystemExit("tests fail without a mutant, too")
    run_all(chosen, options.jobs, options.seconds, report)
    show(report)


if __name__ == "__main__":
    main()
