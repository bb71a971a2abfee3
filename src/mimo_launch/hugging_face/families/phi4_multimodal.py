"""Phi-4 multimodal: a SigLIP on tiles and the whole image, a conformer, and a Phi-3 for long texts.

Sources: arXiv:2503.01743, section 2; `transformers` 5.24, models/phi4_multimodal.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.families import siglip_clip
from mimo_launch.hugging_face.families.internvl import no_square
from mimo_launch.hugging_face.families.phi3 import PHI3
from mimo_launch.hugging_face.families.phi4_audio import PHI4_AUDIO
from mimo_launch.hugging_face.family import Family, Prefixes
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.refusals import left_out, off, refusals, where
from mimo_launch.hugging_face.settings import Computed
from mimo_launch.hugging_face.tensors import Dropped, Reshaped, layers_at
from mimo_launch.hugging_face.towers import PLAIN_PROJECTOR
from mimo_launch.hugging_face.wholes import (
    Keys,
    Models,
    Tokens,
    TowerAndDecoder,
    equal,
    tied_by_default,
)
from mimo_launch.spec.spec import DecoderModel, Model

_AUDIO = "audio_config"
_VISION, _LAYER, _CROP, _TOKEN = "vision_config", "feature_layer", "crop_size", "image_token_id"
_IMAGE, _PATCH = ("image_size", 448), ("patch_size", 14)
_EXTEND = "model.embed_tokens_extend."
_IMAGES, _SOUND = f"{_EXTEND}image_embed.", f"{_EXTEND}audio_embed."
_SOUND_NAMES = ((f"{_SOUND}encoder.", ""), (_SOUND, _SOUND))
_OTHER_SPEECH = tuple(f"{_SOUND}{x}_proj_for_vision_speech." for x in ("up", "down"))
# The maps of sound without images; those of sound beside images are copied.
_SPEECH = layers_at(
    {
        "projector.up": f"{_SOUND}up_proj_for_speech",
        "projector.down": f"{_SOUND}down_proj_for_speech",
    }
)
_SETTINGS = siglip_clip.settings(
    is_clip=False, patch=_PATCH[1], activation="gelu_pytorch_tanh", norm_eps=1e-6
)
_TABLE = Computed(
    siglip_clip.table_of(_PATCH[1]),
    lambda model: dict.fromkeys((_IMAGE[0], _CROP), model.image_side),
    f"`{_IMAGE[0]}` / `{_PATCH[0]}`, twice; {_IMAGE[1]} pixels",
)
# A square of them becomes a row, in every configuration.
_SQUARE = 2
# Up to four tiles; the processor decides about more.
_GRIDS = ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (2, 2), (4, 1))


def _is_odd(config: Config) -> bool:
    return bool(number(config, *_IMAGE) // number(config, *_PATCH) % _SQUARE)


TOWER = replace(
    siglip_clip.SIGLIP,
    model_type="phi4_multimodal_vision",
    architecture="Phi4MultimodalVisionModel",
    settings=replace(
        # Of our tower all layers are used.
        _SETTINGS.but({"image": _TABLE}, {_LAYER: -1}),
        rest={**_SETTINGS.rest, "interpolation": "nearest"},
    ),
    tensors=replace(
        siglip_clip.TENSORS, dropped=(*siglip_clip.TENSORS.dropped, Dropped("post_layernorm.*"))
    ),
    defaults={
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "image_size": 448, _CROP: 448, "image_token_id": 200010,
    },
    refused=siglip_clip.SIGLIP.refused
    + refusals(
        no_square("image_size"),
        no_square("patch_size"),
        where("image_size", "of an odd number of patches", _is_odd),
        where(
            _CROP, "other than `image_size`",
            lambda config: config.get(_CROP, 448) != number(config, *_IMAGE),
        ),
        where(
            _LAYER, "that is a list, or 0",
            lambda config: type(config.get(_LAYER, -2)) is not int or config.get(_LAYER) == 0,
        ),
    ),
    prefixes=(("", ""),),
    elsewhere=(),
    may_end_early=False,
)  # fmt: skip


@frozen(kw_only=True)
class Phi4Multimodal(TowerAndDecoder):
    """A whole model with a second tower; settings of its text are beside those of others."""

    @property
    def families(self) -> tuple[Family, ...]:
        """The families of its parts."""
        return *self.towers, PHI4_AUDIO, *self.text

    @property
    def names(self) -> tuple[Prefixes, ...]:
        """The prefixes of its parts."""
        return self.tower_names, _SOUND_NAMES, self.text_names

    def part(self, config: Config, kind: str) -> Part:
        """Return a tower with its projector, or the decoder. Raises: NoSuchPart, ConfigError."""
        if kind == PHI4_AUDIO.kind:
            return Part(
                family=PHI4_AUDIO,
                config=section(config, _AUDIO),
                prefixes=_SOUND_NAMES,
                elsewhere=(*(x for x, _ in (*self.tower_names, *self.text_names)), *_OTHER_SPEECH),
                projector=_SPEECH,
                refused=tuple(self.refusals(config)),
                fixed={"projector": "mlp", "projector_mlp": None, "projector_bias": True},
            )
        chosen = section(config, _VISION).get(_LAYER, -2)
        return TowerAndDecoder.part(self, {**config, "vision_feature_layer": chosen}, kind)

    def made_of(self, models: Models, tokens: Tokens) -> tuple[Config, dict[str, Keys]] | None:
        """Return the configuration of a whole made of our modules, and the keys to its parts."""
        others = {kind: model for kind, model in models.items() if kind != PHI4_AUDIO.kind}
        if len(others) == 1 < len(models):
            made = self._without_images(*others.values())
        else:
            made = TowerAndDecoder.made_of(self, others, tokens)
        if made is None:
            return None
        config, paths = made
        if (hearing := models.get(PHI4_AUDIO.kind)) is not None:
            if equal((PHI4_AUDIO,), hearing) is None:
                return None
            token = tokens.get(PHI4_AUDIO.kind)
            said = {} if token is None else {"audio_token_id": token}
            config[_AUDIO] = PHI4_AUDIO.config(hearing) | said
            paths[PHI4_AUDIO.kind] = (_AUDIO,)
        text: Mapping[str, Any] = config.pop("text_config")
        if _VISION in config:
            config[_VISION][_TOKEN] = config.pop(_TOKEN)
        return {**text, **config}, {**paths, "decoder": ()}

    def _without_images(self, text: Model) -> tuple[Config, dict[str, Keys]] | None:
        """Return the configuration around a decoder, to which that of images is to be added."""
        words = equal(self.text, text)
        if words is None or not isinstance(text, DecoderModel):
            return None
        config = {"model_type": self.model_type, "tie_word_embeddings": text.tied}
        return config | {"text_config": words.config(text)}, {}


PHI4_MULTIMODAL = Phi4Multimodal(
    model_type="phi4_multimodal",
    architecture="Phi4MultimodalForCausalLM",
    published=("microsoft/Phi-4-multimodal-instruct",),
    towers=(TOWER,),
    text=(PHI3,),
    text_beside=True,
    text_defaults={
        "vocab_size": 200064, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
    },
    tower_names=((f"{_IMAGES}img_processor.", ""), (_IMAGES, _IMAGES)),
    text_names=(
        *((each, each) for each in ("model.embed_tokens.", "model.layers.", "model.norm.")),
        ("lm_head.", "lm_head."),
    ),
    beside=(f"{_EXTEND}audio_embed.",),
    copies=True,
    projector={
        **layers_at({
            "projector.up": f"{_IMAGES}img_projection_up",
            "projector.down": f"{_IMAGES}img_projection_down",
        }),
        "projector.newline.weight": Reshaped(
            f"{_IMAGES}sub_img_feature_extensor", lambda model: (1, 1, 1, model.hidden)
        ),
        "projector.separator.weight": Reshaped(
            f"{_IMAGES}global_img_feature_extensor", lambda model: (1, 1, model.hidden)
        ),
    },
    feature_layer=-2,
    fixed={
        **PLAIN_PROJECTOR,
        "final_norm": False, "shuffle": _SQUARE, "pooling": "mean", "projector": "mlp",
        "projector_activation": "gelu",
        "tiles": {"whole": "last", "grids": _GRIDS, "most": None, "each": True, "side": None},
    },
    refusals=refusals(left_out("the maps of sound beside images"), off("embd_pdrop")),
    tied=tied_by_default(False),
    token=_TOKEN,
    notes="An image is cut into tiles, of which each four patches become a row; then comes the "
    "whole image as one more tile. A learned row ends each line (`sub_img_feature_extensor`), "
    "another comes before the whole image (`global_img_feature_extensor`). `tiles.grids` are yours "
    "to choose: those of up to 4 tiles are proposed, and the processor of the folder makes up to "
    "36 (`dynamic_hd`). It pads an image and hides the padding from the tower, which tiles here do "
    "not do, so it is refused: an image is stretched to fill its grid ([Tiles](media.md#tiles)). "
    "`feature_layer` -2 of 27 layers is `layers: 26`; later layers, the last norm and the pooling "
    "of the tower are copied by `export`. The rows of sound go through the maps of "
    "`audio_projection_mode` `speech`; those that `transformers` uses where a sample has images, "
    "too, are copied (`up_proj_for_vision_speech`), so a sample with both differs here. Patches "
    "attend to all of their tile, as with `attn_implementation: eager`; with `sdpa`, "
    "`transformers` 5.24 lets them attend to earlier patches only where no patch is padding. The "
    "adapters for vision and speech (LoRA) are in folders of their own; the class of "
    "`transformers` does not load them by itself, and they are not read: merge one with `peft` "
    "first, or train the weights without it. Folders with `model_type: phi4mm` are for code of "
    "their own.",
)  # fmt: skip
