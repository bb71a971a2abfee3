"""Qwen3.5 and Qwen3-Next: Gated DeltaNet in most layers, gated attention in the others.

Each of their layers, a mixer and an MLP or experts, is two layers of a hybrid model.

Sources: `transformers` 5.23, models/qwen3_5 and models/qwen3_5_moe; 5.24, models/qwen3_next; the
published folders for `mtp.*`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import HYBRID_REST, LAYERS
from mimo_launch.hugging_face.families.qwen3_vl import vision_family
from mimo_launch.hugging_face.family import Family, OneDepthApart
from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.refusals import layer_types, only, refusals
from mimo_launch.hugging_face.rotary import FACTOR, THETA
from mimo_launch.hugging_face.settings import UNDECIDED, Computed, InnerSettings, Settings
from mimo_launch.hugging_face.tensors import (
    MLP as PARTS,
)
from mimo_launch.hugging_face.tensors import (
    Dropped,
    Entry,
    ExpertStack,
    HeadRows,
    InTurn,
    Tensors,
    fused,
    in_layers,
)
from mimo_launch.hugging_face.wholes import VisionAndText
from mimo_launch.spec.hybrid import ATTENTION, DELTANET, EXPERTS, MLP, DeltaNetSizes

# Settings.

_LETTERS = {"linear_attention": DELTANET, "full_attention": ATTENTION}
_NAMES = {letter: name for name, letter in _LETTERS.items()}
_DENSE, _EVERY, _DEPTH = "mlp_only_layers", "decoder_sparse_step", "num_hidden_layers"
_KEY_HEADS = ("linear_num_key_heads", 16)
Letter = Callable[[Config, int], str]


def _types(config: Config) -> Sequence[Any]:
    """Return the name of the mixer of each layer; every fourth attends. Raises: ConfigError."""
    said = config.get("layer_types")
    if said is None:
        every = max(1, int(number(config, "full_attention_interval", 4)))
        depth = int(number(config, _DEPTH))
        return [_NAMES[DELTANET if (i + 1) % every else ATTENTION] for i in range(depth)]
    if not isinstance(said, list):
        raise ConfigError(f"`layer_types` is {short(said)}, not a list")
    return said


def _pattern(after: Letter, also: Callable[[Any], Config] = lambda _: {}) -> Computed:
    """Return the entry of the pattern; `after` is the letter after a layer's mixer."""

    def read(config: Config) -> str:
        letters = (_LETTERS.get(each, "?") for each in _types(config))
        return "".join(each + after(config, i) for i, each in enumerate(letters))

    def write(model: Any) -> Config:
        names = [_NAMES.get(each, _NAMES[ATTENTION]) for each in model.pattern[::2]]
        return {"layer_types": names, _DEPTH: -(-model.layers // 2), **also(model)}

    words = "`layer_types`: `G` for `linear_attention`, `*` for `full_attention`, each followed by "
    return Computed(read, write, words + "`-` or `E`; `full_attention_interval` (4)")


def _settings(pattern: Computed, mrope: Mapping[str, Any], **more: Any) -> Settings:
    return Settings(
        {
            "pattern": pattern,
            "deltanet": InnerSettings(
                Settings({
                    "heads": ("linear_num_value_heads", 32),
                    "key_heads": Computed(
                        lambda config: number(config, *_KEY_HEADS),
                        lambda sizes: {_KEY_HEADS[0]: sizes.groups},
                        f"`{_KEY_HEADS[0]}`; {_KEY_HEADS[1]}",
                    ),
                    "head_dim": ("linear_value_head_dim", 128),
                    "key_dim": ("linear_key_head_dim", 128),
                    "conv": ("linear_conv_kernel_dim", 4),
                }),
                lambda config: "linear_attention" in _types(config),
                DeltaNetSizes.model_validate({"heads": 32, "key_heads": 16}),
            ),
            "hidden": ("hidden_size", 2048),
            "heads": ("num_attention_heads", 16),
            "kv_heads": ("num_key_value_heads", 2),
            "head_dim": ("head_dim", 256),
            "vocab": "vocab_size",
            "norm_eps": ("rms_norm_eps", 1e-6),
            "tied": ("tie_word_embeddings", False),
            "rope_theta": Computed(
                rotary.theta_of,
                lambda model: {
                    "rope_parameters": {
                        "rope_type": "default", "rope_theta": model.rope_theta or THETA,
                        FACTOR: model.rotary_factor,
                        **(
                            {"mrope_section": list(model.mrope or ()), "mrope_interleaved": True}
                            if mrope else {}
                        ),
                    }
                },
                "`rope_parameters.rope_theta`, or `rope_theta`; 10000",
            ),
            "rotary_factor": rotary.rotary_factor(0.25),
            **mrope,
            **more,
        },
        rest={
            **HYBRID_REST, "activation": "silu", "qk_norm": True, "norm_offset": True,
            "gated_attention": True, "mrope_interleaved": bool(mrope),
        },
    )  # fmt: skip


_REFUSED = refusals(
    only("hidden_act", "silu"),
    only("attention_bias", False),
    layer_types(tuple(_LETTERS), _types),
    only("rope_type", "default").after(
        lambda config: {
            "rope_type": rotary.type_of(rotary.plain_rope(config)["rope_parameters"], "default")
        }
    ),
)
_BALANCE, _WIDTH = Settings(decoders.BALANCE), ("intermediate_size", 5632)
_EXPERTS = {
    "top_k": ("num_experts_per_tok", 8),
    "width": ("moe_intermediate_size", 512),
    "shared": ("shared_expert_intermediate_size", 512),
}

# Tensors.


def _sizes(model: Any) -> DeltaNetSizes:
    if model.deltanet is None:
        raise KeyError("deltanet")
    sizes: DeltaNetSizes = model.deltanet
    return sizes


def _fused(model: Any) -> list[int]:
    """Return the rows of queries, keys and values. Raises: KeyError."""
    sizes = _sizes(model)
    return [sizes.shared, sizes.shared, sizes.inner]


_MLP = {f"mlp.{x}": f"mlp.{x}_proj" for x in PARTS}
_MOE = {
    "moe.router": "mlp.gate",
    **{f"moe.experts.*.{x}.weight": f"mlp.experts.*.{x}_proj.weight" for x in PARTS},
    **{f"moe.shared.{x}": f"mlp.shared_expert.{x}_proj" for x in PARTS},
    "moe.shared_gate": "mlp.shared_expert_gate",
}
_STACKED = {f"experts.*.{x}.weight": ExpertStack("mlp.experts", x) for x in PARTS}
_DELTANET: dict[str, Entry] = {
    **{f"deltanet.{x}": f"linear_attn.{x}" for x in ("A_log", "dt_bias", "norm")},
    **{f"deltanet.{x}": f"linear_attn.in_proj_{x}" for x in "zab"},
    "deltanet.out": "linear_attn.out_proj",
    **fused("linear_attn.in_proj_qkv.weight", [f"deltanet.{x}.weight" for x in "qkv"], _fused),
    **fused(
        "linear_attn.conv1d.weight",
        [f"deltanet.conv.{x}.weight" for x in "qkv"],
        _fused,
        lambda model: (sum(_fused(model)), 1, _sizes(model).conv),
    ),
}
_MTP, _MTP_LAYER = "mtp.", "mtp.layers.*."
_DEPTHS = OneDepthApart(
    Tensors(
        {
            "mtp.*.token_norm": "mtp.pre_fc_norm_embedding",
            "mtp.*.hidden_norm": "mtp.pre_fc_norm_hidden",
            "mtp.*.project": "mtp.fc",
            "mtp.*.norm": "mtp.norm",
            **in_layers(
                _MTP_LAYER,
                {
                    "attention_norm": "input_layernorm",
                    "mlp_norm": "post_attention_layernorm",
                    **decoders.ATTENTION,
                    **_MLP,
                    **{each.replace("moe.", "mlp.", 1): at for each, at in _MOE.items()},
                },
                "mtp.*.block.",
            ),
        }
    )
)
_TENSORS = Tensors(
    {
        **decoders.ENDS,
        **in_layers(
            LAYERS,
            {
                "norm.weight": InTurn(
                    ("input_layernorm.weight", "post_attention_layernorm.weight")
                ),
                **decoders.ATTENTION,
                **_MLP,
                **_MOE,
                **_DELTANET,
            },
        ),
    },
    (Dropped(f"{_MTP}*", lambda model: model.mtp is None), decoders.TIED),
    layers_in_one=2,
)
# Files may stack the experts of a layer, as in memory; transformers writes each by itself.
_OTHER_TENSORS = Tensors(
    in_layers(LAYERS, _STACKED, "layers.*.moe.")
    | in_layers(_MTP_LAYER, _STACKED, "mtp.*.block.mlp."),
    layers_in_one=2,
)

# Families.


def _whole(
    name: str,
    classes: str,
    letter: str,
    defaults: Config,
    published: tuple[str, ...],
    *,
    rank: int,
    **more: Any,
) -> VisionAndText:
    """Return a Qwen3.5; `letter` comes after each mixer, `classes` begin the classes' names."""
    mrope = {
        "mrope": Computed(
            lambda config: rotary.sections_of(config, (11, 11, 10)),
            words="`rope_parameters.mrope_section`; [11, 11, 10]",
        )
    }
    text: Family = Family(
        model_type=f"{name}_text",
        kind="hybrid",
        architecture=f"{classes}ForCausalLM",
        settings=_settings(_pattern(lambda *_: letter), mrope, **more).but(
            {}, {"mtp_num_hidden_layers": lambda model: int(model.mtp is not None)}
        ),
        tensors=_TENSORS,
        other_tensors=_OTHER_TENSORS,
        depths=_DEPTHS,
        refused=_REFUSED,
        training=_BALANCE if letter == EXPERTS else Settings({}),
        defaults={"vocab_size": 248320, **defaults},
        notes="Always on: `activation: silu`, `qk_norm`, `norm_offset`, `gated_attention`.",
    )
    return VisionAndText(
        model_type=name,
        architecture=f"{classes}ForConditionalGeneration",
        published=published,
        vision=replace(vision_family(f"{name}_vision", f"{classes}VisionModel"), rank=rank),
        text=text,
        nested=True,
        beside=(_MTP,),
        notes="Experts may be in two tensors of a layer (`experts.gate_up_proj`) or each in its "
        "own, which is how `export` writes them. Without `mtp` in `model` the tensors that "
        "[predict further tokens](further-tokens.md#folders) are left out, as by `transformers`, "
        "which computes the recurrence in fp32 whatever the type.",
    )


QWEN3_5 = _whole(
    "qwen3_5",
    "Qwen3_5",
    MLP,
    {"hidden_size": 4096, _DEPTH: 32, "num_key_value_heads": 4, "intermediate_size": 12288},
    ("Qwen/Qwen3.5-27B", "Qwen/Qwen3.6-27B", "Qwen/Qwen3.8-27B"),
    rank=1,
    mlp="intermediate_size",
)
# The settings of its language where tokens of images count as those of text.
ON_ONE_AXIS = _settings(_pattern(lambda *_: MLP), {}, mlp="intermediate_size").but(
    {}, QWEN3_5.text.settings.written
)
QWEN3_5_MOE = _whole(
    "qwen3_5_moe",
    "Qwen3_5Moe",
    EXPERTS,
    {_DEPTH: 40, "num_experts": 256},
    ("Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.6-35B-A3B"),
    rank=2,
    moe=decoders.experts({"experts": "num_experts", **_EXPERTS}, shared_gate=True),
)


def _letter(config: Config, layer: int) -> str:
    """Return the letter after a mixer of a Qwen3-Next. Raises: ConfigError."""
    every = max(1, int(number(config, _EVERY, 1)))
    is_dense = layer in list(config.get(_DENSE) or ()) or (layer + 1) % every
    return MLP if is_dense or number(config, "num_experts") <= 0 else EXPERTS


def _has(letter: str) -> Callable[[Config], bool]:
    return lambda config: any(_letter(config, i) == letter for i, _ in enumerate(_types(config)))


def _balance(config: Config) -> Any:
    return _BALANCE.keys(config)["aux_loss"] if _has(EXPERTS)(config) else UNDECIDED


def _dense_layers(model: Any) -> Config:
    after = model.pattern[1::2]
    dense = [layer for layer, letter in enumerate(after) if letter != EXPERTS]
    sizes = {"intermediate_size": model.mlp_width} if MLP in after else {}
    return {_EVERY: 1, _DENSE: dense, **sizes}


def _head_rows(name: str, parts: str, sizes: Callable[[Any], Sequence[int]]) -> dict[str, Entry]:
    """Return the places of inputs of a DeltaNet, which alternate key head by key head."""
    return {
        f"deltanet.{x}.weight": HeadRows(
            f"linear_attn.{name}.weight", index, sizes, lambda model: _sizes(model).groups
        )
        for index, x in enumerate(parts)
    }


def _of_a_head(model: Any) -> list[int]:
    sizes = _sizes(model)
    values = sizes.heads // sizes.groups * sizes.head_dim
    return [sizes.key_dim, sizes.key_dim, values, values]


QWEN3_NEXT = Family(
    model_type="qwen3_next",
    kind="hybrid",
    architecture="Qwen3NextForCausalLM",
    published=("Qwen/Qwen3-Next-80B-A3B-Instruct",),
    settings=_settings(
        _pattern(_letter, _dense_layers),
        {},
        moe=decoders.experts(
            {
                "experts": "num_experts", **_EXPERTS, "top_k": ("num_experts_per_tok", 10),
                "normalize": ("norm_topk_prob", True),
            },
            _has(EXPERTS),
            shared_gate=True,
        ),
        mlp=Computed(
            lambda config: number(config, *_WIDTH) if _has(MLP)(config) else UNDECIDED,
            words=f"`{_WIDTH[0]}`, if a layer has an MLP; {_WIDTH[1]}",
        ),
    ),
    tensors=_TENSORS
    | in_layers(
        LAYERS,
        {
            **_head_rows("in_proj_qkvz", "qkvz", _of_a_head),
            **_head_rows("in_proj_ba", "ba", lambda x: [_sizes(x).heads // _sizes(x).groups] * 2),
        },
    ),
    depths=_DEPTHS,
    refused=_REFUSED,
    training=Settings({"aux_loss": Computed(_balance)}),
    defaults={_DEPTH: 48, "num_experts": 512, "vocab_size": 151936},
    notes="Layers of `mlp_only_layers`, and those that are no multiple of `decoder_sparse_step`, "
    "counted from 1, have an MLP; `export` writes the former, and 1. `in_proj_qkvz` holds, for one "
    "key head after the other, its query, its key, then the values and the gates of its value "
    "heads; `in_proj_ba` holds write strengths and decays in the same way.",
)  # fmt: skip
