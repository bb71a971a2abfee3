"""Steps and checkpoints of whole sessions with one backend or the other, on one or more GPUs."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mimo_launch.checkpoint.boxes import FP8
from mimo_launch.checkpoint.loading import start_run
from mimo_launch.comm.world import device_for
from mimo_launch.data.build import build_dataset
from mimo_launch.launcher.run_on_ranks import Ranks
from mimo_launch.layers.parameter_segments import local_segments
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.fp8 import FormatName, ScalingName
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.loop import Hooks, train
from mimo_launch.train.rank_session import RankSession

ENGINE = "transformer_engine"
BACKENDS = ("torch", ENGINE)


@dataclass(frozen=True)
class Layout:
    """Where the two modules are, and what else is said of them."""

    vision: dict[str, Any]
    language: dict[str, Any]
    sharding: str = "optimizer"
    recompute: str = "none"
    max_documents: int = 1
    microbatches: int = 2
    fp8: ScalingName | None = None
    fp8_format: FormatName | None = None


ALONE = {"ranks": "0", "grid": {}}
BOTH = "0-1"
ONE_GPU = {
    "plain": Layout(ALONE, ALONE),
    "fully sharded, packed documents": Layout(ALONE, ALONE, "full", max_documents=3),
    "recompute": Layout(ALONE, ALONE, recompute="full", microbatches=4),
}
TWO_GPUS = {
    "vision dp2, language tp2 with sequence parallelism": Layout(
        {"ranks": BOTH, "grid": {"dp": 2}},
        {"ranks": BOTH, "grid": {"tp": 2}, "sequence_parallel": True},
    ),
    "vision tp2, language tp2": Layout(
        {"ranks": BOTH, "grid": {"tp": 2}}, {"ranks": BOTH, "grid": {"tp": 2}}, max_documents=3
    ),
    "vision cp2, language cp2, fully sharded": Layout(
        {"ranks": BOTH, "grid": {"cp": 2}}, {"ranks": BOTH, "grid": {"cp": 2}}, "full"
    ),
    "vision cp2, language cp2, packed documents": Layout(
        {"ranks": BOTH, "grid": {"cp": 2}}, {"ranks": BOTH, "grid": {"cp": 2}}, max_documents=3
    ),
    "vision dp2, language dp2, fully sharded": Layout(
        {"ranks": BOTH, "grid": {"dp": 2}}, {"ranks": BOTH, "grid": {"dp": 2}}, "full"
    ),
    "vision, then language": Layout(ALONE, {"ranks": "1", "grid": {}}),
}


def make_spec(layout: Layout, backend: str, precision: str, **sections: Any) -> Spec:
    """Return a spec of a small ViT and a small decoder with ragged and missing images."""
    common = {
        "backend": backend,
        "sharding": layout.sharding,
        "recompute": layout.recompute,
        # Eager, so that the two backends differ in their layers alone.
        "compile": False,
    }
    if layout.fp8 is not None and backend == ENGINE:
        common["fp8"] = {"scaling": layout.fp8, "format": layout.fp8_format}
    vit = {"kind": "vit", "layers": 2, "hidden": 128, "heads": 4, "patch": 2, "channels": 3}
    decoder = {
        "kind": "decoder", "layers": 2, "hidden": 256, "heads": 8, "kv_heads": 4, "mlp": 512,
        "vocab": 200, "qk_norm": True,
    }  # fmt: skip
    return Spec.model_validate(
        {
            "version": 1,
            "name": "engine",
            "modules": {
                "vision": {"model": vit, **layout.vision, **common},
                "language": {"model": decoder, **layout.language, **common},
            },
            "schedule": {"microbatches": layout.microbatches},
            "batch": {"global": 4 * layout.microbatches, "seq": 128},
            "data": {
                "kind": "synthetic", "max_patches": 24, "max_images": 2, "text_only": 0.5,
                "max_documents": layout.max_documents,
            },
            "train": {"steps": 1, "seed": 3, "precision": precision},
            **sections,
        }
    )  # fmt: skip


def gradients_of(spec: Spec, device_name: str) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of a step, and the gradients that this rank counts, in float64."""
    inputs = step_inputs(build_dataset(spec), "train", tuple(range(spec.batch.global_)), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        device = device_for(device_name, dist.get_rank())  # type: ignore[arg-type]
        with RankSession(Plan.of(spec), device=device, randomise=True) as session:
            loss = session.gradients(inputs).read().loss
            found = {
                f"{item.name}@{item.first_row}": item.local.double().cpu()
                for name in session.modules
                for item in local_segments(session.declared(name))
                if item.segment.counted
            }
    return loss, found


def step_errors(
    ranks: Ranks, layout: Layout, backends: tuple[str, ...] = BACKENDS
) -> dict[str, dict[str, float]]:
    """Return, per backend, the relative error of loss and of each module's gradients in bf16.

    Against the same layout in float64 with torch's layers. A session is a job of its own.
    """
    exact = ranks.run(gradients_of, make_spec(layout, "torch", "fp64"), ranks.device, timeout_s=120)
    errors: dict[str, dict[str, float]] = {}
    for backend in backends:
        spec = make_spec(layout, backend, "bf16")
        found = ranks.run(gradients_of, spec, ranks.device, timeout_s=120)
        loss, want = found[0][0], exact[0][0]
        errors[backend] = {"loss": abs(loss - want) / abs(want)}
        for module in ("vision", "language"):
            pairs = [
                (mine[1][name], tensor)
                for mine, (_, tensors) in zip(found, exact, strict=True)
                for name, tensor in tensors.items()
                if name.startswith(f"{module}.")
            ]
            error = sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5
            norm = sum(float(b.square().sum()) for _, b in pairs) ** 0.5
            errors[backend][module] = error / norm
    return errors


def moved_by_a_skipped_step(spec: Spec, device_name: str) -> list[str]:
    """Return the scales of language that a skipped step moves, and what is no number after it.

    It has seen infinite magnitudes, and follows a step that was not skipped.
    """
    inputs = step_inputs(build_dataset(spec), "train", tuple(range(spec.batch.global_)), 0)
    device = device_for(device_name, dist.get_rank())  # type: ignore[arg-type]
    with RankSession(Plan.of(spec), device=device, randomise=True) as session:
        fp8 = session.modules["language"].context.fp8
        assert fp8 is not None
        session.gradients(inputs).read()
        session.updates.apply(1, skip=torch.zeros((), device=device))
        before = {name: tensor.clone() for name, tensor in fp8.tensors()}
        session.gradients(inputs).read()
        for name, tensor in fp8.tensors():
            if name.endswith("amax_history"):
                tensor[0].fill_(torch.inf)
        session.updates.apply(2, skip=torch.ones((), device=device))
        return [
            name
            for name, tensor in fp8.tensors()
            if (name.endswith("scale") and not tensor.equal(before[name]))
            or not bool(tensor.isfinite().all())
        ]


@dataclass(frozen=True)
class Run:
    """The step at which a session found itself, and its weights then and in the end.

    With FP8 also its scales and histories, as far as this rank saves them.
    """

    first_step: int
    before: dict[str, Tensor]
    after: dict[str, Tensor]


def train_on(spec: Spec, folder: Path, device_name: str) -> Run:
    """Go on from what the folder has, to the last step of the spec."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        device = device_for(device_name, dist.get_rank())  # type: ignore[arg-type]
        with RankSession(Plan.of(spec), device=device) as session:
            state, saver = start_run(session, folder, lambda event: None)
            first, before = state.step, _weights(session)
            train(session, lambda event: None, Hooks(saver=saver), state)
            return Run(first, before, _weights(session))


def runs_in_turn(
    ranks: Ranks, folder: Path, backends: tuple[str, ...], layout: Layout | None = None
) -> list[Run]:
    """Train two steps with each backend, each from the checkpoint of the one before; rank 0's."""
    layout = layout or ONE_GPU["plain"]
    return [
        all_runs(ranks, folder, backend, layout, steps=2 * turn)[0]
        for turn, backend in enumerate(backends, 1)
    ]


def all_runs(ranks: Ranks, folder: Path, backend: str, layout: Layout, *, steps: int) -> list[Run]:
    """Train up to so many steps, from the newest checkpoint on, and return what each rank saw."""
    spec = make_spec(
        layout,
        backend,
        "bf16",
        train={"steps": steps, "seed": 3, "precision": "bf16"},
        checkpoint={"every": 2, "keep": 4},
    )
    return ranks.run(train_on, spec, folder, ranks.device, timeout_s=120)


def _weights(session: RankSession) -> dict[str, Tensor]:
    weights = {
        item.name: item.local.clone().cpu()
        for name in session.modules
        for item in local_segments(session.declared(name), lambda parameter: parameter.detach())
    }
    scales = {
        f"{FP8}{module}.{name}": tensor.clone().cpu()
        for module, each in session.modules.items()
        if each.context.fp8 is not None and each.context.fp8.saves
        for name, tensor in each.context.fp8.tensors()
    }
    return weights | scales
