"""Qwen2.5-Omni: a thinker, which is a Qwen2.5-VL with audio, followed by a talker.

Decides: the parts of its folders, and how the thinker reads videos.
Relies on: `qwen_vl` and `qwen2_5_vl` for the thinker, `qwen2_5_omni_talker`; `whole_models`.
Leaves: the audio tower and the vocoder, which none of our modules computes; so the sound of a video
is not used.

Sources: arXiv:2503.20215; `transformers` 5.24, models/qwen2_5_omni.
"""

from dataclasses import replace

from mimo_launch.hugging_face import qwen2_5_vl
from mimo_launch.hugging_face.family import Place
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.qwen2_5_omni_talker import TALKER
from mimo_launch.hugging_face.qwen_vl import QWEN2, as_written, text_family, videos_timed
from mimo_launch.hugging_face.refusals import Refusal, Refusals, refusals
from mimo_launch.hugging_face.whole_models import NestedPart, NestedParts
from mimo_launch.spec.spec import DecoderModel, TalkerModel, VitModel

MODEL_TYPE, THINKER_TYPE = "qwen2_5_omni", "qwen2_5_omni_thinker"
ARCHITECTURE = "Qwen2_5OmniForConditionalGeneration"
_THINKER = "thinker_config"
_AUDIO = {"audio": f"audio_config.model_type: {MODEL_TYPE}_audio_encoder"}
# The setting for the number of positions in a second of a video.
_SECOND = "position_id_per_seconds"
PER_SECOND = 25


def _vision_place(name: str, model: VitModel) -> Place:
    """Return the place of a tensor: as in Qwen2.5-VL, but with separate tensors for q, k and v."""
    at = qwen2_5_vl.VISION.place(name, model)
    if at.num_rows is None:
        return at
    letter = "qkv"[at.first_row // model.hidden]
    return Place(at.name.replace(".qkv.", f".{letter}."))


TEXT = text_family("qwen2_5_omni_text", "Qwen2_5OmniThinkerTextModel", QWEN2)
VISION = replace(
    qwen2_5_vl.VISION,
    # The settings of the thinker decide it.
    video=lambda _: None,
    model_type="qwen2_5_omni_vision_encoder",
    architecture="Qwen2_5OmniVisionEncoder",
    place=_vision_place,
    config=lambda model: {
        # The section around this one holds the positions per second.
        **qwen2_5_vl.VISION.config(model.model_copy(update={"video": None})),
        "model_type": "qwen2_5_omni_vision_encoder",
    },
)


def _thinker(before: str, inside: tuple[str, ...]) -> tuple[NestedPart, ...]:
    """Return the parts of a thinker; `before` is their prefix, `inside` leads to their settings."""
    return (
        NestedPart(
            family=VISION,
            where=(*inside, "vision_config"),
            prefixes=((f"{before}visual.", ""),),
            videos=lambda thinker: videos_timed(
                "nominal_seconds", float(number(thinker, _SECOND, PER_SECOND))
            ),
        ),
        NestedPart(
            family=TEXT,
            where=(*inside, "text_config"),
            prefixes=((f"{before}model.", "model."), (f"{before}lm_head.", "lm_head.")),
            # The text part's own setting ties nothing.
            around=lambda thinker: {
                "tie_word_embeddings": bool(thinker.get("tie_word_embeddings"))
            },
        ),
    )


def _left_out(parts: str) -> Refusals:
    return refusals(Refusal(f"{parts} (left out)", lambda _: iter(())))


WHOLE = NestedParts(
    model_type=MODEL_TYPE,
    architecture=ARCHITECTURE,
    parts=(
        *_thinker("thinker.", (_THINKER,)),
        NestedPart(family=TALKER, where=("talker_config",), prefixes=(("talker.", ""),)),
    ),
    refusals=_left_out("audio tower and vocoder"),
    left_out=("thinker.audio_tower.", "token2wav."),
    others=_AUDIO,
)
WHOLES = (
    WHOLE,
    NestedParts(
        model_type=THINKER_TYPE,
        architecture="",
        parts=_thinker("", ()),
        refusals=_left_out("audio tower"),
        left_out=("audio_tower.",),
        others=_AUDIO,
    ),
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
        if vision.video is not None and vision.video.per_second is not None:
            thinker[_SECOND] = as_written(vision.video.per_second)
    speech = {**TALKER.config(talker), "embedding_size": text.hidden}
    return {"model_type": MODEL_TYPE, _THINKER: thinker, "talker_config": speech}
