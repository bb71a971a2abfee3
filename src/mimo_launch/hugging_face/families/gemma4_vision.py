"""Gemma 4 that sees: its tower for images of any size, one linear map, and a Gemma 4 of text.

Source: `transformers` 5.24, models/gemma4.
"""

from mimo_launch.hugging_face.families.gemma4 import GEMMA4_TEXT
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.refusals import left_out, one_of, only, refusals, where
from mimo_launch.hugging_face.settings import Computed, Fixed, Settings, defaults_of
from mimo_launch.hugging_face.tensors import MLP, Place, Reshaped, Tensors, in_layers
from mimo_launch.hugging_face.towers import PLAIN_PROJECTOR, REST
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default
from mimo_launch.kinds.clipped_shapes import BOUNDS
from mimo_launch.spec.gemma4_vision import Gemma4VisionModel

_ACTIVATION, _ROPE, _THETA = "gelu_pytorch_tanh", "rope_parameters", "rope_theta"
_HEADS, _KEYS, _HEAD = "num_attention_heads", "num_key_value_heads", "head_dim"
# The maps of a block, which may clip their numbers.
_MAPS = {
    **{f"attention.{x}": f"self_attn.{x}" for x in "qkvo"},
    **{f"mlp.{x}": f"mlp.{x}" for x in MLP},
}
_POOL, _PROJECTOR = "pooling_kernel_size", "model.embed_vision."


def _keys(config: Config) -> int | None:
    """Return the number of key/value heads, None if it is that of query heads."""
    heads, keys = (int(number(config, each, 12)) for each in (_HEADS, _KEYS))
    return None if keys == heads else keys


def _is_other(config: Config) -> bool:
    width, heads = number(config, "hidden_size", 768), number(config, _HEADS, 12)
    return bool(heads * number(config, _HEAD, 64) != width)


# Of which `transformers` makes no rows.
_SINGLE = where(_POOL, "of 1", lambda config: number(config, _POOL, 3) == 1, 3)
_NARROW = where(_HEAD, "other than the width over the heads", _is_other, 64)


def _tower() -> Settings:
    rope = Computed(
        lambda config: float(number(section(config, _ROPE), _THETA, 100.0)),
        lambda model: {_ROPE: {"rope_type": "axial", _THETA: model.rope_theta}},
        f"`{_ROPE}.{_THETA}`; 100",
    )
    head = Computed(
        _keys,
        lambda model: {
            _KEYS: model.kv_heads or model.heads,
            _HEAD: model.hidden // model.heads,
        },
        f"`{_KEYS}`; 12",
    )
    return Settings(
        {
            "layers": ("num_hidden_layers", 16),
            "hidden": ("hidden_size", 768),
            "heads": (_HEADS, 12),
            "kv_heads": head,
            "mlp": ("intermediate_size", 3072),
            "patch": ("patch_size", 16),
            "shuffle": (_POOL, 3),
            "places": ("position_embedding_size", 10240),
            "rope_theta": rope,
            "standardize": ("standardize", False),
            "clipped_linears": ("use_clipped_linears", False),
            "norm_eps": ("rms_norm_eps", 1e-6),
            "channels": Fixed(3),
            "final_norm": Fixed(False),
            "pooling": Fixed("mean"),
        },
        {"hidden_activation": _ACTIVATION},
        {key: each for key, each in defaults_of(Gemma4VisionModel).items() if key in REST},
    )


GEMMA4_VISION = Family(
    model_type="gemma4_vision",
    kind="gemma4_vision",
    architecture="Gemma4VisionModel",
    settings=_tower(),
    tensors=Tensors(
        {
            "patch.weight": Place("patch_embedder.input_proj.weight", channels=3),
            "positions.weight": Reshaped(
                "patch_embedder.position_embedding_table",
                lambda x: (2, x.places, x.hidden),
                grid=True,
            ),
            "projector.norm.bias": "std_bias",
            "projector.norm.weight": "std_scale",
            **in_layers(
                "encoder.layers.*.",
                {
                    "attention_norm": "input_layernorm",
                    "post_attention_norm": "post_attention_layernorm",
                    "mlp_norm": "pre_feedforward_layernorm",
                    "post_mlp_norm": "post_feedforward_layernorm",
                    **{f"attention.{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
                    **{ours: f"{theirs}_proj.linear" for ours, theirs in _MAPS.items()},
                    **{
                        f"{ours}.{bound}": Reshaped(f"{theirs}_proj.{bound}", lambda _: ())
                        for ours, theirs in _MAPS.items()
                        for bound in BOUNDS
                    },
                },
            ),
        }
    ),
    refused=refusals(
        only("hidden_activation", _ACTIVATION),
        one_of("attention_bias", (False, None), False),
        _NARROW,
        _SINGLE,
    )
    + refusals(one_of("rope_type", ("axial", "default"), "axial")).after(
        lambda config: section(config, _ROPE)
    ),
    notes="A folder has no projector, so ours keeps its initial values. `std_bias`, `std_scale` "
    "and the bounds of maps that clip their numbers (`use_clipped_linears`) are read and do not "
    "train.",
)


GEMMA4 = TowerAndDecoder(
    model_type="gemma4",
    architecture="Gemma4ForConditionalGeneration",
    published=(
        *("google/gemma-4-31B-it", "google/gemma-4-26B-A4B-it"),
        *("google/gemma-4-E2B-it", "google/gemma-4-E4B-it"),
    ),
    towers=(GEMMA4_VISION,),
    text=(GEMMA4_TEXT,),
    tower_names=(("model.vision_tower.", ""), (_PROJECTOR, _PROJECTOR)),
    text_names=(("model.language_model.", "model."), ("lm_head.", "lm_head.")),
    projector={"projector.linear.weight": Place(f"{_PROJECTOR}embedding_projection.weight")},
    fixed={
        **PLAIN_PROJECTOR, "projector": "linear", "projector_activation": "gelu",
        "projector_bias": False, "pooling": "mean",
    },
    refusals=refusals(left_out("the audio tower")),
    tied=tied_by_default(True),
    token="image_token_id",
    beside=("model.audio_tower.", "model.embed_audio."),
    notes="The whole of a Gemma 4, dense or with experts, or small with per-layer embeddings. "
    "Images keep their sides. Sound and videos are not read.",
)  # fmt: skip
