"""FP8 matmuls by Transformer Engine, with scales that are updated at most once per step and module.

Decides: when the scales of a module are updated, and over which ranks magnitudes are maximised.
Relies on: transformer-engine 2.20: with delayed scaling, a layer's `amax_history[0]` collects the
largest magnitudes of its tensors until the next update; other scalings keep nothing. `spec.fp8` for
the facts of each.
Leaves: the list of layers to `models.te_block`, and saving their state to `checkpoint`.

By itself, the package would update the scales of all modules of the process, each with a
collective, at the end of each outermost `autocast` and in the first backward after it. But the
ranks of a pipeline get there at different times, and a rank with two modules would update both
whenever either has run. So an empty `autocast` stays around everything, no other `autocast` is
outermost, and `Fp8.update` does the update once per step, at the same place on all ranks of a
stage.

Sources: FP8 formats (arXiv:2209.05433); Transformer Engine's user guide for delayed, current and
blockwise scaling.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from mimo_launch.comm import torch_internals
from mimo_launch.comm.collectives import all_reduce_max
from mimo_launch.comm.process_groups import Group
from mimo_launch.spec.fp8 import Fp8Spec

# The package's names for the scalings, and for the two directions.
_RECIPES = {
    "delayed": "DelayedScaling",
    "current": "Float8CurrentScaling",
    "blockwise": "Float8BlockScaling",
}
_STATES = {"forward": "scaling_fwd", "backward": "scaling_bwd"}


class Fp8:
    """FP8 of one module on one rank: its recipe, its layers and their scales.

    Delayed scales of gradients start at `grad_scale`.
    """

    def __init__(self, settings: Fp8Spec, tp: Group, replicas: Group, *, grad_scale: float) -> None:
        """Store the settings. `replicas` (dp x cp) hold the same layers and different tokens."""
        self.settings, self._groups = settings, (tp, replicas)
        self._grad_scale = grad_scale
        self._layers: dict[str, Any] = {}
        self._te: Any = None
        self._recipe: Any = None

    def alone(self) -> "Fp8":
        """Return a copy without layers, for layers that only this rank holds."""
        single = Group((0,), 0, None)
        return Fp8(self.settings, single, single, grad_scale=self._grad_scale)

    def open(self, te: ModuleType) -> None:
        """Start to use the package.

        Raises: RuntimeError, with a reason, if the GPU or its CUDA cannot scale so.
        """
        from transformer_engine.common import recipe as recipes
        from transformer_engine.pytorch.quantization import check_recipe_support

        settings, options = self.settings, {}
        if settings.rule.keeps_history:
            options["amax_history_len"] = settings.amax_history
        made = getattr(recipes, _RECIPES[settings.scaling])
        self._recipe = made(fp8_format=recipes.Format[settings.numbers.upper()], **options)
        check_recipe_support(self._recipe)
        self._te = te
        _hold_back_updates()

    def add(self, name: str, layer: nn.Module) -> None:
        """Add a layer with one or two weights; all ranks of a stage add the same layers."""
        self._layers[name] = layer

    def allocate(self) -> None:
        """Create the scales of all layers on the current device, before the first step."""
        with self._autocast():
            for layer in self._layers.values():
                layer.init_fp8_metadata(num_gemms=2 if hasattr(layer, "fc2_weight") else 1)
        if self.settings.rule.keeps_history:
            # The package starts at 1. The gradients of a mean over the tokens of a step would
            # become zeros, and each layer would see no maximum until the layers after it have one.
            for state in self._states(_STATES["backward"]):
                state.scale.fill_(self._grad_scale)

    def running(self) -> AbstractContextManager[object]:
        """Return the context in which layers run.

        Without gradients it does nothing: evaluations compute in 16 bits, because their magnitudes
        do not belong to training.
        """
        return self._autocast() if torch.is_grad_enabled() else nullcontext()

    def update(self, skip: Tensor | None) -> None:
        """End a step: update delayed scales from the magnitudes of the step.

        If `skip`, a scalar on the device, is 1, the magnitudes are discarded.

        Ranks: collective over the ranks of a stage.
        """
        if not self.settings.rule.keeps_history or not self._layers:
            return
        import transformer_engine_torch as kernels
        from transformer_engine.pytorch.quantization import get_fp8_te_dtype

        states = {way: self._states(key) for way, key in _STATES.items()}
        latest = [state.amax_history[0] for way in states.values() for state in way]
        # A NaN would keep its scale unchanged for the whole length of the history.
        seen = torch.cat(latest).nan_to_num(nan=0.0, posinf=0.0)
        if skip is not None:
            seen = torch.where(skip > 0, 0.0, seen)
        for group in self._groups:
            seen = all_reduce_max(seen, group)
        # If the kernel gets a 0, it uses this rank's own value instead.
        torch_internals.copy_(latest, list(torch.split(seen, [each.numel() for each in latest])))
        sizes = [sum(state.scale.numel() for state in way) for way in states.values()]
        parts = torch.split(seen, sizes)
        for (way, held), part in zip(states.items(), parts, strict=True):
            kernels.fused_amax_and_scale_update_after_reduction(
                part,
                [state.amax_history for state in held],
                [state.scale for state in held],
                self._recipe.amax_compute_algo,
                get_fp8_te_dtype(self._recipe, way == "forward"),
                self._recipe.margin,
            )

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the state of delayed scaling, which is the same on all ranks of a stage.

        A history is [steps, tensors of the layer], scales are [tensors of the layer].
        """
        if not self.settings.rule.keeps_history:
            return
        for name, layer in self._layers.items():
            for way, key in _STATES.items():
                state = layer.fp8_meta[key]
                yield f"{name}.{way}.amax_history", state.amax_history
                yield f"{name}.{way}.scale", state.scale

    @property
    def step(self) -> int:
        """A divisor that every number of tokens in its layers has."""
        return self.settings.rule.step

    @property
    def saves(self) -> bool:
        """Whether this rank saves the state of its stage."""
        return all(group.index == 0 for group in self._groups)

    def _states(self, key: str) -> list[Any]:
        return [layer.fp8_meta[key] for layer in self._layers.values()]

    def _autocast(self) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = self._te.autocast(
            enabled=True, recipe=self._recipe, amax_reduction_group=self._groups[0].handle
        )
        return context


@cache
def _hold_back_updates() -> AbstractContextManager[object]:
    """Enter the empty outermost context, for as long as the process lives."""
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager, autocast

    outermost: AbstractContextManager[object] = autocast(enabled=False)
    outermost.__enter__()
    # The first layer that asks would update in its backward; after this call no layer is the first.
    FP8GlobalStateManager.is_first_fp8_module()
    return outermost
