"""Two hosts made of network namespaces: they train as one does, and one of them is cut off."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
from tests.faults.runs import EVERY, LAYOUTS, STEPS, TIMEOUT, without_times, write_spec
from tests.faults.test_faults import EACH, SEED
from tests.support.faulty_train import Launcher, gone
from tests.support.two_hosts import ADDRESSES, TwoHosts

from mimo_launch.checkpoint.folder import all_checkpoints, is_complete

pytestmark = pytest.mark.faults
TOPOLOGIES = Path(__file__).parents[2] / "topologies"
NAME = ("--set", "name=tiny")
ENDPOINT = f"{ADDRESSES[0]}:29400"


def start(folder: Path, hosts: TwoHosts, *arguments: str) -> list[Launcher]:
    """Start a launcher on each host; a step takes at least 50 ms."""
    nodes = ("--nnodes", "2", "--rdzv-endpoint", ENDPOINT, "--rdzv-id", "faults")
    return [
        Launcher(
            folder, "slow", 0, 0, "train", *arguments, *NAME, *nodes, "--node-rank", str(node),
            name=f"node{node}", enter=hosts.enter(node),
        )
        for node in (0, 1)
    ]  # fmt: skip


def alone(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Train on one host and return the metrics."""
    folder.mkdir(exist_ok=True)
    launcher = Launcher(folder, "slow", 0, 0, "train", *arguments, *NAME)
    code, _, err = launcher.finish(120)
    assert code == 0, err
    return without_times(launcher.metrics())


@pytest.mark.parametrize("topology", ["quickstart", "colocated_pp2", "encoder_pp2_cp2"])
def test_two_hosts_of_four_ranks_train_as_one_of_eight(
    topology: str, tmp_path: Path, hosts: TwoHosts
) -> None:
    spec = (str(TOPOLOGIES / f"{topology}.yaml"), "--steps", "12")
    launchers = start(tmp_path, hosts, *spec)
    assert [launcher.finish(120)[0] for launcher in launchers] == [0, 0]
    assert without_times(launchers[0].metrics()) == alone(tmp_path / "alone", *spec)


@pytest.mark.parametrize("number", range(EACH))
def test_a_host_is_cut_off(number: int, tmp_path: Path, hosts: TwoHosts) -> None:
    """Both sides report it and end; what was saved goes on, on one host, to the bit."""
    source = random.Random(f"{SEED}/cut/{number}")
    layout, step = source.choice(list(LAYOUTS)), source.randint(1, STEPS - 2)
    spec = str(write_spec(tmp_path, layout))
    launchers = start(tmp_path, hosts, spec)
    launchers[0].wait_for_step(step)
    workers = [pid for launcher in launchers for pid in launcher.workers()]
    hosts.cut()
    began = time.monotonic()
    ends = [launcher.finish() for launcher in launchers]
    after = time.monotonic() - began
    print(f"host cut off   {layout:<14} step {step}         {after:5.1f} s")
    assert [code for code, _, _ in ends] == [75, 75], ends
    assert after < TIMEOUT + 10
    assert "(node 1, ranks 2-3) does not answer" in ends[0][2]
    assert "(node 0, ranks 0-1) does not answer" in ends[1][2]
    assert all(gone(worker) for worker in workers)
    done = max((r["step"] for r in launchers[0].metrics()), default=0)
    saved = [p for p in all_checkpoints(launchers[0].run) if is_complete(p)]
    assert saved or done < 2 * EVERY
    assert alone(tmp_path, spec) == alone(tmp_path / "undisturbed", spec)
