"""Every activation is that of the oracle, in every layer that has one."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from tests.support.proof import failures, verdicts
from tests.support.specs import ACTIVATIONS, box, spec

from mimo_launch.layers.pointwise import GATED
from mimo_launch.models.per_layer import GATES
from mimo_launch.spec.spec import HybridModel, VitModel
from mimo_launch.verify import oracle_blocks

EXPERTS = {"experts": 2, "top_k": 1, "width": 16, "shared": 8}
VECTORS = {"width": 6, "padding": 1}


def words(literal: Any) -> Iterator[str]:
    """Yield the words of a literal, or of several."""
    for each in get_args(literal):
        yield from [each] if isinstance(each, str) else words(each)


def models() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the module of each model, and its model."""
    for word in words(HybridModel.model_fields["activation"].annotation):
        yield "language", {"kind": "hybrid", "pattern": "*-E", "moe": EXPERTS, "activation": word}
    for word in ACTIVATIONS:
        yield "language", {"layers": 1, "activation": word}
        # The numbers of an xIELU belong to an MLP.
        beside = {"moe": EXPERTS, "per_layer_embeddings": VECTORS} if word != "xielu" else {}
        for key, value in beside.items():
            yield "language", {"layers": 1, "activation": word, key: value}
    for word in words(VitModel.model_fields["activation"].annotation):
        yield "vision", {"layers": 1, "activation": word}
    for word in words(VitModel.model_fields["projector_activation"].annotation):
        for projector in ("mlp", "merger", "gated"):
            yield "vision", {"layers": 1, "projector": projector, "projector_activation": word}


@pytest.mark.parametrize(
    ("module", "model"),
    list(models()),
    ids=lambda each: each if isinstance(each, str) else " ".join(map(str, each.values())),
)
def test_gradients_are_those_of_the_oracle(module: str, model: dict[str, Any]) -> None:
    modules = {module: box(0, model=model)} | ({} if module == "language" else {"language": box(0)})
    assert failures(verdicts(spec(modules, mbs=4))) == []


@pytest.mark.parametrize("word", sorted({*GATED, *GATES}))
def test_gates_are_those_of_the_oracle_where_numbers_are_clamped(word: str) -> None:
    """Numbers of small models are not so large."""
    gate, inner = torch.linspace(-20, 20, 81, dtype=torch.float64), torch.linspace(-9, 12, 81)
    if word in GATES:
        right = oracle_blocks.ACTIVATIONS[word](gate) * inner
        torch.testing.assert_close(GATES[word](gate, inner), right)
    if word in GATED:
        right = oracle_blocks.GATES[word](gate, inner)
        torch.testing.assert_close(GATED[word](torch.cat([gate, inner])), right)
