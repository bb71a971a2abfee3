"""Qwen2.5-Omni: a thinker, which is a Qwen2.5-VL that also hears, and a talker behind it.

Decides: the parts of its folders, and what a talker's configuration and tensors mean.
Relies on: `qwen_vl` and `qwen2_5_vl` for the thinker, `decoder` for the blocks of both.
Leaves: the audio tower and the vocoder, which no module of ours computes.

Sources: arXiv:2503.20215; `transformers` 5.23, models/qwen2_5_omni. What a talker reads of text are
positions on all three axes alike, which rotate as positions on one do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mimo_launch.hugging_face import decoder, qwen2_5_vl
from mimo_launch.hugging_face.family import Family, NoSuchPart, Part, Place
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.qwen_vl import QWEN2, plain_rope, text_family
from mimo_launch.hugging_face.refusals import Refusal, Refusals, refusals
from mimo_launch.spec.spec import DecoderModel, TalkerModel, VitModel

MODEL_TYPE, THINKER_TYPE = "qwen2_5_omni", "qwen2_5_omni_thinker"
ARCHITECTURE = "Qwen2_5OmniForConditionalGeneration"
# Where the configuration of each part is, by its kind.
WHERE = {
    "decoder": ("thinker_config", "text_config"),
    "vit": ("thinker_config", "vision_config"),
    "talker": ("talker_config",),
}
_TEXT_NAMES = (("model.", "model."), ("lm_head.", "lm_head."))
_THINKER_PARTS = ("visual.", "audio_tower.")
_ENDS = {
    "codes.weight": "model.embed_tokens.weight",
    "project.weight": "thinker_to_talker_proj.weight",
    "project.bias": "thinker_to_talker_proj.bias",
    "norm.weight": "model.norm.weight",
    "heads.0.weight": "codec_head.weight",
}
_DEFAULTS: Config = {
    "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 18944, "vocab_size": 8448,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6,
}  # fmt: skip
_ENDS_OF_SPEECH = {"start": "tts_codec_start_token_id", "end": "tts_codec_end_token_id"}
_CODES = {"start": 8293, "end": 8294}


def _talker_keys(config: Config) -> dict[str, Any]:
    keys = decoder.keys(decoder.KINDS["qwen2"], {**_DEFAULTS, **plain_rope(config)})
    ends = {key: number(config, _ENDS_OF_SPEECH[key], _CODES[key]) for key in _CODES}
    codes = {"codebooks": 1, "vocab": keys["vocab"], **ends, "reads_text": True}
    return {key: keys[key] for key in keys if key in TalkerModel.model_fields} | codes


def _talker_windows(config: Config) -> Iterator[str]:
    if decoder.window_of(decoder.KINDS["qwen2"], _DEFAULTS | config) is not None:
        yield "use_sliding_window: true"


def _talker_place(name: str, model: TalkerModel) -> Place:
    if name in _ENDS:
        return Place(_ENDS[name])
    return decoder.place(name, model)


def _talker_config(model: TalkerModel) -> Config:
    """Return the configuration of a talker, without `embedding_size`: the width of language."""
    config = decoder.config_of(TALKER.model_type, model)
    config["rope_parameters"]["mrope_section"] = list(_sections(model.head_size))
    return {**config, **{_ENDS_OF_SPEECH[k]: getattr(model, f"{k}_code") for k in _CODES}}


def _sections(head_size: int) -> tuple[int, int, int]:
    """Return shares of 2 to 3 to 3, as published models have them; text does not depend on them."""
    side = 3 * (head_size // 2) // 8
    return head_size // 2 - 2 * side, side, side


def _vision_place(name: str, model: VitModel) -> Place:
    """Return the place of a tensor: as in Qwen2.5-VL, but q, k and v have tensors of their own."""
    at = qwen2_5_vl.VISION.place(name, model)
    if at.num_rows is None:
        return at
    letter = "qkv"[at.first_row // model.hidden]
    return Place(at.name.replace(".qkv.", f".{letter}."))


TEXT = text_family("qwen2_5_omni_text", "Qwen2_5OmniThinkerTextModel", QWEN2)
VISION = replace(
    qwen2_5_vl.VISION,
    # It counts time another way, together with sound.
    video=lambda _: None,
    model_type="qwen2_5_omni_vision_encoder",
    architecture="Qwen2_5OmniVisionEncoder",
    place=_vision_place,
    config=lambda model: {
        **qwen2_5_vl.VISION.config(model),
        "model_type": "qwen2_5_omni_vision_encoder",
    },
)
TALKER = Family(
    model_type="qwen2_5_omni_talker",
    kind="talker",
    not_computed=decoder.not_computed(decoder.KINDS["qwen2"]).after(plain_rope)
    + refusals(Refusal("`use_sliding_window` where a layer slides", _talker_windows)),
    keys=_talker_keys,
    place=_talker_place,
    is_ignored=lambda name, model: False,
    fits=lambda model: model.codebooks == 1,
    config=_talker_config,
    architecture="Qwen2_5OmniTalkerForConditionalGeneration",
    row_width="embedding_size",
)


@dataclass(frozen=True, slots=True)
class Omni:
    """A whole model, or its thinker alone."""

    model_type: str
    architecture: str
    families: tuple[Family[Any], ...]
    refusals: Refusals

    def part(self, config: Config, kind: str) -> Part[Any]:
        """Return the decoder, the vision tower or the talker. Raises: NoSuchPart."""
        return _part(config, kind)


def _left_out(parts: str) -> Refusals:
    return refusals(Refusal(f"{parts} (left out)", lambda _: iter(())))


WHOLES = (
    Omni(MODEL_TYPE, ARCHITECTURE, (VISION, TEXT, TALKER), _left_out("audio tower and vocoder")),
    Omni(THINKER_TYPE, "", (VISION, TEXT), _left_out("audio tower")),
)


def _part(config: Config, kind: str) -> Part[Any]:
    """Return the decoder, the vision tower or the talker. Raises: NoSuchPart."""
    is_whole = config.get("model_type") == MODEL_TYPE
    if kind == "audio":
        raise NoSuchPart(f"audio_config.model_type: {MODEL_TYPE}_audio_encoder")
    if kind not in WHERE or (kind == "talker" and not is_whole):
        raise NoSuchPart(f"model_type: {config.get('model_type')}")
    thinker = section(config, "thinker_config") if is_whole else config
    before = "thinker." if is_whole else ""
    others = ("talker.", "token2wav.") if is_whole else ()
    if kind == "talker":
        return Part(
            family=TALKER,
            config=section(config, "talker_config"),
            prefixes=(("talker.", ""),),
            elsewhere=("thinker.", "token2wav."),
        )
    if kind == "vit":
        beside = (f"{before}model.", f"{before}lm_head.", f"{before}audio_tower.")
        return Part(
            family=VISION,
            config=section(thinker, "vision_config"),
            prefixes=((f"{before}visual.", ""),),
            elsewhere=(*beside, *others),
        )
    text = section(thinker, "text_config")
    # Those of the text part alone tie nothing.
    tied = bool(thinker.get("tie_word_embeddings"))
    return Part(
        family=TEXT,
        config={**text, "tie_word_embeddings": tied},
        prefixes=tuple((before + theirs, ours) for theirs, ours in _TEXT_NAMES),
        elsewhere=(*(before + each for each in _THINKER_PARTS), *others),
    )


def config_of(
    text: DecoderModel, talker: TalkerModel, vision: VitModel | None, token: int | None
) -> Config:
    """Return the configuration of a whole model; `token` is the placeholder of the vision part."""
    thinker: Config = {
        "model_type": THINKER_TYPE,
        "text_config": TEXT.config(text),
        "tie_word_embeddings": text.tied,
    }
    if vision is not None:
        tower = {**VISION.config(vision), "out_hidden_size": text.hidden}
        thinker |= {"vision_config": tower, "image_token_index": token}
    speech = {**TALKER.config(talker), "embedding_size": text.hidden}
    return {"model_type": MODEL_TYPE, "thinker_config": thinker, "talker_config": speech}
