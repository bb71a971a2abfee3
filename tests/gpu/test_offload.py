"""Activations and moments on the host: the same steps, less memory, copies beside the layers."""

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.gpu_ranks import DEVICE, NUM_DEVICES
from tests.support.planted_experts import mixture
from tests.support.reports import build_report
from tests.support.specs import box, spec
from torch import Tensor, nn

from mimo_launch.comm.host_link import HostLink
from mimo_launch.comm.world import device_for
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order, steps_of
from mimo_launch.launcher.run_on_ranks import RankDevice
from mimo_launch.layers.offload import offload_layers
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession

pytestmark = pytest.mark.gpu

LAYERS, WIDTH, ROWS = 12, 8192, 4096


class Layer(nn.Module):
    """Saves its input, which travels in 2.7 ms at 25 GB/s; a forward takes about 5 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = recomputed(self.compute, x)
        return out

    def compute(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        gate, up = self.up(self.norm(x)).chunk(2, dim=1)
        out: Tensor = x + self.down(torch.sin(gate) * up)
        return out


def one_step(moves: bool, forwards: int) -> tuple[list[Tensor], float, float]:
    """Return gradients, the GB that all forwards keep, and the seconds of a step."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        layers = nn.ModuleList(Layer() for _ in range(LAYERS)).to(torch.bfloat16)
        x = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)
    if moves:
        offload_layers(
            dict(layers.named_children()),
            HostLink(torch.device("cuda", torch.cuda.current_device())),
        )
    seconds = kept = 0.0
    for _ in range(3):
        layers.zero_grad()
        torch.cuda.synchronize()
        before, began, losses = torch.cuda.memory_allocated(), time.perf_counter(), []
        for _ in range(forwards):
            out = x
            for layer in layers:
                out = layer(out)
            losses.append(out.mean(dtype=torch.float32))
        kept = (torch.cuda.memory_allocated() - before) / 1e9
        while losses:
            losses.pop(0).backward()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return [each.grad.cpu() for each in layers.parameters()], kept, seconds  # type: ignore[union-attr]


def compared(forwards: int) -> tuple[bool, list[float], list[float]]:
    """Return whether gradients are equal; the GB kept and the seconds, without and with it."""
    found = [one_step(moves, forwards) for moves in (False, True)]
    equal = all(torch.equal(one, other) for one, other in zip(*(g for g, *_ in found), strict=True))
    return equal, [kept for _, kept, _ in found], [seconds for *_, seconds in found]


@pytest.mark.parametrize("forwards", [1, 3])
def test_activations_travel_beside_the_layers(
    run_on: Callable[..., Any], device: str, forwards: int
) -> None:
    if device != "cuda":
        pytest.skip("memory and overlap are those of a GPU")
    ((equal, (here, there), (plain, moving)),) = run_on(1, compared, forwards)
    assert equal
    # One layer of all forwards together is still on its way when the last forward ends.
    assert there < here * (1 / LAYERS / forwards + 0.1)
    # Copies there and back, one after the other with the layers, would take a quarter more.
    assert moving < 1.1 * plain


# Activations of a size that shows on a GPU, and small ones for processors.
SIZES = {"layers": 8, "hidden": 256, "heads": 4, "head_dim": 64, "mlp": 1024}
if DEVICE == "cpu":
    SIZES = {"layers": 4, "hidden": 32, "heads": 2, "head_dim": 16, "mlp": 64}
TOKENS = 64 if DEVICE == "cpu" else 512
STEPS = 3
# Relative to the norm of a tensor. Sums over tokens have no fixed order on GPUs.
BOUNDS = {"fp64": 1e-10, "fp32": 1e-3}
FULL = {"dp": 2, "sharding": "full"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("fp64", {}),
    "plain in fp32": ("fp32", {"compile": False}),
    "compiled": ("fp32", {"compile": True}),
    "recomputed layers": ("fp64", {"recompute": "full"}),
    "recomputed layers, compiled": ("fp32", {"recompute": "full", "compile": True}),
    "recomputed norms, compiled": ("fp32", {"recompute": ["norms"], "compile": True}),
    "experts": ("fp64", {"model": mixture(width=64)}),
    "lowest layers frozen": ("fp64", {"frozen": {"layers": "0-2"}}),
    "fully sharded, compiled": ("fp32", {"compile": True, **FULL}),
    "pipeline": ("fp64", {"pp": 2}),
}


def made_of(case: str, *offload: str) -> Spec:
    """Return a spec of which all microbatches wait for their backward at the same time."""
    precision, rest = CASES[case]
    language = {**rest, "model": {**SIZES, **rest.get("model", {})}, "offload": [*offload]}
    vision = box(0, model={**SIZES, "mlp": SIZES["mlp"] // 2, "patch": 4}, offload=[*offload])
    vision["model"].pop("head_dim")
    return spec(
        {"vision": vision, "language": box(0, **language)},
        microbatches=2, mbs=2, max_patches=TOKENS // 2, seq=TOKENS, kind="gpipe",
        train={"steps": STEPS, "precision": precision},
        # With a smaller eps, noise in a gradient of zero would move its weight by `lr`.
        optimizer={"kind": "adamw", "lr": 1e-3, "eps": 1e-4},
    )  # fmt: skip


def trained(made: Spec, kind: RankDevice) -> tuple[dict[str, Tensor], int]:
    """Return losses, gradients and weights of every step by name, and the bytes at the peak.

    Bytes that earlier cases left on this rank do not count.
    """
    dataset, device = build_dataset(made), device_for(kind, dist.get_rank())
    found: dict[str, Tensor] = {}
    gc.collect()
    left = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    with (
        RankSession(Plan.of(made), device=device, randomise=True) as session,
        StepReader(session, dataset, RunState(), lambda event: None) as reader,
    ):
        for step, ids in enumerate(steps_of(global_order(made, dataset), made.train.steps)):
            # The first step makes moments, and compiles.
            if step == 1 and device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            metrics = session.gradients(reader.read("train", ids, step))
            weights = [
                (f"{name}, weight {number}", each.parameter)
                for name in session.modules
                for number, each in enumerate(session.declared(name))
            ]
            for name, weight in weights:
                if weight.grad is not None:
                    found[f"step {step}, gradient, {name}"] = local_tensor(weight.grad).cpu()
            session.update()
            found[f"step {step}, loss"] = torch.tensor(metrics.read().loss)
            for name, weight in weights:
                # A copy even on a CPU, where the next update changes it.
                found[f"step {step}, {name}"] = local_tensor(weight.detach()).cpu().clone()
        peak = torch.cuda.max_memory_allocated() - left if device.type == "cuda" else 0
    return found, peak


@pytest.mark.parametrize("case", CASES)
def test_steps_with_offload_are_those_without(
    case: str, run_on: Callable[..., Any], device: Any, say: Callable[[str], None]
) -> None:
    plain, moving = made_of(case), made_of(case, "activations", "optimizer")
    size = world_size(plain)
    if size > NUM_DEVICES:
        pytest.skip(f"needs {size} GPUs")
    bound, worst = BOUNDS[plain.train.precision], 0.0
    before, after = (run_on(size, trained, each, device) for each in (plain, moving))
    planned = [
        [row.allocated_bytes for row in build_report(Plan.of(each)).estimates.ranks]
        for each in (plain, moving)
    ]
    for rank, ((wanted, held), (got, less)) in enumerate(zip(before, after, strict=True)):
        assert wanted.keys() == got.keys()
        for name, want in wanted.items():
            assert torch.isfinite(got[name]).all(), name
            error = (got[name] - want).norm() / want.norm().clamp(min=1e-6)
            worst = max(worst, float(error))
            assert error <= bound, f"{name}: {float(error):.1e}"
        if device == "cuda":
            saved = planned[0][rank] - planned[1][rank]
            say(
                f"  {case}, rank {rank}: error {worst:.1e}, peak {held / 2**20:.0f} -> "
                f"{less / 2**20:.0f} MiB, planned "
                f"{' -> '.join(f'{each[rank] / 2**20:.0f}' for each in planned)}"
            )
            assert held - less > saved / 2 > 0
