"""Keys of a decoder compute together what the oracle does, as many as are legal at a time."""

from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import pytest
from tests.support.proof import failures, verdicts
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import idle_settings, is_legal
from mimo_launch.spec.spec import Spec

SMALL: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8}
# For each key, what makes a layer compute something else.
KEYS: dict[str, Any] = {
    "moe": {"experts": 4, "top_k": 2, "width": 16, "shared": 8, "aux_loss": 0.1, "every": 2},
    "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
    "tied": True,
    "rotary_factor": 0.5,
    "rotary_interleaved": True,
    "gated_attention": True,
    "norm_offset": True,
    "mtp": {"depth": 1},
    "qk_norm": True,
    "qkv_bias": True,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    "sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0},
    "nope": {"layers": [1]},
    "bidirectional_images": True,
    "bidirectional_prompts": True,
    "activation": "gelu_tanh",
    "mlp_bias": True,
    "norm": "layer",
    "parallel": True,
    "post_norms": True,
    "pre_norms": False,
    "wide_qk_norm": True,
    "rotated_qk_norm": True,
    "l2_qk_norm": True,
    "clip_qkv": 0.5,
    "value_norm": True,
    "values_from_keys": True,
    "shared_keys": {"layers": 1},
    "per_layer_embeddings": {"width": 6, "padding": 1},
    "layer_scalar": 0.5,
    "residual_scale": 0.7,
    "embedding_scale": 3.0,
    "scaled_rows": True,
    "output_bias": True,
    "attention_sinks": True,
    "query_pre_attn_scalar": 3.0,
    "query_scaling": {"beta": 0.3, "length": 4},
    "attention_softcap": 5.0,
    "logit_softcap": 3.0,
    "logit_scale": 0.3,
}
NUMBER, LANGUAGE = 12, ("modules", "language")


def made(keys: set[str]) -> Spec:
    # Latent attention has no groups of heads.
    model = SMALL | {key: KEYS[key] for key in keys} | ({"kv_heads": 4} if "mla" in keys else {})
    modules = {"vision": box(0), "language": box(0, model=model)}
    return spec(modules, mbs=2, max_patches=12)


@cache
def keys_of(number: int) -> frozenset[str]:
    """Return keys that are legal and have an effect together, tried in a random order.

    Of even numbers as many as there are; one has those beside latent attention, which few allow.
    """
    drawn = Random(number)
    order = drawn.sample(sorted(KEYS), len(KEYS) if number % 2 == 0 else len(KEYS) // 2)
    found: set[str] = set()
    for key in ["mla", *order] if number == 0 else order:
        more = found | {key}
        with suppress(ValueError):
            asked = made(more)
            if is_legal(asked) and not any(path[:2] == LANGUAGE for path in idle_settings(asked)):
                found = more
    return frozenset(found)


@pytest.mark.parametrize("number", range(NUMBER))
def test_gradients_are_those_of_the_oracle(number: int) -> None:
    assert failures(verdicts(made(set(keys_of(number))))) == [], sorted(keys_of(number))


def test_every_key_is_among_them() -> None:
    assert set().union(*map(keys_of, range(NUMBER))) == KEYS.keys()
