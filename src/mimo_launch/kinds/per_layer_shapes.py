"""The shapes of per-layer embeddings: further vectors of each token, one for each layer.

Decides: the layers in front of the blocks and inside each, by name, and what they keep.
Relies on: `shapes` for the weights of these.
Leaves: which model has them to `decoder`, what they compute to `models.per_layer`.
Source: `transformers` 5.24, models/gemma4.
"""

from collections.abc import Mapping
from dataclasses import replace

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.layer import Widths
from mimo_launch.kinds.saved_activations import AttentionPattern, HeldAtEnds, Passes, Saved
from mimo_launch.kinds.shapes import NormShape, VocabShape, WholeShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.language_models import ActivationName


@frozen(kw_only=True)
class PerLayerInputsShape(LayerShape):
    """A table with vectors of all `layers` for each word, and a map of what enters the first layer.

    A norm like `norm` follows the map. Tokens that stand for rows of encoders have the vectors of
    the token `padding`, which do not train.
    """

    layer = "mimo_launch.models.per_layer:PerLayerInputs"

    vocab: int
    layers: int
    width: int
    padding: int
    norm: NormShape

    @property
    def all_widths(self) -> int:
        """Numbers of a token for all layers."""
        return self.layers * self.width

    def parts(self) -> Mapping[str, LayerShape]:
        """Return table, map and norm."""
        wide = self.all_widths
        return {
            "table": VocabShape(self.vocab, wide, self.width**-0.5),
            "project": WholeShape(self.norm.width, wide, bias=False),
            "norm": replace(self.norm, width=self.width),
        }

    def saved_in_front(self, held: HeldAtEnds) -> int:
        """Return the numbers that a rank keeps: of the map, of its norm, and for the layers."""
        wide, passes = self.all_widths, held.passes
        found = wide * bool(held.layers)
        if held.through_embedding:
            found += wide * (1 + passes.of_norm(self.norm.kind))
            # The first layer has a copy of the stream in at least 4 bytes.
            copied = passes.wide > 1 and not passes.are_compiled
            found += self.norm.width * copied * passes.weights_train
        return held.stream_tokens * found


@frozen(kw_only=True)
class PerLayerShape(LayerShape):
    """What a block adds to the stream after its MLP: a token's vector of the layer, gated.

    The gate is a map of the stream to the vector's width; a map of the product to the width of the
    stream and a norm follow. tp ranks hold both maps whole: they are small beside a collective.
    """

    layer = "mimo_launch.models.per_layer:PerLayerGate"

    inner: int
    activation: ActivationName
    norm: NormShape

    def parts(self) -> Mapping[str, LayerShape]:
        """Return both maps and the norm."""
        width = self.norm.width
        return {
            "narrow": WholeShape(width, self.inner, bias=False),
            "widen": WholeShape(self.inner, width, bias=False),
            "norm": self.norm,
        }

    def widths(self) -> Widths:
        """Return the products of its maps, and the width between them."""
        return LayerShape.widths(self) + Widths(beside=self.inner)

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return the stream, the gate, the product, and what its norm reads."""
        found = (
            Saved(name="stream after the MLP", stream=1, shared=True, for_weights=True),
            Saved(name="gate of per-layer embeddings", beside=1, shared=True),
            Saved(name="gated per-layer embeddings", beside=1, shared=True, for_weights=True),
            Saved(name="what per-layer embeddings add, before its norm", stream=1, shared=True),
        )
        if passes.are_compiled:
            return found
        activated = Saved(name="activation of that gate", beside=1, shared=True)
        return (*found, activated, *passes.of_stream(self.norm.kind, None))
