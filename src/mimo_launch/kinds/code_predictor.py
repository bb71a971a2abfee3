"""Code predictors: small decoders inside each frame of a talker.

Decides: their layers, their work, and what they save. Its sequences are frames: the talker's state,
then the codes of the frame but the last one.
Relies on: `decoder` for the blocks.
Leaves: the talker around it to `talker`, what it computes to `models.code_predictor`.
"""

from collections import Counter
from dataclasses import replace

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.decoder import DecoderBlocksKind
from mimo_launch.kinds.layer import Ends, Flops, Rotary, Workload
from mimo_launch.kinds.saved_activations import HeldAtEnds
from mimo_launch.kinds.shapes import HeadShape, ListShape, NormShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.encoders import PredictorModel


@frozen
class PredictorShape(LayerShape):
    """A code predictor: blocks, a norm, and a head for each codebook after the first."""

    blocks: ListShape
    norm: NormShape
    heads: ListShape
    rotary: Rotary

    @property
    def layer(self) -> str:
        """The class that computes it."""
        return "mimo_launch.models.code_predictor:CodePredictor"


@frozen
class PredictorKind(DecoderBlocksKind):
    """The blocks of a code predictor, which are no stage of a module."""

    model: PredictorModel

    @property
    def stage(self) -> str:
        """The class that computes it, inside the last stage of a talker."""
        return self.shape(0).layer

    def shape(self, books: int) -> PredictorShape:
        """Return the layers for this number of codebooks after the first."""
        model = self.model
        return PredictorShape(
            blocks=ListShape(tuple(map(self.layer, range(model.layers)))),
            norm=self.norm(),
            heads=ListShape((HeadShape(model.vocab, model.hidden),) * books),
            rotary=Rotary(model.head_size, model.rope_theta, None, model.rope_scaling),
        )

    def before(self, ends: Ends) -> LayerShape:
        """Return nothing."""
        return LayerShape()

    def after(self, ends: Ends) -> LayerShape:
        """Return nothing."""
        return LayerShape()

    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return nothing: its heads count as those of the talker."""
        return Flops()

    def frame_flops(self, books: int, frames: int) -> Flops:
        """Return the operations for this many frames of `books` codes, as those of a head."""
        ends = Ends(is_first=False, is_last=False, vocab=0, row_width=0)
        work = Workload(spans=Counter({books: frames}), held=frames, rows=frames, forwards=1)
        found = self.forward_flops(range(self.model.layers), ends, work)
        total = sum(found.values(), Flops())
        return Flops(head=total.linear, attention=total.attention)

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return nothing."""
        return 0

    def saved_in_frames(self, books: int, held: HeldAtEnds) -> int:
        """Return the numbers saved for the frames of a rank: by blocks, norm, input and angles."""
        model, tp = self.model, held.tp
        passes = replace(held.passes, cp=1, reorders=False, pads=False)
        tokens = books * held.patches
        between = tokens // held.sequence_parts
        size, wide = self.layer_widths(0), passes.wide
        key = max(size.key // tp, size.unit)
        total = 0.0
        for each in self.saved_activations(0, passes):
            width = each.stream * model.hidden + each.key * key
            width += (each.query * size.query + each.inner * size.inner) // tp
            width += each.heads * size.heads // tp * 4 / passes.bytes
            total += width * (between if each.shared else tokens)
        kept = model.hidden * (1 + passes.of_norm("rms")) * between
        heads = model.hidden * tokens * passes.weights_train
        return int(model.layers * total + kept + heads) + 2 * model.head_size * books * wide
