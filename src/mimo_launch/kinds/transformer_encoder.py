"""Common parts of encoders and flow generators: blocks with biases; for encoders a projector.

Decides: their layers, operations and saved activations.
Relies on: `shapes` for weights.
Leaves: the embedding of images and clips to `vision` and `audio`.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.block_shapes import BlockShape, ProjectorShape
from mimo_launch.kinds.facts import TpCuts
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.layer import Ends, Flops, Workload
from mimo_launch.kinds.mlp_shapes import MlpShape
from mimo_launch.kinds.saved_activations import HeldAtEnds
from mimo_launch.kinds.shapes import NormShape, WholeShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.encoders import EncoderBlocks, TransformerEncoder


@frozen(kw_only=True)
class PatchWork:
    """The work of the layers before an encoder's blocks for one patch.

    `products` counts multiplications in a forward, `saved` the numbers kept for the backward.
    """

    products: int
    saved: int


@frozen
class MapsShape(LayerShape):
    """A linear map to the stream for the rows of each module that is read, by its name."""

    layer = "mimo_launch.models.row_places:RowReader"

    sources: tuple[tuple[str, int], ...]
    width: int

    def parts(self) -> Mapping[str, WholeShape]:
        """Return the maps."""
        return {name: WholeShape(size, self.width) for name, size in self.sources}


@frozen
class RowsShape(LayerShape):
    """The layers of an encoder after its blocks."""

    norm: NormShape | None
    projector: LayerShape


@frozen
class BlocksCuts(TpCuts):
    """Heads, which split the width, and the width inside MLPs."""

    model: EncoderBlocks

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.model.heads

    @property
    def heads_of_hidden(self) -> bool:
        """A head is hidden / heads wide."""
        return True

    @property
    def mlp_width(self) -> int:
        """Width inside the MLPs."""
        return self.model.mlp_width


@frozen
class BlocksKind(ModelKind):
    """Blocks of attention among all tokens of an image, and an MLP."""

    model: EncoderBlocks

    @property
    def cuts(self) -> TpCuts:
        """Heads, which split the width, and the width inside MLPs."""
        return BlocksCuts(self.model)

    @property
    def torch_only(self) -> Iterable[str]:
        """The keys set in the model that blocks of other libraries do not support."""
        return ()

    def norm(self) -> NormShape:
        """Return the norm of the stream."""
        return NormShape(self.model.hidden, "layer")

    def attention(self) -> AttentionShape:
        """Return the attention of a block, with as many key heads as query heads."""
        model = self.model
        return AttentionShape(
            width=model.hidden,
            heads=model.heads,
            kv_heads=model.heads,
            head_size=model.hidden // model.heads,
            bias=True,
            qkv_bias=True,
            eps=self.norm().eps,
            out_scale=self._out_scale,
        )

    def mlp(self) -> MlpShape:
        """Return the MLP of a block."""
        model = self.model
        return MlpShape(
            width=model.hidden,
            inner=model.mlp_width,
            out=model.hidden,
            bias=True,
            out_scale=self._out_scale,
        )

    @property
    def _out_scale(self) -> float:
        """The factor on the initial weights of layers that add to the stream."""
        return float((2 * self.model.layers) ** -0.5)

    def layer(self, number: int) -> BlockShape:
        """Return a block."""
        return BlockShape(norm=self.norm(), attention=self.attention(), mlp=self.mlp())

    def _flops_of_maps(self, ends: Ends, work: Workload) -> float:
        """Return the operations of the linear maps for the rows that it reads."""
        return 2.0 * self.model.hidden * ends.numbers_in(work.reads)

    def _saved_by_maps(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers of the rows that it reads, if they are copies, and of their maps."""
        return ends.numbers_in(held.reads) * held.gathered + sum(held.reads) * self.model.hidden


@frozen
class TransformerEncoderKind(BlocksKind):
    """An encoder with blocks and a projector to the width of its readers."""

    model: TransformerEncoder

    @property
    @abstractmethod
    def patch_work(self) -> PatchWork:
        """The work of embedding one patch."""

    def after(self, ends: Ends) -> RowsShape:
        """Return final norm and projector."""
        norm = self.norm() if self.has_final_norm else None
        return RowsShape(norm, self.projector(ends.row_width))

    def projector(self, out: int) -> LayerShape:
        """Return the projector to rows of `out` numbers, with all that trains with it."""
        return self.maps(out)

    def maps(self, out: int) -> ProjectorShape:
        """Return the maps of the projector."""
        model = self.model
        return ProjectorShape(
            kind=model.projector,
            width=model.row_width,
            out=out,
            bias=model.projector_bias,
            inner=model.projector_mlp_width,
            patches=model.patches_per_row,
        )

    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return the operations of embedding and projector."""
        model, patch, products, whole = self.model, 0.0, 0, 0
        if ends.is_first:
            patch = 2.0 * self._embedded(work) * self.patch_work.products
            patch += self._flops_of_maps(ends, work)
        if ends.is_last:
            row, out = model.row_width, ends.row_width
            inner = model.projector_width(out)
            products = inner * (row + out) if inner else row * out
            if model.projector == "swiglu":
                products += inner * row
            if model.projector == "gated":
                whole = out * (row + out)
                products = whole + 3 * out * inner
        rows = 2.0 * self._projected(work)
        return Flops(patch=patch, projector=rows * products, whole=rows * whole)

    def _embedded(self, work: Workload) -> int:
        """Return the number of patches."""
        return work.rows * self.model.patches_per_row

    def _projected(self, work: Workload) -> int:
        """Return how often the projector runs: once for each row."""
        return work.rows

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers saved by embedding, projector and the layers between them."""
        model, total = self.model, 0
        if ends.is_first and held.through_embedding:
            total += self._saved_by_maps(ends, held)
            # Beside an adapter alone, no gradient goes back through the embedding.
            if held.passes.weights_train or not held.passes.adapts:
                total += held.patches // held.sequence_parts * self.patch_work.saved
                total += self._saved_after_embedding(held)
        if ends.is_last:
            out = ends.row_width
            inner = 2 * model.projector_width(out) // held.tp
            rows = self._rows_projected(held)
            # The inputs of both maps are for the gradients of their weights.
            of_weights = (model.row_width + inner // 2) * held.projector_trains
            total += rows * (of_weights + inner // 2 + out // held.tp)
            if self.has_final_norm and held.through_layers:
                normed = held.patches // held.sequence_parts * model.hidden
                total += normed * held.passes.of_norm(self.norm().kind)
            if model.projector == "swiglu":
                # Up, and the gate's SiLU if it is not compiled.
                total += rows * inner // 2 * (2 - held.passes.are_compiled)
            if model.projector == "gated":
                # After the first two maps, the norm and its activation; the gate's SiLU and its
                # product.
                total += rows * (4 * out + inner + out * held.passes.of_norm("layer"))
        return total

    def _rows_projected(self, held: HeldAtEnds) -> int:
        """Return the rows that the projector of a rank makes."""
        return held.patches // self.model.patches_per_row

    def _saved_after_embedding(self, held: HeldAtEnds) -> int:
        """Return the numbers saved between embedding and first block."""
        return 0
