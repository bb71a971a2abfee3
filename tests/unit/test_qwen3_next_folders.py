"""What configurations of Qwen3-Next mean, what of them is refused, and where its tensors lie."""

from typing import Any

import pytest
import torch
from tests.support.published import MODELS

from mimo_launch.hugging_face.architectures import Modules, alone
from mimo_launch.hugging_face.folder import ConfigError
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.hugging_face.tensors import Runs
from mimo_launch.spec.load import model_from_data
from mimo_launch.spec.spec import HybridModel

PUBLISHED = MODELS["Qwen3-Next-80B-A3B"][0]


def read(**changed: Any) -> HybridModel:
    keys = part_of({**PUBLISHED, **changed}, "hybrid").keys()
    model = model_from_data({"kind": "hybrid", **keys})
    assert isinstance(model, HybridModel)
    return model


@pytest.mark.parametrize(
    ("changed", "behind"),
    [
        ({"mlp_only_layers": [0, 2]}, "-E-E"),
        ({"decoder_sparse_step": 2}, "-E-E"),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, "-E--"),
        ({"mlp_only_layers": [0, 1, 2, 3]}, "----"),
        ({"num_experts": 0}, "----"),
        ({"mlp_only_layers": None}, "EEEE"),
    ],
)
def test_layers_have_experts_where_the_configuration_says(
    changed: dict[str, Any], behind: str
) -> None:
    model = read(num_hidden_layers=4, **changed)
    assert model.pattern[1::2] == behind
    assert (model.moe is None) == ("E" not in behind)
    assert model.mlp == (5120 if "-" in behind else None)
    found = alone(Modules(models={"language": model}, tokens={}, widths={}), "language")
    assert found is not None
    assert found.config["model_type"] == "qwen3_next"
    assert part_of(found.config, "hybrid").training() == ({"aux_loss": 0.001} if model.moe else {})


@pytest.mark.parametrize("changed", [{"mlp_only_layers": 3}, {"decoder_sparse_step": "2"}])
def test_settings_of_another_kind_are_an_error(changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        part_of({**PUBLISHED, **changed}, "hybrid").keys()


def test_every_row_of_a_fused_tensor_is_of_one_of_ours() -> None:
    part, model = part_of(PUBLISHED, "hybrid"), read()
    wholes = {"in_proj_qkvz": 12288, "in_proj_ba": 64}
    taken = {name: torch.zeros(rows, dtype=torch.int) for name, rows in wholes.items()}
    for letter, rows in zip("qkvzba", (2048, 2048, 4096, 4096, 32, 32), strict=True):
        at = part.place(f"layers.2.deltanet.{letter}.weight", model)
        assert at is not None
        assert at.runs is not None
        assert at.num_rows == rows
        name = at.name.removeprefix("model.layers.1.linear_attn.").removesuffix(".weight")
        assert at.runs.whole(rows) == wholes[name]
        for _, there in at.runs.pieces(at.first_row, range(rows)):
            taken[name][there] += 1
    assert all(bool((each == 1).all()) for each in taken.values())


@pytest.mark.parametrize("rows", [range(12), range(1, 2), range(2, 7), range(3, 6), range(11, 12)])
def test_rows_are_found_wherever_a_rank_cuts_them(rows: range) -> None:
    """Three of every eight rows from the second on are ours."""
    ours = [8 * (i // 3) + 2 + i % 3 for i in range(12)]
    runs = Runs(3, 8)
    pieces = list(runs.pieces(2, rows))
    assert [i for piece, _ in pieces for i in piece] == list(rows)
    found = [i for _, there in pieces for i in range(there.start, there.stop)]
    assert found == ours[rows.start : rows.stop]
    assert runs.whole(12) == 32
