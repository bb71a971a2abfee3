"""StarCoder2: LayerNorms, MLPs without a gate, and biases everywhere.

Source: `transformers` 5.24, models/starcoder2.
"""

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import LAYERS, WindowKeys
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.refusals import one_of, only, refusals
from mimo_launch.hugging_face.settings import also
from mimo_launch.hugging_face.tensors import in_layers

_BIAS, _WINDOWS = "use_bias", WindowKeys(size=None)
STARCODER2 = Family(
    model_type="starcoder2",
    kind="decoder",
    architecture="Starcoder2ForCausalLM",
    published=("bigcode/starcoder2-3b",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=2),
        _WINDOWS,
        qkv_bias=(_BIAS, True),
        output_bias=also(_BIAS, True),
        norm="layer",
        norm_eps=("norm_epsilon", 1e-5),
        activation="gelu_tanh_without_gate",
        mlp_bias=also(_BIAS, True),
    ),
    tensors=decoders.TENSORS
    | {"norm.bias": "model.norm.bias"}
    | in_layers(LAYERS, {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}),
    refused=refusals(
        only("hidden_act", "gelu_pytorch_tanh"), one_of(_BIAS, (True, False), True)
    )
    + decoders.not_computed(_WINDOWS, but=("hidden_act",)),
    random=("attention_dropout", "residual_dropout", "embedding_dropout"),
    defaults={
        "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288,
        "num_hidden_layers": 30, "num_attention_heads": 24, "tie_word_embeddings": True,
    },
    rank=1,
    notes="LayerNorms, and an MLP with GELU and no gate; all maps have biases.",
)  # fmt: skip
