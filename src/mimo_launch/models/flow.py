"""A flow generator as a stage: noised patches and rows in, the loss of velocities out.

Decides: how time and rows reach the tokens; that a drawing begins with the noise of training.
Relies on: `noise` for noised patches and times, `row_places` for the places of rows.
Leaves: dividing the loss by N to the runtime.
Source: rectified flow (arXiv:2209.03003). Rows are placed among the tokens of their image, as in
the in-context conditioning of DiT (arXiv:2212.09748, section 3.2); times are embedded as in DiT.

Legend: P values of a patch, n tokens of this rank, with its patches first, D width.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.comm.autograd_collectives import exit_tp
from mimo_launch.kinds.flow import FlowKind, TimeShape
from mimo_launch.layers.linear import WholeLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.pointwise import widened
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.models.noise import HeldNoise, NoiseCanvas, NoisedPatches
from mimo_launch.models.patches import image_places, own_share, own_tokens
from mimo_launch.models.positions import sincos_positions
from mimo_launch.models.row_places import RowReader
from mimo_launch.models.stage_interface import ListForward, ModelStage, RowsInput
from mimo_launch.spec.encoders import FlowModel

# Times between 0 and 1 are embedded like the steps of a diffusion model with this many steps.
TIME_SCALE = 1000.0


class TimeEmbedding(ShapedLayer[TimeShape]):
    """Sines and cosines of a time, and two linear maps: [n] -> [n, D]."""

    up: WholeLinear
    down: WholeLinear

    def forward(self, times_n: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the embedding of each time, in `dtype`."""
        half = self.shape.up.inputs // 2
        steps = torch.arange(half, device=times_n.device, dtype=times_n.dtype)
        angles = TIME_SCALE * times_n[:, None] * torch.exp(-math.log(10000.0) * steps / half)
        waves = torch.cat([angles.cos(), angles.sin()], dim=1)
        waves = F.pad(waves, (0, self.shape.up.inputs - 2 * half)).to(dtype)
        made: Tensor = self.down(F.silu(self.up(waves)))
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowInput(RowsInput):
    """The input of a flow generator; the first and the last stage get noised patches."""

    noised: NoisedPatches | None

    @property
    def needed(self) -> NoisedPatches:
        """The noised patches. Raises: ValueError on a stage between others."""
        if self.noised is None:
            raise ValueError("the first and the last stage of a flow generator need noised patches")
        return self.noised


class FlowStage(ModelStage):
    """Consecutive layers; the first stage embeds noised patches, the last computes the loss."""

    kind: FlowKind
    model: FlowModel
    patch: WholeLinear
    time: TimeEmbedding
    reads: RowReader
    norm: Norm
    velocity: WholeLinear

    def inputs(self, forward: ListForward) -> FlowInput:
        """Return the input of a forward: images to learn from, or those drawn so far."""
        noised = None
        if forward.canvas is not None:
            noised = forward.canvas.seen()
        elif forward.at_end:
            noised = HeldNoise.of(forward).towards(forward.patches())
        return FlowInput.of(forward, noised=noised, **forward.arrived)

    def canvas(self, forward: ListForward, num_steps: int) -> NoiseCanvas:
        """Return the noise from which images are drawn in `num_steps` passes."""
        places = to_device(image_places(forward.view, forward.held), self.context.device)
        return NoiseCanvas(HeldNoise.of(forward), places, self.context, num_steps)

    def forward(self, hidden: Tensor | None, packed: FlowInput) -> Tensor:
        """Return the hidden state [n, D], or on the last stage the summed loss of its cp rank.

        The loss of a patch is the mean squared error of its velocity, in at least fp32. Every tp
        rank of a replica returns the same value. Without a target the last stage returns the
        velocities of this rank's patches instead.
        """
        x_nD = self._embed(packed) if hidden is None else hidden
        for layer in self.layers.values():
            x_nD = layer(x_nD, packed.mask)
        if not self.stage.is_last:
            return x_nD
        noised = packed.needed
        velocity_nP = widened(self.velocity(self.norm(x_nD[: len(packed.own)])))
        if noised.target is None:
            return velocity_nP
        target_nP, is_patch_n = (
            own_tokens(each, self.context) for each in (noised.target, noised.is_patch)
        )
        of_patch_n = (velocity_nP - target_nP).square().mean(dim=1)
        loss = (of_patch_n * is_patch_n).sum()
        return exit_tp(loss, self.context.tp) if self.context.sequence_parallel else loss

    def _embed(self, packed: FlowInput) -> Tensor:
        """Return the tokens [n, D] before the first layer."""
        noised = packed.needed
        mine = own_share(noised.patches, self.context)
        times = own_tokens(noised.times, self.context)
        x_nD: Tensor = self.patch(mine.values)
        x_nD = x_nD + sincos_positions(mine.positions, self.model.hidden, x_nD.dtype)
        x_nD = x_nD + self.time(times, x_nD.dtype)
        x_nD = F.pad(x_nD, (0, 0, 0, packed.extra_tokens))
        placed: Tensor = self.reads(x_nD, packed.rows, packed.row_places)
        return placed
