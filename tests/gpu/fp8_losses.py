"""Trains the same model in bf16 and in FP8 on one GPU, and prints how far the losses are apart.

python -m tests.gpu.fp8_losses [--steps 200] [--runs blockwise]

A language model of 40 million weights reads the source of this package from shards.
A second seed in bf16 tells how far two runs are apart anyway; a run in FP8 that ends further from
the first is an error.
"""

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import fmean

from tests.support.shards import tokenizer_folder

import mimo_launch

SEQ, CHARACTERS = 256, 400
SPEC = """
version: 1
name: {name}
modules:
  language:
    model: {{kind: decoder, layers: 8, hidden: 640, heads: 10, kv_heads: 5, mlp: 1792,
            vocab: 384}}
    ranks: "0"
    grid: {{}}
    backend: {backend}
    {fp8}
schedule: {{microbatches: 2}}
batch: {{global: 32, seq: {seq}}}
data:
  kind: webdataset
  shards: {folder}/train.tar
  eval_shards: {folder}/held.tar
  tokenizer: {folder}/tokenizer
  template: caption
  too_long: truncate
optimizer: {{kind: adamw, lr: 6e-4, schedule: {{kind: cosine, warmup: 20}}}}
train: {{steps: {steps}, seed: {seed}, precision: {precision}, log_every: 20}}
eval: {{every: {steps}, samples: 256}}
"""
RUNS = {
    "bf16": ("", 0),
    "delayed": ("fp8: {scaling: delayed}", 0),
    "current": ("fp8: {scaling: current}", 0),
    "blockwise": ("fp8: {scaling: blockwise}", 0),
    "bf16 seed 1": ("", 1),
}
ALWAYS = ("bf16", "bf16 seed 1")


def write_shards(folder: Path) -> None:
    """Cut the source into pieces: each tenth one is held out."""
    files = sorted(Path(mimo_launch.__file__).parent.rglob("*.py"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    pieces = [text[at : at + CHARACTERS] for at in range(0, len(text), CHARACTERS)]
    tokenizer_folder(folder / "tokenizer")
    with (
        tarfile.open(folder / "train.tar", "w") as train,
        tarfile.open(folder / "held.tar", "w") as held,
    ):
        for number, piece in enumerate(pieces):
            data = piece.encode()
            member = tarfile.TarInfo(f"{number:06d}.txt")
            member.size = len(data)
            (held if number % 10 == 0 else train).addfile(member, io.BytesIO(data))


def losses(folder: Path, name: str, text: str) -> tuple[list[float], float]:
    """Return the loss of every step, and that of held-out samples in the end."""
    spec = folder / f"{name}.yaml"
    spec.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mimo_launch", "train", str(spec), "--nproc", "1"]
    subprocess.run([*command, "--runs", str(folder)], check=True, stdout=subprocess.DEVNULL)
    lines = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    seen = [event["loss"] for event in events if "loss" in event]
    return seen, next(event["eval_loss"] for event in events if "eval_loss" in event)


def main() -> str | None:
    """Train all, print a table; return what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--backend", default="transformer_engine")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--runs", nargs="*", choices=RUNS, default=list(RUNS))
    options = parser.parse_args()
    chosen = {name: run for name, run in RUNS.items() if name in (*ALWAYS, *options.runs)}
    runs = chosen if options.backend == "transformer_engine" else {"torch": ("", 0)}
    distances: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder, reference = Path(temporary), None
        write_shards(folder)
        for run, (fp8, seed) in runs.items():
            name = run.replace(" ", "-")
            text = SPEC.format(
                name=name, fp8=fp8, seed=seed, seq=SEQ, folder=folder, **vars(options)
            )
            seen, held_out = losses(folder, name, text)
            found = fmean(seen), fmean(seen[-20:]), held_out
            reference = reference or found
            apart = [f"{a:.4f} ({a / b - 1:+.2%})" for a, b in zip(found, reference, strict=True)]
            distances[run] = abs(held_out / reference[-1] - 1)
            print(f"{run:12s} mean {apart[0]}  last 20 {apart[1]}  held out {apart[2]}", flush=True)
    farthest = max(distances, key=lambda run: distances[run])
    return None if farthest in {"torch", ALWAYS[-1]} else f"{farthest} is further than a seed"


if __name__ == "__main__":
    sys.exit(main())
