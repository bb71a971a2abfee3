"""Attention in all its variants: on every layout, gradients are those of one rank.

`VARIANTS` lists them: the spec with its planted bugs, layouts, those of them that run by default,
and what is prepared on each rank.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.test_checkpoints import LANGUAGE, make_spec, numbers, run
from tests.support.families import FAMILIES
from tests.support.lists import by_lists
from tests.support.planted_caps import capped, in_small_blocks
from tests.support.planted_gates import gated
from tests.support.planted_gemma4 import EXPERTS as GEMMA4_EXPERTS
from tests.support.planted_gemma4 import of_experts, of_two_heads
from tests.support.planted_growth import grown
from tests.support.planted_images import seen_whole
from tests.support.planted_latent import EXPERTS as LATENT_EXPERTS
from tests.support.planted_latent import MLA, latent
from tests.support.planted_nope import MODEL as NOPE_MODEL
from tests.support.planted_nope import unturned
from tests.support.planted_norms import beside, clipped, normed_after, of_unit_heads
from tests.support.planted_per_layer import beside_sound, with_vectors
from tests.support.planted_shared_keys import sharing
from tests.support.planted_sinks import EXPERTS, sunk
from tests.support.planted_sliding import sliding
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION, box
from tests.support.specs import spec as made
from tests.support.whole_models import deviation, found_logits

from mimo_launch.layers.pointwise import clamped_swiglu
from mimo_launch.layers.score_attention import queries_at_once
from mimo_launch.spec.layers import Nope, QueryScaling, SlidingWindow
from mimo_launch.spec.spec import DecoderModel, Spec
from mimo_launch.verify.oracle_blocks import Load, RecordText
from mimo_launch.verify.oracle_dropout import Weights
from mimo_launch.verify.oracle_language import _attention as attention
from mimo_launch.verify.oracle_layers import frequencies, text_angles

Layouts = dict[str, dict[str, Any]]
DOCUMENTS = "tp 2, cp 2, documents"
ONE_AXIS = {"mrope": None, "mrope_interleaved": False}


def paired(**keys: Any) -> Any:
    """Return a spec in which neighbours rotate."""
    model = {"gated_attention": False, "rotary_interleaved": True}
    return gated(**{**keys, "model": model | keys.get("model", {})})


CAPS: Layouts = {
    **BEHIND_VISION,
    "sinks, cp 2": {"cp": 2, "model": {"attention_sinks": True}},
    "images seen whole, cp 2": {"cp": 2, "model": {"bidirectional_images": True}},
    "prompts seen whole, tp 2 pp 2": {
        "tp": 2, "pp": 2, "sequence_parallel": True, "model": {"bidirectional_prompts": True},
    },
    "latent attention, tp 2": {
        "tp": 2,
        "model": {
            "kv_heads": 4, "head_dim": 10,
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
        },
    },
}  # fmt: skip  # fmt: skip
SLIDING: Layouts = {
    **BEHIND_VISION,
    "experts": {
        "dp": 2, "experts": {"ep": 2},
        "model": {"moe": {"experts": 4, "top_k": 2, "width": 32, "every": 2}},
    },
}  # fmt: skip  # fmt: skip
WHOLE_IMAGES: Layouts = {
    "tp 2": {"tp": 2, "sequence_parallel": True},
    "tp 4, cp 2": {"tp": 4, "cp": 2},
    "cp 2": {"cp": 2},
    "cp 4": {"cp": 4},
    "pp 2, full sharding": {"pp": 2, "sharding": "full"},
    "cp 2, pp 2, documents": {"cp": 2, "pp": 2, "data": {"max_documents": 3}},
    "dp 2, recompute": {"dp": 2, "recompute": "full"},
    "cp 2, packed": {"cp": 2, "data": {"packing": True}},
    "sinks, cp 2": {"cp": 2, "model": {"attention_sinks": True}},
    "prompts seen whole instead, cp 2": {
        "cp": 2, "model": {"sliding_window": None, "bidirectional_prompts": True},
    },
    "three axes, one window": {
        "cp": 2,
        "model": {"sliding_window": None, "head_dim": 12, "mrope": [2, 2, 2]},
    },
}  # fmt: skip
PAIRS: Layouts = {
    **BEHIND_VISION,
    "whole heads, cp 2": {"cp": 2, "model": {"rotary_factor": 1.0, "mrope": [2, 2, 2]}},
    "one axis, tp 2": {"tp": 2, "model": {**ONE_AXIS, "post_norms": True}},
    "capped scores, cp 2": {"cp": 2, "model": {**ONE_AXIS, "attention_softcap": 50.0}},
}  # fmt: skip
SINKS: Layouts = {
    **BEHIND_VISION,
    "experts over ep": {"dp": 2, **EXPERTS},
    "experts split, tp 2": {"tp": 2, **EXPERTS, "experts": {"tp": 2}},
    "experts split, tp 2, sequence parallel": {
        "tp": 2, "dp": 2, "sequence_parallel": True, **EXPERTS, "experts": {"tp": 2, "ep": 2},
    },
}  # fmt: skip  # fmt: skip
LATENT: Layouts = {
    "one rank": {},
    "tp 2": {"tp": 2},
    "tp 4, sequence parallel": {"tp": 4, "sequence_parallel": True},
    "cp 4, packed": {"cp": 4, "data": {"packing": True}},
    "pp 2, full sharding": {"pp": 2, "sharding": "full"},
    "dp 2, recompute": {"dp": 2, "recompute": "full"},
    "tp 2, cp 2, sequence parallel, documents": {
        "tp": 2, "cp": 2, "sequence_parallel": True, "data": {"max_documents": 3},
    },
    "queries of the stream, tp 2": {"tp": 2, "model": {"mla": {**MLA, "q_rank": None}}},
    "values smaller than keys, cp 4": {"cp": 4},
    "windows, values as large as keys": {
        "cp": 2,
        "model": {
            "mla": {**MLA, "v_head_dim": 10, "interleaved": False}, "attention_sinks": True,
            "sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0},
        },
    },
    "experts over ep": {"dp": 2, **LATENT_EXPERTS},
    "experts, tp 2, pp 2": {"tp": 2, "pp": 2, "sequence_parallel": True, **LATENT_EXPERTS},
}  # fmt: skip  # fmt: skip
GROWTH: Layouts = {
    **BEHIND_VISION,
    "windows, cp 2": {"cp": 2, "model": {"sliding_window": {"size": 5, "full": [1]}}},
    "windows with their own base": {
        "model": {"sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0}},
    },
    "neighbours rotate, documents": {
        "model": {"rotary_interleaved": True, "rotary_factor": 1.0}, "data": {"max_documents": 3},
    },
    "three axes, cp 2, documents": {
        "cp": 2, "model": {"mrope": [1, 1, 1], "rope_scaling": None}, "data": {"max_documents": 3},
    },
    "capped, sinks": {"model": {"attention_softcap": 5.0, "attention_sinks": True}},
    "latent attention, tp 2": {
        "tp": 2,
        "model": {
            "kv_heads": 4, "head_dim": 10, "rotary_factor": 1.0,
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
        },
    },
    "further tokens, cp 2": {"cp": 2, "model": {"mtp": {"depth": 1}}},
}  # fmt: skip  # fmt: skip
NOPE: Layouts = {
    **BEHIND_VISION,
    "experts": {
        "dp": 2, "experts": {"ep": 2},
        "model": {"moe": {"experts": 4, "top_k": 2, "width": 32, "every": 2}},
    },
    "further tokens, cp 2": {"cp": 2, "model": {"mtp": {"depth": 1}}},
    "further tokens that rotate": {
        "model": {
            "mtp": {"depth": 1}, "nope": {"layers": [0]},
            "sliding_window": {"size": 5, "chunked": True, "full": [0]},
        },
    },
    # As in a SmolLM3 with windows, which are in its layers without rotary positions.
    "both in windows, cp 2, documents": {
        "cp": 2, "data": {"max_documents": 3},
        "model": {"sliding_window": {"size": 4, "full": [0, 2], "rope_theta": 20.0}},
    },
    # Biases of keys change nothing then.
    "biases where nothing rotates, tp 2": {
        "tp": 2,
        "model": {"qkv_bias": True, "nope": {"layers": [0, 1, 2, 3]}, "sliding_window": None},
    },
    "growth of the model, tp 2": {
        "tp": 2,
        "model": {"query_scaling": {"beta": 0.3, "length": 2}, "nope": {"layers": [0, 3]}},
    },
    "images seen whole, cp 2": {"cp": 2, "model": {"bidirectional_images": True}},
    "three axes, capped, sinks": {
        "model": {"mrope": [2, 2, 2], "attention_softcap": 5.0, "attention_sinks": True},
    },
    "norms and gates, sequence parallel": {
        "tp": 2, "sequence_parallel": True, "model": {"qk_norm": True, "gated_attention": True},
    },
    "latent attention, tp 2": {
        "tp": 2,
        "model": {
            "kv_heads": 4, "head_dim": 10,
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
        },
    },
}  # fmt: skip
NORMS: Layouts = {
    **BEHIND_VISION,
    "experts, tp 2": {
        "tp": 2, "experts": {"ep": 2}, "sequence_parallel": True,
        "model": {"moe": {"experts": 4, "top_k": 2, "width": 32, "every": 2}},
    },
    "before and after, 1 + weight, tp 4": {
        "tp": 4, "model": {"pre_norms": True, "norm_offset": True},
    },
    "further tokens, tied, tp 2": {"tp": 2, "model": {"mtp": {"depth": 1}, "tied": True}},
    "norms of rotated heads, tp 4": {
        "tp": 4, "model": {"wide_qk_norm": False, "rotated_qk_norm": True},
    },
    "norms of rotated heads, neighbours, cp 2": {
        "cp": 2,
        "model": {"wide_qk_norm": False, "rotated_qk_norm": True, "rotary_interleaved": True},
    },
    "norms of rotated heads, packed, cp 2": {
        "cp": 2, "data": {"packing": True},
        "model": {"wide_qk_norm": False, "rotated_qk_norm": True, "mtp": {"depth": 1}},
    },
    "norms of rotated heads, documents, tp 2": {
        "tp": 2, "data": {"max_documents": 3},
        "model": {"wide_qk_norm": False, "rotated_qk_norm": True},
    },
    "gates, capped, cp 2": {
        "cp": 2, "model": {"gated_attention": True, "logit_softcap": 3.0},
    },
}  # fmt: skip
BESIDE: Layouts = {
    **BEHIND_VISION,
    "parts computed again, sequence parallel": {
        "tp": 2, "sequence_parallel": True, "recompute": ["attention"],
    },
    "norms computed again, experts": {
        "dp": 2, "experts": {"ep": 2}, "recompute": ["norms", "mlp"],
        "model": {"moe": {"experts": 4, "top_k": 2, "width": 32, "every": 2}},
    },
    "biases of norms, after layers too, tp 4": {
        "tp": 4, "model": {"norm": "layer", "post_norms": True, "qk_norm": True},
    },
    "further tokens, tp 2": {"tp": 2, "model": {"mtp": {"depth": 1}}},
    "one after the other, pp 2": {"pp": 2, "model": {"norm": "layer", "parallel": False}},
    "without a gate, tp 2": {"tp": 2, "model": {"activation": "squared_relu"}},
    "xIELU, sequence parallel, tp 2, pp 2": {
        "tp": 2, "pp": 2, "sequence_parallel": True, "model": {"activation": "xielu"},
    },
    "xIELU, further tokens, cp 2, full sharding": {
        "dp": 2, "cp": 2, "sharding": "full", "recompute": ["mlp"],
        "model": {"activation": "xielu", "mtp": {"depth": 1}},
    },
}  # fmt: skip
UNIT: Layouts = {
    **BEHIND_VISION,
    "experts over ep, dp 2": {"dp": 2, "experts": {"ep": 2}},
    "experts split, tp 2, sequence parallel": {
        "tp": 2, "sequence_parallel": True, "experts": {"tp": 2}, "recompute": ["mlp"],
    },
}  # fmt: skip
CLIPPED: Layouts = {
    **BEHIND_VISION,
    "norms of heads, gates, tp 4": {
        "tp": 4, "model": {"wide_qk_norm": False, "gated_attention": True},
    },
    "norms of rotated heads, cp 2": {
        "cp": 2, "model": {"wide_qk_norm": False, "rotated_qk_norm": True},
    },
    "layers without positions, recompute": {
        "recompute": ["attention"], "model": {"qk_norm": False, "nope": {"layers": [0, 1]}},
    },
}  # fmt: skip
TWO_HEADS: Layouts = {
    **BEHIND_VISION,
    "clipped, gates, recompute": {
        "tp": 2, "recompute": ["attention"], "model": {"clip_qkv": 0.5, "gated_attention": True},
    },
    "no norms, biases, tp 4": {
        "tp": 4,
        "model": {
            "qk_norm": False, "value_norm": False, "qkv_bias": True, "rope_scaling": None,
            "sliding_window": {"size": 5, "full": [0, 2], "head_dim": 8},
        },
    },
    "a part rotates, experts over ep": {
        "dp": 2, "experts": {"ep": 2},
        "model": {
            "rotary_factor": 0.5, "rope_scaling": None,
            "moe": {"experts": 4, "top_k": 2, "width": 32, "every": 2},
        },
    },
}  # fmt: skip
SEPARATE: Layouts = {
    **BEHIND_VISION,
    "experts over ep, dp 2": {"dp": 2, "experts": {"ep": 2}},
    "full sharding, experts over ep": {"dp": 2, "sharding": "full", "experts": {"ep": 2}},
    "experts split, tp 2, sequence parallel": {
        "tp": 2, "sequence_parallel": True, "experts": {"tp": 2}, "recompute": ["norms"],
    },
    "experts computed again, tp 2": {"tp": 2, "experts": {"ep": 2}, "recompute": ["mlp"]},
    "in parallel, 1 + weight, tp 2": {
        "tp": 2, "model": {"parallel": True, "post_norms": False, "norm_offset": True},
    },
    "LayerNorms, no norm of the layer, cp 2": {
        "cp": 2, "model": {"norm": "layer", "pre_norms": False},
    },
    "every second layer, gates, biases, dp 2": {
        "dp": 2,
        "model": {
            "moe": {
                **GEMMA4_EXPERTS["moe"], "every": 2, "shared_gate": True, "bias": True,
                "scale_inputs": True, "bias_update_rate": 0.01,
            },
        },
    },
    # There is nothing that has norms of its own.
    "no shared expert, dp 2, full sharding": {
        "dp": 2, "sharding": "full", "model": {"moe": GEMMA4_EXPERTS["moe"] | {"shared": 0}},
    },
    "further tokens, tied, pp 2": {"pp": 2, "model": {"mtp": {"depth": 1}, "tied": True}},
}  # fmt: skip
PARTS_OF_LANGUAGE: Layouts = {
    "experts over ep, dp 2": {
        "dp": 2, "experts": {"ep": 2},
        "model": {"moe": {"experts": 4, "top_k": 2, "width": 32, "every": 2}},
    },
    "an adapter, dp 2": {
        "dp": 2,
        "adapter": {"kind": "lora", "rank": 2, "targets": ["q", "k", "v", "o"]},
    },
    "first layers frozen, tp 2": {"tp": 2, "frozen": {"layers": "0-1"}},
}  # fmt: skip
SHARED: Layouts = {
    **{name: layout for name, layout in BEHIND_VISION.items() if layout.get("pp", 1) == 1},
    "one rank": {},
    "pp 2": {"pp": 2, "stages": [1, 4], "model": {"layers": 5, "sliding_window": {
        "size": 5, "full": [2, 4], "rope_theta": 20.0, "head_dim": 8, "kv_heads": 4,
    }}},
    "pp 2, tp 2, full sharding, recompute": {
        "pp": 2, "tp": 2, "stages": [1, 4], "sharding": "full", "recompute": "full",
        "sequence_parallel": True, "model": {"layers": 5, "sliding_window": None},
    },
    "full sharding, dp 2": {"dp": 2, "sharding": "full"},
    "attention computed again, tp 2, cp 2": {
        "tp": 2, "cp": 2, "recompute": ["attention"], "sequence_parallel": True,
    },
    "norms computed again, one width, packed": {
        "recompute": ["norms"], "model": {"shared_keys": {"layers": 1}, "sliding_window": None},
        "data": {"packing": True},
    },
    "offloaded, dp 2": {"dp": 2, "offload": ["activations"]},
    "norms of all heads, clipped, gates, tp 4": {
        "tp": 4,
        "model": {
            "wide_qk_norm": True, "clip_qkv": 0.5, "gated_attention": True, "sliding_window": None,
            "qkv_bias": True, "value_norm": False,
            # Without effect beside the other norm.
            "l2_qk_norm": True,
        },
    },
    "no norms, images seen whole, cp 2": {
        "cp": 2,
        "model": {"qk_norm": False, "value_norm": False, "bidirectional_images": "in_windows"},
    },
    "sinks, capped, values from keys": {
        "model": {"attention_sinks": True, "attention_softcap": 5.0, "values_from_keys": True},
    },
    "further tokens, tied, tp 2": {"tp": 2, "model": {"mtp": {"depth": 1}, "tied": True}},
    **PARTS_OF_LANGUAGE,
}  # fmt: skip
VECTORS: Layouts = {
    **{name: layout for name, layout in BEHIND_VISION.items() if layout.get("pp", 1) == 1},
    "one rank": {},
    "tp 2, padded vocabulary": {"tp": 2, "model": {"vocab_multiple": 16}},
    "full sharding, dp 2": {"dp": 2, "sharding": "full"},
    "attention computed again, tp 2, cp 2": {
        "tp": 2, "cp": 2, "recompute": ["attention"], "sequence_parallel": True,
    },
    "all computed again, full sharding, tp 2": {
        "tp": 2, "dp": 2, "recompute": "full", "sharding": "full", "sequence_parallel": True,
    },
    "MLPs and norms computed again, packed": {
        "recompute": ["mlp", "norms"], "data": {"packing": True},
    },
    "offloaded, dp 2": {"dp": 2, "offload": ["activations"]},
    "tied, further tokens, tp 2": {"tp": 2, "model": {"mtp": {"depth": 1}, "tied": True}},
    "LayerNorm, parallel, tp 2": {
        "tp": 2, "model": {"norm": "layer", "parallel": True, "layer_scalar": None},
    },
    "clamped gates, cp 2": {"cp": 2, "model": {"activation": "clamped_silu"}},
    "squares, no norms before": {
        "model": {"activation": "squared_relu", "pre_norms": False, "norm_offset": True},
    },
    "keys of earlier layers, tp 2": {
        "tp": 2, "sequence_parallel": True, "model": {"shared_keys": {"layers": 2, "mlp": 64}},
    },
    **PARTS_OF_LANGUAGE,
}  # fmt: skip
VARIANTS: dict[str, tuple[Callable[..., Any], Layouts, set[str], Callable[[], object] | None]] = {
    "caps": (capped, CAPS, {DOCUMENTS}, None),
    # Scores of so few queries at once that every chunk of a sequence has several blocks.
    "caps in blocks": (capped, CAPS, {"cp 4, packed"}, in_small_blocks),
    "windows": (sliding, SLIDING, {DOCUMENTS, "experts"}, None),
    "images seen whole": (
        seen_whole,
        WHOLE_IMAGES,
        {"cp 2, pp 2, documents", "prompts seen whole instead, cp 2"},
        None,
    ),
    "neighbours": (paired, PAIRS, {"capped scores, cp 2"}, None),
    "sinks": (sunk, SINKS, {DOCUMENTS, "experts split, tp 2"}, None),
    # With a loop for the kernel, from which the backward makes the weights anew.
    "sinks over lists": (sunk, SINKS, {"cp 4, packed"}, by_lists),
    "latent": (
        latent,
        LATENT,
        {
            "tp 2, cp 2, sequence parallel, documents",
            "experts, tp 2, pp 2",
            "values smaller than keys, cp 4",
        },
        None,
    ),
    # Values are smaller than keys, and filled up with zeros.
    "latent over lists": (
        latent,
        {"cp 2": {"cp": 2, "data": {"packing": True}, "model": {"attention_sinks": True}}},
        set(),
        by_lists,
    ),
    "layers without positions": (
        unturned,
        NOPE,
        {
            DOCUMENTS,
            "further tokens, cp 2",
            "biases where nothing rotates, tp 2",
            "both in windows, cp 2, documents",
        },
        None,
    ),
    "chunks over lists": (
        unturned,
        {"cp 4, packed": NOPE["cp 4, packed"]},
        {"cp 4, packed"},
        by_lists,
    ),
    "norms after layers": (
        normed_after,
        NORMS,
        {
            "tp 4, heads shared",
            DOCUMENTS,
            "experts, tp 2",
            "norms of rotated heads, packed, cp 2",
            "norms of rotated heads, documents, tp 2",
        },
        None,
    ),
    "layers beside each other": (
        beside,
        BESIDE,
        {
            DOCUMENTS,
            "biases of norms, after layers too, tp 4",
            "xIELU, sequence parallel, tp 2, pp 2",
        },
        None,
    ),
    "heads of one length": (
        of_unit_heads,
        UNIT,
        {DOCUMENTS, "experts over ep, dp 2"},
        None,
    ),
    "clipped": (clipped, CLIPPED, {DOCUMENTS, "norms of heads, gates, tp 4"}, None),
    "heads of two sizes": (
        of_two_heads,
        TWO_HEADS,
        {
            DOCUMENTS,
            "cp 4, packed",
            "clipped, gates, recompute",
            "no norms, biases, tp 4",
            "a part rotates, experts over ep",
        },
        None,
    ),
    "experts with norms of their own": (
        of_experts,
        SEPARATE,
        {
            DOCUMENTS,
            "experts split, tp 2, sequence parallel",
            "experts computed again, tp 2",
            "every second layer, gates, biases, dp 2",
            "no shared expert, dp 2, full sharding",
        },
        None,
    ),
    "keys of earlier layers": (
        sharing,
        SHARED,
        {
            "tp 2, cp 2, documents",
            "pp 2",
            "full sharding, dp 2",
            "attention computed again, tp 2, cp 2",
            "norms of all heads, clipped, gates, tp 4",
        },
        None,
    ),
    "per-layer embeddings": (
        with_vectors,
        VECTORS,
        {
            "tp 2, cp 2, documents",
            "all computed again, full sharding, tp 2",
            "MLPs and norms computed again, packed",
            "keys of earlier layers, tp 2",
            "first layers frozen, tp 2",
        },
        None,
    ),
    "per-layer embeddings beside sound": (
        beside_sound,
        {"one rank": {}, "tp 2": {"tp": 2}, "cp 2": {"cp": 2}},
        {"tp 2"},
        None,
    ),
    "growing queries": (grown, GROWTH, {DOCUMENTS, "windows with their own base"}, None),
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=() if layout in often else pytest.mark.sweep)
        for name, (_, layouts, often, _) in VARIANTS.items()
        for layout in layouts
    ],
)
def test_gradients_are_those_of_one_rank(name: str, layout: str) -> None:
    made, layouts, _, prepare = VARIANTS[name]
    assert failures(verdicts(made(**layouts[layout]), prepare=prepare)) == []


def test_layers_without_positions_go_on_on_another_layout(tmp_path: Path) -> None:
    """The last steps are those of a run on one rank."""

    def saving(layout: str, steps: int) -> Spec:
        keys = ("nope", "sliding_window", "rope_theta")
        model = LANGUAGE | {key: NOPE_MODEL[key] for key in keys}
        return make_spec(layout, steps, modules={("language", "model"): model})

    alone = numbers(run(saving("one rank", 5), tmp_path / "alone"))
    run(saving("cp2 tp2 sp", 3), tmp_path / "run")
    went_on = numbers(run(saving("pp2", 5), tmp_path / "run"))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(alone[step], rel=1e-9)


def test_chunks_and_layers_without_positions_are_those_of_llama_4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its attention alone: without norms of heads, whose experts no decoder here has."""
    from transformers import Llama4TextConfig
    from transformers.masking_utils import create_causal_mask, create_chunked_causal_mask
    from transformers.models.llama4.modeling_llama4 import Llama4TextAttention

    settings = {
        "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
        "num_hidden_layers": 2, "no_rope_layers": [1, 0], "use_qk_norm": False,
        "attention_chunk_size": 5, "floor_scale": 3, "attn_scale": 0.5,
    }  # fmt: skip
    config = Llama4TextConfig(**settings, attn_implementation="eager")
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    model = DecoderModel(
        kind="decoder", layers=2, hidden=32, heads=4, kv_heads=2, head_dim=12, vocab=9,
        rotary_interleaved=True, sliding_window=SlidingWindow(size=5, chunked=True, full=(1,)),
        nope=Nope(
            layers=(1,), query_scaling=QueryScaling(beta=0.5, length=3, first_position=1)
        ),
    )  # fmt: skip
    x = torch.randn(1, 17, 32, dtype=torch.float64)
    angle = text_angles(range(17), frequencies(12, 500.0))
    text = RecordText(torch.zeros(17), torch.ones(17, dtype=torch.bool), Load(), angles=angle)
    for layer, mask in enumerate((create_chunked_causal_mask, create_causal_mask)):
        theirs = Llama4TextAttention(config, layer).double()
        allowed = mask(config, inputs_embeds=x, attention_mask=None, cache=None)
        turn = torch.polar(torch.ones_like(angle), angle)[None]
        wanted, _ = theirs(x, turn, allowed)
        weights = Weights(made({"language": box()}))
        for name, each in theirs.named_parameters():
            weights[f"language.{name.replace('_proj', '')}"] = each
        found = attention(weights, x[0], "language", model, text, layer)
        torch.testing.assert_close(found, wanted[0], rtol=1e-12, atol=1e-12)


def test_clamped_gates_are_those_of_transformers() -> None:
    """On both sides of every bound; gradients, too."""
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    class Theirs:
        alpha, limit = 1.702, 7.0

    x = (torch.randn(64, 16, dtype=torch.float64) * 8).requires_grad_()
    pairs = x.unflatten(1, (2, 8)).transpose(1, 2).flatten(1)
    grad = torch.randn(64, 8, dtype=torch.float64)
    outs = clamped_swiglu(x), GptOssExperts._apply_gate(Theirs(), pairs)
    results = [(out, *torch.autograd.grad(out, x, grad, retain_graph=True)) for out in outs]
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert (x.abs() > 7).any()


@pytest.mark.sweep
@pytest.mark.parametrize("layout", ["one rank", "cp2", "tp2"])
def test_logits_of_long_sequences_are_those_of_transformers(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2,560 tokens: their scores exist in several blocks, without a smaller bound of them.

    In float64, because angles of late tokens in float32 have fewer digits.
    """
    family = FAMILIES["gemma2"]
    model = family.tiny(dtype=torch.float64, sliding_window=700)
    family.saved(model, tmp_path / "model")
    window = {"sliding_window": {"size": 700, "full": [1]}}
    asked = family.made(layout, tmp_path / "model", "fp64", model=window)
    asked = asked.model_copy(update={"batch": asked.batch.model_copy(update={"seq": 2560})})
    assert queries_at_once(2, 2560) < 2560 // 2
    found = found_logits(asked, tmp_path)
    family.widen(model, monkeypatch)
    assert deviation(found, family.wanted(model, asked)) < 1e-9
