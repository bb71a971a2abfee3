"""LLaVA: a vision tower, a projector of two linear maps, and a decoder.

Decides: which layers of the tower a LLaVA uses, and the names of the parts in its files.
Relies on: `vit` and `decoder` for the parts.
Leaves: finding the folder's parts to `registry`.

Sources: arXiv:2310.03744; `transformers` 5.23, models/llava. The first prefixes are those of its
files; other versions between 4.36 and 5 have the others.
"""

from collections.abc import Iterator
from typing import Any

from mimo_launch.hugging_face import decoder, vit
from mimo_launch.hugging_face.family import NoSuchPart, Part, differs
from mimo_launch.hugging_face.folder import Config, ConfigError, number, section, short
from mimo_launch.spec.spec import DecoderModel, VitModel

MODEL_TYPE = "llava"
_PROJECTOR = "multi_modal_projector."
_VISION_NAMES = (
    ("vision_tower.", ""),
    ("vision_tower.vision_model.", ""),
    ("model.vision_tower.", ""),
    ("model.vision_tower.vision_model.", ""),
    (_PROJECTOR, _PROJECTOR),
    (f"model.{_PROJECTOR}", _PROJECTOR),
)
_TEXT_NAMES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
)
_LAYERS = {"projector.up": f"{_PROJECTOR}linear_1", "projector.down": f"{_PROJECTOR}linear_2"}
_VISION = {each.model_type: each for each in vit.FAMILIES}
_TEXT = {each.model_type: each for each in decoder.FAMILIES}
# Versions below 5 left out settings that equal the defaults of the decoder's own class.
_COMMON = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_DEFAULTS: dict[str, Config] = {
    "llama": {**_COMMON, "intermediate_size": 11008, "vocab_size": 32000},
    "qwen2": {**_COMMON, "intermediate_size": 22016, "vocab_size": 151936},
    "qwen3": {**_COMMON, "intermediate_size": 22016, "vocab_size": 151936},
}


def part(config: Config, kind: str) -> Part[Any]:
    """Return the tower with the projector, or the decoder. Raises: NoSuchPart, ConfigError."""
    if kind == "decoder":
        inner = {"model_type": "llama", **section(config, "text_config")}
        words = _TEXT.get(str(inner["model_type"]))
        if words is None:
            raise NoSuchPart(f"text_config.model_type: {short(inner['model_type'])}")
        tied = bool(config.get("tie_word_embeddings")) or bool(inner.get("tie_word_embeddings"))
        return Part(
            family=words,
            config={**_DEFAULTS[words.model_type], **inner, "tie_word_embeddings": tied},
            prefixes=_TEXT_NAMES,
            elsewhere=tuple(prefix for prefix, _ in _VISION_NAMES),
        )
    if kind != "vit":
        raise NoSuchPart(f"model_type: {MODEL_TYPE}")
    inner = {"model_type": vit.CLIP, **section(config, "vision_config")}
    tower = _VISION.get(str(inner["model_type"]))
    if tower is None:
        raise NoSuchPart(f"vision_config.model_type: {short(inner['model_type'])}")
    activation = config.get("projector_hidden_act", "gelu")
    return Part(
        family=tower,
        config=inner,
        prefixes=_VISION_NAMES,
        elsewhere=tuple(prefix for prefix, _ in _TEXT_NAMES),
        projector=_LAYERS,
        fixed={
            "layers": _depth(config, inner),
            "final_norm": False,
            "shuffle": 1,
            "projector": "mlp",
            "projector_activation": vit.ACTIVATIONS.get(activation, "gelu"),
        },
        refused=tuple(_refused(config, inner)),
    )


def types(kind: str) -> list[str]:
    """Return the model types of towers, or of decoders, that we support in a LLaVA."""
    return list(_VISION if kind == "vit" else _TEXT)


def config_of(
    vision: VitModel, vision_config: Config, text: DecoderModel, text_config: Config, token: int
) -> Config:
    """Return the configuration of a LLaVA made of two of our modules.

    `token` is the placeholder of the tower, whose layers are all used.
    """
    theirs = {ours: name for name, ours in vit.ACTIVATIONS.items()}
    rows = 1 if vision.image is None else vision.image[0] * vision.image[1]
    return {
        "model_type": MODEL_TYPE,
        "vision_config": vision_config,
        "text_config": text_config,
        "image_token_index": token,
        "image_seq_length": rows,
        "projector_hidden_act": theirs[vision.projector_activation],
        "multimodal_projector_bias": True,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default" if vision.class_token else "full",
        "tie_word_embeddings": text.tied,
    }


def _depth(config: Config, inner: Config) -> int:
    """Return the number of layers after which the hidden states of the tower become rows.

    A tower of N layers has N + 1 hidden states: the input of the first layer, then the output of
    each. Raises: ConfigError.
    """
    chosen = config.get("vision_feature_layer", -2)
    layers = int(number(inner, "num_hidden_layers", vit.LAYERS))
    if isinstance(chosen, list):
        return layers  # `_refused` says so.
    if isinstance(chosen, bool) or not isinstance(chosen, int) or not -layers <= chosen <= layers:
        raise ConfigError(
            f"`vision_feature_layer` is {short(chosen)}, but the tower has {layers} layers"
        )
    return chosen if chosen >= 0 else layers + 1 + chosen


def _refused(config: Config, inner: Config) -> Iterator[str]:
    """Yield, as `key: value`, the settings of a LLaVA that our projector cannot compute."""
    if isinstance(chosen := config.get("vision_feature_layer", -2), list) or chosen == 0:
        yield f"vision_feature_layer: {short(chosen)}"
    # `default` leaves out the first token of an image, which is the class token of CLIP.
    computed = "default" if inner["model_type"] == vit.CLIP else "full"
    if (strategy := config.get("vision_feature_select_strategy", "default")) != computed:
        yield f"vision_feature_select_strategy: {short(strategy)}"
    if (activation := config.get("projector_hidden_act", "gelu")) not in vit.ACTIVATIONS:
        yield f"projector_hidden_act: {short(activation)}"
    if differs(config, "multimodal_projector_bias", True):
        yield f"multimodal_projector_bias: {short(config['multimodal_projector_bias'])}"
