"""The text of a report."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.cli.launch.attempts import resume_command, show_failure
from mimo_launch.cli.shared.console import Console
from mimo_launch.diag.exit_codes import ExitCode
from mimo_launch.launcher.failure_report import headline, report_lines
from mimo_launch.launcher.rank_tasks import Job, Training
from mimo_launch.launcher.verdict import (
    Circumstances,
    Failure,
    Host,
    RankState,
    RunFailed,
    diagnose,
)
from mimo_launch.launcher.worker_processes import Exit, StackFrame
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Cause, Phase

ROOT = Path(__file__).parents[2]
WAITING = (StackFrame("/site/torch/distributed/distributed_c10d.py", 10, "all_reduce"),)


def quickstart() -> Plan:
    spec = load_and_check(ROOT / "topologies" / "quickstart.yaml").spec
    assert spec is not None
    return Plan.of(spec)


def ranks(count: int = 8) -> list[RankState]:
    """Ranks that wait in a sum of step 17."""
    usual = RankState(rank=0, phase=Phase.REDUCING, step=17, process="S", frames=WAITING)
    return [replace(usual, rank=rank) for rank in range(count)]


def hosts(per_host: int = 4) -> tuple[Host, ...]:
    return tuple(
        Host(
            node=node, name=f"gpu{node}", ranks=tuple(range(node * per_host, (node + 1) * per_host))
        )
        for node in range(2)
    )


Known = dict[int, dict[str, Any]]


def diagnosed(known: Known, attempt: int = 0, num_hosts: int = 1, **around: Any) -> Failure:
    """Return what is said of the ranks of one host or two, of which more is `known` of some."""
    states = [replace(each, **known.get(each.rank, {})) for each in ranks()]
    return diagnose(
        quickstart(), states, attempt=attempt, hosts=hosts()[:num_hosts],
        around=Circumstances(**around),
    )  # fmt: skip


def lines_of(known: Known, folder: Path, **around: Any) -> list[str]:
    return report_lines(diagnosed(known, **around), folder, command="c", checkpoint=None)


OWN = {"cause": Cause.OWN, "error_time": 9.0, "frames": ()}
LOST = {"cause": Cause.LOST, "error_time": 9.0}
KILLED = {"end": Exit(9, "SIGKILL", 0), "ended": 5.0, "process": ""}


def test_a_rank_that_lacks_what_the_host_limits_is_told_the_remedy(tmp_path: Path) -> None:
    said = "RuntimeError: epoll_create: Too many open files"
    text = "\n".join(lines_of({5: {**OWN, "message": said}}, tmp_path, num_hosts=2))
    assert "= help:    Too many open files: this process may have" in text
    assert "`ulimit -n" in text


def test_a_report_says_who_where_when_and_how_to_go_on(tmp_path: Path) -> None:
    said = "ValueError: no such sample\nmore"
    failed = {**OWN, "phase": Phase.PROGRAM, "position": 3, "message": said}
    folder = tmp_path / "logs" / "attempt-2" / "rank-5"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text("text")
    failure = diagnosed({5: failed, 0: {**LOST, "error_time": 9.1}}, attempt=2)
    lines = report_lines(
        failure, tmp_path, command="mimo-launch train x.yaml", checkpoint="step 10"
    )
    assert lines == [
        "error: rank 5 failed first (language tp 1 cp 0 dp 0 pp 0)",
        "   = said:    ValueError: no such sample",
        "              more",
        f"   = during:  step 17, running its program: {failure.actions[5]} (slot 4 of "
        f"{failure.states[5].size})",
        "   = others:  rank 0: lost a peer, step 17, summing gradients and norms",
        "              ranks 1-4,6-7: waiting in all_reduce, step 17, summing gradients and norms",
        f"   = files:   {folder}/ (stderr.log)",
        f"              {tmp_path}/logs/attempt-2/ (one folder per rank)",
        "   = resume:  mimo-launch train x.yaml",
        "              resumes after step 10",
    ]


def test_a_task_without_checkpoints_starts_again(tmp_path: Path) -> None:
    failure = diagnosed({5: {**OWN, "message": "ValueError"}})
    lines = report_lines(failure, tmp_path, command="c", resumable=False)
    assert lines[-1] == "   = again:   c"


def test_many_different_ranks_still_fit_on_a_screen(tmp_path: Path) -> None:
    """Each at another step: a few groups are shown and the others counted."""
    states = [replace(s, step=20 + s.rank) for s in ranks()]
    states += [replace(states[0], rank=rank, step=30 + rank) for rank in (8, 9, 10, 11)]
    spec = load_and_check(ROOT / "topologies" / "quickstart.yaml", ["idle_ranks=8-11"]).spec
    assert spec is not None
    failure = diagnose(Plan.of(spec), states, attempt=0, hosts=hosts()[:1])
    lines = report_lines(failure, tmp_path, command="c", checkpoint=None)
    assert len(lines) < 20
    assert any("and 3 more groups of ranks" in line for line in lines)


def test_a_host_is_named_where_there_are_several() -> None:
    failure = diagnosed({6: {**KILLED, "end": Exit(11, "SIGSEGV", 0)}}, num_hosts=2)
    assert headline(failure).endswith("pp 0) on gpu1 (node 1)")
    alone = diagnosed({2: {**KILLED, "end": Exit(11, "SIGSEGV", 0)}}, num_hosts=1)
    assert headline(alone).endswith("pp 0)")


def test_a_host_that_does_not_answer_is_named_with_its_ranks(tmp_path: Path) -> None:
    failure = diagnose(quickstart(), ranks(4), attempt=0, hosts=hosts(), absent=hosts()[1:])
    lines = report_lines(failure, tmp_path, command="c", checkpoint=None)
    assert lines[0] == "error: gpu1 (node 1, ranks 4-7) does not answer"
    assert not any("does not answer" in line for line in lines[1:])
    assert not failure.restartable
    assert not any("same way" in line for line in lines)


def test_no_attempt_follows_without_a_host_although_a_rank_failed_before_it_was_lost() -> None:
    failed = [replace(each, **OWN) for each in ranks(4)]
    here, gone = (
        diagnose(quickstart(), failed, attempt=0, hosts=hosts(), absent=absent)
        for absent in ((), hosts()[1:])
    )
    assert headline(gone) == headline(here) != ""
    assert (here.restartable, gone.restartable) == (True, False)


@pytest.mark.parametrize(
    ("known", "around", "absent", "code"),
    [
        pytest.param({}, {}, hosts()[1:], 75, id="a host that is gone"),
        pytest.param(KILLED, {}, (), 75, id="a rank that was killed"),
        pytest.param({**KILLED, "end": Exit(None, "", 0)}, {}, (), 75, id="a rank that is gone"),
        pytest.param(LOST, {}, (), 75, id="a connection that broke"),
        pytest.param(LOST, {"frozen_s": 60.0}, (), 75, id="a job that was suspended"),
        pytest.param(KILLED, {"oom_killed": True}, (), 1, id="memory that ran out"),
        pytest.param(
            {**KILLED, "end": Exit(11, "SIGSEGV", 0)}, {}, (), 1, id="a rank that crashed"
        ),
        pytest.param({**KILLED, "end": Exit(3, "", 0)}, {}, (), 1, id="a rank that left"),
        pytest.param(OWN, {}, hosts()[1:], 1, id="an error before its host was lost"),
        pytest.param({**OWN, "cause": Cause.FINAL}, {}, (), 1, id="losses that are not finite"),
        pytest.param({"frames": ()}, {}, (), 1, id="a rank that hangs"),
        pytest.param(KILLED, {"folder_lost": "it was deleted"}, (), 1, id="a folder that is gone"),
    ],
)
def test_a_script_learns_whether_to_start_the_run_again_elsewhere(
    known: dict[str, Any],
    around: dict[str, Any],
    absent: tuple[Host, ...],
    code: int,
    tmp_path: Path,
) -> None:
    states = ranks(4) if absent else ranks()
    states[2] = replace(states[2], **known)
    failure = diagnose(
        quickstart(), states, attempt=0, hosts=hosts(), absent=absent,
        around=Circumstances(**around),
    )  # fmt: skip
    assert (failure.code, RunFailed(failure).code) == (code, code)
    said = [line for line in report_lines(failure, tmp_path, command="c") if "= code:" in line]
    says = "75: the run is not at fault" in "".join(said)
    assert says == (code == 75)
    assert RunFailed(failure, "error: rank 1 ...", True, 75).code is ExitCode.ELSEWHERE


def test_the_pages_name_every_exit_code() -> None:
    for page in ("exit-codes.md", "failures.md"):
        text = (ROOT / "docs" / page).read_text()
        assert all(re.search(rf"^\| .*\b{code.value}\b.* \|", text, re.M) for code in ExitCode)


@pytest.mark.parametrize(
    ("seen", "words"), [(True, "out-of-memory killer ended"), (False, "or by the out-of-memory")]
)
def test_the_out_of_memory_killer_is_named_if_the_kernel_counted(
    seen: bool, words: str, tmp_path: Path
) -> None:
    assert words in lines_of({2: KILLED}, tmp_path, oom_killed=seen)[1]


def test_long_lines_are_cut_and_the_whole_is_in_a_file(tmp_path: Path) -> None:
    said = "ValueError: " + "x" * 9000
    lines = lines_of({2: {**OWN, "frames": WAITING, "message": said}}, tmp_path)
    assert len(lines[1]) < 600
    assert lines[1].endswith("x ... (the rest is in stderr.log)")


def test_a_run_that_ended_itself_is_not_said_to_go_on(tmp_path: Path) -> None:
    """The other ranks ended alike, which is not worth a line."""
    said = ["NonFiniteRun: enough", "the last", "advice", "checkpoint"]
    ended = {"error_time": 9.0, "cause": Cause.FINAL, "message": "\n".join(said)}
    failure = diagnosed(dict.fromkeys(range(8), ended))
    lines = report_lines(failure, tmp_path, command="c", checkpoint="step 10")
    assert [line[14:] for line in lines[1:5]] == said
    assert not any("others:" in line for line in lines)
    assert lines[-3:] == [
        "   = resume:  the same command would end in the same way; first change what is said above",
        "              c",
        "              resumes after step 10",
    ]


def test_a_rank_that_does_not_leave_is_named(tmp_path: Path) -> None:
    left = {**KILLED, "phase": Phase.FINISHED, "end": Exit(0, "", 0), "frames": ()}
    known = {**dict.fromkeys(range(8), left), 3: {"phase": Phase.FINISHED, "ended": 5.0}}
    lines = lines_of(known, tmp_path)
    assert lines[0].startswith("error: rank 3 has finished but does not exit (")


def test_names_that_are_no_text_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file whose name has odd bytes; a stream that is as strict as can be."""
    said = {**OWN, "frames": WAITING, "message": "OSError: odd\udcff.jpg"}
    failure = diagnosed({1: said})
    show_failure(
        RunFailed(failure), Job(plan=quickstart(), run=tmp_path, task=Training()), Console()
    )
    assert "odd\\udcff.jpg" in capfd.readouterr().err
    assert "odd\\udcff.jpg" in (tmp_path / "failure.txt").read_text()


def test_the_command_to_resume_does_not_start_anew() -> None:
    arguments = ["train", "my spec.yaml", "--no-resume", "--nproc", "8"]
    assert resume_command(arguments) == "mimo-launch train 'my spec.yaml' --nproc 8"
