"""Tasks as srun starts them: one per rank, one per host, or a number that fits neither."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.faulty_train import Launcher, gone
from tests.unit.test_run_folder import add_checkpoint

from mimo_launch.launcher import run_folder

SPEC = str(Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml")
LONG = ("--steps", "100000", "--set", "eval=null")


def task(job: int, number: int, *, tasks: int, nodes: int) -> Callable[[], None]:
    """Return what makes a process a task of a step."""

    def become() -> None:
        os.environ.update(
            SLURM_JOB_ID=str(job),
            SLURM_STEP_ID="0",
            SLURM_PROCID=str(number),
            SLURM_LOCALID="0",
            SLURM_NODEID=str(number * nodes // tasks),
            SLURM_STEP_NUM_TASKS=str(tasks),
            SLURM_STEP_NUM_NODES=str(nodes),
            SLURM_STEP_NODELIST="localhost,other",
        )

    return become


def srun(
    folder: Path,
    *arguments: str,
    tasks: int,
    nodes: int,
    around: Callable[[int, Callable[[], None]], Callable[[], None]] = lambda number, become: become,
) -> list[Launcher]:
    """Start all tasks of a step, each on a host of its own or not."""
    job = random.randrange(1, 10**6)
    return [
        Launcher(
            folder, "slow", 0, 0, "train", SPEC, *arguments,
            name=f"task{number}",
            enter=around(number, task(job, number, tasks=tasks, nodes=nodes)),
        )
        for number in range(tasks)
    ]  # fmt: skip


def test_one_task_per_rank_joins(tmp_path: Path) -> None:
    ends = [launcher.finish() for launcher in srun(tmp_path, tasks=2, nodes=2)]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert "2 ranks ready" in ends[0][1]
    assert ends[1][1] == ""


def test_only_the_first_rank_looks_at_checkpoints(tmp_path: Path) -> None:
    """A run that is finished ends on all of them; so does one that must go on and cannot."""
    looked: list[Path] = []

    def spied(number: int, become: Callable[[], None]) -> Callable[[], None]:
        def enter() -> None:
            become()
            real = run_folder.newest_checkpoint

            def newest_checkpoint(run: Path) -> run_folder.ResumePoint | None:
                (tmp_path / f"looked-{number}").touch()
                return real(run)

            run_folder.newest_checkpoint = newest_checkpoint

        return enter

    add_checkpoint(tmp_path / "runs" / "tiny", 4)
    for arguments, code in (((), 0), (("--set", "name=other", "--resume"), 2)):
        launchers = srun(tmp_path, *arguments, tasks=2, nodes=2, around=spied)
        ends = [launcher.finish() for launcher in launchers]
        assert [found for found, _, _ in ends] == [code, code], ends
        looked += tmp_path.glob("looked-*")
    assert looked == [tmp_path / "looked-0"] * 2
    assert "runs/tiny is finished: 4 steps are done" in launchers[0].out.read_text()
    assert "there is no complete checkpoint" in launchers[0].err.read_text()
    assert launchers[1].out.read_text() + launchers[1].err.read_text() == ""


def test_one_task_per_host_launches_there(tmp_path: Path) -> None:
    """Four ranks by two tasks."""
    four = ("--set", "modules.language.ranks=1-3", "--set", "modules.language.grid={pp: 3}")
    layers = ("--set", "modules.language.model.layers=3")
    launchers = srun(tmp_path, *four, *layers, tasks=2, nodes=2)
    ends = [launcher.finish() for launcher in launchers]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert "4 ranks ready" in ends[0][1]
    assert (tmp_path / "runs" / "tiny" / "logs" / "attempt-0" / "rank-3").is_dir()


def test_another_number_of_tasks_is_a_usage_error(tmp_path: Path) -> None:
    for launcher in srun(tmp_path, tasks=3, nodes=2):
        code, out, err = launcher.finish()
        assert (code, out) == (2, "")
        assert "srun started 3 tasks on 2 hosts" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_rank_that_joined_obeys_a_signal(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """All ranks stop after the same step, though only one got it."""
    launchers = srun(tmp_path, *LONG, "--set", "checkpoint={every: 1000}", tasks=2, nodes=2)
    launchers[0].wait_for_step(2)
    os.kill(launchers[1].pid, number)
    ends = [launcher.finish() for launcher in launchers]
    assert [found for found, _, _ in ends] == [code, code]
    assert f"stopped by {number.name} after step" in ends[0][1]
    assert all(gone(launcher.pid) for launcher in launchers)
