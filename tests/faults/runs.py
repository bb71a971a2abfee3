"""Runs of the command line that a fault is planted in, and what is looked at afterwards."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.histories import TIMES

STEPS, EVERY, TIMEOUT = 10, 3, 5
ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).parent / "broken_train.py"
RANKS = 4
# How others start the ranks, a program each, before the program of a rank.
STARTERS = {
    "torchrun": ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"),
    "srun": (str(ROOT / "tests/support/fake_srun.py"), str(RANKS), "1"),
    "srun on two nodes": (str(ROOT / "tests/support/fake_srun.py"), str(RANKS), "2"),
}

LAYOUTS = {
    "dp2 to pp2": ("0-1, grid: {dp: 2}", "2-3, grid: {pp: 2}"),
    "colocated": ("0-3, grid: {dp: 4}", "0-3, grid: {tp: 2, dp: 2}"),
    "fully sharded": (
        "0-1, grid: {dp: 2}, sharding: full", "2-3, grid: {dp: 2}, sharding: full",
    ),
}  # fmt: skip

SPEC = """
version: 1
name: broken
modules:
  vision: {{model: {{kind: vit, layers: 1, hidden: 16, heads: 2, patch: 8}}, ranks: {vision}}}
  language:
    {{model: {{kind: decoder, layers: 2, hidden: 16, heads: 2, vocab: digits}}, ranks: {language}}}
schedule: {{microbatches: 2}}
batch: {{global: 8, seq: 24}}
data: {{kind: digits}}
train: {{steps: {steps}, timeout: {timeout}, max_skipped: 2, log_every: 1}}
checkpoint: {{every: {every}, keep: 2}}
"""


@dataclass(slots=True)
class Ended:
    """One run that has ended. `after_s` counts from the fault to the end of the launcher."""

    code: int
    out: str
    err: str
    after_s: float
    struck: bool
    orphans: list[int] = field(default_factory=list)

    @property
    def blamed(self) -> int | None:
        """The rank that the report names."""
        match = re.search(r"^error: rank (\d+) ", self.err, flags=re.MULTILINE)
        return int(match[1]) if match else None


def write_spec(folder: Path, layout: str) -> Path:
    vision, language = LAYOUTS[layout]
    path = folder / "spec.yaml"
    path.write_text(
        SPEC.format(vision=vision, language=language, steps=STEPS, timeout=TIMEOUT, every=EVERY)
    )
    return path


def run(
    folder: Path,
    fault: dict[str, Any] | None,
    *args: str,
    limit_s: float = 60,
    inside: tuple[str, ...] = (),
    starter: str = "",
) -> Ended:
    """Train in a folder to the end; with a fault, measure what follows it.

    `inside` is a command that the launcher is started by; a `starter` starts ranks instead of it.
    """
    stamp = folder / "stamp"
    stamp.unlink(missing_ok=True)
    program = ["-m", "mimo_launch"]
    if fault is not None:
        program = [str(DRIVER), json.dumps({**fault, "stamp": str(stamp)})]
    if starter:
        python = [] if starter == "torchrun" else [sys.executable]
        program = [*STARTERS[starter], *python, *program]
    program = [sys.executable, *program]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    process = subprocess.Popen(
        [*inside, *program, "train", "spec.yaml", *args],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
        raise AssertionError(f"the run hung for {limit_s} s\n{out}\n{err}") from None
    struck = float(stamp.read_text().split()[0]) if stamp.exists() else None
    after = time.time() - struck if struck is not None else 0.0
    return Ended(process.returncode, out, err, after, struck is not None, session(process.pid))


def session(leader: int) -> list[int]:
    """Return the processes of a session that are still alive."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def curve(folder: Path) -> list[dict[str, Any]]:
    """Every field of the metrics but times, without notes that the run was resumed."""
    lines = (folder / "runs" / "broken" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return without_times([record for record in records if "resumed_from" not in record])


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k not in TIMES} for r in records]


def newest(folder: Path) -> int:
    """Step of the newest complete checkpoint, 0 if there is none."""
    found = (folder / "runs" / "broken" / "checkpoints").glob("step-*/checkpoint.json")
    steps = (path.parent.name for path in found)
    return max((int(name[5:]) for name in steps if "." not in name), default=0)
