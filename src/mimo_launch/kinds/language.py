"""What causal models share, attention, and language models: a vocabulary, experts, a head.

Decides: attention, experts, the layers at both ends, and the work of the head.
Relies on: `shapes` for their weights.
Leaves: the layers to `decoder` and `hybrid`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.block_shapes import DepthShape
from mimo_launch.kinds.facts import TpCuts
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.layer import Ends, Flops, Rotary, Sight, Workload
from mimo_launch.kinds.mlp_shapes import MlpShape, MoeShape, PlainActivation
from mimo_launch.kinds.per_layer_shapes import PerLayerInputsShape
from mimo_launch.kinds.saved_activations import (
    AttentionPattern,
    HeldAtEnds,
)
from mimo_launch.kinds.shapes import HeadShape, NormShape, VocabShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.language_models import CausalModel, GateActivation
from mimo_launch.spec.layers import Moe, Mtp, QueryScaling, SlidingWindow
from mimo_launch.spec.spec import DecoderModel, LanguageModel, RopeScaling

# The part of the last stage that is a user's loss; its weights are in no folder of a model.
LOSS = "loss"


def is_of_loss(name: str) -> bool:
    """Return whether a name is of a weight of a user's loss."""
    return f"{LANGUAGE}.{LOSS}." in name


@frozen
class TokensShape(LayerShape):
    """What a language model has before its numbered layers."""

    embedding: VocabShape
    per_layer: PerLayerInputsShape | None = None


@frozen
class AnswersShape(LayerShape):
    """The last layers of a language model; the head may be the embedding."""

    norm: NormShape
    head: HeadShape | None
    embedding: VocabShape | None

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return its layers; a single stage has the embedding before its layers."""
        embedding = {} if self.embedding is None else {"embedding": self.embedding}
        return {"norm": self.norm, "head": self.head, **embedding}


@frozen
class CausalCuts(TpCuts):
    """Heads, if any layer attends, and the width inside MLPs, if there are any."""

    model: CausalModel

    @property
    def heads(self) -> int | None:
        """Number of query heads."""
        return self.model.heads if self.model.attends else None

    @property
    def kv_heads(self) -> Mapping[tuple[str, ...], int]:
        """Those of all layers, and those of layers with windows if these have others."""
        model = self.model
        if not model.attends:
            return {}
        found: dict[tuple[str, ...], int] = {("kv_heads",): model.num_kv_heads}
        window = model.sliding_window if isinstance(model, DecoderModel) else None
        if window is not None and window.kv_heads is not None:
            found["sliding_window", "kv_heads"] = window.kv_heads
        return found

    @property
    def heads_of_hidden(self) -> bool:
        """Whether a head is hidden / heads wide."""
        return self.model.head_dim is None and self.model.attends

    @property
    def mlp_width(self) -> int | None:
        """Width inside the MLPs, experts excluded."""
        return self.model.mlp_width if self.model.has_mlps else None


@frozen
class CausalKind(ModelKind):
    """A model with tokens that attend to earlier tokens."""

    model: CausalModel

    @property
    def cuts(self) -> TpCuts:
        """Heads, if any layer attends, and the width inside MLPs, if there are any."""
        return CausalCuts(self.model)

    def attention(self, number: int, *, out_scale: float) -> AttentionShape:
        """Return the attention of a layer."""
        model = self.model
        return AttentionShape(
            width=model.hidden,
            heads=model.heads,
            kv_heads=model.num_kv_heads,
            head_size=model.head_size,
            out_scale=out_scale,
            **AttentionShape.settings(model),
        )

    def norm(self) -> NormShape:
        """Return the norm before every mixer, and after the last layer."""
        return NormShape(self.model.hidden, "rms", self.model.norm_eps)

    def mlp(self, inner: int, *, out_scale: float) -> MlpShape:
        """Return an MLP."""
        width, gate = self.model.hidden, self.gate
        return MlpShape(
            width=width,
            inner=inner,
            out=width,
            gate=gate,
            activation=self.activation,
            out_scale=out_scale,
            **MlpShape.settings(self.model),
        )

    @property
    def moe(self) -> Moe | None:
        """The mixture of experts of the model, if it has one."""
        return self.model.moe

    def has_experts(self, number: int) -> bool:
        """Return whether a layer is a mixture of experts."""
        return self.model.has_experts(number)

    def experts(self, *, out_scale: float) -> MoeShape:
        """Return the experts of a layer. Raises: ValueError if the model has none."""
        moe = self.model.moe
        if moe is None:
            raise ValueError("a model without experts")
        return MoeShape(
            moe=moe,
            width=self.model.hidden,
            gate=self.gate,
            activation=self.activation,
            shared=self.mlp(moe.shared, out_scale=out_scale) if moe.shared else None,
            norm=self.norm() if moe.norms_apart else None,
            out_scale=out_scale,
        )

    @property
    def gate(self) -> GateActivation | None:
        """The activation of the gate of MLPs, if they have one."""
        return "silu"

    @property
    def activation(self) -> PlainActivation:
        """The activation of MLPs without a gate."""
        return "squared_relu"

    def attention_pattern(self, number: int) -> AttentionPattern:
        """Return how the tokens of a layer attend."""
        return AttentionPattern(causal=True, rotates=True)

    def window(self, number: int) -> SlidingWindow | None:
        """Return the last tokens that tokens of a layer attend to, None if all."""
        return None

    def reach(self, number: int) -> tuple[SlidingWindow | None, bool]:
        """Return what the pairs of a layer depend on, besides the work."""
        return self.window(number), self.attending.sees_later(number)

    def pairs(self, number: int, work: Workload) -> float:
        """Return the pairs of tokens that attend: with earlier tokens, or in a block of tokens."""
        found, window = 0.0, self.window(number)
        for span, times in work.spans.items():
            found += times * (span**2 / 2 if window is None else window.pairs(span))
        if not self.attending.sees_later(number):
            return found
        # The span already counts half of a block.
        return found + sum(length**2 / 2 * times for length, times in work.blocks.items())


@frozen
class LanguageKind(CausalKind):
    """A model that reads tokens and computes the loss."""

    model: LanguageModel

    @property
    def reads_tokens(self) -> bool:
        """It reads tokens and computes the loss."""
        return True

    @property
    def text(self) -> LanguageModel:
        """Vocabulary, tie and axes of its tokens."""
        return self.model

    @property
    def rope_scaling(self) -> RopeScaling | None:
        """The scaling of long wavelengths of rotary embeddings, if any."""
        return None

    @property
    def query_scaling(self) -> QueryScaling | None:
        """How queries grow with the position of their token, if they do."""
        return None

    @property
    def mrope_axes(self) -> tuple[int, ...] | None:
        """The axis that rotates each pair of a head, if tokens have three."""
        pairs = self.model.mrope
        if pairs is None:
            return None
        return _axes_of_pairs(tuple(pairs), is_interleaved=self.model.mrope_interleaved)

    @property
    def restarts_positions(self) -> bool:
        """Whether rotary positions count anew in each document, as scores need more than distances.

        They do if the norm of a head, with a weight for each number, follows its rotation.
        """
        return False

    @property
    def mtp(self) -> Mtp | None:
        """How it predicts further tokens, if it learns to."""
        return self.model.mtp

    def norm(self) -> NormShape:
        """Return the norm before every mixer, and after the last layer."""
        return replace(CausalKind.norm(self), offset=float(self.model.norm_offset))

    def sight(self, number: int) -> Sight:
        """Return which tokens the tokens of a layer attend to, and how scores depend on places."""
        model = self.model
        if model.rope_theta is None:
            return Sight(None, growth=self.query_scaling)
        rotary = Rotary(model.rotary_size, model.rope_theta, self.mrope_axes, self.rope_scaling)
        return Sight(rotary, growth=self.query_scaling)

    def attention_pattern(self, number: int) -> AttentionPattern:
        """Return how the tokens of a layer attend."""
        sight = self.sight(number)
        rotates, grows = sight.rotary is not None, sight.growth is not None
        return AttentionPattern(causal=True, rotates=rotates, grows=grows)

    @property
    def embedding_scale(self) -> float | None:
        """The factor on embeddings of tokens, if any."""
        return None

    @property
    def row_scale(self) -> float | None:
        """The factor on rows of encoders, if any."""
        return None

    @property
    def logit_scale(self) -> float | None:
        """The factor on logits, if any."""
        return None

    def window(self, number: int) -> SlidingWindow | None:
        """Return the last tokens that tokens of a layer attend to, None if all."""
        return self.sight(number).window

    @property
    def padding(self) -> int | None:
        """The token at which tokens of rows read per-layer embeddings, if there are any."""
        return None

    def key_source(self, number: int) -> int:
        """Return the layer that has the keys of a layer."""
        return number

    def depth(self, number: int) -> DepthShape:
        """Return a depth of multi-token prediction, numbered after the layers."""
        raise NotImplementedError

    def before(self, ends: Ends) -> TokensShape:
        """Return the embedding of tokens, and what makes those of each layer."""
        return TokensShape(self._embedding(ends), self.per_layer_inputs(ends))

    def per_layer_inputs(self, ends: Ends) -> PerLayerInputsShape | None:
        """Return what makes per-layer embeddings in front of the layers, if there are any."""
        return None

    def after(self, ends: Ends) -> AnswersShape:
        """Return final norm and head; also the embedding, if needed after the first stage."""
        model = self.model
        needs_embedding = self.model.tied or self.depths > 0 or ends.sends_text
        return AnswersShape(
            norm=self.norm(),
            head=None if model.tied else HeadShape(ends.vocab, model.hidden),
            embedding=self._embedding(ends) if needs_embedding and not ends.is_first else None,
        )

    def _embedding(self, ends: Ends) -> VocabShape:
        # Small if it is also the output layer: otherwise the initial loss would be far above ln V.
        width = self.model.hidden
        std = width**-0.5 if self.model.tied else 0.5
        return VocabShape(ends.vocab, width, std, counted=ends.is_first)

    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return the operations of the head, and of the map to per-layer embeddings."""
        found, width = Flops(), self.model.hidden
        if ends.is_first and (front := self.per_layer_inputs(ends)) is not None:
            found += Flops(patch=2.0 * work.tokens * width * front.all_widths)
        if not ends.is_last:
            return found
        return found + Flops(head=2.0 * self._heads * work.tokens * width * ends.vocab)

    @property
    def _heads(self) -> int:
        """How often the output layer is computed: for the next token and for further tokens."""
        return 1 + self.depths

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers saved by angles, the head and what is in front of the layers.

        The head saves its input, the gradient of logits, and logits.
        """
        total = self._saved_angles(held)
        if ends.is_first and (front := self.per_layer_inputs(ends)) is not None:
            total += front.saved_in_front(held)
        if not ends.is_last:
            return total
        normed = self.model.hidden if held.passes.weights_train else 0
        words = held.words
        if self.logit_cap is not None:
            # A compiled cap keeps what it reads, otherwise it keeps a result in at least 4 bytes.
            words += words * (1 if held.passes.are_compiled else held.passes.wide)
        norm = self.model.hidden * held.passes.of_norm(self.norm().kind)
        total += held.stream_tokens * norm
        return total + held.tokens * self._heads * (normed + words)

    def _saved_angles(self, held: HeldAtEnds) -> int:
        """Return the numbers of the cosines and sines that its layers share."""
        rotaries = {self.sight(number).rotary for number in held.layers}
        places = held.positions if self.model.mrope is None else held.tokens
        sizes = sum(each.size for each in rotaries if each is not None)
        return 2 * sizes * places * held.passes.wide

    @property
    def logit_cap(self) -> float | None:
        """The number below which logits stay, if any; the backward of the cap needs the logits."""
        return None


@lru_cache
def _axes_of_pairs(pairs: tuple[int, ...], *, is_interleaved: bool) -> tuple[int, ...]:
    """Return the axis that rotates each pair of a head, from the pairs of each axis (cached)."""
    if not is_interleaved:
        return tuple(axis for axis, number in enumerate(pairs) for _ in range(number))
    # The axes alternate as long as height and width have pairs left; the rest is for time.
    return tuple(i % 3 if i < 3 * pairs[i % 3] else 0 for i in range(sum(pairs)))
