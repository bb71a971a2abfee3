"""The talker of Qwen3-Omni: a decoder of experts, and a code predictor inside each frame.

Its configuration has three sections: of the talker, of its decoder and of the code predictor.

Sources: arXiv:2509.17765; `transformers` 5.24, models/qwen3_omni_moe.
"""

from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.families.qwen import EXPERTS
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.refusals import off, refusals, where
from mimo_launch.hugging_face.settings import Computed, Fixed, Settings
from mimo_launch.hugging_face.tensors import MLP, Place, in_layers
from mimo_launch.spec.spec import TalkerModel

_TYPE = "qwen3_omni_moe_talker"
_TEXT, _INSIDE, _BOOKS = "text_config", "code_predictor_config", "num_code_groups"
_DROPOUT = "attention_dropout"
_STATE, _START, _END = "accept_hidden_layer", "codec_bos_id", "codec_eos_token_id"
_OWN = (_BOOKS, _STATE, _START, _END, _INSIDE)
_WINDOWS = decoders.WindowKeys(size=None, by_layer=True)
_PREDICTOR = Settings(
    {
        **{key: each for key, each in decoders.sizes(kv_heads=8).items() if key != "hidden"},
        "head_dim": ("head_dim", 128),
        "norm_eps": ("rms_norm_eps", decoders.NORM_EPS),
        "rope_theta": rotary.rope()["rope_theta"],
    },
    {"hidden_size": lambda model: model.hidden},
)
_USUAL = {
    "vocab_size": 2048, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5,
    "num_attention_heads": 16,
}  # fmt: skip
_USUAL_TEXT = {
    "vocab_size": 3072, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 20,
    "num_attention_heads": 16,
}  # fmt: skip


class _Sections(Settings):
    """Settings that are written in sections; `_flat` brings them together to be read."""

    def config(self, model: Any) -> Config:
        """Return a model as settings."""
        text = Settings.config(self, model)
        own = {key: text.pop(key) for key in _OWN if key in text}
        return {**own, _TEXT: {"model_type": f"{_TYPE}_text", **text}}


def _flat(config: Config) -> Config:
    """Return the settings of the talker and of its decoder together."""
    text = rotary.plain_rope(_USUAL_TEXT | section(config, _TEXT))
    return {**text, **config, _INSIDE: _USUAL | section(config, _INSIDE)}


def _written(model: TalkerModel) -> Config:
    if (blocks := model.inside_frames) is None:
        return {}
    said = {"model_type": f"{_TYPE}_code_predictor", _BOOKS: model.codebooks}
    return {_INSIDE: {**said, **_PREDICTOR.config(blocks)}}


def _sections(model: TalkerModel) -> Config:
    # As published: 24, 20 and 20 of 64 pairs; text does not depend on them.
    half = model.head_size // 2
    side = 5 * half // 16
    return {"mrope_section": [half - 2 * side, side, side], "mrope_interleaved": True}


def _head(_model: TalkerModel, book: int) -> Place:
    """`codec_head.weight`, of the first codebook. Raises: KeyError for others."""
    if book:
        raise KeyError(book)
    return Place("codec_head.weight")


_PROJECTIONS = {"states": "hidden_projection", "text": "text_projection"}
_MAPS = {"up": "linear_fc1", "down": "linear_fc2"}
_SHARED = "mlp.shared_expert"
_BLOCK = {
    ours.removeprefix("layers.*."): entry
    for ours, entry in decoders.TENSORS.table.items()
    if ours.startswith("layers.*.") and isinstance(entry, str)
}
TALKER = Family(
    model_type=_TYPE,
    kind="talker",
    architecture="Qwen3OmniMoeTalkerForConditionalGeneration",
    settings=_Sections(
        {
            **decoders.sizes(kv_heads=2),
            "norm_eps": ("rms_norm_eps", decoders.NORM_EPS),
            **rotary.rope(_sections),
            "moe": decoders.experts(
                {
                    "experts": decoders.count(128),
                    "top_k": ("num_experts_per_tok", 8),
                    "width": ("moe_intermediate_size", 384),
                    "normalize": ("norm_topk_prob", False),
                    "shared": "shared_expert_intermediate_size",
                },
                shared_gate=True,
            ),
            "codebooks": (_BOOKS, 32),
            "start": (_START, 4197),
            "end": (_END, 4198),
            "reads_layer": (_STATE, 18),
            "predictor": Computed(
                lambda config: _PREDICTOR.keys(section(config, _INSIDE)),
                _written,
                f"the section `{_INSIDE}`",
            ),
            "reads_text": Fixed("instead"),
        },
        {"tie_word_embeddings": False},
        {"qkv_bias": False, "qk_norm": True},
    ),
    tensors=decoders.TENSORS
    | in_layers(
        decoders.LAYERS,
        EXPERTS
        | {f"mlp.shared.{x}.weight": f"{_SHARED}.{x}_proj.weight" for x in MLP}
        | {"mlp.shared_gate.weight": f"{_SHARED}_gate.weight"},
    )
    | {
        "codes.weight": "model.codec_embedding.weight",
        "later.*.weight": "code_predictor.model.codec_embedding.*.weight",
        "heads.*.weight": _head,
        "predictor.heads.*.weight": "code_predictor.lm_head.*.weight",
        "predictor.norm.weight": "code_predictor.model.norm.weight",
        **{
            f"project.{ours}.{inner}": f"{theirs}.{of_file}"
            for ours, theirs in _PROJECTIONS.items()
            for inner, of_file in _MAPS.items()
        },
        **{
            f"predictor.blocks.*.{ours}": f"code_predictor.{entry}"
            for ours, entry in _BLOCK.items()
        },
    },
    refused=decoders.not_computed()
    + refusals(off(_DROPOUT))
    + (
        decoders.not_computed()
        + refusals(
            off(_DROPOUT),
            where(
                "sliding_window",
                "where a layer slides",
                lambda config: _WINDOWS.read(config) is not None,
            ),
        )
    ).inside(_INSIDE)
    + refusals(
        where(
            f"{_INSIDE}.hidden_size",
            "other than that of the talker",
            lambda config: (
                number(section(config, _INSIDE), "hidden_size") != number(config, "hidden_size")
            ),
        ),
        where(
            f"{_INSIDE}.{_BOOKS}",
            "other than that of the talker",
            lambda config: (
                number(section(config, _INSIDE), _BOOKS, 32) != number(config, _BOOKS, 32)
            ),
        ),
        where(_BOOKS, "of one", lambda config: number(config, _BOOKS, 32) < 2),
    ),
    # Its sections say it.
    random=(),
    prepared=_flat,
    row_width="thinker_hidden_size",
    notes="The talker reads rows of a prompt before the frames; in the published model text also "
    "comes beside the frames, which is not computed.",
)
