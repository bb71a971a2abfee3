"""What causal models share, attention, and language models: a vocabulary, experts, a head.

Decides: the weights of attention, of experts and of both ends, and the work of the head.
Relies on: how `models` compute, which tests compare.
Leaves: the layers to `decoder` and `hybrid`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.layer import Ends, Flops, Share, Weight, Widths, Workload
from mimo_launch.kinds.saved_activations import (
    GATED_OUT,
    HEAD_NORMS,
    HEAD_NORMS_BF16,
    HEAD_STATISTICS,
    ROTATED,
    SIGMOID,
    HeldAtEnds,
    Passes,
    Saved,
)
from mimo_launch.spec.language_models import CausalModel
from mimo_launch.spec.layers import Mtp
from mimo_launch.spec.spec import LanguageModel, Moe


@dataclass(frozen=True, slots=True)
class CausalKind(ModelKind):
    """A model with tokens that attend to earlier tokens."""

    model: CausalModel

    @property
    def num_heads(self) -> int | None:
        """Query heads."""
        return self.model.heads

    @property
    def num_kv_heads(self) -> int | None:
        """Key/value heads."""
        return self.model.num_kv_heads

    @property
    def has_heads_of_hidden(self) -> bool:
        """Whether a head is hidden / heads wide."""
        return self.model.head_dim is None

    def _attention_weights(self, share: Share) -> Iterator[Weight]:
        model = self.model
        width, head = model.hidden, model.head_size
        outputs = share.of(model.heads * head)
        queries = outputs * model.query_parts
        if model.num_kv_heads < share.tp:
            # Each rank holds the one key/value head that its query heads need.
            yield Weight((queries, width), in_product=True)
            yield Weight((2 * head, width))
        else:
            keys = share.of(model.num_kv_heads * head)
            yield Weight((queries + 2 * keys, width), in_product=True)
        yield Weight((width, outputs), in_product=True)

    def _saved_projected(self, *, rotated: bool, normed: bool) -> tuple[Saved, ...]:
        """Return what attention saves before its output; heads may be normed or rotated."""
        # Values and gates are views of this tensor.
        fused = Saved(name="queries, keys and values, fused", query=self.model.query_parts, key=2)
        gated = (GATED_OUT,) if self.model.query_parts > 1 else ()
        moved = (ROTATED,) if rotated or normed else ()
        return (fused, *moved, *((HEAD_STATISTICS,) if normed else ()), *gated)

    def _saved_beside_attention(self, passes: Passes, *, normed: bool) -> tuple[Saved, ...]:
        """Return what attention also saves if passes are not compiled."""
        norms = HEAD_NORMS_BF16 if passes.are_bf16 else HEAD_NORMS
        gated = (SIGMOID,) if self.model.query_parts > 1 else ()
        return (*((norms,) if normed else ()), *gated)

    @property
    def widths(self) -> Widths:
        """Sizes of a layer, with attention and MLP."""
        return self._plain_widths()

    def _plain_widths(self) -> Widths:
        """Return these sizes where queries, keys and values are made of the stream."""
        model = self.model
        return Widths(
            stream=model.hidden,
            query=model.heads * model.head_size,
            key=model.num_kv_heads * model.head_size,
            heads=model.heads,
            query_parts=model.query_parts,
            inner=model.mlp_width,
            ups=1 + model.gated_mlp,
            causal=True,
        )


@dataclass(frozen=True, slots=True)
class LanguageKind(CausalKind):
    """A model that reads tokens and computes the loss."""

    model: LanguageModel

    @property
    def reads_tokens(self) -> bool:
        """It reads tokens and computes the loss."""
        return True

    @property
    def vocab(self) -> int | Literal["digits"]:
        """Size of its vocabulary, or the data set that defines it."""
        return self.model.vocab

    @property
    def vocab_multiple(self) -> int:
        """The vocabulary is padded to a multiple of this number."""
        return self.model.vocab_multiple

    @property
    def num_heads(self) -> int | None:
        """Query heads, if any layer attends."""
        return self.model.heads if self.model.attends else None

    @property
    def num_kv_heads(self) -> int | None:
        """Key/value heads, if any layer attends."""
        return self.model.num_kv_heads if self.model.attends else None

    @property
    def has_heads_of_hidden(self) -> bool:
        """Whether a head is hidden / heads wide."""
        return self.model.head_dim is None and self.model.attends

    @property
    def mlp_width(self) -> int | None:
        """Width inside the MLPs, experts excluded, if there are any."""
        return self.model.mlp_width if self.model.has_mlps else None

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
        # The axes alternate as long as height and width have pairs left; the rest is for time.
        return tuple(i % 3 if i < 3 * pairs[i % 3] else 0 for i in range(sum(pairs)))

    @property
    def moe(self) -> Moe | None:
        """The mixture of experts of the model, if it has one."""
        return self.model.moe

    def has_experts(self, number: int) -> bool:
        """Return whether a layer is a mixture of experts."""
        return self.model.has_experts(number)

    @property
    def mtp(self) -> Mtp | None:
        """How it predicts further tokens, if it learns to."""
        return self.model.mtp

    def _weights_around_depth(self, share: Share) -> Iterator[Weight]:
        """Yield the weights of the three norms and the product around the block of a depth."""
        width = self.model.hidden
        yield from (Weight((width,)),) * 3
        yield Weight((width, share.of(2 * width)), in_product=True)

    def _around_depth(self, block: Widths) -> Widths:
        """Return the sizes of a depth with this block."""
        # One more region for its product; embedding and head are half a region each.
        return replace(block, is_depth=True, regions=block.regions + 2)

    @property
    def is_tied(self) -> bool:
        """Whether the head is the embedding."""
        return self.model.tied

    def _dense_width(self, number: int) -> int:
        """Return the width of a layer's MLP, or of its shared expert, if any."""
        model = self.model
        return model.moe.shared if model.moe and self.has_experts(number) else model.mlp_width

    def _expert_weights(self, number: int, share: Share) -> Iterator[Weight]:
        """Yield the router of a layer and one rank's experts; all ranks hold equally many."""
        model = self.model
        if not model.moe or not self.has_experts(number):
            return
        moe = model.moe
        own, inner = moe.experts // share.ep, moe.width // share.expert_tp
        yield Weight((moe.experts, model.hidden))
        ups = 1 + model.gated_mlp
        yield Weight((own * ups * inner, model.hidden), "experts")
        yield Weight((own * model.hidden, inner), "experts")
        if moe.gates_shared:
            yield Weight((1, model.hidden))
        if moe.bias:
            yield Weight((moe.experts,))
            yield Weight((own * ups * inner,), "experts")
            yield Weight((own * (model.hidden // share.expert_tp),), "experts")

    def end_weights(self, ends: Ends, share: Share) -> Iterator[Weight]:
        """Yield the weights of embedding, final norm and head."""
        model, words = self.model, share.of(ends.vocab)
        if ends.is_first or (ends.is_last and (self.embeds_at_end or ends.sends_text)):
            yield Weight((words, model.hidden))
        if ends.is_last:
            yield Weight((model.hidden,))
            if not model.tied:
                yield Weight((words, model.hidden), in_product=True)

    def _with_experts(self, number: int, layer: Widths) -> Widths:
        """Return the widths of a layer, with experts instead of the MLP if it has any."""
        moe = self.moe
        if moe is None or not self.has_experts(number):
            return layer
        # Without a shared expert the MLP is not a tensor-parallel region.
        regions = layer.regions - (moe.shared == 0)
        inner = moe.top_k * moe.width + moe.shared
        return replace(layer, inner=inner, regions=regions, experts=moe)

    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return the operations of the head."""
        if not ends.is_last:
            return Flops()
        return Flops(head=2.0 * self._heads * work.tokens * self.model.hidden * ends.vocab)

    @property
    def _heads(self) -> int:
        """How often the output layer is computed: for the next token and for further tokens."""
        return 1 + self.depths

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers saved by the head: its input, the gradient of logits, and logits."""
        normed = self.model.hidden if held.weights_train else 0
        words = held.words * (1 + self.caps_logits)
        return held.tokens * self._heads * (normed + words) if ends.is_last else 0

    @property
    def caps_logits(self) -> bool:
        """Whether logits are capped; the backward of the cap needs the logits."""
        return False
