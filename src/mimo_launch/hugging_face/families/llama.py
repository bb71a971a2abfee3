"""Llama, with which all others are compared, and decoders that differ from it in settings alone.

Sources: `transformers` 5.23, models/llama; 5.24, models/seed_oss, models/ernie4_5, models/helium,
models/internlm3, models/iquestcoder, models/exaone, models/cwm and models/arcee.
"""

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import FULL, SLIDING, WindowKeys
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import one_of, only, refusals
from mimo_launch.hugging_face.settings import also
from mimo_launch.hugging_face.tensors import in_layers

LLAMA = Family(
    model_type="llama",
    kind="decoder",
    architecture="LlamaForCausalLM",
    published=("meta-llama/Llama-3.1-8B",),
    settings=decoders.decoder(decoders.sizes()),
    tensors=decoders.TENSORS,
    refused=decoders.not_computed(),
)
_BIAS, _OUT_BIAS = "attention_bias", "attention_out_bias"
SEED_OSS = Family(
    model_type="seed_oss",
    kind="decoder",
    architecture="SeedOssForCausalLM",
    published=("ByteDance-Seed/Seed-OSS-36B-Instruct",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=8, head_size=128),
        qkv_bias=(_BIAS, True),
        output_bias=(_OUT_BIAS, False),
    ),
    tensors=decoders.TENSORS,
    refused=refusals(*(one_of(key, (True, False), True) for key in (_BIAS, _OUT_BIAS)))
    + decoders.not_computed(but=(_BIAS,)),
    random=("attention_dropout", "residual_dropout"),
    defaults={
        "vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648,
        "num_hidden_layers": 64, "num_attention_heads": 80, "attention_dropout": 0.1,
        "residual_dropout": 0.1,
    },
    rank=1,
    notes="A Llama with biases of queries, keys and values.",
)  # fmt: skip
ERNIE4_5 = Family(
    model_type="ernie4_5",
    kind="decoder",
    architecture="Ernie4_5ForCausalLM",
    published=("baidu/ERNIE-4.5-0.3B-PT",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=2, head_size=128), rotary_interleaved=True
    ),
    tensors=decoders.TENSORS,
    refused=refusals(only("use_bias", False)) + decoders.not_computed(),
    random=(),
    defaults={
        "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 18, "num_attention_heads": 16, "rms_norm_eps": 1e-5,
        "rope_theta": 5e5, "tie_word_embeddings": True,
    },
    rank=1,
    notes="Neighbours in a head rotate together (`rotary_interleaved`). The base of rotary "
    "positions is 5e5 if left out.",
)  # fmt: skip
HELIUM = Family(
    model_type="helium",
    kind="decoder",
    architecture="HeliumForCausalLM",
    published=("kyutai/helium-1-2b",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=20, head_size=128),
        qkv_bias=(_BIAS, False),
        rotary_interleaved=True,
    ),
    tensors=decoders.TENSORS,
    refused=refusals(one_of(_BIAS, (True, False), False)) + decoders.not_computed(but=(_BIAS,)),
    defaults={
        "vocab_size": 48000, "hidden_size": 2560, "intermediate_size": 7040,
        "num_hidden_layers": 24, "num_attention_heads": 20, "rms_norm_eps": 1e-8,
        "rope_theta": 1e5,
    },
    rank=2,
    notes="Neighbours in a head rotate together. The base of rotary positions is 1e5 if left out.",
)  # fmt: skip
_RELU2 = "relu2"
ARCEE = Family(
    model_type="arcee",
    kind="decoder",
    architecture="ArceeForCausalLM",
    published=("arcee-ai/AFM-4.5B",),
    settings=decoders.decoder(
        decoders.sizes(),
        qkv_bias=(_BIAS, False),
        output_bias=also(_BIAS, False),
        activation="squared_relu",
        mlp_bias=("mlp_bias", False),
    ).but({}, {"hidden_act": _RELU2}),
    tensors=decoders.TENSORS,
    refused=refusals(
        only("hidden_act", _RELU2),
        *(one_of(key, (True, False), False) for key in (_BIAS, "mlp_bias")),
    )
    + decoders.not_computed(but=("hidden_act", _BIAS, "mlp_bias")),
    defaults={
        "vocab_size": 32000, "hidden_size": 2560, "intermediate_size": 18432,
        "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
    },
    rank=2,
    notes="A Llama whose MLPs have no gate, but the square of a ReLU.",
)  # fmt: skip
_TERSE = {
    "vocab_size": 128512, "hidden_size": 4096, "intermediate_size": 10240,
    "num_hidden_layers": 48, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
}  # fmt: skip
INTERNLM3 = Family(
    model_type="internlm3",
    kind="decoder",
    architecture="LlamaForCausalLM",
    published=("internlm/internlm3-8b-instruct",),
    settings=decoders.decoder(decoders.sizes(kv_heads=2, head_size=128)),
    tensors=decoders.TENSORS,
    # Older names of `attention_bias` and `mlp_bias`, of which it has both or neither.
    refused=refusals(only("qkv_bias", False), only("bias", False)) + decoders.not_computed(),
    defaults=_TERSE,
    rank=3,
    notes="A Llama under another name.",
)
IQUESTCODER = Family(
    model_type="iquestcoder",
    kind="decoder",
    architecture="LlamaForCausalLM",
    settings=decoders.decoder(decoders.sizes(kv_heads=8, head_size=128)),
    tensors=decoders.TENSORS,
    refused=refusals(only("clip_qkv", None), only("use_sliding_window", False))
    + decoders.not_computed(),
    defaults=_TERSE
    | {
        "vocab_size": 76800, "hidden_size": 5120, "intermediate_size": 27648,
        "num_hidden_layers": 80, "num_attention_heads": 40,
    },
    rank=3,
    notes="A Llama under another name.",
)  # fmt: skip
EXAONE = Family(
    model_type="exaone",
    kind="decoder",
    architecture="LlamaForCausalLM",
    published=("LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct",),
    settings=decoders.decoder(decoders.sizes(kv_heads=8)),
    tensors=decoders.TENSORS
    | in_layers(
        decoders.LAYERS,
        {
            "attention_norm": "ln_1",
            "mlp_norm": "ln_2",
            **{f"attention.{x}": f"attn.attention.{x}_proj" for x in "qkv"},
            "attention.o": "attn.attention.out_proj",
            "mlp.gate": "mlp.c_fc_0",
            "mlp.up": "mlp.c_fc_1",
            "mlp.down": "mlp.c_proj",
        },
    ),
    loaded=decoders.TENSORS,
    prefixes=(
        ("transformer.wte.", "model.embed_tokens."),
        ("transformer.h.", "model.layers."),
        ("transformer.ln_f.", "model.norm."),
        ("lm_head.", "lm_head."),
    ),
    refused=decoders.not_computed(),
    # Names of settings in published folders, which transformers reads and does not write.
    aliases={
        "num_layers": "num_hidden_layers",
        "layer_norm_epsilon": "rms_norm_eps",
        "activation_function": "hidden_act",
    },
    defaults={
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
    },
    rank=3,
    notes="A Llama (EXAONE 3.0 and 3.5) with its own names.",
)  # fmt: skip
_WINDOWS, _EVERY = WindowKeys(size=8192, by_layer=True), 4
_ROPE: Config = {
    "rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "high_freq_factor": 4.0,
    "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


def _cwm(config: Config) -> Config:
    """Return a configuration with kinds of layers; by default every fourth has no window."""
    layers = range(int(number(config, "num_hidden_layers")))
    types = [SLIDING if i % _EVERY else FULL for i in layers]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or _ROPE
    return {
        **config,
        "layer_types": config.get("layer_types") or types,
        "rope_parameters": {"rope_theta": 1e6, **rope} if isinstance(rope, dict) else rope,
    }


CWM = Family(
    model_type="cwm",
    kind="decoder",
    architecture="CwmForCausalLM",
    published=("facebook/cwm",),
    settings=decoders.decoder(decoders.sizes(kv_heads=8, head_size=128), _WINDOWS),
    tensors=decoders.TENSORS,
    refused=decoders.not_computed(_WINDOWS),
    defaults={
        "vocab_size": 128256, "hidden_size": 6144, "intermediate_size": 21504,
        "num_hidden_layers": 64, "num_attention_heads": 48, "rms_norm_eps": 1e-5,
    },
    prepared=_cwm,
    rank=2,
    notes="Every fourth layer, beginning with the first, has no window. Without "
    "`rope_parameters`, rotary positions are scaled as in Llama 3.",
)  # fmt: skip
