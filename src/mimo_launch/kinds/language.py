"""What causal models have in common, attention; and language models: a vocabulary, experts, a head.

Decides: the weights of attention, of experts and of both ends, and the work of the head.
Relies on: how `models` compute, which tests compare.
Leaves: the layers to `decoder` and `hybrid`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.layer import Ends, Flops, Share, Weight, Widths, Workload
from mimo_launch.kinds.saved_activations import HeldAtEnds
from mimo_launch.spec.language_models import CausalModel
from mimo_launch.spec.spec import LanguageModel, Moe


@dataclass(frozen=True, slots=True)
class CausalKind(ModelKind):
    """A model whose tokens attend to those before them."""

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
        queries = share.of(model.heads * head)
        if model.num_kv_heads < share.tp:
            # Each rank holds the one key/value head that its query heads need.
            yield Weight((queries, width), in_product=True)
            yield Weight((2 * head, width))
        else:
            keys = share.of(model.num_kv_heads * head)
            yield Weight((queries + 2 * keys, width), in_product=True)
        yield Weight((width, queries), in_product=True)

    @property
    def widths(self) -> Widths:
        """Sizes of attention and MLPs together."""
        model = self.model
        return Widths(
            stream=model.hidden,
            query=model.heads * model.head_size,
            key=model.num_kv_heads * model.head_size,
            heads=model.heads,
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
        """Number of its tokens, or the data set that has them."""
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
        """Width inside the MLPs that are no experts, if there are any."""
        return self.model.mlp_width if self.model.has_mlps else None

    @property
    def moe(self) -> Moe | None:
        """The mixture of experts of the model, if it has one."""
        return self.model.moe

    def has_experts(self, number: int) -> bool:
        """Return whether a layer is a mixture of experts."""
        return self.model.has_experts(number)

    @property
    def is_tied(self) -> bool:
        """Whether the head is the embedding."""
        return self.model.tied

    def _dense_width(self, number: int) -> int:
        """Return the width of the MLP of a layer, or of its shared expert, if any."""
        model = self.model
        return model.moe.shared if model.moe and self.has_experts(number) else model.mlp_width

    def _expert_weights(self, number: int, share: Share) -> Iterator[Weight]:
        """Yield the router of a layer and the experts of one rank; all ranks hold as many."""
        model = self.model
        if not model.moe or not self.has_experts(number):
            return
        moe = model.moe
        own, inner = moe.experts // share.ep, moe.width // share.expert_tp
        yield Weight((moe.experts, model.hidden))
        ups = 1 + model.gated_mlp
        yield Weight((own * ups * inner, model.hidden), "experts")
        yield Weight((own * model.hidden, inner), "experts")

    def end_weights(self, ends: Ends, share: Share) -> Iterator[Weight]:
        """Yield the weights of embedding, final norm and head."""
        model, words = self.model, share.of(ends.vocab)
        if ends.is_first or (ends.is_last and (model.tied or ends.sends_text)):
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
        # Without a shared expert the MLP is no tensor-parallel region.
        regions = layer.regions - (moe.shared == 0)
        inner = moe.top_k * moe.width + moe.shared
        return replace(layer, inner=inner, regions=regions, experts=moe)

    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return the operations of the head."""
        head = 2.0 * work.tokens * self.model.hidden * ends.vocab if ends.is_last else 0.0
        return Flops(head=head)

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers saved by the head: its input, and the gradient of logits."""
        normed = self.model.hidden if held.weights_train else 0
        return held.tokens * (normed + held.words) if ends.is_last else 0
