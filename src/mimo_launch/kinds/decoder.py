"""Blocks of Llama, Qwen2 and Qwen3 shape, and decoders made of them, also with experts.

Decides: the layers of a block.
Relies on: `language` for attention, experts and both ends.
Leaves: nothing.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.block_shapes import BlockShape, DepthShape
from mimo_launch.kinds.facts import Attending
from mimo_launch.kinds.language import CausalKind, LanguageKind
from mimo_launch.kinds.layer import Ends, Sight
from mimo_launch.kinds.mlp_shapes import PlainActivation
from mimo_launch.kinds.per_layer_shapes import PerLayerInputsShape, PerLayerShape
from mimo_launch.kinds.shapes import NormShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.language_models import DecoderBlocks, GateActivation
from mimo_launch.spec.layers import QueryScaling, SlidingWindow
from mimo_launch.spec.spec import DecoderModel, RopeScaling

# The keys that say nothing about blocks, or that blocks of other libraries support as well.
IN_ANY_BLOCK = frozenset(
    {
        *("kind", "layers", "hidden", "heads", "kv_heads", "head_dim", "mlp", "moe", "norm_eps"),
        *("qk_norm", "qkv_bias", "rope_theta", "rope_scaling", "mrope", "mrope_interleaved"),
        *("vocab", "vocab_multiple", "tied", "embedding_scale", "scaled_rows"),
        *("logit_scale", "logit_softcap"),
    }
)


@frozen
class DecoderBlocksKind(CausalKind):
    """Blocks of attention and SwiGLU."""

    model: DecoderBlocks

    @property
    def rope_scaling(self) -> RopeScaling | None:
        """The scaling of long wavelengths of rotary embeddings, if any."""
        return self.model.rope_scaling

    @property
    def torch_only(self) -> Iterable[str]:
        """The keys set in the model that blocks of other libraries do not support."""
        return ()

    def layer(self, number: int) -> LayerShape:
        """Return a block."""
        return self.block(number)

    def mlp_width(self, number: int) -> int:
        """Return the width inside the MLP of a layer."""
        return self.model.mlp_width

    def block(self, number: int) -> BlockShape:
        """Return a block of attention and an MLP or experts; both add to the stream."""
        out_scale = (2 * self.model.layers) ** -0.5
        return BlockShape(
            norm=self.norm(),
            attention=self.attention(number, out_scale=out_scale),
            mlp=self.experts(out_scale=out_scale)
            if self.has_experts(number)
            else self.mlp(self.mlp_width(number), out_scale=out_scale),
            **BlockShape.settings(self.model),
        )


@frozen(kw_only=True)
class DecoderAttending(Attending):
    """Sliding windows of some layers, whole images and whole prompts."""

    model: DecoderModel

    @property
    def sliding(self) -> SlidingWindow | None:
        """The last tokens that tokens of some layers attend to, if not all."""
        return self.model.sliding_window

    @property
    def whole_images(self) -> bool:
        """Whether the tokens of an image attend to each other in both directions."""
        return bool(self.model.bidirectional_images) and not self.whole_prompts

    @property
    def whole_prompts(self) -> bool:
        """Whether the tokens before the first that is learnt attend to each other."""
        return self.model.bidirectional_prompts

    def sees_later(self, number: int) -> bool:
        """Return whether tokens of a layer attend to later ones, in an image or a prompt."""
        if self.whole_images and self.model.bidirectional_images == "in_windows":
            return self.in_windows(number)
        return Attending.sees_later(self, number)

    def in_windows(self, number: int) -> bool:
        """Return whether the tokens of a layer, or of a depth, attend in windows."""
        # A depth is like the last layer.
        return Attending.in_windows(self, min(number, self.model.layers - 1))


@frozen
class DecoderKind(DecoderBlocksKind, LanguageKind):
    """A decoder: blocks of attention and an MLP, or of attention and experts."""

    model: DecoderModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.language_model:LanguageStage"

    @property
    def attending(self) -> Attending:
        """Sliding windows of some layers, and whole images."""
        return DecoderAttending(model=self.model)

    @property
    def query_scaling(self) -> QueryScaling | None:
        """How queries grow with the position of their token, if they do."""
        return self.model.query_scaling

    @property
    def restarts_positions(self) -> bool:
        """Whether rotary positions count anew in each document."""
        model = self.model
        return model.qk_norm and model.rotated_qk_norm and not model.wide_qk_norm

    @property
    def torch_only(self) -> Iterable[str]:
        """The keys set in the model that blocks of other libraries do not support."""
        fields = type(self.model).model_fields.items()
        others = ((key, field) for key, field in fields if key not in IN_ANY_BLOCK)
        return (key for key, field in others if getattr(self.model, key) != field.default)

    def norm(self) -> NormShape:
        """Return the norm before every mixer, and after the last layer."""
        kind, offset = self.model.norm, float(self.model.norm_offset)
        return replace(LanguageKind.norm(self), kind=kind, offset=offset * (kind == "rms"))

    def attention(self, number: int, *, out_scale: float) -> AttentionShape:
        """Return the attention of a block, with the heads of layers with windows in these."""
        found = LanguageKind.attention(self, number, out_scale=out_scale)
        found = replace(found, l2_norm=self._normed_by_l2(number), sharing=self._sharing(number))
        window = self.window(number)
        if window is None:
            return replace(found, own_values=not self.model.values_from_keys)
        return replace(
            found,
            head_size=window.head_dim or found.head_size,
            kv_heads=window.kv_heads or found.kv_heads,
        )

    def key_source(self, number: int) -> int:
        """Return the layer that has the keys of a layer: itself, or an earlier one.

        Raises: ValueError if no layer has them.
        """
        source = self.model.key_layers.get(number, number)
        if source is None:
            raise ValueError(f"no layer has keys for layer {number}")
        return source

    def _sharing(self, number: int) -> Literal["gives", "takes"] | None:
        """Return whether a layer attends to keys of another one, or another one to its keys."""
        shared = self.model.key_layers
        if number in shared:
            return "takes"
        return "gives" if number in shared.values() else None

    def mlp_width(self, number: int) -> int:
        """Return the width inside the MLP of a layer."""
        shared = self.model.shared_keys
        own = shared and shared.mlp if number in self.model.key_layers else None
        return own or self.model.mlp_width

    def block(self, number: int) -> BlockShape:
        """Return a block; a depth of multi-token prediction has no per-layer embeddings."""
        found, own = DecoderBlocksKind.block(self, number), self.model.per_layer_embeddings
        if own is None or self.is_depth(number):
            return found
        activation = self.model.activation
        beside = PerLayerShape(inner=own.width, activation=activation, norm=self.norm())
        return replace(found, per_layer=beside)

    @property
    def padding(self) -> int | None:
        """The token at which tokens of rows read per-layer embeddings, if there are any."""
        own = self.model.per_layer_embeddings
        return None if own is None else own.padding

    def per_layer_inputs(self, ends: Ends) -> PerLayerInputsShape | None:
        """Return what makes per-layer embeddings in front of the layers, if there are any."""
        own = self.model.per_layer_embeddings
        if own is None:
            return None
        return PerLayerInputsShape(
            vocab=ends.vocab,
            layers=self.model.layers,
            width=own.width,
            padding=own.padding,
            norm=self.norm(),
        )

    def _normed_by_l2(self, number: int) -> bool:
        """Return whether queries and keys of a layer have a norm without weights, and no other."""
        model = self.model
        return model.l2_qk_norm and not model.qk_norm and self.sight(number).rotary is not None

    @property
    def gate(self) -> GateActivation | None:
        """The activation of the gate of MLPs, if they have one."""
        match self.model.activation:
            case "squared_relu" | "gelu_tanh_without_gate" | "xielu":
                return None
            case of_gate:
                return of_gate

    @property
    def activation(self) -> PlainActivation:
        """The activation of MLPs without a gate."""
        match self.model.activation:
            case "squared_relu" | "xielu" as found:
                return found
            case _:
                return "gelu_tanh"

    def layer(self, number: int) -> LayerShape:
        """Return a block, or a depth with such a block."""
        return self.depth(number) if self.is_depth(number) else self.block(number)

    def depth(self, number: int) -> DepthShape:
        """Return a depth, with a block like the last one."""
        return DepthShape(self.block(number))

    def _like(self, number: int) -> int:
        """Return the layer with the same settings: the layer itself, or for a depth the last."""
        return min(number, self.model.layers - 1)

    def has_experts(self, number: int) -> bool:
        """Return whether a layer is a mixture of experts."""
        return self.model.has_experts(self._like(number))

    def is_depth(self, number: int) -> bool:
        """Return whether a number belongs to a depth; depths follow the layers."""
        return number >= self.model.layers

    def layer_name(self, number: int) -> str:
        """Return the name of a layer in tables."""
        name = LanguageKind.layer_name(self, number)
        name = f"NoPE {name}" if self.sight(number).rotary is None else name
        return f"mtp {name}" if self.is_depth(number) else name

    def sight(self, number: int) -> Sight:
        """Return the sight of a layer, which may have a window, another rotary base, or none."""
        found, window, nope = (
            LanguageKind.sight(self, number),
            self.model.sliding_window,
            self.model.nope,
        )
        if window is not None and self.attending.in_windows(number):
            rotary = found.rotary
            if rotary is not None and window.rope_theta is not None:
                rotary = replace(rotary, theta=window.rope_theta, scaling=None)
            if rotary is not None and window.head_dim is not None:
                rotary = replace(rotary, size=self.model.rotary_part(window.head_dim))
            found = replace(found, rotary=rotary, window=window)
        if nope is not None and self._like(number) in nope.layers:
            found = replace(found, rotary=None, growth=nope.query_scaling or found.growth)
        return found

    @property
    def embedding_scale(self) -> float | None:
        """The factor on embeddings of tokens, if any."""
        return self.model.embedding_scale

    @property
    def row_scale(self) -> float | None:
        """The factor on rows of encoders, if any."""
        return self.model.embedding_scale if self.model.scaled_rows else None

    @property
    def logit_cap(self) -> float | None:
        """The number below which logits stay, if any."""
        return self.model.logit_softcap

    @property
    def logit_scale(self) -> float | None:
        """The factor on logits, if any."""
        return self.model.logit_scale
