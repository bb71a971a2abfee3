"""The command line on GPUs: training, proofs, and the report of a rank that hangs there."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.support.gpu_ranks import NUM_DEVICES, SIZES

from mimo_launch.comm.world import set_allocator
from mimo_launch.launcher.gpus import gpu_settings

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "fixtures" / "tiny_train.yaml"
MOST = max(SIZES, default=1)
STEPS = 4


def command(*args: str, program: tuple[str, ...] = ("-m", "mimo_launch")) -> Any:
    """Run a command line of the product; return the finished process."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    path = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.run(
        [sys.executable, *program, *args],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={**environment, "PYTHONPATH": path, "COLUMNS": "120"},
    )


def tiny(folder: Path, size: int, **train: Any) -> Path:
    """Write the tiny spec with language on `size` ranks, vision on the first."""
    made = yaml.safe_load(TINY.read_text())
    modules = made["modules"]
    for name, ranks in (("vision", 1), ("language", size)):
        modules[name]["ranks"] = "0" if ranks == 1 else f"0-{ranks - 1}"
        modules[name]["grid"] = {"tp": 1, "cp": 1, "pp": 1, "dp": ranks}
    made["batch"]["global"] = 4 * size
    made["train"] = {**made.get("train", {}), "steps": STEPS, **train}
    made.pop("eval", None)
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(made))
    return path


def losses(run: Path) -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record and "grad_norm" in record]


def test_training_on_gpus_follows_training_on_processors(
    tmp_path: Path, device: str, say: Callable[[str], None]
) -> None:
    """Four AdamW steps in float64: the same losses, whatever computed them."""
    found = {}
    for kind in ("cpu", device):
        runs = tmp_path / f"{kind}-{len(found)}"
        spec = str(tiny(tmp_path, MOST, precision="fp64"))
        done = command("train", spec, "--device", kind, "--runs", str(runs))
        assert done.returncode == 0, done.stdout + done.stderr
        [run] = runs.iterdir()
        found[len(found)] = losses(run)
        assert not (run / "logs" / "attempt-0" / "flight-recorder").exists()
    say(f"  train on {MOST}: losses {found[1]}")
    assert len(found[0]) == STEPS
    assert found[1] == pytest.approx(found[0], rel=1e-8)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_verify_proves_on_gpus(device: str, precision: str, tmp_path: Path) -> None:
    spec = str(tiny(tmp_path, MOST))
    # Float32 is compiled on GPUs, which takes longer than the proof.
    wait = ("--timeout", "240")
    done = command("verify", spec, "--device", device, "--precision", precision, *wait)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every layout tensor equals the one-rank run" in done.stdout
    assert ("a weaker proof" in done.stdout) == (precision == "fp32")


def test_a_step_that_recomputes_is_traced_with_its_memory(device: str, tmp_path: Path) -> None:
    """Recording where memory is freed made the recomputation of compiled layers fail."""
    path = tiny(tmp_path, MOST, precision="bf16")
    made = yaml.safe_load(path.read_text())
    for module in made["modules"].values():
        module["recompute"] = "full"
    path.write_text(yaml.safe_dump(made))
    where = ("--device", device, "--runs", str(tmp_path / "runs"))
    asked = ("--profile", "3", "--profile-ranks", "0", "--profile-memory")
    done = command("train", str(path), *asked, *where)
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = (tmp_path / "runs").glob("*/profile")
    assert (folder / "step-3-rank-0.torch.json.gz").stat().st_size > 0
    if device == "cuda":
        recorded = pickle.loads((folder / "step-3-rank-0.memory.pickle").read_bytes())
        [traces] = [each for each in recorded["device_traces"] if each]
        lines = [frame for event in traces for frame in event.get("frames", [])]
        assert any("mimo_launch" in frame["filename"] for frame in lines)


def test_too_few_gpus_are_known_before_a_process_starts(device: str, tmp_path: Path) -> None:
    if device != "cuda":
        pytest.skip("counts GPUs")
    spec = str(tiny(tmp_path, NUM_DEVICES + 1))
    done = command("train", spec, "--runs", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert f"{NUM_DEVICES + 1} workers on this host need a GPU each" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_rank_that_hangs_is_named_with_the_flight_recorders(
    device: str, tmp_path: Path, say: Callable[[str], None]
) -> None:
    """Rank 1 sleeps in step 3; the others wait on their GPUs, and NCCL's dumps are named."""
    if MOST < 2:
        pytest.skip("needs 2 GPUs")
    spec = str(tiny(tmp_path, MOST, timeout=15, steps=1000, precision="fp64"))
    spec_args = ("train", spec, "--device", device, "--runs", str(tmp_path / "runs"))
    program = (str(ROOT / "tests" / "support" / "faulty_train.py"), "sleep", "1", "3")
    done = command(*spec_args, program=program)
    say(done.stderr)
    assert done.returncode == 1
    assert "error: rank 1 is stuck" in done.stderr
    assert "step 3" in done.stderr
    if device == "cuda":
        assert "which runs ahead of its GPU" in done.stderr
        others = MOST - 1
        assert f"flight recorder of ranks 0-{others}" in done.stderr
        [folder] = (tmp_path / "runs").glob("*/logs/attempt-0/flight-recorder")
        assert {path.name for path in folder.iterdir()} == {f"rank_{r}" for r in range(MOST)}


def allocator_settings(settings: dict[str, str]) -> dict[str, Any]:
    """Return what the allocator of a forked worker was told by its environment."""
    os.environ.update(settings)
    set_allocator()
    torch.zeros(1, device="cuda")
    return torch.cuda.memory._snapshot()["allocator_settings"]


def test_settings_made_after_the_fork_reach_the_allocator(device: str, tmp_path: Path) -> None:
    if device != "cuda":
        pytest.skip("looks at the allocator of CUDA")
    from mimo_launch.launcher.run_on_ranks import run_ranks

    [found] = run_ranks(allocator_settings, gpu_settings(tmp_path), world_size=1, device="cuda")
    assert found["expandable_segments"] is True
