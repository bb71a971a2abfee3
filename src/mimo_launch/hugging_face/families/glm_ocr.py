"""GLM-OCR: a GLM-4.1V with norms of heads in its tower, and without a table of positions.

Source: `transformers` 5.24, models/glm_ocr.
"""

from dataclasses import replace

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.families.glm4v import GLM4V
from mimo_launch.hugging_face.folder import number
from mimo_launch.hugging_face.settings import Computed, Fixed
from mimo_launch.hugging_face.tensors import Beyond, Reshaped, in_layers
from mimo_launch.hugging_face.wholes import VisionAndText

_BIAS, _ROWS, _CHANNELS = ("attention_bias", True), ("out_hidden_size", 1536), ("in_channels", 3)
_OLD, _TEXT = GLM4V.vision, GLM4V.text
# Parts of a GLM-4.1V that its tower lacks.
_ABSENT = ("patch_norm", "positions")
_SETTINGS = _OLD.settings.but(
    {
        "image": None,
        "mlp": ("intermediate_size", 4096),
        "qkv_bias": _BIAS,
        "block_bias": Computed(lambda config: bool(config.get(*_BIAS)), words=f"`{_BIAS[0]}`"),
        "projector_mlp": Computed(
            lambda config: number(config, *_ROWS) * number(config, *_CHANNELS),
            # A tower before a connector has no projector.
            lambda model: {_ROWS[0]: (model.projector_mlp_width or 0) // model.channels},
            f"`{_ROWS[0]}` x `{_CHANNELS[0]}`; 1536 x 3",
        ),
    }
)
GLM_OCR = VisionAndText(
    model_type="glm_ocr",
    architecture="GlmOcrForConditionalGeneration",
    published=("zai-org/GLM-OCR",),
    vision=replace(
        _OLD,
        model_type="glm_ocr_vision",
        architecture="GlmOcrVisionModel",
        settings=replace(
            _SETTINGS,
            rest={
                **_SETTINGS.rest,
                "patch_norm": False, "positions": "rope2d", "qk_norm": True, "head_qk_norm": True,
            },
        ),
        tensors=replace(
            _OLD.tensors,
            table={
                **{key: x for key, x in _OLD.tensors.table.items() if key not in _ABSENT},
                "projector.convolution.weight": Reshaped(
                    "downsample.weight",
                    lambda x: (
                        x.projector_mlp_width // x.channels, x.hidden, x.shuffle, x.shuffle
                    ),
                ),
                **in_layers("blocks.*.", {f"attention.{x}_norm": f"attn.{x}_norm" for x in "qk"}),
            },
        ),
        defaults={"hidden_size": 1024, "num_heads": 16},
        notes="Images of shards are resized as by `Glm46VImageProcessor`.",
    ),
    text=replace(
        _TEXT,
        model_type="glm_ocr_text",
        architecture="GlmOcrTextModel",
        settings=_TEXT.settings.but({**decoders.sizes(kv_heads=8), "qkv_bias": Fixed(False)}),
        # A layer that predicts further tokens.
        tensors=replace(_TEXT.tensors, dropped=(*_TEXT.tensors.dropped, Beyond("model.layers."))),
        defaults={
            "vocab_size": 59392, "hidden_size": 1024, "intermediate_size": 4096,
            "num_hidden_layers": 16, "num_attention_heads": 16, "rms_norm_eps": 1e-5,
        },
    ),
    nested=True,
    either_ties=True,
    # Its processor is that of a GLM-4.6V.
    reads_videos=False,
    notes="A layer that predicts further tokens is left out.",
)  # fmt: skip
