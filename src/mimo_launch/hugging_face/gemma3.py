"""Gemma 3: decoders with windows in most layers and two rotary bases; with them, towers that see.

Decides: what the settings of the decoder and of the whole mean, which the decoder cannot compute,
and the names of the parts in its files; that the tokens of an image attend to each other in both
directions.
Relies on: `gemma2` for what both decoders have, `decoder` for the rest of a block; for the whole
`tower_and_decoder`, `vit` for the tower, a SigLIP whose patches are pooled behind one linear map,
and `llava` for the names of the parts, which are the same.
Leaves: crops of large images (pan and scan) to nobody.

Source: `transformers` 5.23, models/gemma3; arXiv:2503.19786.
"""

from collections.abc import Iterator
from functools import partial
from math import isqrt
from typing import Any

from mimo_launch.hugging_face import decoder, gemma2, llava, vit
from mimo_launch.hugging_face.decoder import FULL, SLIDING
from mimo_launch.hugging_face.family import Family, Place
from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.refusals import Refusal, listed, one_of, refusals
from mimo_launch.hugging_face.tower_and_decoder import TowerAndDecoder, tied_by_default
from mimo_launch.spec.spec import DecoderModel, VitModel

TEXT_TYPE = "gemma3_text"
# Every sixth layer attends to whole sequences.
_PATTERN, _WINDOW = 6, 4096
_THETA, _LOCAL_THETA = 1e6, 10000.0
_BLOCK = decoder.DecoderFamily(qkv_bias=False, qk_norm=True, kv_heads=4, head_size=256)
_DEFAULTS: Config = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "tie_word_embeddings": True, "query_pre_attn_scalar": 256,
}  # fmt: skip


def _kinds_of_layers(config: Config) -> Iterator[str]:
    for each in dict.fromkeys(_layers(config)):
        if each not in (FULL, SLIDING):
            yield f"layer_types: {short(each)}"


def _scaled(config: Config) -> Iterator[str]:
    everywhere, in_windows = _ropes(config)
    for rope, kinds in ((everywhere, ("default", decoder.LINEAR)), (in_windows, ("default",))):
        if rope["rope_type"] not in kinds:
            yield f"rope_type: {short(rope['rope_type'])}"


_NOT_COMPUTED = refusals(
    *(
        one_of(key, (False, None), False)
        for key in (
            # `transformers` has a cap of scores among the settings, and does not apply it.
            *("attention_bias", gemma2.SCORE_CAP, "use_bidirectional_attention"),
        )
    ),
    one_of("hidden_activation", gemma2.ACTIVATIONS, gemma2.ACTIVATION),
    Refusal(f"`layer_types` other than {listed((FULL, SLIDING))}", _kinds_of_layers),
    Refusal(f"`rope_type` other than {listed(('default', decoder.LINEAR))}", _scaled),
)


def _layers(config: Config) -> list[Any]:
    """Return the kind of attention of each layer. Raises: ConfigError."""
    said = config.get("layer_types")
    if said is None:
        every = int(number(config, "sliding_window_pattern", _PATTERN))
        depth = int(number(config, "num_hidden_layers", _DEFAULTS["num_hidden_layers"]))
        return [SLIDING if (i + 1) % max(1, every) else FULL for i in range(depth)]
    if not isinstance(said, list):
        raise ConfigError(f"`layer_types` is {short(said)}, not a list")
    return said


def _ropes(config: Config) -> tuple[Config, Config]:
    """Return the rotary settings of layers without windows and of those with windows.

    Versions before 5 wrote two bases, and a scaling of the layers without windows.
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


def _keys(config: Config) -> dict[str, Any]:
    config = _DEFAULTS | config
    everywhere, in_windows = _ropes(config)
    rope = everywhere if everywhere["rope_type"] in decoder.SCALINGS else {"rope_type": "default"}
    theta = {"rope_theta": number(everywhere, "rope_theta")}
    keys = decoder.keys(_BLOCK, {**config, "rope_parameters": {**rope, **theta}})
    layers, window = _layers(config), None
    if SLIDING in layers:
        window = {
            "size": number(config, "sliding_window", _WINDOW),
            "full": tuple(i for i, each in enumerate(layers) if each != SLIDING),
            "rope_theta": number(in_windows, "rope_theta"),
        }
    return {**keys, "sliding_window": window, **gemma2.shared_keys(config, keys)}


def _config(model: DecoderModel) -> Config:
    """Return the configuration of our decoder, as transformers 5 writes it."""
    window = model.sliding_window
    full = range(model.layers) if window is None else window.full
    local = {"rope_type": "default", "rope_theta": (window and window.rope_theta) or _LOCAL_THETA}
    return {
        **decoder.config_of(TEXT_TYPE, model),
        "rope_parameters": {FULL: decoder.rope_of(model), SLIDING: local},
        "sliding_window": _WINDOW if window is None else window.size,
        "layer_types": [FULL if i in full else SLIDING for i in range(model.layers)],
        **gemma2.shared_config(model),
    }


TEXT = Family(
    model_type=TEXT_TYPE,
    kind="decoder",
    not_computed=_NOT_COMPUTED,
    keys=_keys,
    place=gemma2.place,
    is_ignored=decoder.is_ignored,
    fits=partial(decoder.fits, _BLOCK),
    config=_config,
    architecture="Gemma3ForCausalLM",
)


_ROWS, _TOKENS = "mm_tokens_per_image", 256
_PROJECTOR = "multi_modal_projector."
_NAMES = {
    "projector.linear.weight": Place(f"{_PROJECTOR}mm_input_projection_weight", transposed=True),
    "projector.norm.weight": Place(f"{_PROJECTOR}mm_soft_emb_norm.weight"),
}


def _sides(config: Config, inner: Config) -> tuple[int, int]:
    """Return the sides of an image, in patches and in rows. Raises: ConfigError."""
    return vit.BY_TYPE[vit.SIGLIP].keys(inner)["image"][0], isqrt(
        int(number(config, _ROWS, _TOKENS))
    )


def _fixed(config: Config, inner: Config) -> dict[str, Any]:
    patches, rows = _sides(config, inner)
    shuffle = patches // max(1, rows)
    return {
        "shuffle": shuffle,
        "pooling": "mean" if shuffle > 1 else None,
        "final_norm": True,
        "projector": "linear",
        "projector_activation": "gelu",
        "projector_bias": False,
        "projector_norm_eps": number(inner, "layer_norm_eps", vit.KINDS[vit.SIGLIP].norm_eps),
        "projector_norm": "rms",
        "projector_norm_offset": True,
    }


def _uneven(config: Config) -> Iterator[str]:
    patches, rows = _sides(config, config["vision_config"])
    said = number(config, _ROWS, _TOKENS)
    if not rows or rows * rows != said or patches % rows:
        yield f"{_ROWS}: {said}"


def _settings(vision: VitModel, token: int) -> Config:
    height, width = vision.image or (0, 0)
    rows = height // vision.shuffle * (width // vision.shuffle)
    return {"image_token_index": token, _ROWS: rows}


WHOLE = TowerAndDecoder(
    model_type="gemma3",
    architecture="Gemma3ForConditionalGeneration",
    towers={vit.SIGLIP: vit.BY_TYPE[vit.SIGLIP]},
    text={TEXT_TYPE: TEXT},
    tower_names=llava.VISION_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=_NAMES,
    fixed=_fixed,
    text_fixed={"bidirectional_images": True},
    refusals=refusals(
        Refusal(f"`{_ROWS}` whose root does not divide the patches of a side", _uneven)
    ),
    tied=tied_by_default(True),
    settings=_settings,
)
