"""Hunyuan: a Llama in which norms of heads follow the rotation, and a factor stretches its base.

Source: `transformers` 5.24, models/hunyuan_v1_dense.
"""

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, ConfigError, number
from mimo_launch.hugging_face.refusals import one_of, refusals
from mimo_launch.hugging_face.rotary import DYNAMIC, rope_settings, theta_of, type_of
from mimo_launch.hugging_face.settings import also
from mimo_launch.hugging_face.tensors import in_layers

_BIAS, _ALPHA, _BLOCK = "attention_bias", "alpha", decoders.sizes()


def _stretched(config: Config) -> Config:
    """Return a configuration with a larger base in place of `alpha`. Raises: ConfigError."""
    rope = rope_settings(config)
    if type_of(rope) != DYNAMIC or not rope.get(_ALPHA):
        return config
    head = decoders.head_size_of(_BLOCK, config)
    if head <= 2:
        raise ConfigError(f"`{_ALPHA}` needs heads larger than 2, not {head:g}")
    theta = theta_of(config) * number(rope, _ALPHA) ** (head / (head - 2))
    kept = {key: each for key, each in config.items() if key != "rope_scaling"}
    return kept | {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


HUNYUAN_V1_DENSE = Family(
    model_type="hunyuan_v1_dense",
    kind="decoder",
    architecture="HunYuanDenseV1ForCausalLM",
    published=("tencent/Hunyuan-7B-Instruct",),
    settings=decoders.decoder(
        _BLOCK, qkv_bias=(_BIAS, False), output_bias=also(_BIAS, False), qk_norm=True,
        rotated_qk_norm=True,
    ),
    tensors=decoders.TENSORS
    | in_layers(
        decoders.LAYERS,
        {
            "attention.q_norm": "self_attn.query_layernorm",
            "attention.k_norm": "self_attn.key_layernorm",
        },
    ),
    refused=refusals(one_of(_BIAS, (True, False), False)) + decoders.not_computed(but=(_BIAS,)),
    defaults={
        "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
    },
    prepared=_stretched,
    rank=1,
    notes="With `alpha`, `rope_type: dynamic` has a base of `rope_theta` times `alpha` to the "
    "power of K / (K - 2), K the size of a head, at all lengths; export writes that base.",
)  # fmt: skip
