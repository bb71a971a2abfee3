"""Times every layout of two models on the GPUs of a machine, and compares the plan's order with it.

python -m tests.gpu.layout_times [--gpus 2] [--seconds 400] [--models vision] [--plan-only]

A layout gives each module one axis over all GPUs, or the modules half of the GPUs each. Prints
seconds and memory of each beside the plan's, Kendall's tau of both orders, and how much slower the
plan's first choice is than the fastest.
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch.distributed as dist
from tests.support.gpu_ranks import DEVICE
from tests.support.reports import build_report

from mimo_launch.bench.measure_steps import bench
from mimo_launch.bench.result import BenchOptions
from mimo_launch.checks.all_checks import is_legal
from mimo_launch.comm.world import device_for
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.launcher.forking import import_for_workers
from mimo_launch.launcher.run_on_ranks import RankDevice, Ranks
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.load import load_text
from mimo_launch.spec.spec import Spec
from mimo_launch.train.rank_session import RankSession

OPTIONS = BenchOptions(warmup=2, steps=5, calibration=Calibration(), command="layout_times")
# A large language model with a small encoder, and the other way round: layers and width of both,
# sides and numbers of images. On processors, sizes that show nothing but that it runs.
MODELS = {"language": (8, 1024, 12, 3072, 48, 4), "vision": (24, 1280, 8, 2048, 64, 4)}
SEQ = 8192
if DEVICE == "cpu":
    MODELS, SEQ = {"language": (2, 32, 4, 64, 8, 2), "vision": (4, 64, 2, 32, 8, 3)}, 128
SPEC = """
version: 1
name: layout
modules:
  vision:
    model: {{kind: vit, layers: {vit_layers}, hidden: {vit}, heads: {vit_heads}, patch: 16, shuffle: 2, projector: mlp}}
    ranks: {of_vision}
    grid: {{{one}: {size}}}
  language:
    model: {{kind: decoder, layers: {layers}, hidden: {hidden}, heads: {heads}, kv_heads: 2, vocab: 32768}}
    ranks: {of_language}
    grid: {{{other}: {size}}}
schedule: {{kind: 1f1b, microbatches: 4}}
batch: {{global: 8, seq: {seq}}}
data: {{kind: synthetic, image: [{side}, {side}], min_images: {images}, max_images: {images}, text_only: 0}}
optimizer: {{kind: adamw, lr: 1e-4}}
train: {{steps: 10, precision: bf16}}
nodes: {{gpus: {gpus}}}
"""  # noqa: E501


def layouts(model: str, gpus: int) -> Iterator[tuple[str, Spec]]:
    """Yield every legal layout by name."""
    vit_layers, vit, layers, hidden, side, images = MODELS[model]
    everywhere, half = f"0-{gpus - 1}", gpus // 2
    ends = [f"0-{half - 1}", f"{half}-{gpus - 1}"] if half > 1 else ["0", "1"]
    for of_vision, of_language, size in ((everywhere, everywhere, gpus), (*ends, half)):
        axes = ("dp", "tp", "cp", "pp") if size > 1 else ("dp",)
        for one, other in itertools.product(axes, axes):
            text = SPEC.format(
                vit_layers=vit_layers, vit=vit, vit_heads=max(4, vit // 64), layers=layers,
                hidden=hidden, heads=max(4, hidden // 128), seq=SEQ, side=side, images=images,
                gpus=gpus, of_vision=of_vision, of_language=of_language, one=one, other=other,
                size=size,
            )  # fmt: skip
            made = load_text(text).spec
            if made is not None and is_legal(made, files=False):
                name = f"vision {one} {size} on {of_vision}, language {other} {size} on"
                yield f"{name} {of_language}", made


def timed(made: Spec, kind: RankDevice) -> Any:
    """Return the seconds of the steps, and the most bytes allocated on a rank; 0 on other ranks."""
    place = device_for(kind, dist.get_rank())
    with RankSession(Plan.of(made), device=place, quick=True) as session:
        result = bench(session, OPTIONS, lambda event: None, lambda: 0)
    if result == 0:
        return None
    return result.step_times_s, max(each.memory.allocated or 0 for each in result.ranks)


def tau(pairs: list[tuple[float, float]]) -> float:
    """Return Kendall's tau of two orders (Biometrika 30, 1938)."""
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in itertools.combinations(pairs, 2)]
    return sum((each > 0) - (each < 0) for each in signs) / len(signs)


def main() -> None:
    """Time layouts until the time is over."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gpus", type=int, default=2)
    options.add_argument("--seconds", type=float, default=400.0)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--plan-only", action="store_true")
    given = options.parse_args()
    begin = time.monotonic()
    import_for_workers()
    for model in given.models:
        with Ranks(given.gpus, device=DEVICE) as ranks:
            pairs: list[tuple[float, float]] = []
            for name, made in layouts(model, given.gpus):
                estimates = build_report(Plan.of(made)).estimates
                planned = estimates.step_seconds
                held = max(each.allocated_bytes for each in estimates.ranks) / 1e9
                line = f"{model}: {name}: planned {planned:.3f} s, {held:.1f} GB"
                if given.plan_only:
                    print(line)
                    continue
                if time.monotonic() - begin > given.seconds:
                    print(f"{line}; not run")
                    continue
                found, *_ = ranks.run(timed, made, DEVICE, timeout_s=120)
                times, allocated = found
                seconds = median(times)
                pairs.append((planned, seconds))
                print(
                    f"{line}; measured {seconds:.3f} s ({min(times):.3f}-{max(times):.3f}, plan "
                    f"{planned / seconds - 1:+.1%}), "
                    f"{allocated / 1e9:.1f} GB, {time.monotonic() - begin:.0f} s", flush=True,
                )  # fmt: skip
        if len(pairs) > 1:
            fastest = min(seconds for _, seconds in pairs)
            print(
                f"{model}: {len(pairs)} layouts, tau {tau(pairs):.2f}, the first choice is "
                f"{min(pairs)[1] / fastest - 1:.1%} slower than the fastest"
            )


if __name__ == "__main__":
    main()
