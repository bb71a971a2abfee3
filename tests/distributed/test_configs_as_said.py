"""A `config.json` means to us what it means to `transformers`, also in forms that it never writes.

Both read the same settings; the folder alone says what our module is.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.hugging_face import KINDS, MOE_KINDS, SIZES, save, tokens_of
from tests.support.random_models import shaken, theirs
from tests.support.running_ranks import end_running_ranks
from tests.support.specs import box, spec
from tests.support.whole_models import deviation, found_logits

from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.hugging_face.registry import part_of

ROUNDING = 2e-5
LENGTH = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "rope_theta": 500.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 20.0}
# Bounds of YaRN between pairs of a head.
UNEVEN = {**YARN, LENGTH: 64, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False}
TYPES = {"layer_types": ["sliding_attention", "full_attention"]}
# Named by what is said: a kind of model, and its settings in place of the usual ones.
SAID: dict[str, tuple[str, dict[str, Any]]] = {
    "original length of YaRN beside": ("llama", {"rope_parameters": YARN, LENGTH: 16}),
    "original length beside and in": (
        "llama", {"rope_parameters": {**YARN, LENGTH: 32}, LENGTH: 16},
    ),
    "original length of Llama 3 beside": ("llama", {"rope_parameters": LLAMA3, LENGTH: 16}),
    "no original length of Llama 3": ("llama", {"rope_parameters": LLAMA3}),
    "original length of queries that grow beside": (
        "ministral3", {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.5}, LENGTH: 6},
    ),
    "no original length of queries that grow": (
        "ministral3",
        {
            "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.5},
            "max_position_embeddings": 6,
        },
    ),
    "no shared experts, of which the file has empty tensors": (
        "deepseek_v3", {"n_shared_experts": 0},
    ),
    "original length beside kinds of layers": (
        "olmo3",
        {
            "rope_parameters": {
                "full_attention": {**YARN, LENGTH: 16}, "sliding_attention": PLAIN,
            },
            LENGTH: 40,
        },
    ),
    "base beside kinds of layers": (
        "olmo3",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default"},
                "sliding_attention": {"rope_type": "default"},
            },
            "rope_theta": 20.0,
        },
    ),
    "base alone": ("olmo3", {"rope_parameters": None, "rope_theta": 20.0}),
    **{
        f"bounds between pairs of {kind}": (
            kind,
            {
                **more,
                "rope_parameters": {"full_attention": UNEVEN, "sliding_attention": PLAIN},
            },
        )
        for kind, more in (("olmo3", {"hidden_size": 128}), ("mellum", {"head_dim": 32}))
    },
    "a word for windows": ("exaone4", {**TYPES, "sliding_window_pattern": "LLLG"}),
    "a word for windows beside experts": (
        "exaone_moe", {**TYPES, "sliding_window_pattern": "LLLG"},
    ),
    "size of a head": ("cohere2", {"head_dim": 12}),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def ranks() -> Iterator[None]:
    yield
    end_running_ranks()


def _settings(kind: str, changes: dict[str, Any]) -> dict[str, Any]:
    said = deepcopy({**SIZES, **(KINDS | MOE_KINDS)[kind][1], **changes})
    return {key: each for key, each in said.items() if each is not None or key != "rope_parameters"}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", SAID)
def test_a_configuration_is_read_as_by_transformers(name: str, tmp_path: Path) -> None:
    kind, changes = SAID[name]
    settings, transformers = _settings(kind, changes), theirs()
    classes = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    config = transformers.CONFIG_MAPPING[kind].from_dict(deepcopy(settings))
    made = getattr(transformers, classes[kind])(config)
    model = shaken(made, torch.float32, lambda name: float("norm" in name))
    save(model, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({"model_type": kind, **settings}))
    [module] = read_contents(tmp_path / "model").modules
    assert module.not_computed == ()
    keys = {"head_dim": None, "vocab_multiple": 1, **module.keys, "kind": module.kind}
    asked = spec(
        {"language": box(0, init_from=str(tmp_path / "model"), model=keys)},
        mbs=2,
        seq=16,
        text_only=1.0,
        train={"steps": 1, "precision": "fp32"},
    )
    with torch.no_grad():
        wanted = model(input_ids=tokens_of(asked)).logits.double()
    assert deviation(found_logits(asked, tmp_path), wanted) < ROUNDING


@pytest.mark.parametrize("scaling", [{}, {"attention_factor": 1.7}, {"attention_factor": 1.0}])
@pytest.mark.parametrize("normed", [True, False])
def test_scores_of_normed_heads_do_not_grow(scaling: dict[str, Any], normed: bool) -> None:
    """A Llama 4 norms heads after their rotation, which takes back what YaRN makes of scores."""
    rope = {**YARN, LENGTH: 16, **scaling}
    said = {"rope_parameters": rope, "use_qk_norm": normed, "model_type": "llama4_text"}
    refused = part_of(_settings("llama4_text", said), "decoder").not_computed()
    grows = normed and scaling != {"attention_factor": 1.0}
    assert refused == (("rope_type: yarn with use_qk_norm: true",) if grows else ())
