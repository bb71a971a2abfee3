"""Blocks of Llama, Qwen2 and Qwen3 shape, and decoders made of them, also with experts.

Decides: the layers of a block, and what it saves.
Relies on: `language` for attention, experts and both ends.
Leaves: nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.block_shapes import BlockShape, DepthShape
from mimo_launch.kinds.facts import Attending
from mimo_launch.kinds.language import CausalKind, LanguageKind
from mimo_launch.kinds.layer import Sight
from mimo_launch.kinds.mlp_shapes import MlpShape, PlainActivation
from mimo_launch.kinds.saved_activations import (
    ATTENTION_OUT,
    BLOCK_PARTS,
    CAPPED_BACKWARD,
    CAPPED_FORWARD,
    GATED,
    GATED_TEMPORARY,
    HEAD_STATISTICS,
    PLAIN,
    PLAIN_TEMPORARY,
    SILU,
    SUMS,
    Passes,
    Saved,
    Temporary,
)
from mimo_launch.kinds.shapes import NormShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.language_models import DecoderBlocks, GateActivation
from mimo_launch.spec.layers import QueryScaling, SlidingWindow
from mimo_launch.spec.spec import DecoderModel, RopeScaling

INPUT = (
    Saved(name="block input", stream=1, shared=True),
    Saved(name="normed input", stream=1, for_weights=True, part="attention", normed=True),
)
# Inputs of the norms before attention and MLP.
STREAMS = (INPUT[0], ATTENTION_OUT[2])
LATENT_BLOCK = (
    Saved(name="block input", stream=1, shared=True),
    Saved(
        name="normed input", stream=1, shared=True, for_weights=True, part="attention", normed=True
    ),
    Saved(name="narrow widths, before their norms", narrow=1, shared=True),
    Saved(name="narrow widths, in the region", entered=1, for_weights=True),
    Saved(name="rotated queries", query=1),
    Saved(name="attention output", value=1),
    *ATTENTION_OUT[1:],
)
# With keys and values of this rank alone, or of each cp rank.
LATENT_ALONE = (
    # Values are a view of this tensor.
    Saved(name="keys and values without what rotates", made=1),
    Saved(name="rotated keys", query=1),
)
LATENT_GATHERED = (Saved(name="gathered keys and values", query=1, value=1),)
LATENT_IN_ORDER = Saved(name="attention output of both parts", value=1, for_weights=True)
ROTATED = Saved(name="rotated queries and keys, before their norms", query=1, key=1)
GROWN = Saved(name="queries that grow", query=1)
TORCH_ONLY = (
    "mla",
    "sliding_window",
    "nope",
    "bidirectional_images",
    "bidirectional_prompts",
    "activation",
    "mlp_bias",
    "norm",
    "parallel",
    "pre_norms",
    "post_norms",
    "wide_qk_norm",
    "rotated_qk_norm",
    "l2_qk_norm",
    "residual_scale",
    "norm_offset",
    "output_bias",
    "attention_sinks",
    "query_pre_attn_scalar",
    "query_scaling",
    "attention_softcap",
    "rotary_factor",
    "rotary_interleaved",
    "gated_attention",
    "mtp",
)
# In addition, if norms also follow attention and the MLP: the inputs of these norms.
UNNORMED = tuple(
    Saved(name=f"output of {part}, before its norm", stream=1, shared=True, part=part)
    for part in BLOCK_PARTS
)


@dataclass(frozen=True, slots=True)
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

    def attention(self, number: int, *, out_scale: float) -> AttentionShape:
        """Return the attention of a block."""
        plain = CausalKind.attention(self, number, out_scale=out_scale)
        return replace(plain, qk_norm=self.model.qk_norm, qkv_bias=self.model.qkv_bias)

    def layer(self, number: int) -> LayerShape:
        """Return a block."""
        return self.block(number)

    def block(self, number: int) -> BlockShape:
        """Return a block of attention and an MLP or experts; both add to the stream."""
        out_scale = (2 * self.model.layers) ** -0.5
        return BlockShape(
            norm=self.norm(),
            attention=self.attention(number, out_scale=out_scale),
            mlp=self.experts(out_scale=out_scale)
            if self.has_experts(number)
            else self.mlp(self.model.mlp_width, out_scale=out_scale),
        )

    def _saved_compiled(self, number: int, passes: Passes) -> tuple[Saved, ...]:
        copied = self._copies(number, passes)
        attention = self._saved_projected(passes, rotated=copied, normed=self._norms_heads(number))
        return (*INPUT, *attention, *ATTENTION_OUT, *self._inside)

    @property
    def _inside(self) -> tuple[Saved, ...]:
        """What an MLP keeps."""
        return GATED if self.model.gated_mlp else PLAIN

    def _copies(self, number: int, passes: Passes) -> bool:
        """Return whether attention reads queries and keys that positions changed."""
        return True

    def _norms_heads(self, number: int) -> bool:
        """Return whether queries and keys of a layer have norms."""
        return self.model.qk_norm

    def _saved_besides(self, number: int, passes: Passes) -> tuple[Saved, ...]:
        attention = self._saved_beside_attention(passes, normed=self._norms_heads(number))
        gate = (SILU,) if self.model.gated_mlp else ()
        return (*gate, *passes.of_stream(self.norm().kind, *BLOCK_PARTS), *attention)

    def temporary_activations(self, number: int) -> Temporary:
        """Return the tensors that are alive together in a block."""
        return GATED_TEMPORARY if self.model.gated_mlp else PLAIN_TEMPORARY


@dataclass(frozen=True, slots=True, kw_only=True)
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
        return self.model.bidirectional_images

    @property
    def whole_prompts(self) -> bool:
        """Whether the tokens before the first that is learnt attend to each other."""
        return self.model.bidirectional_prompts

    def in_windows(self, number: int) -> bool:
        """Return whether the tokens of a layer, or of a depth, attend in windows."""
        # A depth is like the last layer.
        return Attending.in_windows(self, min(number, self.model.layers - 1))


@dataclass(frozen=True, slots=True)
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
    def torch_only(self) -> Iterable[str]:
        """The keys set in the model that blocks of other libraries do not support."""
        plain = type(self.model).model_fields
        return (key for key in TORCH_ONLY if getattr(self.model, key) != plain[key].default)

    def norm(self) -> NormShape:
        """Return the norm before every mixer, and after the last layer."""
        kind, offset = self.model.norm, float(self.model.norm_offset)
        return replace(LanguageKind.norm(self), kind=kind, offset=offset * (kind == "rms"))

    def attention(self, number: int, *, out_scale: float) -> AttentionShape:
        """Return the attention of a block."""
        model = self.model
        return replace(
            LanguageKind.attention(self, number, out_scale=out_scale),
            qk_norm=model.qk_norm,
            wide_norm=model.wide_qk_norm,
            norm_last=model.rotated_qk_norm,
            l2_norm=self._normed_by_l2(number),
            qkv_bias=model.qkv_bias,
            bias=model.output_bias,
            score_size=model.query_pre_attn_scalar,
            score_cap=model.attention_softcap,
            sinks=model.attention_sinks,
            latent=model.mla,
        )

    def _norms_heads(self, number: int) -> bool:
        """Return whether queries and keys of a layer have norms, with or without weights."""
        return self.model.qk_norm or self._normed_by_l2(number)

    def _normed_by_l2(self, number: int) -> bool:
        """Return whether queries and keys of a layer have a norm without weights."""
        return self.model.l2_qk_norm and self.sight(number).rotary is not None

    @property
    def gate(self) -> GateActivation | None:
        """The activation of the gate of MLPs, if they have one."""
        match self.model.activation:
            case "squared_relu" | "gelu_tanh_without_gate":
                return None
            case of_gate:
                return of_gate

    @property
    def activation(self) -> PlainActivation:
        """The activation of MLPs without a gate."""
        return "squared_relu" if self.model.activation == "squared_relu" else "gelu_tanh"

    def mlp(self, inner: int, *, out_scale: float) -> MlpShape:
        """Return an MLP."""
        return replace(LanguageKind.mlp(self, inner, out_scale=out_scale), bias=self.model.mlp_bias)

    def block(self, number: int) -> BlockShape:
        """Return a block; the block of a depth is like the last one."""
        return replace(
            DecoderBlocksKind.block(self, number),
            pre_norms=self.model.pre_norms,
            post_norms=self.model.post_norms,
            parallel=self.model.parallel,
            residual_scale=self.model.residual_scale,
        )

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
            found = replace(found, rotary=rotary, window=window)
        if nope is not None and self._like(number) in nope.layers:
            found = replace(found, rotary=None, growth=nope.query_scaling or found.growth)
        return found

    def _copies(self, number: int, passes: Passes) -> bool:
        """Return whether attention reads queries and keys that positions changed."""
        sight = self.sight(number)
        # Over cp keys are gathered, so larger queries alone are all that is kept.
        return sight.rotary is not None or (sight.growth is not None and passes.cp > 1)

    def _saved_compiled(self, number: int, passes: Passes) -> tuple[Saved, ...]:
        if self.model.mla is None:
            block = DecoderBlocksKind._saved_compiled(self, number, passes)
        else:
            block = (
                *LATENT_BLOCK,
                *self._inside,
                *(LATENT_ALONE if passes.cp == 1 else LATENT_GATHERED * passes.cp),
            )
            if passes.cp > 1 and passes.packed_keys is None:
                block = (*block, LATENT_IN_ORDER)
        if self.model.attention_softcap is not None:
            block = tuple(each for each in block if each != SUMS)
        if self.model.parallel and (passes.are_compiled or passes.wide == 1):
            # Both norms read the block's input; otherwise each keeps a copy of it.
            block = tuple(each for each in block if each != STREAMS[1])
        if not self.model.pre_norms:
            # Products read the stream itself, which stays.
            block = tuple(
                replace(each, part=None if each.normed else each.part, normed=False)
                for each in block
                if each not in STREAMS
            )
        if self.model.wide_qk_norm:
            block = tuple(each for each in block if each != HEAD_STATISTICS)
        if self.model.mla is None and not self.model.qk_norm and not self._copies(number, passes):
            block = (*block, *((GROWN,) if self.sight(number).growth else ()))
        if self._rotates_first(number) and (passes.are_compiled or passes.wide == 1):
            block = (*block, ROTATED)
        return (*block, *(UNNORMED if self.model.post_norms else ()))

    def _rotates_first(self, number: int) -> bool:
        """Return whether norms of heads read what is rotated."""
        late = self.model.rotated_qk_norm and not self.model.wide_qk_norm
        return self.model.qk_norm and late and self.sight(number).rotary is not None

    def _saved_besides(self, number: int, passes: Passes) -> tuple[Saved, ...]:
        block = DecoderBlocksKind._saved_besides(self, number, passes)
        if self.model.post_norms and self.model.pre_norms:
            block = (*block, *passes.of_stream(self.norm().kind, *BLOCK_PARTS))
        heads = passes.of_head_norms()
        if self.model.wide_qk_norm:
            block = (*(each for each in block if each != heads), passes.of_wide_norm())
        elif not self.model.qk_norm:
            alone = passes.of_head_norms(weighted=False)
            block = tuple(alone if each == heads else each for each in block)
        if (latent := self.model.mla) is not None:
            # The width that rotates has no norm, and is not kept beside copies of the others.
            kept = passes.of_norm("rms")
            others = latent.rope_head_dim * (kept + (passes.wide > 1)) // passes.wide
            name = "inputs of norms of narrow widths in fp32, and results"
            block = (*block, Saved(name=name, narrow=kept, numbers=-others, shared=True))
        return block

    def temporary_activations(self, number: int) -> Temporary:
        """Return the tensors that are alive together in a block; also scores if they are capped."""
        found = DecoderBlocksKind.temporary_activations(self, number)
        if self.model.attention_softcap is None:
            return found
        return Temporary(
            forward=(CAPPED_FORWARD, *found.forward),
            backward=(*found.backward, CAPPED_BACKWARD),
        )

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
