"""The protocol of an encoder in a user's package, and a base class for it.

Decides: the stage protocol (`EncoderFactory`), and what a stage does around its layers.
Relies on: `patches` for packed patches, `projector` for the rows that a rank owns.
Leaves: layers to the user, and importing and checking the class to `custom_stages`.

Legend: N tokens that this rank holds, P values of a patch, D `hidden`, W width of a row before the
projector, L width of the language model.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from mimo_launch.diag.users_code import CustomClassError
from mimo_launch.layers.image_contexts import image_context
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layout.stages import Stage
from mimo_launch.models.noise import HeldNoise, PatchTargets
from mimo_launch.models.patches import Patches, own_share, own_tokens, reader
from mimo_launch.models.projector import owned
from mimo_launch.models.stage_interface import ListForward, RowsInput
from mimo_launch.spec.spec import CustomModel


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInput(RowsInput):
    """The input of a stage of a user's class: the patches of one group that this rank holds.

    On every stage: `images` are the height and width, in rows, of each image of the group, `extras`
    counts the extra tokens of each image; the other fields are as in `ListInput`. On the first
    stage: `patches`; `rows` [r, width], received by this rank, by source module, and `row_places`,
    their places among its tokens. `made`, on a generator's first and last stage: its training
    targets.
    """

    patches: Patches | None
    images: tuple[tuple[int, int], ...] = ()
    extras: tuple[int, ...] = ()
    made: PatchTargets | None = None

    @classmethod
    def of_forward(cls, forward: ListForward) -> "EncoderInput":
        """Return the input of a forward."""
        learns, patches, made = forward.module.computes_loss, None, None
        if forward.stage.is_first or (learns and forward.stage.is_last):
            patches = forward.patches()
            made = HeldNoise.of(forward).beside(patches) if learns else None
        view = forward.view
        return cls.of(
            forward,
            patches=patches,
            images=view.sizes,
            extras=tuple(view.extras),
            made=made,
            **forward.arrived,
        )


class EncoderFactory(Protocol):
    """The class or function that `kind: package.module:Name` names: it builds one stage.

    The network that it returns
    * has `layers`, a ModuleDict keyed by the number of each layer in the whole model (from
      `stage.first_layer` on): layers are sharded, and with full sharding gathered, one by one;
    * has a `projector` on the last stage, for `frozen: except_projector`;
    * is called as `network(hidden, packed)`. `hidden` [N, D] is the output of the stage before,
      None on the first stage, which embeds `packed.patches`. The call returns the hidden state, or
      on the last stage the rows [r, L] that this rank owns (`models.projector.owned`);
    * must also run without any image (N = 0), through every layer, and return a new tensor in both
      cases: with full sharding, ranks gather weights in the order of gradients;
    * keeps images apart: a row depends only on its own image. `verify` encodes each image
      separately;
    * holds parameters that are declared as segments (`layers.parameter_segments`), as the layers of
      `mimo_launch.custom` do, or plain ones with tp 1; and no persistent buffer.
    """

    def __call__(
        self,
        context: ParallelContext,
        model: CustomModel,
        stage: Stage,
        *,
        language_width: int,
        recompute: bool,
    ) -> nn.Module:
        """Return a stage of `stage.num_layers` layers, from `stage.first_layer` on."""
        ...


class CustomStage(nn.Module):
    """Base of encoders and generators: layers, and a run without any image.

    `cuts` are the axes, besides dp, over which the module may be cut; a spec with any other axis is
    refused. Layers of plain torch can be cut over pp. For tp they must be made of the layers of
    `mimo_launch.custom`, which leave the same tokens on every tp rank (or a share of them, under
    sequence parallelism), and for cp layers that mix tokens must exchange them with all cp ranks.
    """

    cuts: ClassVar[frozenset[str]] = frozenset({"pp"})

    def __init__(self, context: ParallelContext, model: CustomModel, stage: Stage) -> None:
        super().__init__()
        self.context, self.model, self.stage = context, model, stage

    def make(self, *, recompute: bool) -> None:
        """Make the embedding and the layers of this stage."""
        stage = self.stage
        if stage.is_first:
            self.embedding = self.make_embedding()
        numbers = range(stage.first_layer, stage.first_layer + stage.num_layers)
        self.layers = nn.ModuleDict({str(number): self.make_layer(number) for number in numbers})
        if recompute:
            for layer in self.layers.values():
                layer.forward = partial(recomputed, layer.forward)

    @property
    def options(self) -> dict[str, Any]:
        """`options` of the spec."""
        return self.model.options

    @property
    def patch_width(self) -> int:
        """Values of a patch, P."""
        return reader(self.model).width

    def make_embedding(self) -> nn.Module:
        """Return the map from patches to tokens, [N, P] -> [N, D]; here the identity."""
        return nn.Identity()

    def make_layer(self, number: int) -> nn.Module:
        """Return a layer, called as `layer(x [N, D], packed)`; `number` counts over all stages."""
        raise NotImplementedError

    def need_whole_images(self) -> None:
        """Raise ValueError if this rank holds parts of images (cp or sequence parallelism)."""
        if self.context.cp.size > 1 or self.context.sequence_parallel:
            raise ValueError("this rank holds parts of images: over_images needs them whole")

    def through_layers(self, x_ND: Tensor, packed: EncoderInput) -> Tensor:
        """Return the tokens after the layers of this stage."""
        held = len(x_ND)
        for layer in self.layers.values():
            x_ND = layer(x_ND, packed)
        if not self.stage.is_last:
            self.checked("tokens", x_ND, held, (held, self.model.hidden))
        return x_ND

    def checked(self, what: str, made: Tensor, held: int, wanted: tuple[int, ...]) -> Tensor:
        """Return a tensor of the wanted shape. Raises: CustomClassError if it has another.

        An extra row would silently move all rows after it to wrong places.
        """
        if made.shape != wanted:
            raise CustomClassError(
                f"`{self.model.kind}`: stage {self.stage.index} made {what} {list(made.shape)} "
                f"of {held} tokens, not {list(wanted)}"
            )
        return made

    def blank(
        self, hidden: Tensor | None, packed: EncoderInput
    ) -> tuple[Tensor | None, EncoderInput]:
        """Return the input of one blank image, for a stage without images; its result is dropped.

        A stage without images must also run, so that its result depends on every weight, but many
        layers cannot take an empty list.
        """
        context, how = self.context, reader(self.model)
        shares = context.tp.size if context.sequence_parallel else 1
        size = self.model.patches_per_row * shares
        held = range(context.cp.index * size, (context.cp.index + 1) * size)
        mask = image_context(
            [size * context.cp.size], held, context.device, alone=context.cp.size == 1
        )
        dtype, device = context.compute_dtype, context.device
        blank = Patches(
            torch.zeros((size, how.width), dtype=dtype, device=device),
            torch.zeros((size, how.axes), dtype=torch.int64, device=device),
        )
        sizes = ((1, shares * context.cp.size),)
        one = replace(packed, mask=mask, patches=blank, images=sizes, own=own_tokens(held, context))
        if hidden is not None:
            hidden = hidden.new_zeros((size // shares, hidden.shape[1])) + hidden.sum()
        return hidden, one


class EncoderStage(CustomStage):
    """Base of encoders: a subclass makes the embedding, the layers and the projector."""

    def __init__(
        self,
        context: ParallelContext,
        model: CustomModel,
        stage: Stage,
        *,
        language_width: int,
        recompute: bool,
    ) -> None:
        super().__init__(context, model, stage)
        self.language_width = language_width
        self.make(recompute=recompute)
        if stage.is_last:
            self.projector = self.make_projector()

    @property
    def row_width(self) -> int:
        """Input width of the projector, W: all patches of a row together."""
        return self.model.hidden * self.model.patches_per_row

    def make_projector(self) -> nn.Module:
        """Return the map from patches to rows, [R, W] -> [R, L]; here the identity."""
        return nn.Identity()

    def embed(self, patches: Patches) -> Tensor:
        """Return the tokens [N, D] of patches; override it if positions are needed."""
        out: Tensor = self.embedding(patches.values)
        return out

    def finish(self, x_ND: Tensor) -> Tensor:
        """Return the rows [R, L] of tokens; override it if more than a projector follows."""
        out: Tensor = self.projector(x_ND.reshape(-1, self.row_width))
        return out

    def over_images(
        self, function: Callable[[Tensor], Tensor], x_ND: Tensor, packed: EncoderInput
    ) -> Tensor:
        """Apply a function to images as maps, [B, H, W, D] -> [B, H, W, E], and return [N, E].

        H x W are an image's patches; images of equal size form one batch. Raises: ValueError if
        this rank does not hold whole images (cp or sequence parallelism).
        """
        self.need_whole_images()
        tall, wide = self.model.input.row_of_patches
        pieces = torch.split(x_ND, [h * w * tall * wide for h, w in packed.images])
        by_size: dict[tuple[int, int], list[int]] = {}
        for index, size in enumerate(packed.images):
            by_size.setdefault(size, []).append(index)
        out: list[Tensor] = [x_ND] * len(pieces)
        for (h, w), indices in by_size.items():
            cells = torch.stack([pieces[index] for index in indices])
            maps = cells.view(len(indices), h, w, tall, wide, -1).transpose(2, 3)
            made = function(maps.reshape(len(indices), h * tall, w * wide, -1))
            back = made.reshape(len(indices), h, tall, w, wide, -1).transpose(2, 3)
            # `torch.cat` then makes one copy of all, not one for each image.
            images = back.reshape(len(indices), h * w * tall * wide, -1)
            for index, image in zip(indices, images, strict=True):
                out[index] = image
        return torch.cat(out)

    def forward(self, hidden: Tensor | None, packed: EncoderInput) -> Tensor:
        """Return the hidden state [N, D]; on the last stage, this rank's own rows [r, L]."""
        if packed.images:
            out = self._run(hidden, packed)
        else:
            out = self._run(*self.blank(hidden, packed))[:0]
        if self.stage.is_last:
            out = owned(out, packed.sizes, self.context)
        # A new tensor in both cases, with images and without. FSDP gathers weights in the order in
        # which gradients reach the outputs that it hooks: the stage's and its last layer's. If
        # these were one tensor with images and two without, that order would differ between ranks.
        return out.clone()

    def _run(self, hidden: Tensor | None, packed: EncoderInput) -> Tensor:
        if hidden is not None:
            x_ND, held = hidden, len(hidden)
        elif packed.patches is not None:
            mine = own_share(packed.patches, self.context)
            x_ND, held = self.embed(mine), len(mine.values)
        else:
            raise ValueError("the first stage of an encoder needs patches")
        x_ND = self.through_layers(x_ND, packed)
        if not self.stage.is_last:
            return x_ND
        rows = held // self.model.patches_per_row
        return self.checked("rows", self.finish(x_ND), held, (rows, self.language_width))
