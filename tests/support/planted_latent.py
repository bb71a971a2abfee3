"""Known ways to get latent attention and groups of experts wrong; `planted` lists them as well."""

from dataclasses import replace
from typing import Any

import torch
from tests.support.specs import behind_vision

from mimo_launch.layers import router
from mimo_launch.layers.latent_attention import LatentInputs
from mimo_launch.layers.linear import WholeLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.spec.spec import Spec

MLA = {"kv_rank": 12, "q_rank": 10, "rope_head_dim": 4, "v_head_dim": 6}
MODEL: dict[str, Any] = {
    "layers": 2, "heads": 4, "head_dim": 10, "rope_theta": 200.0, "mla": MLA,
    "query_pre_attn_scalar": 7.0,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "model": {
        "moe": {
            "experts": 8, "top_k": 3, "width": 16, "score": "sigmoid", "groups": 4,
            "top_groups": 2, "shared": 16, "scale": 2.5, "bias_update_rate": 0.01,
            "first_dense": 1,
        },
    },
    "experts": {"ep": 2},
}  # fmt: skip


def latent(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with latent attention behind vision, on ranks of its own."""
    return behind_vision(MODEL, data, **language)


def pairs_in_halves() -> None:
    """Number i rotates with number i + half where neighbours should."""
    LatentInputs._in_halves = lambda self, x: x


def narrow_widths_complete() -> None:
    """Gradients of narrow maps are not summed over tp under sequence parallelism."""

    def complete(kind: Any) -> None:
        correct = kind.declare

        def declare(self: Any, attribute: str, *segments: Any, dtype: torch.dtype) -> None:
            as_complete = [replace(each, tp_grad="complete") for each in segments]
            correct(self, attribute, *as_complete, dtype=dtype)

        kind.declare = declare

    complete(WholeLinear)


def narrow_widths_not_normed() -> None:
    """Keys and values are made of what their norm should have normalised."""
    correct, size = Norm.forward, MLA["kv_rank"]
    names = (size, 9)  # Shrinking makes it nine.
    Norm.forward = lambda self, x: x if x.shape[-1] in names else correct(self, x)


def best_expert_makes_a_group() -> None:
    """A group is as good as its best expert alone."""

    def best(ranked_nE: torch.Tensor, groups: int, most: int) -> torch.Tensor:
        grouped = ranked_nE.unflatten(1, (groups, -1))
        chosen = torch.zeros(grouped.shape[:2], dtype=torch.bool)
        chosen.scatter_(1, grouped.amax(dim=2).topk(most, dim=1).indices, True)
        return grouped.masked_fill(~chosen.unsqueeze(2), float("-inf")).flatten(1)

    router._in_best_groups = best


LATENT_BUGS = {
    "pairs in halves": (pairs_in_halves, latent()),
    "narrow widths taken for complete": (
        narrow_widths_complete, latent(tp=2, sequence_parallel=True),
    ),
    "narrow widths not normed": (narrow_widths_not_normed, latent()),
    "best expert makes a group": (best_expert_makes_a_group, latent(dp=2, **EXPERTS)),
}  # fmt: skip
