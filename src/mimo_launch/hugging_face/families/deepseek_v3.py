"""DeepSeek-V3: latent attention, experts in groups, a shared expert; also Kimi-K2, GLM-4.7-Flash.

Weights in FP8, the form of the published folders, are read by `quantized`. `transformers` has no
Kimi-K2: Python code in its folders, which is neither read nor copied, computes it.

Sources: `transformers` 5.23, models/deepseek_v3; 5.24, models/youtu and models/glm4_moe_lite;
arXiv:2412.19437; the published folders of Kimi-K2; arXiv:2507.20534.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import LAYERS
from mimo_launch.hugging_face.family import DepthsAfterLayers, Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import only, refusals, where
from mimo_launch.hugging_face.settings import Computed, InnerSettings, Settings
from mimo_launch.hugging_face.tensors import Place, in_layers
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.layers import Mla
from mimo_launch.spec.spec import RopeScaling

_HEADS, _KV_HEADS, _Q_RANK = "num_attention_heads", "num_key_value_heads", "q_lora_rank"
_STILL, TURNING = "qk_nope_head_dim", "qk_rope_head_dim"
_DEFAULTS: Config = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, _HEADS: 128,
    "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512, TURNING: 64, "v_head_dim": 128, _STILL: 128,
    "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
}  # fmt: skip
DEPTHS = DepthsAfterLayers(
    {
        "token_norm.weight": "enorm.weight",
        "hidden_norm.weight": "hnorm.weight",
        "project.weight": "eh_proj.weight",
        "norm.weight": "shared_head.norm.weight",
    }
)
WRITTEN_DEPTHS = {DEPTHS.key: lambda model: kind_of(model).depths}


def with_defaults(defaults: Config) -> Callable[[Config], Config]:
    """Return what adds defaults; null means a default, except for the narrow width of queries."""
    return lambda config: (
        defaults | {key: x for key, x in config.items() if x is not None or key == _Q_RANK}
    )


def _q_rank(config: Config) -> float | None:
    """Return the narrow width of queries; null means none."""
    return None if config.get(_Q_RANK, 0) is None else number(config, _Q_RANK, 1536)


def head_dim_of(config: Config) -> float:
    """Return the size of a query head. Raises: ConfigError."""
    return number(config, _STILL) + number(config, TURNING)


def _scalar(config: Config) -> float | None:
    scaling = rotary.scaling_of(config)
    if scaling is None or not scaling["mscale_all_dim"]:
        return None
    # Scores also grow with the factor that scales all numbers of a head.
    stretch: float = RopeScaling(**scaling).stretch_by(scaling["mscale_all_dim"])
    return head_dim_of(config) / stretch**4


def _still(model: Any) -> Config:
    turning = Mla(kv_rank=1) if model.mla is None else model.mla
    return {_STILL: model.head_size - turning.rope_head_dim}


def _query(model: Any, _layer: int) -> Place:
    """`self_attn.q_b_proj.weight`, or `q_proj` without `q_rank`."""
    is_narrow = model.mla is not None and model.mla.q_rank is not None
    return Place(f"self_attn.{'q_b_proj' if is_narrow else 'q_proj'}.weight")


_MLA = Settings(
    {
        "kv_rank": "kv_lora_rank",
        "q_rank": Computed(_q_rank, lambda mla: {_Q_RANK: mla.q_rank}, f"`{_Q_RANK}`; 1536"),
        "rope_head_dim": TURNING,
        "v_head_dim": "v_head_dim",
        "interleaved": ("rope_interleave", True),
    },
    rest={"norm_eps": Mla.model_fields["norm_eps"].default},
)
LATENT = in_layers(
    f"{LAYERS}self_attn.",
    {
        "q_down.weight": "q_a_proj.weight",
        "q_norm.weight": "q_a_layernorm.weight",
        "kv_down.weight": "kv_a_proj_with_mqa.weight",
        "kv_norm.weight": "kv_a_layernorm.weight",
        "kv_up.weight": "kv_b_proj.weight",
    },
    "layers.*.attention.latent.",
) | in_layers(LAYERS, {"attention.latent.q_up.weight": _query})
DEEPSEEK_V3 = Family(
    model_type="deepseek_v3",
    kind="decoder",
    architecture="DeepseekV3ForCausalLM",
    published=("deepseek-ai/DeepSeek-V3",),
    settings=decoders.decoder(
        decoders.sizes()
        | {
            "kv_heads": Computed(
                lambda config: number(config, _HEADS),
                lambda model: {_KV_HEADS: model.heads},
                f"`{_HEADS}`",
            ),
            "head_dim": Computed(head_dim_of, _still, f"`{_STILL}` + `{TURNING}`"),
        },
        mla=InnerSettings(_MLA),
        query_pre_attn_scalar=Computed(
            _scalar, words="`head_dim` / (0.1 `mscale_all_dim` ln(`factor`) + 1)^4"
        ),
        moe=decoders.GROUPED,
    ).but({}, WRITTEN_DEPTHS),
    tensors=decoders.GROUPED_TENSORS | LATENT,
    depths=DEPTHS,
    aliases=decoders.ROUTED_ALIAS,
    defaults=_DEFAULTS,
    prepared=with_defaults(_DEFAULTS),
    refused=decoders.not_computed()
    + refusals(
        where(
            _KV_HEADS,
            f"other than `{_HEADS}`",
            lambda config: config.get(_KV_HEADS) not in (None, number(config, _HEADS)),
        )
    ),
    notes="`norm_eps` of `mla` is 1e-6, whatever `rms_norm_eps` is. Without `q_rank` queries come "
    "from the stream, and `q_up` is `q_proj`. With `mtp` in `model`, the layers after "
    "`num_hidden_layers`, which [predict further tokens](further-tokens.md#folders), are read and "
    "written, too.",
)  # fmt: skip


def _rope(model: Any) -> Config:
    """Return rotary settings as transformers 4 wrote them, which 5 reads as well."""
    scaling = rotary.rope_of(model)
    theta, kind = scaling.pop("rope_theta"), scaling.pop("rope_type")
    scaled = None if kind == "default" else {"type": kind, **scaling}
    return {"rope_theta": theta, "rope_scaling": scaled}


KIMI_K2 = replace(
    DEEPSEEK_V3,
    model_type="kimi_k2",
    published=("moonshotai/Kimi-K2-Instruct",),
    settings=DEEPSEEK_V3.settings.but({"rope_theta": Computed(rotary.theta_of, _rope)}),
    refused=DEEPSEEK_V3.refused
    + refusals(
        only("scoring_func", "sigmoid"),
        only("topk_method", "noaux_tc"),
        only("moe_layer_freq", 1),
        # That code rotates numbers in pairs, whatever the setting.
        only("rope_interleave", True),
    ),
    rank=1,
    notes="A DeepSeek-V3 under another name, computed by Python code in the folder, which is not "
    "read here; copy it, and `tiktoken.model`, next to an export. A model that did not start from "
    "a folder of Kimi-K2 is written as a DeepSeek-V3. The tokenizer, Python code as well, is not "
    "read: [shards](data.md) need a `tokenizer.json`.",
)
_YOUTU: Config = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 32, _HEADS: 16, "kv_lora_rank": 512, TURNING: 64, "v_head_dim": 128,
    _STILL: 128, "tie_word_embeddings": True,
}  # fmt: skip
_SARVAM: Config = _DEFAULTS | {
    "vocab_size": 262144, "hidden_size": 4096, "intermediate_size": 16384,
    "num_hidden_layers": 32, _HEADS: 64, "n_routed_experts": 128, _Q_RANK: None, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
SARVAM_MLA = replace(
    DEEPSEEK_V3,
    model_type="sarvam_mla",
    architecture="DeepseekV3ForCausalLM",
    published=(),
    aliases=decoders.SARVAM_ALIASES,
    defaults=_SARVAM,
    prepared=with_defaults(_SARVAM),
    rank=2,
    notes="A DeepSeek-V3 with queries of whole width.",
)
YOUTU = replace(
    DEEPSEEK_V3,
    model_type="youtu",
    architecture="YoutuForCausalLM",
    published=("tencent/Youtu-LLM-2B",),
    settings=replace(DEEPSEEK_V3.settings.but({"moe": None}), written={}),
    tensors=decoders.TENSORS | LATENT,
    depths=None,
    defaults=_YOUTU,
    prepared=with_defaults(_YOUTU),
    rank=2,
    notes="A DeepSeek-V3 without experts.",
)
_LITE: Config = {
    "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
    "moe_intermediate_size": 1536, "num_hidden_layers": 47, _HEADS: 20, "n_shared_experts": 1,
    "n_routed_experts": 64, "routed_scaling_factor": 1.8, "kv_lora_rank": 512, _Q_RANK: 768,
    TURNING: 64, "v_head_dim": 256, _STILL: 192, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 4, "rms_norm_eps": 1e-5,
}  # fmt: skip


GLM4_MOE_LITE = replace(
    DEEPSEEK_V3,
    model_type="glm4_moe_lite",
    architecture="Glm4MoeLiteForCausalLM",
    published=("zai-org/GLM-4.7-Flash",),
    settings=DEEPSEEK_V3.settings.but(decoders.DENSE_LIST),
    refused=DEEPSEEK_V3.refused + refusals(decoders.DENSE_LATER),
    aliases={**decoders.ROUTED_ALIAS, "head_dim": TURNING},
    defaults=_LITE,
    prepared=lambda config: decoders.with_dense_first(with_defaults(_LITE)(config), 1),
    rank=2,
    notes="A DeepSeek-V3 with another list of layers. With `mtp` in `model`, the layers that "
    "[predict further tokens](further-tokens.md#folders) are read and written, too.",
)  # fmt: skip
