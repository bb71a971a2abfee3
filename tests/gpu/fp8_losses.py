"""Trains the same model in bf16 and in FP8 on one GPU, and prints how far the losses are apart.

python tests/gpu/fp8_losses.py [--steps 200]

The model reads strips of digits; a second seed in bf16 tells how far two runs are apart anyway.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

SPEC = """
version: 1
name: {name}
modules:
  vision:
    model: {{kind: vit, layers: 4, hidden: 256, heads: 4, patch: 4}}
    ranks: "0"
    grid: {{}}
    backend: transformer_engine
    {fp8}
  language:
    model: {{kind: decoder, layers: 4, hidden: 512, heads: 8, kv_heads: 4, vocab: digits}}
    ranks: "0"
    grid: {{}}
    backend: transformer_engine
    {fp8}
schedule: {{microbatches: 2}}
batch: {{global: 256, seq: 40}}
data: {{kind: digits}}
optimizer: {{kind: adamw, lr: 5e-4, schedule: {{kind: cosine, warmup: 20}}}}
train: {{steps: {steps}, seed: {seed}, precision: bf16, log_every: 20}}
eval: {{every: {steps}, samples: 1024}}
"""
RUNS = {
    "bf16": ("", 0),
    "delayed": ("fp8: {scaling: delayed}", 0),
    "current": ("fp8: {scaling: current}", 0),
    "bf16 again": ("", 0),
    "bf16 seed 1": ("", 1),
}


def losses(folder: Path, name: str, fp8: str, seed: int, steps: int) -> tuple[list[float], float]:
    """Return the loss of every step, and that of held-out samples in the end."""
    run = name.replace(" ", "-")
    spec = folder / f"{run}.yaml"
    spec.write_text(SPEC.format(name=run, fp8=fp8, seed=seed, steps=steps), encoding="utf-8")
    command = [sys.executable, "-m", "mimo_launch", "train", str(spec), "--nproc", "1"]
    subprocess.run([*command, "--runs", str(folder)], check=True, stdout=subprocess.DEVNULL)
    lines = (folder / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    steps_seen = [event["loss"] for event in events if "loss" in event]
    return steps_seen, next(event["eval_loss"] for event in events if "eval_loss" in event)


def main() -> None:
    """Train all, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        reference: tuple[float, float, float] | None = None
        for name, (fp8, seed) in RUNS.items():
            seen, held_out = losses(Path(folder), name, fp8, seed, steps)
            found = fmean(seen), fmean(seen[-20:]), held_out
            reference = reference or found
            apart = [f"{a:.4f} ({a / b - 1:+.2%})" for a, b in zip(found, reference, strict=True)]
            print(
                f"{name:12s} mean {apart[0]}  last 20 {apart[1]}  held out {apart[2]}", flush=True
            )


if __name__ == "__main__":
    main()
