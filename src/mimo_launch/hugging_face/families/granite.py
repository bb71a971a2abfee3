"""Granite and HyperCLOVA X: a Llama with factors on embeddings, scores, layers and logits.

Source: `transformers` 5.24, models/granite, models/granitemoe, models/granitemoeshared and
models/hyperclovax.
"""

from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import LAYERS
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import one_of, refusals
from mimo_launch.hugging_face.settings import Computed, Settings, also
from mimo_launch.hugging_face.tensors import MLP, ExpertStack, fused, in_layers

_BLOCK = decoders.sizes()
_BIAS = "attention_bias"
_SCORES, _LOGITS = "attention_multiplier", "logits_scaling"


def factor(ours: str, key: str) -> dict[str, Computed]:
    """Return the entry of a factor that is none if it is 1."""
    return {
        ours: Computed(
            lambda config: None if (found := number(config, key, 1.0)) == 1 else found,
            lambda model: {key: getattr(model, ours) or 1.0},
            f"`{key}`, unless it is 1",
        )
    }


def _scalar(config: Config) -> float | None:
    """Return the number whose square root divides scores."""
    factor = number(config, _SCORES)
    head = decoders.head_size_of(_BLOCK, config)
    return None if factor == head**-0.5 else factor**-2


def _logit_scale(config: Config) -> float | None:
    by = number(config, _LOGITS, 1.0)
    return None if by == 1 else 1 / by


def _scores(model: Any) -> Config:
    return {_SCORES: (model.query_pre_attn_scalar or model.head_size) ** -0.5}


_PARTS: dict[str, Any] = {
    "qkv_bias": (_BIAS, False),
    "output_bias": also(_BIAS, False),
    **factor("residual_scale", "residual_multiplier"),
    **factor("embedding_scale", "embedding_multiplier"),
    "query_pre_attn_scalar": Computed(_scalar, _scores, f"`{_SCORES}` to the power of -2"),
}
GRANITE = Family(
    model_type="granite",
    kind="decoder",
    architecture="GraniteForCausalLM",
    published=("ibm-granite/granite-3.3-8b-instruct", "ibm-granite/granite-4.0-1b-base"),
    settings=decoders.decoder(
        _BLOCK,
        **_PARTS,
        logit_scale=Computed(
            _logit_scale,
            lambda model: {_LOGITS: 1 / (model.logit_scale or 1.0)},
            f"1 / `{_LOGITS}`, unless it is 1",
        ),
    ),
    tensors=decoders.TENSORS,
    refused=decoders.not_computed(but=(_BIAS,))
    + refusals(one_of(_BIAS, (True, False), False)),
    defaults={
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, _SCORES: 1.0,
    },
    rank=1,
    notes="A Llama with factors.",
)  # fmt: skip
_EXPERTS: dict[str, Any] = {
    "experts": decoders.count(8), "top_k": ("num_experts_per_tok", 2),
    "width": "intermediate_size",
}  # fmt: skip
_BEFORE, _STACKS = "block_sparse_moe", ("input_linear.weight", "output_linear.weight")
_SHARED = "shared_mlp."


def _stacked(layer: str, router: str, **names: Any) -> dict[str, Any]:
    """Return the places of experts, in stacks of a layer of the files or of a loaded model."""
    stacks = {f"mlp.experts.*.{x}.weight": ExpertStack(layer, x, **names) for x in MLP}
    return {"mlp.router.weight": f"{_BEFORE}.{router}", **stacks}


GRANITEMOE = replace(
    GRANITE,
    model_type="granitemoe",
    architecture="GraniteMoeForCausalLM",
    published=("ibm-granite/granite-3.1-3b-a800m-instruct",),
    settings=GRANITE.settings.but({"mlp": None, "moe": decoders.experts(_EXPERTS)}),
    tensors=decoders.TENSORS
    | in_layers(LAYERS, _stacked(_BEFORE, "router.layer.weight", names=_STACKS)),
    loaded=decoders.TENSORS | in_layers(LAYERS, _stacked(f"{_BEFORE}.experts", "router.weight")),
    training=Settings(decoders.BALANCE),
    rank=2,
    notes="A Granite with experts; `mlp` has no effect, and may have any value.",
)
_BESIDE: dict[str, Any] = {
    **fused(
        f"{_SHARED}input_linear.weight",
        ("mlp.shared.gate.weight", "mlp.shared.up.weight"),
        lambda model: [model.moe.shared] * 2,
    ),
    "mlp.shared.down.weight": f"{_SHARED}output_linear.weight",
}
GRANITEMOESHARED = replace(
    GRANITEMOE,
    model_type="granitemoeshared",
    architecture="GraniteMoeSharedForCausalLM",
    published=("ibm-research/moe-7b-1b-active-shared-experts",),
    settings=GRANITE.settings.but(
        {
            "mlp": None,
            "moe": decoders.experts({**_EXPERTS, "shared": ("shared_intermediate_size", 0)}),
        }
    ),
    tensors=GRANITEMOE.tensors | in_layers(LAYERS, _BESIDE),
    loaded=GRANITEMOE.loaded and GRANITEMOE.loaded | in_layers(LAYERS, _BESIDE),
    rank=3,
    notes="A Granite with experts, and a shared one that sees all tokens.",
)
_POST_NORMS = "use_post_norm"


def _clova(config: Config) -> Config:
    """Return a configuration with the usual factor on scores, if it has none."""
    head = decoders.head_size_of(_BLOCK, config)
    return config if config.get(_SCORES) is not None else {**config, _SCORES: head**-0.5}


HYPERCLOVAX = replace(
    GRANITE,
    model_type="hyperclovax",
    architecture="HyperCLOVAXForCausalLM",
    published=("naver-hyperclovax/HyperCLOVAX-SEED-Think-14B",),
    settings=decoders.decoder(
        _BLOCK,
        **_PARTS,
        post_norms=(_POST_NORMS, True),
        # It multiplies, unlike that of a Granite.
        **factor("logit_scale", _LOGITS),
    ),
    tensors=decoders.TENSORS
    | in_layers(LAYERS, {"post_attention_norm": "post_norm1", "post_mlp_norm": "post_norm2"}),
    defaults={key: each for key, each in GRANITE.defaults.items() if key != _SCORES},
    prepared=_clova,
    rank=2,
    notes="A Granite with norms also after attention and MLP. `logits_scaling` multiplies.",
)
