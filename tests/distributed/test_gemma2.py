"""The parts of a Gemma 2 over every layout: capped scores and logits; its folders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.test_decoder_logits import wanted_logits
from tests.distributed.test_gemma3 import deviation
from tests.support.hugging_face import (
    VOCAB,
    joined,
    logits_on_rank,
    made,
    save,
    tiny,
    widen,
    widen_softmax,
)
from tests.support.planted_caps import capped, in_small_blocks
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION
from tests.support.whole_models import deviation as deviation_of

from mimo_launch.hugging_face.architectures import Modules, alone
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layers.score_attention import queries_at_once
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.load import model_from_data

LAYOUTS: dict[str, dict[str, Any]] = {
    **BEHIND_VISION,
    "sinks, cp 2": {"cp": 2, "model": {"attention_sinks": True}},
    "images seen whole, cp 2": {"cp": 2, "model": {"bidirectional_images": True}},
    "latent attention, tp 2": {
        "tp": 2,
        "model": {
            "kv_heads": 4, "head_dim": 10,
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
        },
    },
}  # fmt: skip
OFTEN = {"tp 2, cp 2, documents"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_with_caps_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(capped(**LAYOUTS[layout]))) == []


@pytest.mark.parametrize(
    "layout",
    [pytest.param(x, marks=() if x == "cp 4, packed" else pytest.mark.sweep) for x in LAYOUTS],
)
def test_blocks_of_queries_are_those_of_one_rank(layout: str) -> None:
    """With scores of so few queries at once that every chunk of a sequence has several blocks."""
    assert failures(verdicts(capped(**LAYOUTS[layout]), prepare=in_small_blocks)) == []


# As google/gemma-2-2b and -27b, before version 5.
PUBLISHED: dict[str, Any] = {
    "model_type": "gemma2", "attention_bias": False, "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192,
    "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "sliding_window": 4096, "vocab_size": 256000,
}  # fmt: skip
LARGE = PUBLISHED | {
    "head_dim": 128, "hidden_size": 4608, "intermediate_size": 36864, "num_attention_heads": 32,
    "num_hidden_layers": 46, "num_key_value_heads": 16, "query_pre_attn_scalar": 144,
}  # fmt: skip


@pytest.mark.parametrize("config", [PUBLISHED, LARGE], ids=["2b", "27b"])
def test_a_published_configuration_is_read_and_written(config: dict[str, Any]) -> None:
    from transformers import Gemma2Config

    theirs = Gemma2Config(**config)
    part = part_of(config, "decoder")
    assert part.not_computed() == ()
    keys = part.keys()
    slides = theirs.layer_types
    full = tuple(i for i, kind in enumerate(slides) if kind == "full_attention")
    assert keys["sliding_window"] == {"size": 4096, "full": full, "rope_theta": None}
    assert (keys["attention_softcap"], keys["logit_softcap"]) == (50.0, 30.0)
    assert (keys["query_pre_attn_scalar"] or keys["head_dim"]) == theirs.query_pre_attn_scalar
    assert keys["tied"] == theirs.tie_word_embeddings
    model = model_from_data({"kind": "decoder", **keys})
    found = alone(Modules(models={"language": model}, tokens={}, widths={}), "language")
    assert found is not None
    assert found.name == "Gemma2ForCausalLM"
    assert found.parts["language"].keys() == keys


def test_what_is_not_written_is_what_transformers_takes() -> None:
    assert (
        part_of({"model_type": "gemma2"}, "decoder").keys() == part_of(PUBLISHED, "decoder").keys()
    )
    without = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    keys = part_of({"model_type": "gemma2", **without}, "decoder").keys()
    assert (keys["attention_softcap"], keys["logit_softcap"]) == (None, None)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"attention_bias": True}, "attention_bias: true"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention: true"),
        ({"hidden_activation": "gelu"}, "hidden_activation: gelu"),
        ({"layer_types": ["chunked_attention"] * 26}, "layer_types: chunked_attention"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config: "),
    ],
)
def test_what_is_not_computed_is_refused(changed: dict[str, Any], words: str) -> None:
    [found] = part_of({**PUBLISHED, **changed}, "decoder").not_computed()
    assert found.lower().startswith(words)


WRONG: dict[str, dict[str, Any]] = {
    "cap of scores": {"attention_softcap": None},
    "cap of logits": {"logit_softcap": None},
    "other cap of scores": {"attention_softcap": 2.1},
    "layers": {"sliding_window": {"size": 5, "full": [0]}},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_bound_sees_a_wrong_setting(wrong: str, tmp_path: Path) -> None:
    model = tiny("gemma2")
    save(model, tmp_path / "model")
    asked = made("gemma2", "one rank", tmp_path / "model")
    changed = model_from_data({**asked.language.model.model_dump(), **WRONG[wrong]})
    language = asked.language.model_copy(update={"model": changed})
    asked = asked.model_copy(update={"modules": {"language": language}})
    assert deviation(asked, model, tmp_path) > 1e-4


@pytest.mark.sweep
@pytest.mark.parametrize("layout", ["one rank", "cp2", "tp2"])
def test_logits_of_long_sequences_are_those_of_transformers(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2,560 tokens: their scores exist in several blocks, without a smaller bound of them.

    In float64, because angles of late tokens in float32 have fewer digits.
    """
    model = tiny("gemma2", torch.float64, sliding_window=700)
    save(model, tmp_path / "model")
    widen(model)
    widen_softmax(monkeypatch)
    window = {"sliding_window": {"size": 700, "full": [1]}}
    asked = made("gemma2", layout, tmp_path / "model", "fp64", model=window)
    batch = asked.batch.model_copy(update={"seq": 2560})
    asked = asked.model_copy(update={"batch": batch})
    assert queries_at_once(2, 2560) < 2560 // 2
    parts = run_ranks(logits_on_rank, asked, tmp_path, world_size=world_size(asked))
    assert deviation_of(joined(asked, parts, VOCAB), wanted_logits(model, asked)) < 1e-9
