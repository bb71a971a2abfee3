"""Known ways to get queries that grow with their positions wrong; `planted` lists them as well."""

from typing import Any

from tests.support.specs import behind_vision
from torch import Tensor

from mimo_launch.layers import attention, pointwise
from mimo_launch.models import language_model
from mimo_launch.spec.spec import Spec

# As in Ministral 3, with partly rotated heads, whose other numbers grow, too.
MODEL: dict[str, Any] = {
    "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 12, "rope_theta": 200.0,
    "rotary_factor": 0.5, "query_scaling": {"beta": 0.5, "length": 3},
    "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 32,
    },
}  # fmt: skip


def grown(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language whose queries grow behind vision, on ranks of its own."""
    return behind_vision(MODEL, data, **language)


def positions_go_on() -> None:
    """Positions do not start anew in the next document."""
    correct = language_model.query_factors
    language_model.query_factors = lambda scaling, documents, *more: correct(scaling, None, *more)


def places_of_the_first_cp_rank() -> None:
    """Every cp rank takes its tokens for those of the first one."""
    correct = language_model.query_factors

    def first(scaling: Any, documents: Any, held: Tensor, *more: Any) -> Tensor | None:
        return correct(scaling, documents, held - held[0], *more)

    language_model.query_factors = first


def only_what_rotates() -> None:
    """The numbers of a query that do not rotate do not grow."""
    correct = pointwise.rotated

    def part(x: Tensor, cos: Tensor, sin: Tensor, *factors: Tensor | None) -> Tensor:
        out = correct(x, cos, sin, *factors).clone()
        out[..., cos.shape[-1] :] = x[..., cos.shape[-1] :]
        return out

    pointwise.rotated = part


def keys_grow() -> None:
    """Keys are multiplied by the factors of queries, too."""
    correct = attention.Attention._causal

    def both(self: Any, q: Tensor, k: Tensor, v: Tensor, sequences: Any) -> Tensor:
        factors = sequences.factors[..., None, None].to(k.dtype)
        grown = (k.view(sequences.batch, -1, *k.shape[1:]) * factors).flatten(0, 1)
        return correct(self, q, grown, v, sequences)

    attention.Attention._causal = both


GROWTH_BUGS = {
    "queries grow over documents": (positions_go_on, grown({"max_documents": 3})),
    "queries of the first cp rank": (places_of_the_first_cp_rank, grown(cp=2)),
    "only what rotates grows": (only_what_rotates, grown()),
    "keys grow, too": (keys_grow, grown(tp=2)),
}
