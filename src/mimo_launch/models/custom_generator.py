"""The protocol of a generator in a user's package, and a base class for it.

Decides: the stage protocol (`GeneratorFactory`), and what a stage does around its layers: language
rows follow the patches, and the loss is a sum over patches.
Relies on: `custom_encoder` for the common base of encoders and generators, `row_places` for rows.
Leaves: the layers, the prediction and its loss to the user; dividing by N to the runtime.

Legend: N patches that this rank holds, T tokens: its patches, then the rows that they are made
from; P values of a patch, D `hidden`, O outputs of the head for a patch.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.comm.autograd_collectives import exit_tp
from mimo_launch.kinds.transformer_encoder import MapsShape
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import widened
from mimo_launch.layout.stages import Stage
from mimo_launch.models.custom_encoder import CustomStage, EncoderInput
from mimo_launch.models.noise import PatchTargets
from mimo_launch.models.patches import own_tokens
from mimo_launch.models.row_places import RowReader
from mimo_launch.spec.spec import CustomModel


class GeneratorFactory(Protocol):
    """The class or function that `kind: package.module:Name` names with `loss: true`.

    The network that it returns follows `EncoderFactory`, except that
    * the first stage also gets rows from language: `packed.rows` [r, width], and their places among
      the tokens, `packed.row_places`, by source module (`models.row_places`);
    * the hidden state [T, D] covers the patches, then `packed.extra_tokens` tokens for rows;
    * the first and the last stage get the targets of their cp rank, `packed.made`;
    * the last stage returns the sum of the loss over the patches of its cp rank, padding excluded
      (`packed.made.is_patch`); it is the same on every tp rank;
    * it has no `projector`.
    """

    def __call__(
        self,
        context: ParallelContext,
        model: CustomModel,
        stage: Stage,
        *,
        sources: Mapping[str, int],
        recompute: bool,
    ) -> nn.Module:
        """Return a stage; `sources` gives the row width of each module that it reads."""
        ...


class GeneratorStage(CustomStage):
    """Base of generators: a subclass makes the embedding, the layers, the head and the loss."""

    def __init__(
        self,
        context: ParallelContext,
        model: CustomModel,
        stage: Stage,
        *,
        sources: Mapping[str, int],
        recompute: bool,
    ) -> None:
        super().__init__(context, model, stage)
        self.make(recompute=recompute)
        if stage.is_first:
            self.reads = RowReader(context, MapsShape(tuple(sources.items()), model.hidden))
        if stage.is_last:
            self.head = self.make_head()

    def make_head(self) -> nn.Module:
        """Return the map from patches to predictions, [N, D] -> [N, O]."""
        raise NotImplementedError

    def noised(self, target: PatchTargets) -> Tensor:
        """Return the embedding's input for each patch, [N, any]; here as in a flow."""
        time_N1 = target.times[:, None]
        return (1 - time_N1) * target.noise + time_N1 * target.patches

    def embed(self, target: PatchTargets) -> Tensor:
        """Return the tokens [N, D] of noised patches; override it if positions are needed."""
        out: Tensor = self.embedding(self.noised(target).to(self.context.compute_dtype))
        return out

    def loss(self, made: Tensor, target: PatchTargets) -> Tensor:
        """Return the loss of each patch [N], from the head's output [N, O]."""
        raise NotImplementedError

    def over_images(
        self, function: Callable[[Tensor], Tensor], x_TD: Tensor, packed: EncoderInput
    ) -> Tensor:
        """Apply a function to the tokens of images, [B, n, D] -> [B, n, E], and return [T, E].

        The n tokens of an image are its patches, then the rows that it is made from; images with
        equal numbers of both form one batch. Raises: ValueError if this rank does not hold whole
        images (cp or sequence parallelism).
        """
        self.need_whole_images()
        lengths = [h * w * self.model.patches_per_row for h, w in packed.images]
        rows = packed.extras or (0,) * len(lengths)
        pieces = torch.split(x_TD, [*lengths, *rows])
        made = [x_TD] * len(pieces)
        for alike in dict.fromkeys(zip(lengths, rows, strict=True)):
            here = [i for i, size in enumerate(zip(lengths, rows, strict=True)) if size == alike]
            joined = [torch.cat([pieces[i], pieces[len(lengths) + i]]) for i in here]
            for i, tokens in zip(here, function(torch.stack(joined)), strict=True):
                made[i], made[len(lengths) + i] = tokens.split(alike)
        return torch.cat(made)

    def forward(self, hidden: Tensor | None, packed: EncoderInput) -> Tensor:
        """Return the hidden state [T, D], or on the last stage the summed loss of its cp rank."""
        if packed.images:
            return self._run(hidden, packed).clone()
        out = self._run(*self._blank_target(*self.blank(hidden, packed)))
        # A new tensor in both cases, as in encoders.
        return out.clone() if self.stage.is_last else out[:0].clone()

    def _run(self, hidden: Tensor | None, packed: EncoderInput) -> Tensor:
        held = len(packed.own)
        if hidden is None:
            x_ND = self.embed(self._own_target(packed))
            x_ND = self.checked("tokens", x_ND, held, (held, self.model.hidden))
            x_TD = F.pad(x_ND, (0, 0, 0, packed.extra_tokens))
            x_TD = self.reads(x_TD, packed.rows, packed.row_places)
        else:
            x_TD = hidden
        x_TD = self.through_layers(x_TD, packed)
        if not self.stage.is_last:
            return x_TD
        target = self._own_target(packed)
        loss_N = widened(self.loss(self.head(x_TD[:held]), target))
        loss_N = self.checked("losses", loss_N, held, (held,))
        loss = torch.where(target.is_patch > 0, loss_N, 0).sum()
        return exit_tp(loss, self.context.tp) if self.context.sequence_parallel else loss

    def _own_target(self, packed: EncoderInput) -> PatchTargets:
        """Return the targets of the patches of this tp rank."""
        if packed.made is None:
            raise ValueError("the first and the last stage of a generator need targets")
        names = ("patches", "positions", "noise", "times", "is_patch")
        mine = (own_tokens(getattr(packed.made, name), self.context) for name in names)
        return PatchTargets(*mine)

    def _blank_target(
        self, hidden: Tensor | None, packed: EncoderInput
    ) -> tuple[Tensor | None, EncoderInput]:
        """Return the input of a blank image without rows; its targets do not count."""
        if packed.patches is None:
            raise ValueError("a blank image has patches")
        values, positions = packed.patches.values, packed.patches.positions
        zeros = torch.zeros_like(values, dtype=torch.promote_types(values.dtype, torch.float32))
        one = zeros.new_zeros(len(zeros))
        target = PatchTargets(zeros, positions, zeros, one, one)
        return hidden, replace(packed, made=target, extra_tokens=0, extras=())
