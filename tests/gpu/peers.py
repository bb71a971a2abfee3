"""Trains a Qwen3-VL with this package and with other libraries, and prints all side by side.

python -m tests.gpu.peers [--steps 8] [--set modules.language.recompute=none ...] [SPEC]

The libraries are those of `tests.gpu.peer_libraries` that are installed. All start from the same
weights, in bf16 on disk, and learn the same samples in the same order with the same optimizer; so
their losses are the same up to rounding. On one rank. The spec has a vision and a language model of
the sizes of a Qwen3-VL, and synthetic samples: bench/qwen3_vl_4b.yaml by default. A library has
all samples of a step on its device before the step, and recomputes every layer if language does.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from tests.gpu.peer_libraries import PEERS, Peer
from tests.support.hugging_face import save
from tests.support.random_models import theirs
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import GlobalOrder
from mimo_launch.kinds.vocabulary import placeholder_id
from mimo_launch.spec.load import load_spec
from mimo_launch.spec.spec import Spec

SPEC = Path("topologies/bench/qwen3_vl_4b.yaml")
# The first steps also compile and connect.
WARMUP = 2
MARK = "peer: "


@dataclass(frozen=True, slots=True)
class Course:
    """The loss and the seconds of every step, and the largest GB allocated on a GPU."""

    losses: list[float]
    seconds: list[float]
    memory: float

    def row(self, tokens: int) -> str:
        """Return a line of the table: seconds and tokens/s of the steps after the first ones."""
        timed = self.seconds[WARMUP:]
        middle = median(timed)
        spread = f"{middle:.3f} s ({min(timed):.3f}-{max(timed):.3f})"
        return f"{spread} | {tokens / middle:,.0f} | {self.memory:.1f} GB"


def folder_of(spec: Spec, folder: Path, device: str = "cpu") -> None:
    """Write a model of `transformers` with the sizes of a spec, from a fixed seed, in bf16.

    Its weights are drawn on the device, which takes a processor minutes.
    """
    torch.manual_seed(0)
    vision, language = spec.modules["vision"].model, spec.language.model
    sections = [*language.mrope]
    config = theirs().Qwen3VLConfig(
        tie_word_embeddings=language.tied,
        image_token_id=placeholder_id(spec, "vision"),
        video_token_id=language.vocab - 2,
        vision_start_token_id=language.vocab - 3,
        vision_end_token_id=language.vocab - 4,
        vision_config={
            "depth": vision.layers, "hidden_size": vision.hidden, "num_heads": vision.heads,
            "intermediate_size": vision.mlp, "patch_size": vision.patch,
            "temporal_patch_size": vision.temporal_patch, "spatial_merge_size": vision.shuffle,
            "out_hidden_size": language.hidden, "deepstack_visual_indexes": vision.deepstack,
            "num_position_embeddings": vision.image[0] * vision.image[1],
        },
        text_config={
            "hidden_size": language.hidden, "num_hidden_layers": language.layers,
            "num_attention_heads": language.heads, "num_key_value_heads": language.kv_heads,
            "head_dim": language.head_dim, "intermediate_size": language.mlp,
            "vocab_size": language.vocab, "rms_norm_eps": language.norm_eps,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": language.rope_theta,
                "mrope_section": sections, "mrope_interleaved": True,
            },
        },
    )  # fmt: skip
    with torch.device(device):
        model = theirs().Qwen3VLForConditionalGeneration(config).to(torch.bfloat16)
    save(model, folder)
    del model
    if device == "cuda":
        torch.cuda.empty_cache()


def ours(spec_file: Path, settings: Sequence[str], folder: Path, runs: Path, device: str) -> Course:
    """Train with this package."""
    own = ["name=ours", "checkpoint=none", "train.log_every=1"]
    own += [f"modules.{name}.init_from={folder}" for name in ("vision", "language")]
    own += ["modules.vision.model.norm_eps=1e-6"]  # As every tower of `transformers` has it.
    command = [sys.executable, "-m", "mimo_launch", "train", str(spec_file), "--nproc", "1"]
    command += ["--device", device, "--runs", str(runs)]
    command += [word for each in (*settings, *own) for word in ("--set", each)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = (runs / "ours" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [event for event in map(json.loads, lines) if "step_s" in event]
    memory = max(max(event["peak_memory"].values()) for event in steps)
    return Course(
        [event["loss"] for event in steps], [event["step_s"] for event in steps], memory / 1e9
    )


def with_library(
    name: str, spec_file: Path, settings: Sequence[str], folder: Path, device: str
) -> Course:
    """Train with another library, in a process of its own."""
    command = [sys.executable, "-m", "tests.gpu.peers", str(spec_file), "--folder", str(folder)]
    command += ["--device", device, "--library", name]
    command += [word for each in settings for word in ("--set", each)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    return Course(*json.loads(line.removeprefix(MARK)))


def samples_of(spec: Spec, step: int, device: torch.device) -> Iterator[dict[str, Tensor]]:
    """Yield the microbatches of a step: inputs of the model, and labels."""
    data = build_dataset(spec)
    order = GlobalOrder(data.num_samples("train"), spec.batch.global_, spec.train.seed)
    size = spec.batch.global_ // spec.schedule.microbatches
    vision, ids = spec.modules["vision"].model, order.ids(step)
    for first in range(0, len(ids), size):
        mine = ids[first : first + size]
        texts = [data.text("train", each) for each in mine]
        images = [image for each in mine for image in data.images("train", each, "vision")]
        tokens = torch.stack([torch.from_numpy(text) for text, _ in texts])
        grids = [[1, x.shape[1] // vision.patch, x.shape[2] // vision.patch] for x in images]
        made = {
            "input_ids": tokens,
            "mm_token_type_ids": (tokens == placeholder_id(spec, "vision")).int(),
            "pixel_values": torch.cat([patches_of(image, vision) for image in images]),
            "image_grid_thw": torch.tensor(grids),
            "labels": torch.stack([torch.from_numpy(labels) for _, labels in texts]),
        }
        yield {name: each.to(device) for name, each in made.items()}


def patches_of(image: np.ndarray, vision: Any) -> Tensor:
    """Return the patches of an image [C, height, width]: those of a row together, twice in time."""
    cut, frames = (-1, vision.shuffle, vision.patch), vision.temporal_patch
    squares = torch.from_numpy(image).unflatten(2, cut).unflatten(1, cut)
    rows = squares.permute(1, 4, 2, 5, 0, 3, 6)  # Rows, patches of a row, C, height, width.
    return (
        rows.unsqueeze(5).expand(*rows.shape[:5], frames, *rows.shape[5:]).flatten(4).flatten(0, 3)
    )


def trained(spec: Spec, peer: Peer, device: torch.device) -> Course:
    """Train with a library in this process."""
    losses, seconds = [], []
    for step in range(spec.train.steps):
        batches = list(samples_of(spec, step, device))
        wait(device)
        begin = time.perf_counter()
        losses.append(one_step(peer, batches, spec.optimizer.clip))
        wait(device)
        seconds.append(time.perf_counter() - begin)
    memory = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0
    return Course(losses, seconds, memory)


def one_step(peer: Peer, batches: list[dict[str, Tensor]], clip: float | None) -> float:
    """Take a step, and return the mean loss over its labels."""
    whole: Tensor | float = 0.0
    labels = int(sum((each["labels"] >= 0).sum() for each in batches))
    for number, batch in enumerate(batches, start=1):
        inputs = {name: each for name, each in batch.items() if name != "labels"}
        loss = peer.loss(inputs, batch["labels"], labels, number == len(batches))
        loss.backward()
        whole += loss.detach()
    if clip is not None:
        peer.clip(clip)
    peer.optimizer.step()
    peer.optimizer.zero_grad(set_to_none=True)
    return float(whole)


def wait(device: torch.device) -> None:
    """Wait until a GPU has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("spec", nargs="?", type=Path, default=SPEC)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--library", choices=tuple(PEERS), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    settings = [*given.set, *([f"train.steps={given.steps}"] if given.steps else [])]
    spec = load_spec(given.spec, settings).spec
    if spec is None:
        parser.error(f"`mimo-launch validate {given.spec}` says what is wrong")
    device = torch.device(given.device)
    if given.library is not None:
        join(given.device)
        course = trained(spec, PEERS[given.library](spec, given.folder, device), device)
        print(MARK + json.dumps([course.losses, course.seconds, course.memory]), flush=True)
        return
    without = {name: lack for name, peer in PEERS.items() if (lack := peer.lacks(device))}
    failed = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "model"
        folder_of(spec, folder, given.device)
        courses = {"mimo-launch": ours(given.spec, settings, folder, Path(made), given.device)}
        for name, peer in PEERS.items():
            if name in without:
                continue
            try:
                course = with_library(name, given.spec, settings, folder, given.device)
            except subprocess.CalledProcessError as error:
                failed[name] = f"it ended with exit code {error.returncode}"
            else:
                courses[peer.title()] = course
    for line in table(spec, courses):
        print(line)
    for name, why in (without | failed).items():
        print(f"\nwithout {name}: {why}")
    if failed:
        sys.exit(1)


def join(device: str) -> None:
    """Create the group of one rank that FSDP2 needs."""
    backend = "nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(
        backend, store=torch.distributed.HashStore(), rank=0, world_size=1
    )


def table(spec: Spec, courses: dict[str, Course]) -> Iterator[str]:
    """Yield the lines of the comparison."""
    tokens = spec.batch.global_ * spec.batch.seq
    yield "| | step: median (min-max) | tokens/s | allocated |"
    yield "| --- | --- | --- | --- |"
    for name, course in courses.items():
        yield f"| {name} | {course.row(tokens)} |"
    yield ""
    yield f"| loss of step | {' | '.join(courses)} |"
    yield f"| --- |{' --- |' * len(courses)}"
    losses = zip(*(course.losses for course in courses.values()), strict=True)
    for number, each in enumerate(losses, start=1):
        yield f"| {number} | {' | '.join(f'{loss:.5f}' for loss in each)} |"


if __name__ == "__main__":
    main()
