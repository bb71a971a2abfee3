"""Llama 4 that sees: its tower with two maps, one more map, and a Llama 4 of text.

Source: `transformers` 5.24, models/llama4.
"""

from collections.abc import Callable
from typing import Any

from mimo_launch.hugging_face import rotary
from mimo_launch.hugging_face.families import internvl
from mimo_launch.hugging_face.families.llama4 import LLAMA4_TEXT
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.refusals import NOTHING, one_of, only, refusals, where
from mimo_launch.hugging_face.settings import Computed, Fixed, Settings, defaults_of
from mimo_launch.hugging_face.tensors import Dropped, Place, Tensors, in_layers
from mimo_launch.hugging_face.towers import REST
from mimo_launch.hugging_face.wholes import TowerAndDecoder
from mimo_launch.spec.llama4_vision import Llama4VisionModel

_PROJECTOR, _ROWS = "multi_modal_projector.", "vision_output_dim"
_RATIO, _IMAGE, _PATCH = "pixel_shuffle_ratio", "image_size", "patch_size"
_MLP, _INNER, _OUTER = "intermediate_size", "projector_input_dim", "projector_output_dim"
_ROPE, _THETA = "rope_parameters", "rope_theta"
_MAPS: dict[str, Any] = {
    "projector": "mlp", "projector_activation": "gelu", "projector_bias": False,
    "projector_norm_eps": None, "pooling": None, "tiles": None,
}  # fmt: skip


def _shuffle(config: Config) -> int:
    """Return the side of a square of patches; 0 if the ratio has none. Raises: ConfigError."""
    ratio = number(config, _RATIO, 0.5)
    side = round(1 / ratio) if ratio > 0 else 0
    return side if side and 1 / side == ratio else 0


def _image(config: Config) -> tuple[int, int]:
    """Return the sides of the table in patches. Raises: ConfigError."""
    each = internvl.side_of(config, _IMAGE, 448) // max(1, internvl.side_of(config, _PATCH, 14))
    return each, each


def _differs(key: str, usual: int) -> Callable[[Config], bool]:
    """Return the rule of a width that is not the one after both maps."""
    return lambda config: number(config, key, usual) != number(config, _OUTER, 4096)


def _is_other(config: Config) -> bool:
    """Return whether the first map reads rows of another width than that of a square."""
    row = number(config, "hidden_size", 768) * _shuffle(config) ** 2
    # Without a square there is a rule for the ratio.
    return bool(row and number(config, _MLP, 5632) != row)


def _theta(config: Config) -> float:
    usual = {_THETA: config.get(_THETA, rotary.THETA)}
    return float(number(usual | section(config, _ROPE), _THETA))


def _settings() -> Settings:
    rope = Computed(
        _theta,
        lambda model: {_ROPE: {"rope_type": "axial", _THETA: model.rope_theta}},
        f"`{_ROPE}.{_THETA}`; {rotary.THETA}",
    )
    shuffle = Computed(_shuffle, lambda model: {_RATIO: 1 / model.shuffle}, f"1 / `{_RATIO}`; 0.5")
    outer = Computed(
        lambda config: int(number(config, _OUTER, 4096)),
        lambda model: {_OUTER: model.projector_out, _ROWS: model.projector_out},
        f"`{_OUTER}`; 4096",
    )
    image = Computed(
        _image, lambda model: {_IMAGE: model.image_side}, f"`{_IMAGE}` / `{_PATCH}`, twice; 448"
    )
    patch = Computed(
        lambda config: internvl.side_of(config, _PATCH, 14),
        lambda model: {_PATCH: model.patch},
        f"`{_PATCH}`, once or twice; 14",
    )
    return Settings(
        {
            "layers": ("num_hidden_layers", 34),
            "hidden": ("hidden_size", 768),
            "heads": ("num_attention_heads", 16),
            "mlp": (_MLP, 5632),
            "channels": ("num_channels", 3),
            "patch": patch,
            "image": image,
            "shuffle": shuffle,
            "rope_theta": rope,
            "projector_mlp": (_INNER, 4096),
            "projector_out": outer,
            "final_norm": Fixed(True),
        },
        {"hidden_act": "gelu", "norm_eps": 1e-5},
        {
            **{key: each for key, each in defaults_of(Llama4VisionModel).items() if key in REST},
            **_MAPS,
        },
    )


LLAMA4_VISION = Family(
    model_type="llama4_vision_model",
    kind="llama4_vision",
    architecture="Llama4VisionModel",
    settings=_settings(),
    tensors=Tensors(
        {
            "patch": "patch_embedding.linear",
            "positions.weight": "positional_embedding_vlm",
            "class_token.weight": "class_embedding",
            "pre_norm": "layernorm_pre",
            "norm": "layernorm_post",
            **in_layers(
                "model.layers.*.",
                {
                    "attention_norm": "input_layernorm",
                    "mlp_norm": "post_attention_layernorm",
                    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkvo"},
                    "mlp.up": "mlp.fc1",
                    "mlp.down": "mlp.fc2",
                },
            ),
            "projector.up": "vision_adapter.mlp.fc1",
            "projector.down": "vision_adapter.mlp.fc2",
        },
        # Complex numbers that follow from the places of patches.
        (Dropped("rotary_embedding.freqs_ci"),),
    ),
    refused=refusals(
        only("hidden_act", "gelu"),
        only("norm_eps", 1e-5),
        only("vision_feature_select_strategy", "default"),
        only("multi_modal_projector_bias", False),
        internvl.no_square(_IMAGE),
        internvl.no_square(_PATCH),
        where(_RATIO, "other than 1 over an integer", lambda x: not _shuffle(x), 0.5),
        where(_MLP, "other than the width of a square of patches", _is_other, 5632),
        where(_INNER, f"other than `{_OUTER}`", _differs(_INNER, 4096), 4096),
        where(_ROWS, f"other than `{_OUTER}`", _differs(_ROWS, 7680), 7680),
    )
    + refusals(one_of("rope_type", ("axial", "default"), "default")).after(
        lambda config: section(config, _ROPE)
    ),
    random=("attention_dropout", "projector_dropout"),
    notes="A folder of a tower alone has its two maps, but not the one to the width of language, "
    "so ours keeps its initial values. The MLPs are as wide as a row, and both maps as wide as "
    "each other, as in the class of `transformers`.",
)


LLAMA4 = TowerAndDecoder(
    model_type="llama4",
    architecture="Llama4ForConditionalGeneration",
    published=("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Scout-17B-16E"),
    towers=(LLAMA4_VISION,),
    text=(LLAMA4_TEXT,),
    tower_names=(("vision_model.", ""), (_PROJECTOR, _PROJECTOR)),
    text_names=(("language_model.", ""),),
    projector={"projector.after.weight": Place(f"{_PROJECTOR}linear_1.weight")},
    fixed=_MAPS,
    refusals=NOTHING,
    # The class of language decides, whatever the whole says.
    tied=lambda _config, text: bool(text.get("tie_word_embeddings", False)),
    token="image_token_index",
    notes="Images have one size, the one of the tower. With the processor of the model, large "
    "ones are cut into tiles, each an image by itself, with its separators between them in text.",
)
