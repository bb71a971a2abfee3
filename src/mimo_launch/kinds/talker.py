"""Talkers: decoders that generate codec tokens, given rows of language.

Decides: the layers before and after the blocks, and their work.
Relies on: `decoder` for the blocks.
Leaves: the loss to `models.talker`.
"""

from dataclasses import dataclass

from mimo_launch.kinds.decoder import DecoderBlocksKind
from mimo_launch.kinds.facts import Attending, RowReading
from mimo_launch.kinds.generator import GeneratorKind, ReadingBeside
from mimo_launch.kinds.layer import Ends, Flops, Workload
from mimo_launch.kinds.saved_activations import HeldAtEnds
from mimo_launch.kinds.shapes import HeadShape, ListShape, NormShape, VocabShape, WholeShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.spec import Codes, TalkerModel


@dataclass(frozen=True, slots=True)
class CodesShape(LayerShape):
    """The layers of a talker before its blocks."""

    codes: VocabShape
    project: WholeShape


@dataclass(frozen=True, slots=True)
class HeadsShape(LayerShape):
    """The layers of a talker after its blocks."""

    norm: NormShape
    heads: ListShape


@dataclass(frozen=True, slots=True)
class SpeechReading(ReadingBeside):
    """Rows of language come beside frames."""

    model: TalkerModel

    @property
    def adds_text(self) -> bool:
        """Whether the embedding of the token is added to each row of language."""
        return self.model.reads_text


@dataclass(frozen=True, slots=True)
class TalkerKind(GeneratorKind, DecoderBlocksKind):
    """A decoder over frames of codec tokens, as in Qwen2.5-Omni (arXiv:2503.20215)."""

    model: TalkerModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.talker:TalkerStage"

    @property
    def input(self) -> Codes:
        """The clips of codes that it learns to generate."""
        return self.model

    @property
    def reading(self) -> RowReading:
        """Rows of language come beside frames; embeddings of text may be added to them."""
        return SpeechReading(self.model)

    @property
    def attending(self) -> Attending:
        """A frame attends to the frames before it and the rows of its clip."""
        return Attending(in_order=True)

    def before(self, ends: Ends) -> CodesShape:
        """Return the embedding of codes, and the map of codes and rows to the stream."""
        # Codes are as wide as rows, and one map takes both to the stream.
        (width,) = ends.source_widths
        codes = VocabShape(self.model.codebooks * self.model.vocab, width)
        return CodesShape(codes, WholeShape(width, self.model.hidden))

    def after(self, ends: Ends) -> HeadsShape:
        """Return final norm and heads."""
        head = HeadShape(self.model.vocab, self.model.hidden)
        return HeadsShape(self.norm(), ListShape((head,) * self.model.codebooks))

    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return the operations of the map before the blocks, and of the heads."""
        model, patch, head = self.model, 0.0, 0.0
        if ends.is_first:
            patch = 2.0 * model.hidden * sum(ends.source_widths) * work.tokens
        if ends.is_last:
            head = 2.0 * work.rows * model.hidden * model.codebooks * model.vocab
        return Flops(patch=patch, head=head)

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers saved by the map before the blocks, and by the heads."""
        model, total = self.model, 0
        if held.layers:
            total += 2 * model.head_size * held.tokens * held.passes.wide
        if ends.is_first and held.through_embedding and held.passes.weights_train:
            total += held.stream_tokens * sum(ends.source_widths)
        if ends.is_last:
            words = model.codebooks * -(-model.vocab // held.tp)
            normed = model.hidden if held.passes.weights_train else 0
            total += held.patches * (normed + words + model.hidden * held.passes.of_norm("rms"))
        return total
