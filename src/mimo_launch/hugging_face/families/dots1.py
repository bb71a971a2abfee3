"""dots.llm1: attention of a Qwen3, experts of a DeepSeek-V3.

Source: `transformers` 5.24, models/dots1; arXiv:2506.05767.
"""

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import WindowKeys
from mimo_launch.hugging_face.family import Family

_WINDOWS = WindowKeys(by_layer=True)
DOTS1 = Family(
    model_type="dots1",
    kind="decoder",
    architecture="Dots1ForCausalLM",
    published=("rednote-hilab/dots.llm1.inst",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=32), _WINDOWS, qk_norm=True, moe=decoders.GROUPED
    ),
    tensors=decoders.GROUPED_TENSORS,
    refused=decoders.not_computed(_WINDOWS),
    aliases=decoders.ROUTED_ALIAS,
    defaults={
        "vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944,
        "num_hidden_layers": 62, "num_attention_heads": 32, "moe_intermediate_size": 1408,
        "max_window_layers": 62, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
        "norm_topk_prob": False, "routed_scaling_factor": 1.0,
    },
    rank=1,
    notes="Layers with windows are those that `layer_types` names, or layers from "
    "`max_window_layers` on.",
)  # fmt: skip
