"""Vision transformers: what they do not share with other encoders.

Decides: layers and work of the embedding of patches, learned tokens, rotated queries and keys.
Relies on: `transformer_encoder` for the rest.
Leaves: cutting images to `models.patches`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.attention_shapes import AttentionShape, Pairs
from mimo_launch.kinds.block_shapes import BlockShape, ProjectorShape
from mimo_launch.kinds.facts import Attending, TokenFacts, TpCuts
from mimo_launch.kinds.layer import Ends, Flops, Workload
from mimo_launch.kinds.mlp_shapes import MlpShape
from mimo_launch.kinds.saved_activations import AttentionPattern, HeldAtEnds
from mimo_launch.kinds.shapes import ListShape, NormShape, OneShape, WholeShape, table
from mimo_launch.kinds.tiles import TileRule
from mimo_launch.kinds.transformer_encoder import (
    BlocksCuts,
    PatchWork,
    TransformerEncoderKind,
)
from mimo_launch.kinds.weights import LayerShape, Parameters
from mimo_launch.spec.media import Windows
from mimo_launch.spec.spec import Images, VitModel
from mimo_launch.spec.vit import Interpolation


@frozen
class PositionsShape(LayerShape):
    """A table over a grid of places, after a row for the class token if there is one.

    If the `class_is_last`, that row is after the grid.
    """

    layer = "mimo_launch.models.positions:LearnedPositions"

    grid: tuple[int, int]
    has_class_token: bool
    width: int
    interpolation: Interpolation
    class_is_last: bool = False

    @property
    def first_row(self) -> int:
        """The row of the first place."""
        return int(self.has_class_token and not self.class_is_last)

    @property
    def class_row(self) -> int:
        """The row of the class token."""
        return math.prod(self.grid) if self.class_is_last else 0

    def own(self, tp: int) -> Parameters:
        """Return the table."""
        return table(self.has_class_token + math.prod(self.grid), self.width).own(tp)


@frozen
class PatchesShape(LayerShape):
    """The layers of a ViT before its blocks."""

    patch: WholeShape
    patch_norm: NormShape | None
    positions: LayerShape | None
    class_token: OneShape | None
    registers: OneShape | None
    pre_norm: NormShape | None


@frozen
class DeepShape(LayerShape):
    """The projector of a layer before the last: a norm over the patches of a row, two maps."""

    layer = "mimo_launch.models.projector:DeepProjector"

    norm: NormShape
    mlp: MlpShape


@frozen
class BesideShape(LayerShape):
    """The layers that train or are frozen with the projector of a ViT.

    A norm before it, the learned rows that end a line of tiles and come before a last whole image,
    the map that merges patches, the projectors of layers before the last, and a linear map after.
    """

    norm: LayerShape | None
    newline: OneShape | None
    separator: OneShape | None
    merge: WholeShape | None
    deepstack: ListShape | None
    after: WholeShape | None


@frozen
class VisionProjectorShape(LayerShape):
    """The projector of a ViT, with further layers in the same module."""

    layer = "mimo_launch.models.projector:vision_projector"

    maps: ProjectorShape
    beside: BesideShape

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return the layers of both."""
        return {**self.maps.parts(), **self.beside.parts()}


@frozen(kw_only=True)
class PatchTurns:
    """How queries and keys rotate by the place of a patch (2-D RoPE).

    `theta` is the base of the frequencies. A place is the number of a row and of a column, `first`
    for the first one; or, if it is `by_centre`, the centre of the patch, from -1 at one edge of the
    image to 1 at the other, times 2 pi. Learned tokens have place 0. `pairs` of a head rotate
    together, the first half of them by the row, or by the column if `column_first`.
    """

    theta: float = 10000.0
    first: int = 0
    by_centre: bool = False
    column_first: bool = False
    pairs: Pairs = "apart"


@frozen
class ImageTokens(TokenFacts):
    """The tokens of an image, also in tiles."""

    model: VitModel

    @property
    def learned(self) -> int:
        """Number of learned tokens that each image has in addition to its patches."""
        return self.model.learned_tokens

    @property
    def table(self) -> tuple[int, int] | None:
        """Height and width, in patches, of the table of learned positions, if there is one."""
        return self.model.image if self.model.has_table else None

    @property
    def usual_size(self) -> tuple[int, int] | None:
        """Height and width, in patches, of the images that it is made for, if all are equal."""
        is_cut = self.model.turns_patches or self.model.interpolation == "cropped"
        return None if is_cut else self.table

    @property
    def tiles(self) -> TileRule | None:
        """How images in tiles become rows, if it cuts them."""
        model = self.model
        if model.tiles is None or model.image is None:
            return None
        tiles, (height, width) = model.tiles, (side // model.shuffle for side in model.image)
        return TileRule(
            height, width, tiles.most, tiles.each, model.image_side, tiles.grids,
            whole_last=tiles.whole == "last",
        )  # fmt: skip


@frozen(kw_only=True)
class ImageAttending(Attending):
    """Windows of some layers."""

    model: VitModel

    @property
    def windows(self) -> Windows | None:
        """The windows of an image in which tokens of some layers attend, if any."""
        return self.model.windows


@frozen
class VisionCuts(BlocksCuts):
    """Heads, some of which may share keys and values."""

    model: VitModel

    @property
    def kv_heads(self) -> Mapping[tuple[str, ...], int]:
        """Those that query heads share."""
        return {} if self.model.kv_heads is None else {("kv_heads",): self.model.kv_heads}


@frozen
class VisionKind(TransformerEncoderKind):
    """A ViT (arXiv:2010.11929) over images of any size."""

    model: VitModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.vision_encoder:VisionStage"

    @property
    def input(self) -> Images:
        """Images."""
        return self.model

    @property
    def tokens(self) -> TokenFacts:
        """The tokens of an image, also in tiles."""
        return ImageTokens(self.model, self.model)

    @property
    def attending(self) -> Attending:
        """Windows of some layers."""
        return ImageAttending(model=self.model)

    @property
    def torch_only(self) -> Iterable[str]:
        """The keys set in the model that blocks of other libraries do not support."""
        keys = ("layer_scale", "qk_norm", "kv_heads")
        return [key for key in keys if getattr(self.model, key)]

    @property
    def cuts(self) -> TpCuts:
        """Heads, some of which may share keys and values."""
        return VisionCuts(self.model)

    @property
    def turns(self) -> PatchTurns:
        """How queries and keys rotate by the place of a patch, if they do."""
        neighbours = self.model.rope_frequencies == "alternating"
        return PatchTurns(pairs="neighbours" if neighbours else "apart")

    @property
    def class_is_last(self) -> bool:
        """Whether the last row of the table is that of the class token, not the first."""
        return False

    @property
    def learned_rows(self) -> str:
        """The layer of the projector that makes the rows of tiles, and has learned ones."""
        return "newline"

    @property
    def activates_rows(self) -> bool:
        """Whether an activation precedes the map after the projector."""
        return False

    def lanes(self, number: int, *, deep_rows: int, kept: Sequence[int] = ()) -> int:
        """Return how many states besides the hidden one a layer gets from the layer before it."""
        return sum(layer < number for layer in self.model.kept_layers)

    @property
    def has_final_norm(self) -> bool:
        """Whether there is a norm between the last block and the projector."""
        return self.model.final_norm

    @property
    def patch_work(self) -> PatchWork:
        """One linear map."""
        size = self.model.patch_numbers
        return PatchWork(products=size * self.model.hidden, saved=size)

    def norm(self) -> NormShape:
        """Return the norm of the stream."""
        return NormShape(self.model.hidden, self.model.norm, self.model.norm_eps)

    def attention(self) -> AttentionShape:
        """Return the attention of a block."""
        model = self.model
        return replace(
            TransformerEncoderKind.attention(self),
            bias=model.block_bias,
            qkv_bias=model.qkv_bias,
            kv_heads=model.kv_heads or model.heads,
            qk_norm=model.qk_norm,
            wide_norm=not model.head_qk_norm,
            interleaved=self.turns.pairs == "neighbours",
            by_halves=self.turns.pairs == "in_halves",
        )

    def mlp(self) -> MlpShape:
        """Return the MLP of a block."""
        plain = replace(TransformerEncoderKind.mlp(self), bias=self.model.block_bias)
        if self.model.activation == "swiglu":
            return replace(plain, gate="silu")
        return replace(plain, activation=self.model.activation)

    def layer(self, number: int) -> BlockShape:
        """Return a block."""
        plain = TransformerEncoderKind.layer(self, number)
        return replace(plain, layer_scale=self.model.layer_scale)

    def before(self, ends: Ends) -> PatchesShape:
        """Return the embedding of patches, norms, positions and learned tokens."""
        model, width, positions = self.model, self.model.hidden, None
        if (grid := self.tokens.table) is not None:
            rest = model.interpolation, self.class_is_last
            positions = PositionsShape(grid, model.class_token, width, *rest)
        stage = "mimo_launch.models.vision_encoder"
        class_token = table(width, layer=f"{stage}:ClassToken")
        registers = table(model.registers, width, layer=f"{stage}:Registers")
        return PatchesShape(
            patch=WholeShape(model.patch_numbers, width, model.patch_bias),
            patch_norm=self.norm() if model.patch_norm else None,
            positions=positions,
            class_token=class_token if model.class_token else None,
            registers=registers if model.registers else None,
            pre_norm=self.norm() if model.pre_norm else None,
        )

    def projector(self, out: int) -> VisionProjectorShape:
        """Return the projector, with all that trains or is frozen with it."""
        model, row, norm = self.model, self.model.row_width, None
        maps = replace(
            self.maps(model.projector_out or out),
            activation=model.projector_activation,
            patches=row // model.patch_width,
        )
        if (eps := model.projector_norm_eps) is not None:
            offset = float(model.projector_norm_offset)
            width = model.patch_width if model.norms_each_patch else row
            norm = NormShape(width, model.projector_norm, eps, offset=offset)
        learned = "mimo_launch.models.tiled_rows"
        size = row if model.tiles_before_projector else out
        newline = table(size, layer=f"{learned}:TiledRows", embeds=False)
        separator = table(size, layer=f"{learned}:Separator", embeds=False)
        deep = DeepShape(
            norm=NormShape(row, "layer", model.norm_eps),
            mlp=MlpShape(width=row, inner=row, out=out, bias=True),
        )
        last = WholeShape(model.projector_out or 0, out, model.projector_bias)
        beside = BesideShape(
            norm=norm,
            newline=newline if model.tiles is not None else None,
            separator=separator if model.tiles_before_projector else None,
            merge=WholeShape(model.merge_width, row, bias=False) if model.merge_width else None,
            deepstack=ListShape((deep,) * model.deep_rows) if model.deep_rows else None,
            after=last if model.projector_out else None,
        )
        return VisionProjectorShape(maps, beside)

    def _embedded(self, work: Workload) -> int:
        """Return the number of patches, which exceeds the rows for tiles."""
        if self.model.tiles is not None:
            return work.tokens - work.spans.total() * self.model.learned_tokens
        return TransformerEncoderKind._embedded(self, work)

    def _projected(self, work: Workload) -> int:
        """Return how often the projector runs: once per row, or row that patches of a tile make."""
        if self.model.tiles is None or self.model.tiles_before_projector:
            return work.rows
        return self._embedded(work) // self.model.patches_per_row

    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return the operations of embedding and projectors."""
        inside = self._ends_of_maps(ends)
        row, found = self.model.row_width, TransformerEncoderKind.end_flops(self, inside, work)
        deep = 2.0 * work.rows * row * (row + ends.row_width) * self.model.deep_rows
        whole = 2.0 * work.rows * row * self.model.merge_width * (1 + self.model.deep_rows)
        whole += 2.0 * self._projected(work) * (self.model.projector_out or 0) * ends.row_width
        return found + Flops(projector=deep + whole, whole=whole) if ends.is_last else found

    def _ends_of_maps(self, ends: Ends) -> Ends:
        """Return the ends as the projector sees them, without a map after it."""
        return replace(ends, row_width=self.model.projector_out or ends.row_width)

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers saved by embedding, projectors and the layers between them."""
        inside, row = self._ends_of_maps(ends), self.model.row_width
        total = TransformerEncoderKind.saved_at_ends(self, inside, held)
        if held.layers and self.model.turns_patches:
            # Cosines and sines.
            angles = 2 * self.model.hidden // self.model.heads
            total += held.tokens * angles * held.passes.wide
        if ends.is_last:
            if (between := self.model.projector_out) is not None:
                rows = self._rows_projected(held)
                kept = between * held.projector_trains - between // held.tp
                total += rows * (kept + ends.row_width // held.tp + between * self.activates_rows)
            # The norm of a layer's output, which the next layer keeps, and both sides of the MLP.
            rows = self.model.deep_rows * held.patches // self.model.patches_per_row
            norm = held.passes.of_norm("layer", input_stays=held.through_layers)
            norm += not held.through_layers
            total += rows * (row * (1 + norm) + 2 * row // held.tp + ends.row_width // held.tp)
            # Of the layers before this stage, norms read copies.
            copied = sum(layer < held.first_layer for layer in self.model.deepstack)
            copied *= held.passes.are_compiled
            total += copied * held.stream_tokens * self.model.hidden
            of_patches, width = self.model.norms_each_patch, self.model.patch_width
            if self.model.projector_norm_eps is not None:
                # Without a norm before it, it reads the stream, unless that is one of several.
                normed = held.patches // (1 if of_patches else self.model.patches_per_row)
                norm = held.passes.of_norm(self.model.projector_norm)
                copied = self.has_final_norm or bool(self.model.features)
                total += normed * (width if of_patches else row) * (copied + norm)
            if self.model.pooling == "linear":
                total += held.patches * row
        return total

    def _rows_projected(self, held: HeldAtEnds) -> int:
        """Return the rows that the projector of a rank makes, learned ones of tiles included."""
        if self.model.tiles_before_projector:
            return held.rows
        return TransformerEncoderKind._rows_projected(self, held)

    def attention_pattern(self, number: int) -> AttentionPattern:
        """Return how the tokens of a layer attend."""
        windows = self.attending.in_windows(number)
        return AttentionPattern(in_windows=windows, rotates=self.model.turns_patches)

    def _saved_after_embedding(self, held: HeldAtEnds) -> int:
        norms = self.model.patch_norm + self.model.pre_norm
        kept = 1 + held.passes.of_norm(self.norm().kind)
        return held.stream_tokens * self.model.hidden * norms * kept + self._saved_by_table(held)

    def _saved_by_table(self, held: HeldAtEnds) -> int:
        """Return the numbers that learned positions keep: places (8 bytes) and weights (4)."""
        if (grid := self.tokens.table) is None or not held.passes.weights_train:
            return 0
        reads = {"bicubic": 16, "nearest": 1}
        reads |= dict.fromkeys(("averaged", "bicubic_averaged"), math.prod(grid))
        read = reads.get(self.model.interpolation, 4)
        size = 12 * read + 24
        return held.patches // held.sequence_parts * size // held.passes.bytes
