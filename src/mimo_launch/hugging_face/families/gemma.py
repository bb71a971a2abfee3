"""Gemma 1 to 3: scaled embeddings; since 2 capped scores, norms on both sides, windows; 3 sees.

Sources: `transformers` 5.24, models/gemma and models/vaultgemma; 5.23, models/gemma2 and
models/gemma3; arXiv:2403.08295, arXiv:2408.00118, arXiv:2503.19786.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import isqrt, prod
from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import FULL, LAYERS, SLIDING, WindowKeys, in_turn
from mimo_launch.hugging_face.families import llava, siglip_clip
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.refusals import (
    Refusal,
    layer_types,
    listed,
    one_of,
    refusals,
    where,
)
from mimo_launch.hugging_face.settings import Computed, Named, defaults_of
from mimo_launch.hugging_face.tensors import Place, in_layers
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default
from mimo_launch.spec.layers import SlidingWindow

_ACTIVATION = "gelu_pytorch_tanh"
_ACTIVATIONS = {_ACTIVATION: "gelu_tanh", "silu": "silu"}
_SCALAR, _SCORE_CAP, _LOGIT_CAP = (
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
)  # fmt: skip
_BLOCK = decoders.sizes(kv_heads=4, head_size=256)
_WINDOWS = WindowKeys(size=4096, by_layer=True)
_COMMON: Config = {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "tie_word_embeddings": True, _SCALAR: 256,
}  # fmt: skip
TENSORS = decoders.TENSORS | in_layers(
    LAYERS,
    {
        "post_attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
)


def _scalar(config: Config) -> float | None:
    head = decoders.head_size_of(_BLOCK, config)
    scalar = number(config, _SCALAR)
    return None if scalar == head else scalar


def cap(ours: str, key: str) -> dict[str, Computed]:
    """Return the entry of a cap of scores or logits, which may be `null`."""

    def found(config: Config) -> float | None:
        if config.get(key) is None:
            return None
        cap = number(config, key)
        if cap <= 0:
            raise ConfigError(f"`{key}` is {short(cap)}, not above 0")
        return float(cap)

    words = f"`{key}`; none if it is `null`"
    return {ours: Computed(found, lambda model: {key: getattr(model, ours)}, words)}


ROOT_OF_WIDTH = Computed(
    lambda config: number(config, "hidden_size") ** 0.5, words="the root of `hidden_size`"
)
_FIRST: dict[str, Any] = {"norm_offset": True, "embedding_scale": ROOT_OF_WIDTH}
BOTH_WAYS = "use_bidirectional_attention"
# Published folders name the exact function but mean its approximation.
_FIRST_ACTIVATIONS = {_ACTIVATION: "gelu_tanh", "gelu": "gelu_tanh"}
GEMMA = Family(
    model_type="gemma",
    kind="decoder",
    architecture="GemmaForCausalLM",
    published=("google/gemma-7b", "google/gemma-2b"),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=16, head_size=256),
        activation=Named("hidden_act", _FIRST_ACTIVATIONS, _ACTIVATION),
        **_FIRST,
    ),
    tensors=decoders.TENSORS,
    refused=refusals(
        one_of("hidden_act", _FIRST_ACTIVATIONS, _ACTIVATION),
        one_of(BOTH_WAYS, (False, None), False),
    )
    + decoders.not_computed(but=("hidden_act",)),
    defaults={
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576,
        "num_hidden_layers": 28, "num_attention_heads": 16, "tie_word_embeddings": True,
    },
    notes="`gelu` in `hidden_act` means its approximation by tanh, as in `transformers`.",
)  # fmt: skip
_PARTS: dict[str, Any] = {
    **_FIRST,
    "activation": Named("hidden_activation", _ACTIVATIONS, _ACTIVATION),
    "post_norms": True,
    _SCALAR: Computed(
        _scalar, lambda model: {_SCALAR: model.query_pre_attn_scalar or model.head_size},
        f"`{_SCALAR}`, unless it is `head_dim`",
    ),
    **cap("logit_softcap", _LOGIT_CAP),
}  # fmt: skip
GEMMA2 = Family(
    model_type="gemma2",
    kind="decoder",
    architecture="Gemma2ForCausalLM",
    published=("google/gemma-2-9b",),
    settings=decoders.decoder(_BLOCK, _WINDOWS, **_PARTS, **cap("attention_softcap", _SCORE_CAP)),
    tensors=TENSORS,
    refused=refusals(
        *(one_of(key, (False, None), False) for key in ("attention_bias", BOTH_WAYS)),
        one_of("hidden_activation", _ACTIVATIONS, _ACTIVATION),
        _WINDOWS.refusal(),
        rotary.rope_refusal(),
    ),
    defaults={**_COMMON, "vocab_size": 256000, _SCORE_CAP: 50.0, _LOGIT_CAP: 30.0},
    prepared=lambda config: in_turn(config, every=2),
    notes="Every second layer has a window.",
)
VAULTGEMMA = replace(
    GEMMA2,
    model_type="vaultgemma",
    architecture="VaultGemmaForCausalLM",
    published=("google/vaultgemma-1b",),
    settings=decoders.decoder(
        _BLOCK,
        _WINDOWS,
        **(_PARTS | {"post_norms": False}),
        **cap("attention_softcap", _SCORE_CAP),
    ),
    tensors=decoders.TENSORS | in_layers(LAYERS, {"mlp_norm": "pre_feedforward_layernorm"}),
    notes="A Gemma 2 without norms after attention and MLP. Every second layer has a window.",
)
# Every sixth layer attends to whole sequences.
_PATTERN = 6
_THETA, _LOCAL_THETA = 1e6, 10000.0


def layers_of(config: Config) -> list[Any]:
    """Return the kind of attention of each layer. Raises: ConfigError."""
    said = config.get("layer_types")
    if said is None:
        every = max(1, int(number(config, "sliding_window_pattern", _PATTERN)))
        said = in_turn(config, every)["layer_types"]
    if not isinstance(said, list):
        raise ConfigError(f"`layer_types` is {short(said)}, not a list")
    return said


def _ropes(config: Config) -> tuple[Config, Config]:
    """Return the rotary settings of layers without windows and of layers with windows.

    Versions before 5 wrote two bases, and a scaling for the layers without windows.
    """
    both = config.get("rope_parameters")
    both = both if isinstance(both, dict) else {}
    scaling = config.get("rope_scaling")
    scaling = scaling if isinstance(scaling, dict) else {}
    scaled = {"rope_type": scaling.get("type", "default"), **scaling}
    everywhere = {"rope_theta": config.get("rope_theta", _THETA), **scaled}
    local = config.get("rope_local_base_freq", _LOCAL_THETA)
    in_windows = {"rope_theta": local, "rope_type": "default"}
    return {**everywhere, **(both.get(FULL) or {})}, {**in_windows, **(both.get(SLIDING) or {})}


def rope_refusal(*kinds: str) -> Refusal:
    """Return the rule for rotary settings by kind of layer; those of windows are never scaled."""

    def found(config: Config) -> Iterator[str]:
        everywhere, in_windows = _ropes(config)
        for rope, known in ((everywhere, kinds), (in_windows, ("default",))):
            if rope["rope_type"] not in known:
                yield f"rope_type: {short(rope['rope_type'])}"

    return Refusal(f"`rope_type` other than {listed(kinds)}", found)


def _as_if_alone(config: Config) -> Config:
    """Return a configuration with the rotary settings of layers without windows.

    As in `transformers`, an original length beside these has no effect, nor has `truncate` in them.
    """
    everywhere, _ = _ropes(config)
    rope = everywhere if everywhere["rope_type"] in rotary.SCALINGS else {"rope_type": "default"}
    theta = number(everywhere, "rope_theta")
    kept = {key: each for key, each in config.items() if key != rotary.LENGTH}
    return {**kept, "rope_parameters": {**rope, "rope_theta": theta, "truncate": True}}


def _window(config: Config) -> dict[str, Any] | None:
    layers = layers_of(config)
    if SLIDING not in layers:
        return None
    return defaults_of(SlidingWindow) | {
        "size": number(config, "sliding_window", _WINDOWS.size),
        "full": tuple(i for i, each in enumerate(layers) if each != SLIDING),
        "rope_theta": number(_ropes(config)[1], "rope_theta"),
    }


def _rope_of(model: Any) -> Config:
    window = model.sliding_window
    local = {"rope_type": "default", "rope_theta": (window and window.rope_theta) or _LOCAL_THETA}
    return {"rope_parameters": {FULL: rotary.rope_of(model), SLIDING: local}}


# Rotary settings and windows, each kind of layer with its own.
ROPES: dict[str, Any] = {
    "rope_theta": Computed(
            lambda config: rotary.theta_of(_as_if_alone(config)), _rope_of,
            f"`rope_parameters.{FULL}`, or `rope_theta`; 1e6",
        ),
    "rope_scaling": Computed(
            lambda config: rotary.scaling_of(_as_if_alone(config)),
            words=f"`rope_parameters.{FULL}`, or `rope_scaling`",
        ),
    "sliding_window": Computed(
            _window, lambda model: _WINDOWS.write("", model),
            "`sliding_window`, in layers by `layer_types` or `sliding_window_pattern` (6), with "
            f"`rope_parameters.{SLIDING}` or `rope_local_base_freq`; 4096, 10000",
        ),
}  # fmt: skip
GEMMA3_TEXT = Family(
    model_type="gemma3_text",
    kind="decoder",
    architecture="Gemma3ForCausalLM",
    published=("google/gemma-3-1b-it",),
    settings=decoders.decoder(
        _BLOCK,
        qk_norm=True,
        **ROPES,
        **_PARTS,
    ),
    tensors=TENSORS,
    refused=refusals(
        *(
            one_of(key, (False, None), False)
            # `transformers` has a setting for a cap of scores but does not apply it.
            for key in ("attention_bias", _SCORE_CAP, BOTH_WAYS)
        ),
        one_of("hidden_activation", _ACTIVATIONS, _ACTIVATION),
        layer_types(_WINDOWS.layer_types, layers_of),
        rope_refusal("default", rotary.LINEAR),
    ),
    defaults={**_COMMON, "vocab_size": 262208},
    notes="Layers with windows have a separate rotary embedding, which `rope_scaling` does not "
    "change. `transformers` gives the embedding of `pad_token_id` no gradient; here it gets one "
    "like every other token, if it occurs in a text.",
)  # fmt: skip
_ROWS, _TOKENS = "mm_tokens_per_image", 256
_PROJECTOR = "multi_modal_projector."


def _sides(config: Config) -> tuple[int, int]:
    """Return the sides of an image, in patches and in rows. Raises: ConfigError."""
    patches = siglip_clip.SIGLIP.keys(config["vision_config"])["image"][0]
    return patches, isqrt(int(number(config, _ROWS, _TOKENS)))


def _shuffle(config: Config) -> int:
    """Return the side, in patches, of the square that becomes a row. Raises: ConfigError."""
    patches, rows = _sides(config)
    return patches // max(1, rows)


def _is_uneven(config: Config) -> bool:
    patches, rows = _sides(config)
    return not rows or rows * rows != number(config, _ROWS, _TOKENS) or patches % rows != 0


GEMMA3 = TowerAndDecoder(
    model_type="gemma3",
    architecture="Gemma3ForConditionalGeneration",
    published=("google/gemma-3-4b-it",),
    towers=(siglip_clip.SIGLIP,),
    text=(GEMMA3_TEXT,),
    tower_names=llava.VISION_NAMES,
    text_names=llava.TEXT_NAMES,
    projector={
        "projector.linear.weight": Place(
            f"{_PROJECTOR}mm_input_projection_weight", transposed=True
        ),
        "projector.norm.weight": Place(f"{_PROJECTOR}mm_soft_emb_norm.weight"),
    },
    fixed={
        "shuffle": _shuffle,
        "pooling": lambda config: "mean" if _shuffle(config) > 1 else None,
        "final_norm": True,
        "projector": "linear",
        "projector_activation": "gelu",
        "projector_bias": False,
        "projector_norm_eps": lambda config: number(
            config["vision_config"], "layer_norm_eps", 1e-6
        ),
        "projector_norm": "rms",
        "projector_norm_offset": True,
    },
    text_fixed={"bidirectional_images": True},
    refusals=refusals(
        where(_ROWS, "with a root that does not divide the patches of a side", _is_uneven, _TOKENS)
    ),
    tied=tied_by_default(True),
    token="image_token_index",
    settings={
        _ROWS: lambda vision: prod(side // vision.shuffle for side in vision.image or (0, 0)),
    },
    notes="The tokens of an image attend to each other in both directions "
    "(`bidirectional_images`), as `transformers` does with `token_type_ids`. Crops of large "
    "images (`do_pan_and_scan`) are refused.",
)
_IN_FILES = ("model.", "", "model.model.")
_TIE = "tie_word_embeddings"
SHIELDGEMMA2 = replace(
    GEMMA3,
    model_type="shieldgemma2",
    architecture="ShieldGemma2ForImageClassification",
    published=("google/shieldgemma-2-4b-it",),
    # The first names are those of a Gemma 3, which both classes of `transformers` read.
    tower_names=tuple(
        (f"{before}{theirs}", ours)
        for before in _IN_FILES
        for theirs, ours in llava.VISION_NAMES
        if not theirs.startswith("model.")
    ),
    text_names=(
        ("model.language_model.", "model."),
        ("model.model.language_model.", "model."),
        *((f"{before}language_model.model.", "model.") for before in _IN_FILES),
        ("lm_head.", "lm_head."),
    ),
    tied=lambda config, text: bool(config.get(_TIE) or text.get(_TIE, True)),
    rank=1,
    notes="A Gemma 3; the answer `Yes` or `No` is its next word.",
)
