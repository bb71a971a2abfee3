"""Qwen2.5-Omni: a thinker, which is a Qwen2.5-VL with audio, followed by a talker.

The audio tower and the vocoder are left out, as none of our modules computes them; so the sound of
a video is not used. The text that a talker reads has equal positions on all three axes, which
rotate like positions on one axis.

Sources: arXiv:2503.20215; `transformers` 5.24, models/qwen2_5_omni.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.families.qwen import WINDOWS
from mimo_launch.hugging_face.families.qwen2_vl import QWEN2_5_VL_VISION, text_family
from mimo_launch.hugging_face.family import Family, Prefixes, Video
from mimo_launch.hugging_face.folder import Config, section
from mimo_launch.hugging_face.part import NoSuchPart, Part
from mimo_launch.hugging_face.refusals import Refusals, left_out, refusals, where
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.hugging_face.tensors import QKV, Place, in_layers
from mimo_launch.hugging_face.wholes import Keys, Models, Tokens, equal
from mimo_launch.spec.spec import DecoderModel, TalkerModel, VitModel

_TYPE, _THINKER = "qwen2_5_omni", "thinker_config"
_AUDIO = {"audio": f"audio_config.model_type: {_TYPE}_audio_encoder"}
_SECONDS = Video("nominal_seconds", ("position_id_per_seconds", 25))
TEXT = text_family(f"{_TYPE}_text", "Qwen2_5OmniThinkerTextModel")
VISION = replace(
    QWEN2_5_VL_VISION,
    model_type=f"{_TYPE}_vision_encoder",
    architecture="Qwen2_5OmniVisionEncoder",
    tensors=QWEN2_5_VL_VISION.tensors
    | in_layers("blocks.*.attn.", {each: each[-1] for each in QKV}),
    # The settings of the thinker decide it.
    video=None,
    rank=1,
)


def _head(_model: TalkerModel, book: int) -> Place:
    """`codec_head.weight`, of the first codebook. Raises: KeyError for others."""
    if book:
        raise KeyError(book)
    return Place("codec_head.weight")


def _sections(model: TalkerModel) -> Config:
    # Shares of 2 to 3 to 3, as published models have them; text does not depend on them.
    half = model.head_size // 2
    side = 3 * half // 8
    return {"mrope_section": [half - 2 * side, side, side]}


TALKER = Family(
    model_type=f"{_TYPE}_talker",
    kind="talker",
    architecture="Qwen2_5OmniTalkerForConditionalGeneration",
    settings=Settings(
        {
            **decoders.sizes(kv_heads=32),
            "norm_eps": ("rms_norm_eps", decoders.NORM_EPS),
            **rotary.rope(_sections),
            "start": ("tts_codec_start_token_id", 8293),
            "end": ("tts_codec_end_token_id", 8294),
        },
        {"tie_word_embeddings": False},
        {"qkv_bias": True, "qk_norm": False, "codebooks": 1, "reads_text": True},
    ),
    tensors=replace(decoders.TENSORS, dropped=())
    | {
        "codes.weight": "model.embed_tokens.weight",
        "project.weight": "thinker_to_talker_proj.weight",
        "project.bias": "thinker_to_talker_proj.bias",
        "heads.*.weight": _head,
    },
    refused=decoders.not_computed(WINDOWS)
    + refusals(
        where(
            "use_sliding_window",
            "where a layer slides",
            lambda config: WINDOWS.read(config) is not None,
        )
    ),
    defaults={
        "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 18944, "vocab_size": 8448,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    },
    prepared=rotary.plain_rope,
    row_width="embedding_size",
    notes="The talker reads the states after the last norm of the thinker and the embeddings of "
    "its tokens, as `transformers` does.",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nested:
    """A module of a whole model: its family, the keys to its configuration, and its prefixes.

    `around(config)` are settings that the enclosing section decides; `videos` reads how the model
    of that section reads videos.
    """

    family: Family
    where: Keys
    prefixes: Prefixes
    around: Callable[[Config], Config] = lambda _: {}
    videos: Video | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkerAndTalker:
    """A family of whole models: its parts, and the class of transformers that loads them.

    `left_out` are prefixes of parts that are not our modules, `others` the types of such parts by
    kind of module. `config_of` makes the configuration of a text, a talker, and perhaps a tower
    with its token.
    """

    model_type: str
    architecture: str
    parts: tuple[_Nested, ...]
    refusals: Refusals
    left_out: Keys = ()
    others: Mapping[str, str] = field(default_factory=dict)
    config_of: Callable[..., Config] | None = None
    rank: int = 0
    published: tuple[str, ...] = ()
    notes: str = ""

    @property
    def families(self) -> tuple[Family, ...]:
        """The families of its parts."""
        return tuple(each.family for each in self.parts)

    @property
    def names(self) -> tuple[Prefixes, ...]:
        """The prefixes of its parts."""
        return tuple(each.prefixes for each in self.parts)

    def part(self, config: Config, kind: str) -> Part:
        """Return the part of a kind. Raises: NoSuchPart."""
        found = next((each for each in self.parts if each.family.kind == kind), None)
        if found is None:
            raise NoSuchPart(self.others.get(kind, f"model_type: {self.model_type}"))
        *outer, last = found.where
        for key in outer:
            config = section(config, key)
        others = (prefix for each in self.parts if each != found for prefix, _ in each.prefixes)
        return Part(
            family=found.family,
            config={**section(config, last), **found.around(config)},
            prefixes=found.prefixes,
            elsewhere=(*others, *self.left_out),
            reads_videos=None if found.videos is None else found.videos.read(config),
        )

    def made_of(self, models: Models, tokens: Tokens) -> tuple[Config, dict[str, Keys]] | None:
        """Return the configuration of a whole made of our modules, and the keys to its parts."""
        of_kind = {each.family.kind: each.family for each in self.parts}
        if self.config_of is None or models.keys() - of_kind.keys():
            return None
        if not {"decoder", "talker"} <= models.keys():
            return None
        if not all(equal((of_kind[kind],), model) for kind, model in models.items()):
            return None
        text, talker, vision = (models.get(kind) for kind in ("decoder", "talker", "vit"))
        where = {each.family.kind: each.where for each in self.parts}
        return self.config_of(text, talker, vision, tokens.get("vit")), where


def _thinker(before: str, inside: tuple[str, ...]) -> tuple[_Nested, ...]:
    """Return the parts of a thinker; `before` is their prefix, `inside` leads to their settings."""
    return (
        _Nested(
            family=VISION,
            where=(*inside, "vision_config"),
            prefixes=((f"{before}visual.", ""),),
            videos=_SECONDS,
        ),
        _Nested(
            family=TEXT,
            where=(*inside, "text_config"),
            prefixes=((f"{before}model.", "model."), (f"{before}lm_head.", "lm_head.")),
            # The text part's own setting ties nothing.
            around=lambda thinker: {
                "tie_word_embeddings": bool(thinker.get("tie_word_embeddings"))
            },
        ),
    )


def _config_of(
    text: DecoderModel, talker: TalkerModel, vision: VitModel | None, token: int | None
) -> Config:
    thinker: Config = {
        "model_type": f"{_TYPE}_thinker",
        "text_config": TEXT.config(text),
        "tie_word_embeddings": text.tied,
    }
    if vision is not None:
        # The section around this one holds the positions per second.
        tower = {**VISION.config(vision), "out_hidden_size": text.hidden}
        thinker |= {"vision_config": tower, "image_token_index": token, **_SECONDS.write(vision)}
    speech = {**TALKER.config(talker), "embedding_size": text.hidden}
    return {"model_type": _TYPE, _THINKER: thinker, "talker_config": speech}


QWEN2_5_OMNI = ThinkerAndTalker(
    model_type=_TYPE,
    architecture="Qwen2_5OmniForConditionalGeneration",
    published=("Qwen/Qwen2.5-Omni-7B",),
    parts=(
        *_thinker("thinker.", (_THINKER,)),
        _Nested(family=TALKER, where=("talker_config",), prefixes=(("talker.", ""),)),
    ),
    refusals=refusals(left_out("audio tower and vocoder")),
    left_out=("thinker.audio_tower.", "token2wav."),
    others=_AUDIO,
    config_of=_config_of,
    notes="`export` copies the audio tower and the vocoder from the folder that `language` came "
    "from, with the settings around them. Sound of a video is not heard.",
)
QWEN2_5_OMNI_THINKER = ThinkerAndTalker(
    model_type=f"{_TYPE}_thinker",
    architecture="",
    parts=_thinker("", ()),
    refusals=refusals(left_out("audio tower")),
    left_out=("audio_tower.",),
    others=_AUDIO,
)
