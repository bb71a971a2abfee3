"""`mimo-launch` with one planted fault: `python broken_train.py '{"kind": ...}' train SPEC ...`.

The fault is planted by replacing functions before the command line runs; forked workers inherit it.
Keys: kind, rank, step (from 1), slot (of the program, modulo its length), stamp (a file that the
fault is noted in as it happens), delay (seconds), ids (of samples).
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from tests.support.faulty_train import FAULTS

from mimo_launch.checkpoint import saver
from mimo_launch.cli.app import main
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.digits import DigitStrips
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.models import language_model
from mimo_launch.optimizer.step_end import StepEnd
from mimo_launch.runtime.executor import Executor
from mimo_launch.train.rank_session import RankSession

FAULT: dict[str, Any] = {}


def is_mine() -> bool:
    return int(os.environ["RANK"]) == FAULT["rank"]


def stamp() -> None:
    Path(FAULT["stamp"]).write_text(f"{time.time()} {os.environ['RANK']}")


def strike() -> None:
    """Do what the kind says; most never return."""
    stamp()
    FAULTS[FAULT["kind"]]()


def plant_in_program() -> None:
    """Strike before a slot of the program."""
    run_slot = Executor._run_slot

    def run(self: Executor, slot: Any, step: Any) -> None:
        if is_mine() and step.data.step + 1 == FAULT["step"]:
            seen = getattr(self, "seen_slots", 0)
            self.seen_slots = seen + 1  # type: ignore[attr-defined]
            if seen == FAULT["slot"] % FAULT["slots"]:
                strike()
        run_slot(self, slot, step)

    Executor._run_slot = run  # type: ignore[method-assign]


def plant_in_loader() -> None:
    """A loader that never returns."""
    text, images = DigitStrips.text, DigitStrips.images

    def stuck(function: Any) -> Any:
        def read(self: DigitStrips, split: str, index: int, *rest: Any) -> Any:
            if split == "train" and is_mine() and index in FAULT["ids"]:
                stamp()
                FAULTS["sleep"]()
            return function(self, split, index, *rest)

        return read

    DigitStrips.text = stuck(text)  # type: ignore[method-assign]
    DigitStrips.images = stuck(images)  # type: ignore[method-assign]


def plant_bad_samples() -> None:
    """Images of some ids that cannot be decoded."""
    images = DigitStrips.images

    def read(self: DigitStrips, split: Any, index: int, *rest: Any) -> Any:
        if split == "train" and index in FAULT["ids"]:
            raise BadSample(f"planted: {index} cannot be decoded")
        return images(self, split, index, *rest)

    DigitStrips.images = read  # type: ignore[method-assign]


def plant_nan() -> None:
    """From a step on, one rank's loss, or a number of its gradient, is not finite."""
    begin_end, cross_entropy = StepEnd.begin, language_model.vocab_cross_entropy
    now = 0

    def is_bad() -> bool:
        return is_mine() and now >= FAULT["step"]

    run_program = Executor.run

    def run(self: Executor, program: Any, inputs: Any, end: Any) -> Any:
        nonlocal now
        now = inputs.data.step + 1
        return run_program(self, program, inputs, end)

    def begin(self: StepEnd, step: Any) -> None:
        if is_bad() and FAULT["kind"] == "nan_gradient":
            stamp()
            modules = self.updates.modules.values()
            gradients = (p.grad for m in modules for p in m.parameters())
            local = (local_tensor(g) for g in gradients if g is not None)
            next(part for part in local if part.numel()).view(-1)[0] = float("nan")
        begin_end(self, step)

    def loss(*args: Any) -> Any:
        if is_bad() and FAULT["kind"] == "nan_loss":
            stamp()
            return cross_entropy(*args) * float("nan")
        return cross_entropy(*args)

    Executor.run, StepEnd.begin = run, begin  # type: ignore[method-assign]
    language_model.vocab_cross_entropy = loss


def plant_in_groups() -> None:
    """One rank never comes to create its groups."""
    start = RankSession.__init__

    def init(self: RankSession, *args: Any, **more: Any) -> None:
        if is_mine():
            new_group = dist.new_group

            def late(*a: Any, **k: Any) -> Any:
                stamp()
                FAULTS["sleep"]()
                return new_group(*a, **k)

            dist.new_group = late  # type: ignore[assignment]
        start(self, *args, **more)

    RankSession.__init__ = init  # type: ignore[method-assign]


def plant_in_save() -> None:
    """A rank is killed a moment after a save has begun to write."""
    write = saver.write_boxes

    def write_and_die(folder: Path, *rest: Any) -> None:
        if is_mine() and folder.name.startswith(f"step-{FAULT['step']:08d}"):

            def kill() -> None:
                time.sleep(FAULT["delay"])
                stamp()
                os.kill(os.getpid(), signal.SIGKILL)

            threading.Thread(target=kill, daemon=True).start()
        write(folder, *rest)

    saver.write_boxes = write_and_die


def plant_full_disk() -> None:
    """The disk of the run folder is full from one save on."""
    write = saver.write_boxes

    def fill_and_write(folder: Path, *rest: Any) -> None:
        if is_mine() and folder.name.startswith(f"step-{FAULT['step']:08d}"):
            stamp()
            with Path("runs/ballast").open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
        write(folder, *rest)

    saver.write_boxes = fill_and_write


PLANTS = {
    "loader": plant_in_loader,
    "bad_samples": plant_bad_samples,
    "nan_loss": plant_nan,
    "nan_gradient": plant_nan,
    "groups": plant_in_groups,
    "save": plant_in_save,
    "full_disk": plant_full_disk,
}

if __name__ == "__main__":
    FAULT.update(json.loads(sys.argv[1]))
    PLANTS.get(FAULT["kind"], plant_in_program)()
    sys.argv = ["mimo-launch", *sys.argv[2:]]
    main()
