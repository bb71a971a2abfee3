"""`mimo-launch verify` from the outside."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mimo_launch.optimizer import step_end
from mimo_launch.verify import proof

SPEC = "../../topologies/sequence_parallel.yaml"


@pytest.fixture(autouse=True)
def one_thread():
    """Ranks are forked from this process; see tests/distributed/conftest.py."""
    import torch

    torch.set_num_threads(1)


def test_a_right_layout_is_proved(run_cli) -> None:
    code, out, err = run_cli(f"verify {SPEC}")
    assert code == 0
    assert "every layout tensor equals the one-rank run" in out
    assert "DIFFERS" not in out
    assert "proving this spec on" in err
    assert "not proved: train: " in out


def test_a_wrong_layout_is_named_tensor_by_tensor(run_cli, monkeypatch) -> None:
    """Without the sums over tp, norms and row biases under sequence parallelism are wrong."""
    monkeypatch.setattr(step_end, "sum_partial_gradients", lambda *args: None)
    code, out, err = run_cli(f"verify {SPEC}")
    assert code == 1
    assert "MISMATCH" in out
    assert "vision.layers.0.attention_norm.weight: relative error" in err


def test_what_ends_the_one_rank_run_is_not_blamed_on_the_layout(run_cli, monkeypatch) -> None:
    monkeypatch.setattr(proof, "right_steps", lambda spec: 1 / 0)
    code, out, err = run_cli(f"verify {SPEC}")
    assert (code, out) == (1, "")
    assert "the proof did not end: the one-rank run: rank 0 failed" in err


def test_a_stop_signal_leaves_no_temporary_folder(tmp_path: Path) -> None:
    spec = Path(__file__).parents[2] / "topologies/disjoint_one_to_one.yaml"
    program = [sys.executable, "-m", "mimo_launch", "verify", str(spec)]
    proof = subprocess.Popen(
        program, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not list(tmp_path.glob("mimo-launch-*/store-1")) and time.monotonic() < until:
        time.sleep(0.05)
    proof.send_signal(signal.SIGTERM)
    _, said = proof.communicate(timeout=60)
    assert proof.returncode == 128 + signal.SIGTERM
    assert said.endswith("interrupted by SIGTERM\n")
    assert list(tmp_path.iterdir()) == []


def test_the_result_is_also_json(run_cli) -> None:
    code, out, _ = run_cli("verify ../../topologies/disjoint_one_to_one.yaml --json")
    result = json.loads(out)
    assert code == 0
    assert result["passed"] is True
    assert {v["what"] for v in result["verdicts"]} == {
        "loss", "gradient norm", "gradients", "weights after SGD",
        "numbers in training", "weights after training", "moments after training",
    }  # fmt: skip
    assert all(v["worst"] <= 1e-10 for v in result["verdicts"])
    assert {"section": "train", "key": "precision", "asked": "fp32", "proved": "fp64"} in result[
        "not_proved"
    ]


def test_a_wrong_spec_starts_nothing(run_cli) -> None:
    code, out, err = run_cli(f"verify {SPEC} --set modules.vision.grid.tp=5")
    assert (code, out) == (2, "")
    assert "error[" in err
