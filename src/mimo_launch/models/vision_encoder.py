"""The vision transformer as a stage: packed patches of images of any size in, rows out.

Decides: the embedding of images (patches, and positions, where a class token has row 0), the layers
around the blocks, pixel shuffle; that class tokens and registers come after the patches.
Relies on: `patches` for the place of a patch and the size of its image, `positions`, `projector`
for the projector and the rows of this rank.
Leaves: moving rows to the bridge.

Legend: P values of a patch, N patches of a replica's group (padded to a multiple of tp under
sequence parallelism), s side of the square of patches that becomes one row, R = N / s^2 rows, D
width, L width of the language model.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.comm.async_copies import to_device
from mimo_launch.kinds.shapes import OneShape
from mimo_launch.kinds.vision import VisionKind
from mimo_launch.layers.image_contexts import ImageContext, turned_by_place
from mimo_launch.layers.linear import WholeLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.pointwise import ACTIVATIONS
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layout.row_owners import shards_of_cp_rank
from mimo_launch.models.patches import Patches, image_places, own_share
from mimo_launch.models.positions import LearnedPositions, sincos_positions
from mimo_launch.models.projector import owned
from mimo_launch.models.stage_interface import ListForward, ListInput, ModelStage
from mimo_launch.models.tiled_rows import RowSources, row_sources
from mimo_launch.spec.spec import VitModel


class ClassToken(ShapedLayer[OneShape]):
    """A learned token of every image, in addition to its patches."""

    def forward(self, number: int, position_D: Tensor | None) -> Tensor:
        """Return the class tokens of `number` images, [number, D]; even 0 stay on the graph."""
        token = self.weight if position_D is None else self.weight + position_D
        return token.expand(number, -1)


class Registers(ShapedLayer[OneShape]):
    """Learned tokens of every image, without positions, in addition to its patches."""

    def forward(self, numbers_n: Tensor, token_1D: Tensor) -> Tensor:
        """Return the learned tokens with these numbers, [n, D]; the class token is number 0."""
        return F.embedding(numbers_n, torch.cat([token_1D, self.weight]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesInput(ListInput):
    """The input of a ViT.

    `windows` is the mask of layers with windows; `places` [N, 2] are the (y, x) of each patch in
    its image, for 2-D RoPE, and 0 for learned tokens. The first stage gets `patches`, the last one
    the sources of the rows of tiled images.
    """

    windows: ImageContext | None = None
    places: Tensor | None = None
    patches: Patches | None = None
    row_sources: RowSources | None = None


class VisionStage(ModelStage):
    """Consecutive layers of a ViT; the first stage embeds patches, the last projects rows."""

    kind: VisionKind
    model: VitModel
    patch: WholeLinear
    patch_norm: Norm | None
    positions: LearnedPositions | None
    class_token: ClassToken | None
    registers: Registers | None
    pre_norm: Norm | None
    norm: Norm | None
    projector: nn.Module

    def inputs(self, forward: ListForward) -> ImagesInput:
        """Return the input of a forward."""
        stage, places = forward.stage, None
        if self.model.turns_patches:
            places = to_device(self._places_of_tokens(forward), self.context.device)
        return ImagesInput.of(
            forward,
            windows=forward.windows(),
            places=places,
            patches=forward.patches() if stage.is_first else None,
            row_sources=row_sources(forward.view, self.context) if stage.is_last else None,
        )

    def places(self, forward: ListForward) -> np.ndarray:
        """Return the (y, x) by which each patch of this cp rank rotates, or (x, y), [N, 2]."""
        turns = self.kind.turns
        found = image_places(forward.view, forward.held, measured=turns.by_centre)
        if turns.by_centre:
            # Padding has size 0.
            places, sizes = found[:, :2], np.maximum(found[:, 2:], 1)
            found = 2 * np.pi * ((2 * places + 1) / sizes - 1)
        found = found + turns.first
        return found[:, ::-1] if turns.column_first else found

    def _places_of_tokens(self, forward: ListForward) -> np.ndarray:
        """Return the same for all tokens; learned ones follow the patches of a shard, unrotated."""
        of_shards = self.places(forward).reshape(shards_of_cp_rank(forward.module), -1, 2)
        learned = (0, forward.view.extra_tokens)
        return np.pad(of_shards, ((0, 0), learned, (0, 0))).reshape(-1, 2)

    def between(self, mask: ImageContext, tokens: int) -> ImagesInput:
        """Return the input of a stage between others; windows are whole images."""
        places = torch.zeros((tokens, 2), device=self.context.device)
        return ImagesInput(mask=mask, windows=mask, places=places)

    def forward(self, hidden: Tensor | None, packed: ImagesInput) -> Tensor:
        """Return the hidden state [n, D], or on the last stage the rows [r, L] that this rank owns.

        Layers with states that are kept append them to the width, here and in `hidden`; layers
        that also send rows, in the rows. Shapes: hidden [n, D] from the stage before, None on the
        first.
        """
        given = self.embed(packed) if hidden is None else hidden
        x_nD, *kept = torch.split(given, self.model.hidden, dim=1)
        masks = self._masks(packed, x_nD.dtype)
        for number, layer in self.layers.items():
            x_nD = layer(x_nD, masks[self.kind.attending.in_windows(int(number))])
            if int(number) in self.model.kept_layers:
                kept.append(x_nD)
        if not self.stage.is_last:
            return torch.cat([x_nD, *kept], dim=1) if kept else x_nD
        patches = slice(len(x_nD) - packed.extra_tokens)
        x_nD = x_nD[patches]
        if self.norm is not None:
            x_nD = self.norm(x_nD)
        if self.model.features:
            x_nD = self._side_by_side(x_nD, [each[patches] for each in kept])
        read = self._normed_rows(x_nD)
        if self.model.tiles_before_projector:
            read = self._in_tiles(read, packed)
        rows: Tensor = self.projector(read)
        if self.model.projector_out is not None:
            if self.kind.activates_rows:
                rows = self.context.fused(ACTIVATIONS[self.model.projector_activation], rows)
            rows = self.projector.get_submodule("after")(rows)
        if self.model.deepstack:
            layers = self.projector.get_submodule("deepstack").children()
            pairs = zip(layers, kept, strict=True)
            others = (layer(self._rows(each[patches])) for layer, each in pairs)
            rows = torch.cat([rows, *others], dim=1)
        if self.model.tiles is not None and not self.model.tiles_before_projector:
            rows = self._in_tiles(rows, packed)
        return owned(rows, packed.sizes, self.context)

    def _in_tiles(self, x_nL: Tensor, packed: ImagesInput) -> Tensor:
        """Return the rows of images in tiles, [r, L], of patches before or after the projector."""
        separator: nn.Module | None = getattr(self.projector, "separator", None)
        learned = None if separator is None else separator()
        rows: Tensor = self.projector.get_submodule(self.kind.learned_rows)(
            x_nL, packed.row_sources, learned
        )
        return rows

    def _side_by_side(self, x_nD: Tensor, kept: list[Tensor]) -> Tensor:
        """Return the states of all `features`, [n, W]; `x_nD` are the states of the last layer."""
        states = dict(zip(self.model.kept_layers, kept, strict=True))
        return torch.cat([states.get(each, x_nD) for each in self.model.features], dim=1)

    def _normed_rows(self, x_nD: Tensor) -> Tensor:
        """Return the input of the projector [n, W], after its norm over rows or patches."""
        norm: nn.Module | None = getattr(self.projector, "norm", None)
        if norm is None:
            return self._rows(x_nD)
        if self.model.norms_each_patch:
            return self._rows(norm(x_nD))
        normed: Tensor = norm(self._rows(x_nD))
        return normed

    def _rows(self, x_nD: Tensor) -> Tensor:
        """Return the patches of each row, concatenated [n, W], averaged, or mapped.

        They are adjacent, so pixel shuffle (arXiv:2404.16821) is a view. The map reads channel
        after channel, as in Mistral 3.
        """
        model = self.model
        if model.pooling is None:
            return x_nD.reshape(-1, model.row_width)
        squares = x_nD.reshape(-1, model.patches_per_row, x_nD.shape[1])
        if model.pooling == "mean":
            return squares.mean(dim=1)
        made: Tensor = self.projector.get_submodule("merge")(squares.mT.flatten(1))
        return made

    def _masks(self, packed: ImagesInput, dtype: torch.dtype) -> dict[bool, ImageContext]:
        """Return masks, with angles of 2-D RoPE, for blocks with windows (True) and without."""
        mask = packed.mask
        if self.model.turns_patches:
            if packed.places is None:
                raise ValueError("every stage with 2-D RoPE needs the places of patches")
            head_size = self.model.hidden // self.model.heads
            mask = turned_by_place(
                mask,
                packed.places,
                head_size,
                dtype,
                frequencies=self.model.rope_frequencies,
                theta=self.kind.turns.theta,
            )
        if self.model.windows is None:
            return {False: mask}
        if packed.windows is None:
            raise ValueError("every stage of an encoder with windows needs them")
        inside = replace(packed.windows, cos=mask.cos, sin=mask.sin, draws=mask.draws)
        return {False: mask, True: inside}

    def embed(self, packed: ImagesInput) -> Tensor:
        """Return the tokens [n, D] before the first layer."""
        if packed.patches is None:
            raise ValueError("the first stage of an encoder needs pixels")
        mine = own_share(packed.patches, self.context)
        model, values = self.model, mine.values
        if model.temporal_patch > model.frames:
            # An image counts as a video of equal frames.
            frames = values.view(len(values), model.channels, 1, model.patch**2)
            values = frames.expand(-1, -1, model.temporal_patch, -1).flatten(1)
        x_nD: Tensor = self.patch(values)
        if self.patch_norm is not None:
            x_nD = self.patch_norm(x_nD)
        if model.has_sines:
            as_mae = model.positions == "sincos_mae"
            places = mine.positions
            x_nD = x_nD + sincos_positions(places, model.hidden, x_nD.dtype, as_mae=as_mae)
        elif self.positions is not None:
            x_nD = x_nD + self.positions(mine.positions)
        if model.learned_tokens:
            x_nD = torch.cat([x_nD, self._learned_tokens(packed.extra_tokens, x_nD)])
        return x_nD if self.pre_norm is None else self.pre_norm(x_nD)

    def _learned_tokens(self, number: int, x_nD: Tensor) -> Tensor:
        """Return this shard's `number` learned tokens, [number, D].

        Tokens of one image are adjacent in the list that the shards cut; `x_nD` gives the dtype.
        """
        token_D = x_nD.new_empty(0, self.model.hidden)
        if self.class_token is not None:
            table = self.positions
            position = None if table is None else table.weight[table.shape.class_row]
            if self.registers is None:
                found: Tensor = self.class_token(number, position)
                return found
            token_D = self.class_token(1, position)
        if self.registers is None:
            raise ValueError("a model without learned tokens")
        context, shard = self.context, self.context.cp.index
        if context.sequence_parallel:
            shard = shard * context.tp.size + context.tp.index
        places = torch.arange(shard * number, (shard + 1) * number, device=x_nD.device)
        made: Tensor = self.registers(places % self.model.learned_tokens, token_D)
        return made
