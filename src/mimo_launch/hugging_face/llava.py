"""LLaVA: a vision tower, a projector of two linear maps, and a decoder.

Decides: which layers of the tower a LLaVA uses, and the names of the parts in its files.
Relies on: `tower_and_decoder`; `vit` and `decoder` for the parts.
Leaves: finding the folder's parts to `registry`.

Sources: arXiv:2310.03744; `transformers` 5.23, models/llava. The first prefixes are those of its
files; other versions between 4.36 and 5 have the others.
"""

from collections.abc import Iterator
from typing import Any

from mimo_launch.hugging_face import decoder, pixtral, towers, vit
from mimo_launch.hugging_face.family import layers_at
from mimo_launch.hugging_face.folder import Config, short
from mimo_launch.hugging_face.refusals import Refusal, one_of, only, refusals
from mimo_launch.hugging_face.tower_and_decoder import ONE_LAYER, TowerAndDecoder, layers_used
from mimo_launch.spec.spec import VitModel

MODEL_TYPE = "llava"
_PROJECTOR = "multi_modal_projector."
VISION_NAMES = (
    ("vision_tower.", ""),
    ("vision_tower.vision_model.", ""),
    ("model.vision_tower.", ""),
    ("model.vision_tower.vision_model.", ""),
    (_PROJECTOR, _PROJECTOR),
    (f"model.{_PROJECTOR}", _PROJECTOR),
)
TEXT_NAMES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
)
# A folder that does not say has a CLIP.
_TOWERS = {
    **{name: vit.BY_TYPE[name] for name in (vit.CLIP, vit.SIGLIP)},
    pixtral.MODEL_TYPE: pixtral.VISION,
}
LAYERS = {"projector.up": f"{_PROJECTOR}linear_1", "projector.down": f"{_PROJECTOR}linear_2"}


def _fixed(config: Config, inner: Config) -> dict[str, Any]:
    layers = _TOWERS[inner["model_type"]].keys(inner)["layers"]
    return {
        "layers": layers_used(config, inner, default=-2, layers=layers),
        "final_norm": False,
        "shuffle": 1,
        "projector": "mlp",
        "projector_activation": towers.activation_of(config, "projector_hidden_act"),
        **towers.PLAIN_PROJECTOR,
    }


def _strategy(config: Config) -> Iterator[str]:
    # `default` leaves out the first token of an image, which is the class token of CLIP.
    computed = "default" if config["vision_config"]["model_type"] == vit.CLIP else "full"
    if (strategy := config.get("vision_feature_select_strategy", "default")) != computed:
        yield f"vision_feature_select_strategy: {short(strategy)}"


def _settings(vision: VitModel, token: int) -> Config:
    """Return the settings of a LLaVA of our modules, the layers of whose tower are all used."""
    rows = 1 if vision.image is None else vision.image[0] * vision.image[1]
    return {
        "image_token_index": token,
        "image_seq_length": rows,
        "projector_hidden_act": towers.theirs(vision.projector_activation),
        "multimodal_projector_bias": True,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default" if vision.class_token else "full",
    }


WHOLE = TowerAndDecoder(
    model_type=MODEL_TYPE,
    architecture="LlavaForConditionalGeneration",
    towers=_TOWERS,
    text={each.model_type: each for each in decoder.FAMILIES},
    tower_names=VISION_NAMES,
    text_names=TEXT_NAMES,
    projector=layers_at(LAYERS),
    fixed=_fixed,
    refusals=refusals(
        ONE_LAYER,
        Refusal("`vision_feature_select_strategy` other than `default` of CLIP, `full`", _strategy),
        one_of("projector_hidden_act", towers.ACTIVATIONS, "gelu"),
        only("multimodal_projector_bias", True),
    ),
    tied=lambda *configs: any(each.get("tie_word_embeddings") for each in configs),
    settings=_settings,
)
