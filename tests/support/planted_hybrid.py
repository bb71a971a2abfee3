"""Known ways to get a hybrid model wrong; `planted` lists them with the others."""

from dataclasses import replace
from typing import Any

import torch
from tests.support.specs import box, hybrid, spec

from mimo_launch.layers import deltanet, mamba, recurrent, short_conv
from mimo_launch.layers.sequence_contexts import Documents
from mimo_launch.spec.spec import Spec


def split_heads(groups: int = 2, pattern: str = "M-*M", **grid: int) -> Spec:
    """Packed text in a hybrid language model on one grid."""
    module = box(0, **grid)
    module["model"] = hybrid(module["grid"], pattern, groups)
    return spec({"language": module}, microbatches=2, mbs=2, text_only=1.0, max_documents=3)


def norm_over_a_part_of_the_group() -> None:
    """The gated norm is over this rank's channels by the number of all groups (mamba-ssm)."""
    correct = mamba.GroupNorm.__init__

    def smaller(self: Any, context: Any, shape: Any) -> None:
        correct(self, context, shape)
        self.local_groups = shape.groups
        self.group_size = shape.width // context.tp.size // shape.groups

    mamba.GroupNorm.__init__ = smaller


def norm_over_the_own_part() -> None:
    """Ranks that share a group norm their own channels of it."""
    mamba.GroupNorm._of_whole_groups = lambda self, squares: squares * self.context.tp.size


def shared_squares_not_summed_back() -> None:
    """The squares of a shared group are taken for complete in the backward."""
    mamba.enter_tp = lambda x, group: x


def state_not_passed_between_cp_ranks() -> None:
    """The state starts anew where the next chunk of the sequence is another cp rank's."""
    correct = mamba.ssd

    def anew(given: Any, documents_BS: Any, **options: Any) -> Any:
        return correct(given, documents_BS=_cut_at_ranks(given.x_BSHP, documents_BS), **options)

    mamba.ssd = anew


def convolution_not_passed_between_cp_ranks() -> None:
    """The convolution does not see the last tokens of the cp rank before."""
    correct = recurrent.causal_conv

    def anew(x: Any, weight: Any, bias: Any, documents_BS: Any, **options: Any) -> Any:
        numbers = _cut_at_ranks(x, documents_BS)
        return correct(x, weight, bias, documents_BS=numbers, **options)

    recurrent.causal_conv = anew


def _cut_at_ranks(x_BS: torch.Tensor, documents_BS: torch.Tensor | None) -> torch.Tensor:
    """Return documents that end at each cut of cp 2: ranks 0, 1, 1 and 0 hold a quarter each."""
    rank = torch.tensor([0, 1, 1, 2])[torch.arange(x_BS.shape[1]) * 4 // x_BS.shape[1]]
    numbers = 0 if documents_BS is None else documents_BS * 3
    return (rank + numbers).expand(len(x_BS), -1)


def heads_of_another_rank() -> None:
    """cp ranks compute with the weights of each other's heads."""
    correct = recurrent.RecurrentMixer._mix

    def swapped(self: Any, xbc: Any, dt: Any, share: Any, mask: Any) -> Any:
        size = self.context.cp.size
        return correct(self, xbc, dt, self._share((self.context.cp.index + 1) % size), mask)

    recurrent.RecurrentMixer._mix = swapped


def shards_in_the_order_of_ranks() -> None:
    """Zigzag shards are joined rank after rank, as if each held neighbouring chunks."""

    def joined(x: Any, batch: int, cp_size: int) -> Any:
        return x.view(cp_size, batch, -1, x.shape[-1]).transpose(0, 1).flatten(1, 2)

    recurrent.in_order = joined


def convolution_over_documents() -> None:
    """The convolution sees the last tokens of the document before."""
    correct = recurrent.causal_conv
    recurrent.causal_conv = lambda x, weight, bias, **_: correct(x, weight, bias)


def short_convolution_over_documents() -> None:
    """The short convolution of an LFM2 sees the last tokens of the document before."""
    correct = short_conv.causal_conv
    short_conv.causal_conv = lambda *given, **more: correct(
        *given, **{**more, "documents_BS": None}
    )


def channels_of_another_rank() -> None:
    """cp ranks convolve with the weights of each other's channels."""
    correct = short_conv.ShortConv._convolved

    def swapped(self: Any, x: Any, weight: Any, sequences: Any) -> Any:
        if self.context.cp.size > 1:
            weight = self.conv.weight.unflatten(0, (self.context.cp.size, -1))
            weight = weight[(self.context.cp.index + 1) % self.context.cp.size]
        return correct(self, x, weight, sequences)

    short_conv.ShortConv._convolved = swapped


def state_over_documents() -> None:
    """The state is handed from one document to the next."""
    correct = mamba.ssd

    def over_all(*args: Any, documents_BS: Any, **options: Any) -> Any:
        del documents_BS
        return correct(*args, **options)

    mamba.ssd = over_all


def delta_state_over_documents() -> None:
    """The state of a DeltaNet is handed from one document to the next."""
    correct = deltanet.delta_rule

    def over_all(*args: Any, documents: Any, **options: Any) -> Any:
        del documents
        return correct(*args, **options)

    deltanet.delta_rule = over_all


def delta_state_not_passed_between_cp_ranks() -> None:
    """The state of a DeltaNet starts anew at the next chunk of another cp rank."""
    correct = deltanet.delta_rule

    def anew(given: Any, documents: Any, **options: Any) -> Any:
        numbers = None if documents is None else documents.numbers
        cut = Documents(_cut_at_ranks(given.q_BSGK, numbers), ())
        return correct(given, documents=cut, **options)

    deltanet.delta_rule = anew


def decays_taken_for_strengths() -> None:
    """A DeltaNet takes the two numbers of a head and token for each other."""
    correct = deltanet.DeltaNet.recur

    def swapped(self: Any, x: Any, b: Any, c: Any, steps: Any, *rest: Any) -> Any:
        return correct(self, x, b, c, steps[::-1], *rest)

    deltanet.DeltaNet.recur = swapped


def head_norms_taken_for_own() -> None:
    """Gradients of the norm that all heads share are not added up over tp."""
    correct = deltanet.HeadNorm.__init__

    def own(self: Any, context: Any, *args: Any) -> None:
        correct(self, context, *args)
        segments = self.segments["weight"]
        self.segments["weight"] = tuple(replace(x, tp_grad="complete") for x in segments)

    deltanet.HeadNorm.__init__ = own


def shared_groups_taken_for_own() -> None:
    """Gradients of a B and C that ranks share are not added up."""
    from mimo_launch.layers.parallel_context import ParallelContext

    correct = ParallelContext._sum_of

    def own(self: Any, weight: Any) -> Any:
        kind, counted = correct(self, weight)
        return ("sharded" if weight.axis is not None else kind), counted

    ParallelContext._sum_of = own


HYBRID_BUGS = {
    "group norm over the wrong size": (norm_over_a_part_of_the_group, split_heads(tp=2)),
    "group norm over a share": (norm_over_the_own_part, split_heads(1, tp=2)),
    "squares not summed back": (shared_squares_not_summed_back, split_heads(1, tp=2)),
    "shared groups taken for own": (shared_groups_taken_for_own, split_heads(1, tp=2)),
    "state not passed between cp ranks": (state_not_passed_between_cp_ranks, split_heads(cp=2)),
    "convolution not passed between cp ranks": (
        convolution_not_passed_between_cp_ranks, split_heads(cp=2),
    ),
    "Mamba heads swapped over cp": (heads_of_another_rank, split_heads(cp=2)),
    "shards in the order of ranks": (shards_in_the_order_of_ranks, split_heads(cp=2)),
    "convolution over documents": (convolution_over_documents, split_heads(cp=2)),
    "short convolution over documents": (
        short_convolution_over_documents, split_heads(2, "C-*C", tp=2),
    ),
    "channels swapped over cp": (channels_of_another_rank, split_heads(2, "C-*C", cp=2)),
    "state over documents": (state_over_documents, split_heads(tp=2)),
    "delta state over documents": (delta_state_over_documents, split_heads(2, "G-*G", tp=2)),
    "delta state not passed between cp ranks": (
        delta_state_not_passed_between_cp_ranks, split_heads(2, "G-*G", cp=2),
    ),
    "decays taken for strengths": (decays_taken_for_strengths, split_heads(2, "G-*G")),
    "head norms taken for own": (head_norms_taken_for_own, split_heads(2, "G-*G", tp=2)),
}  # fmt: skip
