"""Commands that people type all day answer fast: what they import, and their CPU time."""

import gc
import os
import re
import resource
import subprocess
import sys

import pytest
from tests.support.mutations import ROOT

from mimo_launch.launcher import worker

SPEC = "topologies/quickstart.yaml"
# Without shards or weights, no command needs a processor or a family; no command needs another one.
UNUSED = (
    "mimo_launch.processors.resize_rules",
    "mimo_launch.hugging_face.family",
    "mimo_launch.cli.doctor",
)


def run(*args):
    # Bytecode is kept, as for users: else each command compiles all sources anew.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(
        [sys.executable, *args], check=True, capture_output=True, text=True, env=env, cwd=ROOT
    )


# An empty interpreter does little Python, and its time is that of a few ticks of the clock. These
# imports are work as a command does, about ten times as much.
IMPORTS = "import asyncio, decimal, email.message, inspect, json, logging, unittest.mock"


def cpu_seconds(*args, runs=4, enough=0.0):
    """Return the CPU time of a process: the least of some runs, or the first below `enough`."""
    run(*args)

    def spent():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def once():
        before = spent()
        run(*args)
        return spent() - before

    least = once()
    while least >= enough and (runs := runs - 1):
        least = min(least, once())
    return least


@pytest.mark.parametrize(
    ("command", "forbidden"),
    [
        (["--help"], ("pydantic", "yaml", "rich", "numpy", "torch")),
        (["validate", SPEC], (*UNUSED, "rich", "numpy", "torch")),
        (["plan", SPEC], (*UNUSED, "rich", "torch")),
    ],
    ids=["help", "validate", "plan"],
)
def test_a_command_imports_only_what_it_needs(command, forbidden):
    code = (
        "import sys; from mimo_launch.cli.app import run\n"
        f"code = run({command!r})\n"
        f"sys.exit(code or ' '.join({set(forbidden)!r} & set(sys.modules)) or 0)"
    )
    run("-c", code)


# Without torch a run ends where it would import it; here after the line that says its plan.
BEFORE_TORCH = (
    "import sys; sys.modules['torch'] = None\nfrom mimo_launch.cli.app import run\n"
    f"try: run(['train', '{SPEC}', '--runs', '/nowhere'])\n"
    "except ImportError: pass"
)


def test_train_says_its_plan_before_it_imports_torch():
    line = run("-c", BEFORE_TORCH).stdout
    assert re.fullmatch(rf"{SPEC}: plan [0-9a-f]{{12}}, 8 ranks\n", line)
    # Beside other work 7 to 11 times.
    most = 14 * cpu_seconds("-c", IMPORTS)
    assert cpu_seconds("-c", BEFORE_TORCH, enough=most) < most


@pytest.mark.parametrize(
    ("command", "most"),
    # Measured beside other work: 1.2, 3.2 and 8.6 times.
    [(["--help"], 2), (["validate", SPEC], 5), (["plan", SPEC], 11)],
    ids=["help", "validate", "plan"],
)
def test_a_command_takes_few_times_as_long_as_some_imports(command, most):
    bound = most * cpu_seconds("-c", IMPORTS)
    assert cpu_seconds("-m", "mimo_launch", *command, enough=bound) < bound


@pytest.mark.parametrize("command", [["--help"], ["plan", SPEC]], ids=["help", "plan"])
def test_a_command_ends_without_a_last_collection_of_garbage(command):
    """It walks over all objects of a plan: a seventh of its time."""
    code = (
        "import atexit, gc, sys; from mimo_launch.cli.app import main\n"
        "atexit.register(lambda: print(len(gc.get_objects()), file=sys.stderr))\n"
        f"main({command!r})"
    )
    assert int(run("-c", code).stderr) < 1000


def test_a_rank_collects_garbage_as_often_as_python_does(monkeypatch):
    """Also one that torchrun or srun has started, which no launcher forks."""
    before = gc.get_threshold()
    monkeypatch.setattr(worker, "name_process", lambda name: None)
    monkeypatch.setattr(worker, "device_for", lambda *_: 1 / 0)
    try:
        gc.set_threshold(200_000)
        with pytest.raises(ZeroDivisionError):
            worker.run_worker(None, None, task=None)
        assert gc.get_threshold() == (700, 10, 10)
    finally:
        gc.set_threshold(*before)
