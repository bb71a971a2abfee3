"""Blocks of Llama, Qwen2 and Qwen3 shape, and decoders made of them, some layers with experts.

Decides: the weights of a block, and what it saves.
Relies on: `language` for attention, experts and both ends.
Leaves: nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mimo_launch.kinds.language import CausalKind, LanguageKind
from mimo_launch.kinds.layer import Share, Weight, Widths
from mimo_launch.kinds.saved_activations import (
    ATTENTION_OUT,
    GATED,
    GATED_BACKWARD,
    GATED_FORWARD,
    RMS,
    RMS_BF16,
    ROTATED,
    SILU,
    Passes,
    Saved,
)
from mimo_launch.spec.language_models import DecoderBlocks
from mimo_launch.spec.spec import DecoderModel, RopeScaling, SlidingWindow

BLOCK = (
    Saved(name="block input", stream=1, shared=True),
    Saved(name="normed input", stream=1, for_weights=True),
    # Values are a view into it.
    Saved(name="queries, keys and values, fused", query=1, key=2),
    ROTATED,
    *ATTENTION_OUT,
    *GATED,
)
TORCH_ONLY = ("sliding_window", "activation", "post_norms", "norm_offset", "query_pre_attn_scalar")
# Besides, where norms also stand behind attention and the MLP: what they normalise.
UNNORMED = (Saved(name="outputs of attention and MLP, before their norms", stream=2, shared=True),)


@dataclass(frozen=True, slots=True)
class DecoderBlocksKind(CausalKind):
    """Blocks of attention and SwiGLU."""

    model: DecoderBlocks

    @property
    def rope_scaling(self) -> RopeScaling | None:
        """The scaling of long wavelengths of rotary embeddings, if any."""
        return self.model.rope_scaling

    @property
    def has_standard_blocks(self) -> bool:
        """Every layer is attention and an MLP or experts."""
        return True

    def _block_weights(self, inner: int, share: Share) -> Iterator[Weight]:
        """Yield the weights of a block whose MLP, if it has one, is `inner` wide."""
        model = self.model
        width, head = model.hidden, model.head_size
        yield from (Weight((width,)),) * 2
        yield from self._attention_weights(share)
        if model.qkv_bias:
            queries = share.of(model.heads * head)
            if model.num_kv_heads < share.tp:
                yield from (Weight((queries,)), Weight((2 * head,)))
            else:
                yield Weight((queries + 2 * share.of(model.num_kv_heads * head),))
        if model.qk_norm:
            yield from (Weight((head,)),) * 2
        if inner:
            yield Weight((2 * share.of(inner), width), in_product=True)
            yield Weight((width, share.of(inner)), in_product=True)

    def _saved_compiled(self, layer: Widths) -> tuple[Saved, ...]:
        return BLOCK

    def _saved_besides(self, layer: Widths, passes: Passes) -> tuple[Saved, ...]:
        return SILU, RMS_BF16 if passes.are_bf16 else RMS

    @property
    def forward_activations(self) -> tuple[Saved, ...]:
        """Tensors that are alive at once in the forward of a block that saves nothing."""
        return GATED_FORWARD

    @property
    def backward_activations(self) -> tuple[Saved, ...]:
        """Gradients that are alive at once in the backward of a block."""
        return GATED_BACKWARD


@dataclass(frozen=True, slots=True)
class DecoderKind(DecoderBlocksKind, LanguageKind):
    """A decoder: blocks of attention and SwiGLU, or of attention and experts."""

    model: DecoderModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.language_model:DecoderStage"

    @property
    def mrope(self) -> tuple[int, int, int] | None:
        """Pairs of a head that rotate with time, height and width, if tokens have all three."""
        return self.model.mrope

    @property
    def mrope_axes(self) -> tuple[int, ...] | None:
        """The axis that rotates each pair of a head, if tokens have three."""
        pairs = self.model.mrope
        if pairs is None:
            return None
        if not self.model.mrope_interleaved:
            return tuple(axis for axis, number in enumerate(pairs) for _ in range(number))
        # In turn, as long as height and width have pairs left; the rest is time's.
        return tuple(i % 3 if i < 3 * pairs[i % 3] else 0 for i in range(sum(pairs)))

    @property
    def sliding_window(self) -> SlidingWindow | None:
        """The last tokens that tokens of some layers attend to, if that is not all."""
        return self.model.sliding_window

    @property
    def torch_only(self) -> tuple[str, ...]:
        """The keys of the model that blocks of other libraries do not have, where they are set."""
        plain = type(self.model).model_fields
        return tuple(key for key in TORCH_ONLY if getattr(self.model, key) != plain[key].default)

    def layer_weights(self, number: int, share: Share) -> Iterator[Weight]:
        """Yield the weights of a block."""
        yield from self._block_weights(self._dense_width(number), share)
        if self.model.post_norms:
            yield from (Weight((self.model.hidden,)),) * 2
        yield from self._expert_weights(number, share)

    def layer_widths(self, number: int) -> Widths:
        """Return the sizes of a block."""
        layer = self._with_experts(number, self.widths)
        if self.sliding_window is None or not self.attends_in_windows(number):
            return layer
        return replace(layer, reach=self.sliding_window.size)

    def _saved_compiled(self, layer: Widths) -> tuple[Saved, ...]:
        return (*BLOCK, *(UNNORMED if self.model.post_norms else ()))

    def _saved_besides(self, layer: Widths, passes: Passes) -> tuple[Saved, ...]:
        norms = RMS_BF16 if passes.are_bf16 else RMS
        return (SILU, *((norms,) * (2 if self.model.post_norms else 1)))
