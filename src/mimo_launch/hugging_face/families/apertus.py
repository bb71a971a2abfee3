"""Apertus: MLPs without a gate and with xIELU, whose numbers are learned, and norms of heads.

Source: `transformers` 5.24, models/apertus and activations.py.
"""

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.refusals import one_of, only, refusals
from mimo_launch.hugging_face.settings import also
from mimo_launch.hugging_face.tensors import Place, in_layers

_BIAS = "attention_bias"
_ROPE: Config = {
    "rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "high_freq_factor": 4.0,
    "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


def _apertus(config: Config) -> Config:
    """Return a configuration with a scaling of rotary positions, if only `default` is none."""
    says = config.get("rope_parameters") or config.get("rope_scaling")
    return config if says else {**config, "rope_parameters": _ROPE}


APERTUS = Family(
    model_type="apertus",
    kind="decoder",
    architecture="ApertusForCausalLM",
    published=("swiss-ai/Apertus-8B-Instruct-2509",),
    settings=decoders.decoder(
        decoders.sizes(),
        qkv_bias=(_BIAS, False),
        output_bias=also(_BIAS, False),
        qk_norm=True,
        activation="xielu",
    ).but({}, {"hidden_act": "xielu"}),
    tensors=decoders.TENSORS
    | in_layers(
        decoders.LAYERS,
        {
            "attention_norm": "attention_layernorm",
            "mlp_norm": "feedforward_layernorm",
            **{
                f"mlp.activation.{x}": Place(f"mlp.act_fn.{x}", shape=shape)
                for x, shape in (("alpha_p", None), ("alpha_n", None), ("beta", ()), ("eps", ()))
            },
        },
    ),
    refused=refusals(only("hidden_act", "xielu"), one_of(_BIAS, (True, False), False))
    + decoders.not_computed(but=("hidden_act", _BIAS)),
    defaults={
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
        "rope_theta": 12e6,
    },
    prepared=_apertus,
    rank=2,
    notes="MLPs have no gate, but xIELU (`activation: xielu`); the numbers `beta` and `eps` do not "
    "train. Without `rope_parameters`, rotary positions are scaled as in Llama 3 and have a base "
    "of 1.2e7, also beside a `rope_theta`.",
)  # fmt: skip
