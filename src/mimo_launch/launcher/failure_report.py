"""The report of a failed run, as lines of text.

Decides: the order: first the rank to blame, with its place, time and message; then the other ranks,
grouped so that a thousand fit on a screen; then files, and the command that resumes the run.
Relies on: `verdict`; the layout for places.
Leaves: printing to `cli`.
"""

from collections.abc import Sequence
from pathlib import Path

from mimo_launch.diag.exit_codes import ExitCode
from mimo_launch.diag.quantities import named_ranks
from mimo_launch.launcher.host_resources import environment_fault
from mimo_launch.launcher.verdict import Failure, FailureKind, RankState
from mimo_launch.launcher.worker_logs import (
    ERROR,
    RECORDER,
    STACK,
    STDERR,
    attempt_folder,
    rank_folder,
    recorded_ranks,
)
from mimo_launch.layout.layout import Layout
from mimo_launch.runtime.progress import Cause, Phase

MAX_GROUPS = 8
MAX_FRAMES = 3
MAX_OWN_LINES = 5
MAX_MESSAGE = 80
MAX_LINE = 500
_AGAIN = "the same command would end in the same way; first change what is said above"
_ELSEWHERE = f"{ExitCode.ELSEWHERE}: the run is not at fault; it can go on, elsewhere too"
_HOST_AHEAD = "(this is where its host is, which runs ahead of its GPU)"
_FROZEN = "it was stopped (Ctrl-Z), paused or suspended until waits timed out; no rank is to blame"
_FIRST = "   = "
_MORE = " " * 14


def headline(failure: Failure) -> str:
    """Name the rank or host to blame and its place, in one line."""
    rank, kind = failure.verdict.rank, failure.verdict.kind
    if kind is FailureKind.ABSENT:
        return "error: " + "; ".join(
            f"{host.name} (node {host.node}, {named_ranks(host.ranks)}) does not answer"
            for host in failure.absent
        )
    if kind is FailureKind.NO_FOLDER:
        return f"error: the run folder no longer belongs to this run: {failure.around.folder_lost}"
    if kind is FailureKind.FROZEN:
        return f"error: the whole job stood still for {failure.around.frozen_s:.0f} s"
    if failure.verdict.final:
        return "error: the run ended itself"
    words = {
        FailureKind.RAISED: "failed first",
        FailureKind.DIED: "stopped first",
        FailureKind.STOPPED: "is suspended",
        FailureKind.STUCK: "is stuck",
        FailureKind.BEHIND: "is the furthest behind",
        FailureKind.LOST: "lost its connection",
        FailureKind.LINGERS: "has finished but does not exit",
    }[kind]
    host = next((host for host in failure.hosts if rank in host.ranks), None)
    on = "" if host is None or len(failure.hosts) < 2 else f" on {host.name} (node {host.node})"
    return f"error: rank {rank} {words} ({place(failure.plan.layout, rank)}){on}"


def place(layout: Layout, rank: int) -> str:
    """Return the modules that a rank holds and its coordinates in each."""
    places = [
        f"{m.name} " + " ".join(f"{axis} {i}" for axis, i in m.grid.coords_of(rank).items())
        for m in layout.modules_of(rank)
    ]
    return "; ".join(places) or "idle rank"


def report_lines(
    failure: Failure,
    run: Path,
    *,
    command: str,
    checkpoint: str | None = None,
    resumable: bool = True,
) -> list[str]:
    """Return the whole report; `command` starts the run again.

    A `resumable` run continues from its newest complete `checkpoint`, if there is one.
    """
    frozen = failure.verdict.kind is FailureKind.FROZEN
    rank = -1 if frozen else failure.verdict.rank
    state = failure.of(rank)
    lines = [headline(failure)]
    if failure.verdict.kind is FailureKind.NO_FOLDER:
        lines += _row("folder", [f"{run}: nothing more can be kept, so the run was ended"])
        return [*lines, *_row("again", [command])]
    if frozen:
        lines += _row("said", [_FROZEN])
    if state is not None:
        lines += _row("said", _message_lines(failure, state))
        fault = environment_fault(state.message)
        lines += _row("help", list(fault)) if fault else []
        ahead = [_HOST_AHEAD] if state.gpu else []
        lines += _row("during", [_doing(failure, state), *ahead])
    final = failure.verdict.final  # All ranks failed in the same way, and would again.
    if not final:
        lines += _row("others", _others(failure, rank))
    lines += _row("files", _files(failure, run, rank))
    if failure.code is ExitCode.ELSEWHERE:
        lines += _row("code", [_ELSEWHERE])
    again = [_AGAIN] if final else []
    return [*lines, *again_lines(command, checkpoint, resumable=resumable, first=again)]


def again_lines(
    command: str, checkpoint: str | None, *, resumable: bool, first: Sequence[str] = ()
) -> list[str]:
    """Return how to resume or restart a run: `command`, and where the run continues.

    The lines of `first` come before the command.
    """
    if not resumable:
        return _row("again", [*first, command])
    after = f"resumes after {checkpoint}" if checkpoint else "from the start: no checkpoint yet"
    return _row("resume", [*first, command, after])


def _row(name: str, lines: Sequence[str]) -> list[str]:
    head = f"{_FIRST}{name + ':':<8} "
    return [(head if number == 0 else _MORE) + line for number, line in enumerate(lines)]


def _message_lines(failure: Failure, state: RankState) -> list[str]:
    """Return the message of the rank to blame, or what was observed."""
    match failure.verdict.kind:
        case FailureKind.DIED:
            return [_death(failure, state)]
        case FailureKind.STOPPED:
            return ["its process is stopped (SIGSTOP, or a debugger)"]
        case FailureKind.STUCK | FailureKind.BEHIND | FailureKind.LINGERS:
            timeout = failure.plan.spec.train.timeout
            still = f"nothing for {timeout} s or longer"
            if failure.verdict.kind is FailureKind.BEHIND:
                gpu = "its GPU, which waits for " if state.gpu else ""
                still += f"; every rank is waiting for {gpu}others"
            elif state.deaf:
                still += "; a call outside of Python holds the GIL"
            elif state.moved_lately:
                still = f"it is busy, but its step has not ended for {timeout} s or longer"
            at = [f"at {frame}" for frame in state.frames[:MAX_FRAMES]]
            said = [_cut(line) for line in state.message.splitlines()[:MAX_FRAMES]]
            return [still, *(at or said or ["its stack could not be read"])]
    message = [line for line in state.message.splitlines() if line.strip()] or ["(no message)"]
    # Final errors are our own messages; others may be of any length.
    most = MAX_OWN_LINES if failure.verdict.final else MAX_FRAMES
    return [_cut(line) for line in message[:most]]


def _cut(line: str) -> str:
    """Cut a line to fit a report; a tensor in a message may fill many screens."""
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]} ... (the rest is in {STDERR})"


def _death(failure: Failure, state: RankState) -> str:
    end = state.end
    if end is None or end.status is None:
        return "its process is gone; the program that started it knows its status"
    if end.killed_by == "SIGKILL":
        if failure.around.oom_killed:
            return "killed by SIGKILL: the kernel's out-of-memory killer ended a process meanwhile"
        return "killed by SIGKILL (by hand, or by the out-of-memory killer of the machine)"
    if end.killed_by:
        return f"killed by {end.killed_by}; {STDERR} may have its stack"
    if end.status == 0:
        return "exited with status 0 before the run ended"
    return f"exited with status {end.status}"


def _doing(failure: Failure, state: RankState) -> str:
    """Return the step and the action of a rank."""
    step = f"step {state.step}, " if state.step else ""
    action = failure.actions.get(state.rank)
    where = f": {action} (slot {state.position + 1} of {state.size})" if action else ""
    return f"{step}{state.phase.words}{where}"


def _others(failure: Failure, blamed: int) -> list[str]:
    """Return what the other ranks were doing, one line per group of ranks that did the same."""
    others = [state for state in failure.states if state.rank != blamed]
    groups = _group({s.rank: f"{_how(s)}, {_doing(failure, s)}" for s in others})
    if len(groups) > MAX_GROUPS:
        groups = _group({s.rank: f"{_how(s)}, step {s.step}, {s.phase.words}" for s in others})
    lines = [f"{named_ranks(ranks)}: {text}" for text, ranks in groups.items()]
    more = len(lines) - MAX_GROUPS
    lines = [*lines[:MAX_GROUPS], *([f"and {more} more groups of ranks"] if more > 0 else [])]
    lines += [
        f"{named_ranks(host.ranks)}: unknown, {host.name} (node {host.node}) does not answer"
        for host in failure.absent
        if blamed not in host.ranks
    ]
    return lines


def _group(texts: dict[int, str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank, text in texts.items():
        groups.setdefault(text, []).append(rank)
    return groups


def _how(state: RankState) -> str:
    """Describe briefly what a rank that is not to blame was doing."""
    message = state.message.partition("\n")[0][:MAX_MESSAGE]
    words = (
        (state.phase is Phase.FINISHED, "finished"),
        (state.cause is Cause.LOST, "lost a peer"),
        (state.cause is Cause.TIMEOUT, "timed out waiting"),
        (bool(state.error_time), f"failed too ({message})"),
        (state.died, "died too"),
        (state.stopped, "stopped"),
        (bool(state.frames) and state.frames[0].waits_for_gpu, "waiting for its GPU"),
        (state.waits, f"waiting in {state.frames[0].function}" if state.frames else ""),
        (bool(state.frames), f"busy in {state.frames[0]}" if state.frames else ""),
    )
    return next((text for applies, text in words if applies), "running")


def _files(failure: Failure, run: Path, rank: int) -> list[str]:
    """Return the existing files with more details."""
    folder = rank_folder(run, failure.attempt, rank)
    paths = [folder / name for name in (ERROR, STDERR)]
    names = [path.name for path in paths if path.is_file() and path.stat().st_size > 0]
    state = failure.of(rank)
    names += [STACK] if state is not None and state.frames else []
    lines = [f"{folder}/ ({', '.join(names)})"] if names else []
    attempt = attempt_folder(run, failure.attempt)
    lines += [f"{attempt}/ (one folder per rank)"] if attempt.is_dir() else []
    recorder = attempt / RECORDER
    if recorded := recorded_ranks(recorder):
        read = f"read with torchfrtrace {recorder} -p rank_"
        lines.append(f"{recorder}/ (NCCL's flight recorder of {named_ranks(recorded)}; {read})")
    metrics = run / "metrics.jsonl"
    return [*lines, *([str(metrics)] if metrics.exists() else [])]
