"""The talker of Qwen2.5-Omni: a Qwen2 over codes of speech, which reads rows of language.

Decides: what its configuration and its tensors mean.
Relies on: `decoder` for its blocks.
Leaves: its place in a whole model to `qwen2_5_omni`.

Sources: arXiv:2503.20215; `transformers` 5.23, models/qwen2_5_omni. The text that a talker reads
has equal positions on all three axes, which rotate like positions on one axis.
"""

from typing import Any

from mimo_launch.hugging_face import decoder
from mimo_launch.hugging_face.family import Family, Place
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.names import Found
from mimo_launch.hugging_face.qwen_vl import plain_rope
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.spec.spec import TalkerModel


def _head(_model: TalkerModel, book: int) -> Place:
    """Return the place of the head of a codebook. Raises: KeyError for all but the first."""
    if book:
        raise KeyError(book)
    return Place("codec_head.weight")


_ENDS: dict[str, str | Found] = {
    "codes.weight": "model.embed_tokens.weight",
    "project.weight": "thinker_to_talker_proj.weight",
    "project.bias": "thinker_to_talker_proj.bias",
    "norm.weight": "model.norm.weight",
    "heads.*.weight": _head,
}
_DEFAULTS: Config = {
    "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 18944, "vocab_size": 8448,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6,
}  # fmt: skip
_ENDS_OF_SPEECH = {"start": "tts_codec_start_token_id", "end": "tts_codec_end_token_id"}
_CODES = {"start": 8293, "end": 8294}


def _keys(config: Config) -> dict[str, Any]:
    keys = decoder.keys(decoder.KINDS["qwen2"], {**_DEFAULTS, **plain_rope(config)})
    ends = {key: number(config, _ENDS_OF_SPEECH[key], _CODES[key]) for key in _CODES}
    codes = {"codebooks": 1, "vocab": keys["vocab"], **ends, "reads_text": True}
    return {key: keys[key] for key in keys if key in TalkerModel.model_fields} | codes


def _config(model: TalkerModel) -> Config:
    """Return the configuration of a talker, without `embedding_size`: the width of language."""
    config = decoder.config_of(TALKER.model_type, model)
    # Shares of 2 to 3 to 3, as published models have them; text does not depend on them.
    half = model.head_size // 2
    side = 3 * half // 8
    config["rope_parameters"]["mrope_section"] = [half - 2 * side, side, side]
    return {**config, **{_ENDS_OF_SPEECH[k]: getattr(model, f"{k}_code") for k in _CODES}}


TALKER = Family(
    model_type="qwen2_5_omni_talker",
    kind="talker",
    not_computed=decoder.not_computed(decoder.KINDS["qwen2"]).after(plain_rope)
    + refusals(
        where(
            "use_sliding_window",
            "where a layer slides",
            lambda config: decoder.KINDS["qwen2"].windows.of(_DEFAULTS | config) is not None,
        )
    ),
    keys=_keys,
    place=decoder.place | _ENDS,
    is_ignored=lambda name, model: False,
    fits=lambda model: model.codebooks == 1,
    config=_config,
    architecture="Qwen2_5OmniTalkerForConditionalGeneration",
    row_width="embedding_size",
)
