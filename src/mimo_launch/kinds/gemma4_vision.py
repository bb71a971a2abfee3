"""The tower of Gemma 4: what it does not share with other vision transformers.

Decides: the settings of its blocks, its places, and the norm that makes rows of its patches.
Relies on: `vision` for the rest.
Leaves: places and norm to `models.gemma4_vision`.
"""

from collections.abc import Iterable
from dataclasses import replace

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.block_shapes import BlockShape
from mimo_launch.kinds.layer import Ends
from mimo_launch.kinds.mlp_shapes import MlpShape
from mimo_launch.kinds.saved_activations import HeldAtEnds
from mimo_launch.kinds.shapes import table
from mimo_launch.kinds.vision import (
    PatchesShape,
    PatchTurns,
    VisionKind,
    VisionProjectorShape,
)
from mimo_launch.kinds.weights import LayerShape, Parameters, buffer
from mimo_launch.spec.gemma4_vision import Gemma4VisionModel

_MODELS = "mimo_launch.models.gemma4_vision"


@frozen
class PlacesShape(LayerShape):
    """A learned vector for each of so many columns of patches, then for each row."""

    layer = f"{_MODELS}:LearnedPlaces"

    places: int
    width: int

    def own(self, tp: int) -> Parameters:
        """Return both tables as one."""
        return table(2 * self.places, self.width).own(tp)


@frozen
class RowNormShape(LayerShape):
    """An RMSNorm of rows without weights; before it, numbers that do not train `standardize` them.

    They are a `bias`, which is subtracted, and a `weight`.
    """

    layer = f"{_MODELS}:RowNorm"

    width: int
    eps: float
    standardize: bool

    def own(self, tp: int) -> Parameters:
        """Return the numbers that do not train."""
        bias = buffer("bias", self.width, "zeros")
        weight = buffer("weight", self.width, "ones")
        has = self.standardize
        return {"bias": (bias,) if has else (), "weight": (weight,) if has else ()}


@frozen
class Gemma4VisionKind(VisionKind):
    """A tower of Gemma 4 over images of any size."""

    model: Gemma4VisionModel

    @property
    def turns(self) -> PatchTurns:
        """How queries and keys rotate by the place of a patch."""
        return PatchTurns(theta=self.model.rope_theta, column_first=True, pairs="in_halves")

    @property
    def torch_only(self) -> Iterable[str]:
        """The keys set in the model that blocks of other libraries do not support."""
        keys = ("layer_scale", "kv_heads", "clipped_linears")
        return [key for key in keys if getattr(self.model, key)]

    def attention(self) -> AttentionShape:
        """Return the attention of a block, with norms of values, and scores as they are."""
        found = VisionKind.attention(self)
        return replace(found, value_norm=True, score_size=1.0, clipped=self.model.clipped_linears)

    def mlp(self) -> MlpShape:
        """Return the MLP of a block, with a gate."""
        clipped = self.model.clipped_linears
        return replace(VisionKind.mlp(self), gate="gelu_tanh", clipped=clipped)

    def layer(self, number: int) -> BlockShape:
        """Return a block with norms on both sides of its layers."""
        return replace(VisionKind.layer(self, number), post_norms=True)

    def before(self, ends: Ends) -> PatchesShape:
        """Return the embedding of patches, and their places."""
        places = PlacesShape(self.model.places, self.model.hidden)
        return replace(VisionKind.before(self, ends), positions=places)

    def projector(self, out: int) -> VisionProjectorShape:
        """Return the projector, with the norm of rows."""
        model, found = self.model, VisionKind.projector(self, out)
        norm = RowNormShape(model.row_width, model.norm_eps, model.standardize)
        return replace(found, beside=replace(found.beside, norm=norm))

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers saved by embedding, projector and the layers between them."""
        total = VisionKind.saved_at_ends(self, ends, held)
        if ends.is_last and held.through_layers:
            # The norm reads the mean of patches, or a copy in more bytes.
            rows = held.patches // self.model.patches_per_row
            kept = 1 if held.passes.are_compiled else held.passes.wide
            total += rows * self.model.row_width * kept
        return total

    def _saved_by_table(self, held: HeldAtEnds) -> int:
        """Return the numbers that learned places keep: two of 8 bytes of each patch."""
        if not held.passes.weights_train:
            return 0
        return held.patches // held.sequence_parts * 16 // held.passes.bytes
