"""Thousands of mutated specs: each ends in an answer, soon and in little memory (nox -s fuzz)."""

import contextlib
import io
import math
import multiprocessing
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from tests.support.mutations import mutated

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec, UserData

NUM_SPECS = int(os.environ.get("FUZZ_SPECS", "20000"))
SEED = int(os.environ.get("FUZZ_SEED", "0")) or int(time.time())
NUM_TRAINED = int(os.environ.get("FUZZ_TRAINED", "200"))
BATCH = 250
# Models of thousands of layers and specs with many near layouts take longest.
MAX_SECONDS, MAX_BYTES = 10.0, 500_000_000
HANGS_AFTER = 60
MOST_RANKS, MOST_CHANNELS = 8, 64


@dataclass(frozen=True)
class Outcome:
    """What became of one spec: exit codes, the longer time of both commands, peak of the process.

    Times are of the CPU: others may compute on the machine.
    """

    number: int
    codes: tuple[int, ...]
    seconds: float
    peak: int
    fault: str = ""


class Hung(BaseException):
    """No answer came; no `except Exception` hides it."""


def hang(*_: Any) -> None:
    raise Hung


def lacks_files_alone(file: Path) -> bool:
    """Return whether a spec is at fault for absent files alone, of which `plan` only warns."""
    found = check_text(file.read_text(encoding="utf-8")).diagnostics
    return all(each.is_absence for each in found if each.is_error)


def try_batch(numbers: range, folder: Path, pipe: Any) -> None:
    """Validate and plan some specs in this process, as the command line does."""
    from mimo_launch.cli.app import run

    signal.signal(signal.SIGALRM, hang)
    file = folder / f"spec-{numbers.start}.yaml"
    for number in numbers:
        file.write_text(mutated(SEED, number), encoding="utf-8", errors="surrogatepass")
        codes, seconds, fault, said = [], 0.0, "", io.StringIO()
        for command in ("validate", "plan"):
            started = time.process_time()
            signal.alarm(HANGS_AFTER)
            try:
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    codes.append(run([command, str(file)]))
            except BaseException as error:
                fault = f"{command}: {type(error).__name__}: {error}"
            signal.alarm(0)
            seconds = max(seconds, time.process_time() - started)
        text = said.getvalue()
        if "internal error" in text or "Traceback" in text:
            fault = text[text.find("internal error") :][:2000]
        elif not set(codes) <= {0, 2} or (codes[:1] * 2 != codes and not lacks_files_alone(file)):
            fault = fault or f"exit codes {codes}"
        elif len(text) > 1_000_000:
            fault = f"{len(text)} characters of answer"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        pipe.send(Outcome(number, tuple(codes), seconds, peak, fault))
    pipe.send(None)


def outcomes_of(batch: range, folder: Path) -> list[Outcome]:
    """Try a batch in a forked process; after one that died, the rest in another."""
    context = multiprocessing.get_context("fork")
    found: list[Outcome] = []
    while rest := batch[len(found) :]:
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=try_batch, args=(rest, folder, theirs))
        process.start()
        theirs.close()
        try:
            while mine.poll(4 * HANGS_AFTER) and (outcome := mine.recv()) is not None:
                found.append(outcome)
        except EOFError:
            pass
        process.kill()
        process.join()
        if rest := batch[len(found) :]:
            found.append(Outcome(rest.start, (), 0.0, 0, "the process died or hung"))
    return found


def outcomes(folder: Path) -> list[Outcome]:
    """Try all specs in forked batches, so that each batch has a peak of memory of its own."""
    import mimo_launch.checks.load_and_check
    import mimo_launch.cli.plan_screen
    import mimo_launch.drawing.plan_report  # noqa: F401

    numbers = range(NUM_SPECS)
    batches = [numbers[first : first + BATCH] for first in range(0, NUM_SPECS, BATCH)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(chain.from_iterable(pool.map(partial(outcomes_of, folder=folder), batches)))


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    found = outcomes(tmp_path_factory.mktemp("fuzz"))
    slowest = max(found, key=lambda each: each.seconds)
    largest = max(found, key=lambda each: each.peak)
    codes = Counter(each.codes for each in found)
    print(
        f"\nFUZZ_SEED={SEED}: {len(found)} specs, {codes[0, 0]} accepted; slowest "
        f"{slowest.seconds:.2f} s (number {slowest.number}), "
        f"peak {largest.peak / 1e6:.0f} MB (number {largest.number})"
    )
    return found


@pytest.mark.fuzz
def test_no_spec_ends_in_a_traceback(tried: list[Outcome]) -> None:
    faults = [f"{each.number}: {each.fault}" for each in tried if each.fault]
    assert not faults, f"{len(faults)} of seed {SEED}\n" + "\n".join(faults[:20])


@pytest.mark.fuzz
def test_no_spec_takes_long_or_much_memory(tried: list[Outcome]) -> None:
    slow = [(each.number, each.seconds) for each in tried if each.seconds > MAX_SECONDS]
    large = [(each.number, each.peak) for each in tried if each.peak > MAX_BYTES]
    assert (slow[:20], large[:5]) == ([], []), f"of seed {SEED}"


def two_steps(spec: Spec) -> list[float]:
    """Train as one rank of many; return the losses."""
    from mimo_launch.train.events import Event, StepFinished
    from mimo_launch.train.loop import train
    from mimo_launch.train.rank_session import RankSession

    events: list[Event] = []
    with RankSession(Plan.of(spec)) as session:
        train(session, events.append)
    return [event.loss for event in events if isinstance(event, StepFinished)]


def small_ones(tried: list[Outcome]) -> Iterator[tuple[int, Spec]]:
    """Yield accepted specs of few ranks, made small: their grids, schedules and settings stay.

    `train` refuses, in words, those that are still too large for this host.
    """
    from mimo_launch.checks.memory import memory_lacking
    from mimo_launch.estimate.estimates import Estimator
    from mimo_launch.launcher.host_resources import host_memory
    from mimo_launch.verify.shrink import shrink

    seen = set()
    for each in tried:
        if each.codes != (0, 0):
            continue
        text = mutated(SEED, each.number)
        spec = check_text(text).spec
        if spec is None or text in seen or world_size(spec) > MOST_RANKS:
            continue
        if isinstance(spec.data, UserData) or any(m.init_from for m in spec.modules.values()):
            continue  # Their files are not ours to mutate.
        if any(getattr(m.model, "channels", 0) > MOST_CHANNELS for m in spec.modules.values()):
            continue  # Estimates leave out images that are read ahead.
        seen.add(text)
        steps = spec.train.model_copy(update={"steps": 2, "precision": "fp32"})
        small = shrink(spec).model_copy(update={"train": steps, "checkpoint": None, "eval": None})
        estimates = Estimator.of(Plan.of(small)).estimates()
        if not memory_lacking(estimates, range(world_size(small)), host_memory()):
            yield each.number, small


@pytest.mark.fuzz
def test_accepted_specs_train_two_steps(tried: list[Outcome]) -> None:
    from mimo_launch.launcher.run_on_ranks import RankError, run_ranks

    faults, trained = [], 0
    for number, spec in islice(small_ones(tried), NUM_TRAINED):
        trained += 1
        try:
            losses = run_ranks(two_steps, spec, world_size=world_size(spec), timeout_s=120)
        except RankError as error:
            faults.append(f"{number}: {str(error)[-1500:]}")
            continue
        if len(losses[0]) != 2 or not all(map(math.isfinite, losses[0])):
            faults.append(f"{number}: losses {losses[0]}")
    print(f"\n{trained} accepted specs of at most {MOST_RANKS} ranks trained two steps")
    assert not faults, f"of seed {SEED}\n" + "\n".join(faults[:5])
    assert trained == min(NUM_TRAINED, NUM_SPECS // 100)
