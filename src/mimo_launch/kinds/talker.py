"""Talkers: decoders that generate codec tokens, given rows of language.

Decides: the layers before and after the blocks, and their work.
Relies on: `decoder` for the blocks, `code_predictor` for the small decoder inside a frame.
Leaves: the loss to `models.talker`.
"""

from collections.abc import Mapping
from typing import Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.code_predictor import PredictorKind, PredictorShape
from mimo_launch.kinds.decoder import DecoderBlocksKind
from mimo_launch.kinds.facts import Attending, RowReading
from mimo_launch.kinds.generator import GeneratorKind, ReadingBeside
from mimo_launch.kinds.layer import Ends, Flops, ReadState, Workload
from mimo_launch.kinds.saved_activations import HeldAtEnds
from mimo_launch.kinds.shapes import HeadShape, ListShape, NormShape, VocabShape, WholeShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Codes, TalkerModel


@frozen
class RowMlpShape(LayerShape):
    """Two linear maps of rows, with an activation between them."""

    layer = "mimo_launch.models.talker:RowMlp"

    up: WholeShape
    down: WholeShape


@frozen
class ApartShape(LayerShape):
    """A map of states, and another one of text if rows come from language itself."""

    layer = "mimo_launch.models.talker:ApartMaps"

    states: RowMlpShape
    text: RowMlpShape | None


@frozen
class CodesShape(LayerShape):
    """The layers of a talker before its blocks."""

    codes: VocabShape
    project: WholeShape | ApartShape
    later: ListShape | None


@frozen
class HeadsShape(LayerShape):
    """The layers of a talker after its blocks."""

    norm: NormShape
    heads: ListShape
    predictor: PredictorShape | None
    codes: VocabShape | None = None
    later: ListShape | None = None

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return its layers; a single stage has the tables of codes before its blocks."""
        tables = {} if self.codes is None else {"codes": self.codes, "later": self.later}
        return {"norm": self.norm, "heads": self.heads, "predictor": self.predictor, **tables}


@frozen
class SpeechReading(ReadingBeside):
    """Rows of language come beside frames."""

    model: TalkerModel

    @property
    def of_language(self) -> ReadState:
        """States after some layer; the embedding of the token comes with each, or instead."""
        text: Literal["added", "instead"] | None = "added" if self.model.reads_text else None
        text = "instead" if self.model.maps_text_apart else text
        return ReadState(text, self.model.reads_layer)


@frozen
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

    @property
    def inside(self) -> PredictorKind | None:
        """The small decoder that predicts the codes of a frame after the first, if there is one."""
        blocks = self.model.inside_frames
        return None if blocks is None else PredictorKind(blocks)

    @property
    def ties_ends(self) -> bool:
        """Whether a code predictor reads the embedding of codes, too."""
        return self.inside is not None

    def before(self, ends: Ends) -> CodesShape:
        """Return the embedding of codes, and the map of codes and rows to the stream."""
        (width,) = ends.source_widths
        model = self.model
        codes, later = self._tables(ends)
        if not model.maps_text_apart:
            return CodesShape(codes, WholeShape(width, model.hidden), later)
        inner = model.mlp_width
        mlp = RowMlpShape(up=WholeShape(width, inner), down=WholeShape(inner, model.hidden))
        ((source, _),) = ends.sources
        return CodesShape(codes, ApartShape(mlp, mlp if source == LANGUAGE else None), later)

    def _tables(self, ends: Ends) -> tuple[VocabShape, ListShape | None]:
        """Return the table of codes; with a code predictor, of the first codebook and of others."""
        # Codes are as wide as rows, and one map takes both to the stream, unless they need none.
        model = self.model
        (width,) = (model.hidden,) if model.maps_rows_alone else ends.source_widths
        first, *later = model.book_sizes
        if self.inside is None:
            return VocabShape(first + sum(later), width, counted=ends.is_first), None
        table = VocabShape(later[0], width, counted=ends.is_first)
        return VocabShape(first, width, counted=ends.is_first), ListShape((table,) * len(later))

    def after(self, ends: Ends) -> HeadsShape:
        """Return final norm and heads; with a code predictor, what predicts later codes."""
        model, inside = self.model, self.inside
        head = HeadShape(model.vocab, model.hidden)
        heads = ListShape((head,) * (model.codebooks if inside is None else 1))
        if inside is None:
            return HeadsShape(self.norm(), heads, None)
        tables = () if ends.is_first else self._tables(ends)
        return HeadsShape(self.norm(), heads, inside.shape(model.codebooks - 1), *tables)

    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return the operations of the map before the blocks, and of the heads."""
        model, patch, head, inside = self.model, 0.0, 0.0, Flops()
        if ends.is_first:
            mapped = sum(work.reads) if model.maps_rows_alone else work.tokens
            (width,) = ends.source_widths
            products = model.hidden * width
            if model.maps_text_apart:
                products = model.mlp_width * (width + model.hidden)
            patch = 2.0 * products * mapped
        if ends.is_last:
            head = 2.0 * work.rows * model.hidden * sum(model.book_sizes)
            if self.inside is not None:
                inside = self.inside.frame_flops(model.codebooks, work.rows)
        return Flops(patch=patch, head=head) + inside

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers saved by the map before the blocks, and by the heads."""
        model, total = self.model, 0
        if held.layers:
            total += 2 * model.head_size * held.tokens * held.passes.wide
        if ends.is_first and held.through_embedding and held.passes.weights_train:
            mapped = sum(held.reads) if model.maps_rows_alone else held.stream_tokens
            (width,) = ends.source_widths
            inside = 2 * model.mlp_width if model.maps_text_apart else 0
            total += mapped * (width + inside)
        if ends.is_last:
            words = sum(-(-size // held.tp) for size in model.book_sizes)
            if self.inside is not None:
                total += self.inside.saved_in_frames(model.codebooks, held)
            normed = model.hidden if held.passes.weights_train else 0
            total += held.patches * (normed + words + model.hidden * held.passes.of_norm("rms"))
        return total
