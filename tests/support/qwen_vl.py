"""Tiny Qwen-VL models of `transformers` with random weights, specs that start from them, inputs."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.support.hugging_face import ids_of, tokens_of, widen
from tests.support.random_models import shaken, theirs
from tests.support.specs import Box, box, spec
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.kinds.vocabulary import placeholder_id
from mimo_launch.spec.spec import Spec

VOCAB, SIDE, MERGE, FRAMES = 40, 2, 2, 2
TEXT = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "mrope_section": [1, 2, 1]},
}  # fmt: skip
LANGUAGE_KEYS = {
    "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": None, "mlp": 48,
    "vocab": VOCAB, "vocab_multiple": 16, "qkv_bias": True, "norm_eps": 1e-3, "rope_theta": 50.0,
    "mrope": [1, 2, 1],
}  # fmt: skip
_VISION = {
    "num_heads": 4, "patch_size": SIDE, "spatial_merge_size": MERGE, "temporal_patch_size": FRAMES,
}  # fmt: skip
_VISION_KEYS = {
    "hidden": 32, "heads": 4, "patch": SIDE, "channels": 3, "shuffle": MERGE,
    "temporal_patch": FRAMES, "positions": "rope2d", "patch_bias": False, "norm_eps": 1e-6,
    "projector": "merger",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A family: its name in classes, its vision part, and what that is in a spec.

    `text` and `language` are what differs from the first family in the other part; `whole` are
    settings of its own.
    """

    name: str
    vision: dict[str, Any]
    keys: dict[str, Any]
    text: dict[str, Any] = field(default_factory=dict)
    language: dict[str, Any] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "qwen2_vl": Kind(
        "Qwen2VL",
        {**_VISION, "depth": 2, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 3},
        {**_VISION_KEYS, "layers": 2, "mlp": 96, "activation": "quick_gelu"},
    ),
    # Windows of 2 x 2 rows; the layer in the middle attends to whole images.
    "qwen2_5_vl": Kind(
        "Qwen2_5_VL",
        {
            **_VISION, "depth": 3, "hidden_size": 32, "out_hidden_size": 32, "window_size": 9,
            "intermediate_size": 40, "fullatt_block_indexes": [1],
        },
        {
            **_VISION_KEYS, "layers": 3, "mlp": 40, "activation": "swiglu", "norm": "rms",
            "windows": {"side": 2, "full": [1]},
        },
    ),
    # Rows of two layers besides the last; language has one layer behind which nothing is added.
    "qwen3_vl": Kind(
        "Qwen3VL",
        {
            **_VISION, "depth": 4, "hidden_size": 32, "out_hidden_size": 32,
            "intermediate_size": 40, "deepstack_visual_indexes": [0, 2],
            "num_position_embeddings": 25,
        },
        {
            **_VISION_KEYS, "layers": 4, "mlp": 40, "activation": "gelu_tanh", "patch_bias": True,
            "positions": "learned+rope2d", "image": [5, 5], "interpolation": "bilinear",
            "deepstack": [0, 2],
        },
        {
            "num_hidden_layers": 4, "head_dim": 12,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 50.0, "mrope_section": [2, 2, 2],
                "mrope_interleaved": True,
            },
        },
        {
            "layers": 4, "head_dim": 12, "mrope": [2, 2, 2], "mrope_interleaved": True,
            "qkv_bias": False, "qk_norm": True,
        },
    ),
}  # fmt: skip
_QWEN3 = KINDS["qwen3_vl"]
KINDS["cosmos3_omni"] = replace(_QWEN3, name="Cosmos3Omni")
# The first layer has no experts.
KINDS["qwen3_vl_moe"] = replace(
    _QWEN3,
    name="Qwen3VLMoe",
    text=_QWEN3.text | {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
        "mlp_only_layers": [0],
    },
    language=_QWEN3.language | {
        "moe": {"experts": 4, "top_k": 2, "width": 20, "first_dense": 1, "aux_loss": 0.0},
    },
)  # fmt: skip
# The second layer of language has neither windows nor positions.
KINDS["cohere_compass"] = Kind(
    "CohereCompass",
    _QWEN3.vision,
    _QWEN3.keys,
    {
        "num_hidden_layers": 4, "layer_norm_eps": 1e-3, "logit_scale": 0.25, "sliding_window": 9,
        "pad_token_id": None,
        "layer_types": ["sliding_attention", "full_attention", *["sliding_attention"] * 2],
        "rope_parameters": {
            "sliding_attention": {
                "rope_type": "default", "rope_theta": 50.0, "mrope_section": [2, 1, 1],
            },
            "full_attention": None,
        },
    },
    {
        "layers": 4, "mrope": [2, 1, 1], "mrope_interleaved": True, "qkv_bias": False,
        "parallel": True, "norm": "layer_without_bias", "logit_scale": 0.25,
        "sliding_window": {"size": 9, "full": [1]}, "nope": {"layers": [1]},
    },
)  # fmt: skip
# Three of four numbers of a head rotate.
KINDS["glm4v"] = Kind(
    "Glm4v",
    {
        **_VISION, "depth": 2, "hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 40,
        "image_size": 5 * SIDE, "rms_norm_eps": 1e-3,
    },
    {
        **_VISION_KEYS, "layers": 2, "mlp": 32, "activation": "swiglu", "patch_bias": True,
        "positions": "learned+rope2d", "image": [5, 5], "norm": "rms", "norm_eps": 1e-3,
        "qkv_bias": False, "block_bias": False, "patch_norm": True, "projector": "gated",
        "projector_mlp": 40,
    },
    {
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 50.0, "mrope_section": [1, 1, 1],
            "partial_rotary_factor": 0.75,
        },
    },
    {
        "mrope": [1, 1, 1], "rotary_factor": 0.75, "rotary_interleaved": True, "post_norms": True,
    },
)  # fmt: skip
# The same parts.
KINDS["glm46v"] = replace(KINDS["glm4v"], name="Glm46V")
KINDS["glmga"] = replace(KINDS["glm4v"], name="Glmga")
# Names of models that are not those of their configurations.
_CLASSES = {"Glmga": "Glm46V"}
# The first layer has an MLP, the second one experts in two groups.
KINDS["glm4v_moe"] = replace(
    KINDS["glm4v"],
    name="Glm4vMoe",
    text={
        "head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
        "moe_intermediate_size": 20, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 50.0, "mrope_section": [1, 1, 1],
            "partial_rotary_factor": 0.5,
        },
    },
    language={
        "head_dim": 12, "mrope": [1, 1, 1], "rotary_factor": 0.5,
        "moe": {
            "experts": 8, "top_k": 3, "width": 20, "score": "sigmoid", "scale": 2.5, "shared": 40,
            "groups": 4, "top_groups": 2, "first_dense": 1, "aux_loss": 0.0,
            "bias_update_rate": 0.0,
        },
    },
)  # fmt: skip
KINDS["glm_ocr"] = replace(
    KINDS["glm4v"],
    name="GlmOcr",
    keys={
        **{k: x for k, x in KINDS["glm4v"].keys.items() if k not in ("image", "patch_norm")},
        "mlp": 40, "positions": "rope2d", "qkv_bias": True, "block_bias": True, "qk_norm": True,
        "head_qk_norm": True, "projector_mlp": 96,
    },
    language=KINDS["glm4v"].language | {"qkv_bias": False},
)  # fmt: skip
KINDS["exaone4_5"] = Kind(
    "Exaone4_5_",
    KINDS["qwen2_5_vl"].vision | {"num_key_value_heads": 2},
    KINDS["qwen2_5_vl"].keys | {"kv_heads": 2},
    {
        "model_type": "exaone4", "sliding_window": 5, "sliding_window_pattern": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
    {
        "mrope": None, "qkv_bias": False, "pre_norms": False, "post_norms": True, "qk_norm": True,
        "sliding_window": {"size": 5, "full": [1]}, "nope": {"layers": [1]},
    },
)  # fmt: skip
# Rows of 20 numbers go through one more map, and have the factor of the embedding.
KINDS["hyperclovax_vision_v2"] = Kind(
    "HyperCLOVAXVisionV2",
    KINDS["qwen2_5_vl"].vision | {"out_hidden_size": 20},
    KINDS["qwen2_5_vl"].keys | {"projector_out": 20},
    {
        "model_type": "hyperclovax", "embedding_multiplier": 3.0, "logits_scaling": 0.25,
        "residual_multiplier": 0.5, "attention_multiplier": 0.25,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
    {
        "mrope": None, "qkv_bias": False, "post_norms": True, "embedding_scale": 3.0,
        "scaled_rows": True, "logit_scale": 0.25, "residual_scale": 0.5,
        "query_pre_attn_scalar": 16.0,
    },
)  # fmt: skip
# The tower has a table, but no rotation.
KINDS["cosmos3_edge"] = Kind(
    "Cosmos3Edge",
    {
        "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_patches": 25, "patch_size": SIDE,
        "spatial_merge_size": MERGE,
    },
    {
        "layers": 2, "hidden": 32, "heads": 4, "mlp": 40, "patch": SIDE, "channels": 3,
        "shuffle": MERGE, "positions": "learned", "image": [5, 5], "interpolation": "averaged",
        "activation": "gelu_tanh", "norm_eps": 1e-6, "projector_mlp": 20,
        "projector_norm_eps": 1e-6, "projector_norm_of": "patch",
    },
    {
        "head_dim": 12, "pad_token_id": None, "rope_parameters": {
            "rope_type": "default", "rope_theta": 50.0, "mrope_section": [2, 2, 2],
        },
    },
    {
        "head_dim": 12, "mrope": [2, 2, 2], "mrope_interleaved": True, "qkv_bias": False,
        "activation": "squared_relu",
    },
    {"projector_hidden_size": 20},
)  # fmt: skip
_TOWER = {
    **_VISION, "depth": 2, "hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 40,
    "num_position_embeddings": 25,
}  # fmt: skip
_TOWER_KEYS = {
    **_VISION_KEYS, "layers": 2, "mlp": 40, "activation": "gelu_tanh", "patch_bias": True,
    "positions": "learned+rope2d", "image": [5, 5], "interpolation": "bilinear",
}  # fmt: skip
_DELTA = {
    "num_hidden_layers": 3, "head_dim": 12, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_value_head_dim": 6, "linear_key_head_dim": 8,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 50.0, "mrope_section": [1, 1, 1],
        "mrope_interleaved": True, "partial_rotary_factor": 0.5,
    },
}  # fmt: skip
_DELTA_KEYS = {
    "kind": "hybrid", "pattern": "G-*-G-", "head_dim": 12, "mrope": [1, 1, 1],
    "mrope_interleaved": True, "rotary_factor": 0.5, "qk_norm": True, "norm_offset": True,
    "gated_attention": True, "activation": "silu", "qkv_bias": None,
    "deltanet": {"heads": 4, "key_heads": 2, "head_dim": 6, "key_dim": 8, "chunk": 16},
}  # fmt: skip
# Their recurrence is in fp32 in transformers, whatever the type.
KINDS_IN_FP32 = {
    "qwen3_5": Kind("Qwen3_5", _TOWER, _TOWER_KEYS, _DELTA, _DELTA_KEYS),
    "qwen3_5_moe": Kind(
        "Qwen3_5Moe",
        _TOWER,
        _TOWER_KEYS,
        _DELTA | {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 8,
        },
        _DELTA_KEYS | {
            "pattern": "GE*EGE", "mlp": None,
            "moe": {
                "experts": 4, "top_k": 2, "width": 16, "shared": 8, "shared_gate": True,
                "aux_loss": 0.0,
            },
        },
    ),
}  # fmt: skip
ALL_KINDS = KINDS | KINDS_IN_FP32
# Boxes of vision and of language.
LAYOUTS: dict[str, tuple[Box, Box]] = {
    "one rank": (box(0), box(0)),
    "tp2": (box(0, tp=2), box(0, tp=2, sequence_parallel=True)),
    "tp4": (box(0, tp=4, sequence_parallel=True), box(0, tp=4)),
    "pp2, apart": (box(0, pp=2), box(2, pp=2)),
    "cp2, apart": (box(0, cp=2), box(2, cp=2)),
    "dp4 on cp2 dp2": (box(0, dp=4), box(0, cp=2, dp=2)),
    "unequal, apart": (box(0, tp=2, cp=2, sequence_parallel=True), box(4, pp=2)),
}


def tiny(
    dtype: torch.dtype = torch.float32,
    *,
    kind: str = "qwen2_vl",
    tied: bool = False,
    vocab: int = VOCAB,
    tokens: Mapping[str, int] = MappingProxyType({}),
    **vision: Any,
) -> Any:
    """Return a model in which no weight is a constant; special `tokens` are the last ones."""
    transformers = theirs()
    name = ALL_KINDS[kind].name
    config = getattr(transformers, f"{name}Config")(
        text_config=TEXT | ALL_KINDS[kind].text | {"vocab_size": vocab},
        vision_config=ALL_KINDS[kind].vision | vision,
        tie_word_embeddings=tied,
        **ALL_KINDS[kind].whole,
        **{f"{name}_id": vocab - 1 - i for i, name in enumerate(_SPECIAL)} | tokens,
    )
    cls = getattr(transformers, f"{_CLASSES.get(name, name)}ForConditionalGeneration")
    return shaken(cls(config), dtype, partial(start, kind))


def tiny_for_retrieval(dtype: torch.dtype = torch.float32) -> Any:
    """Return a ColQwen2: a model without an output layer, before a map of its own."""
    transformers = theirs()
    inner = tiny(tied=True).config
    config = transformers.ColQwen2Config(vlm_config=inner.to_dict(), embedding_dim=8)
    return shaken(transformers.ColQwen2ForRetrieval(config), dtype, partial(start, "qwen2_vl"))


def logits_for_retrieval(model: Any, made: Spec) -> Tensor:
    """Return the logits of a ColQwen2, if its embedding is an output layer."""
    last = model.vlm(**inputs_of(model, made)).last_hidden_state
    logits: Tensor = last @ model.vlm.get_input_embeddings().weight.T
    return logits


def start(kind: str, name: str) -> float:
    """Return 1 for a weight of a norm to which nothing is added."""
    has_offset = kind in KINDS_IN_FP32 and "language_model" in name and "linear_attn" not in name
    return float(("norm" in name or "ln_q" in name) and not has_offset)


_SPECIAL = ("image_token", "video_token", "vision_start_token", "vision_end_token")


def made(
    layout: str, folder: Path, precision: str = "fp32", *, kind: str = "qwen2_vl", **more: Any
) -> Spec:
    """Return a spec whose two modules start from a folder; images of many sizes, and none."""
    vision, language = LAYOUTS[layout]
    language_model = LANGUAGE_KEYS | ALL_KINDS[kind].language | more.pop("language", {})
    # A hybrid has no such key.
    language_model = {k: v for k, v in language_model.items() if (k, v) != ("qkv_bias", None)}
    modules = {
        "vision": {**vision, "model": ALL_KINDS[kind].keys, "init_from": str(folder)},
        "language": {**language, "model": language_model, "init_from": str(folder)},
    }
    data = {"kind": "synthetic", "max_images": 3, "max_patches": 48, "text_only": 0.3}
    train = {"steps": 1, "precision": precision, "seed": 9}
    # Sequences of one length on all layouts, so that they hold the same samples.
    found = spec(modules, microbatches=2, mbs=2, seq=64, data=data, train=train, **more)
    assert check(found) == ()
    return found


def wanted_logits(model: Any, made: Spec) -> Tensor:
    """Return what the model says of the texts and images of the first step, [samples, S, words]."""
    with torch.no_grad():
        logits: Tensor = model(**inputs_of(model, made)).logits
    return logits.double()


def inputs_of(model: Any, made: Spec) -> dict[str, Tensor]:
    """Return the texts and images of the first step, as the model takes them."""
    dataset, ids, tokens = build_dataset(made), ids_of(made), tokens_of(made)
    images = [image for i in ids for image in dataset.images("train", i, "vision")]
    spans = [dataset.describe("train", i).spans.get("vision", ()) for i in ids]
    # It tells images apart by the text between them.
    assert all(a.position + a.rows < b.position for each in spans for a, b in pairwise(each))
    assert {len(each) for each in spans} >= {0, 2}
    assert len({image.shape for image in images}) > 2
    cut = _alternating if type(model).__name__.startswith("Cosmos3Edge") else _patches
    pixels = torch.cat([cut(image) for image in images])
    return {
        "input_ids": tokens,
        "mm_token_type_ids": (tokens == placeholder_id(made, "vision")).int(),
        "pixel_values": pixels.to(model.dtype),
        "image_grid_thw": torch.tensor([[1, *_grid(image)] for image in images]),
    }


def _grid(image: np.ndarray) -> tuple[int, int]:
    """Return the height and width of an image in patches."""
    return image.shape[1] // SIDE, image.shape[2] // SIDE


def _patches(image: np.ndarray) -> Tensor:
    """Return the patches of an image as its processor makes them: merged ones together, twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )
    cut, *_ = Qwen2VLImageProcessorPil.patchify(
        None, image, patch_size=SIDE, merge_size=MERGE, temporal_patch_size=FRAMES
    )
    return torch.from_numpy(cut)


def _alternating(image: np.ndarray) -> Tensor:
    """Return the patches of an image with alternating channels, merged ones together."""
    cut = (-1, MERGE, SIDE)
    squares = torch.from_numpy(image).unflatten(2, cut).unflatten(1, cut)
    return squares.permute(1, 4, 2, 5, 3, 6, 0).reshape(-1, SIDE * SIDE * len(image))


def axes(
    self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return the angles of positions on three axes, in float64."""
    rope, kind = self.config.rope_parameters, [] if layer_type is None else [layer_type]
    rope = rope if layer_type is None else rope[layer_type]
    turns = getattr(self, "_".join([*kind, "inv_freq"]))
    angle = _angles(position_ids.expand(3, -1, -1), rope["rope_theta"], 2 * len(turns))
    parts = (angle.cos(), angle.sin())
    cos, sin = (self.recomposition_frequencies(each, *kind) for each in parts)
    return cos, sin


def tower_of(model: Any) -> Any:
    inner = _inside(model)
    return inner.visual if hasattr(inner, "visual") else inner.vision_model


def _inside(model: Any) -> Any:
    return model.vlm if hasattr(model, "vlm") else model.model


def widen_all(model: Any) -> None:
    """Compute norms, angles and turns in float64: transformers does in float32."""
    inner, visual = _inside(model), tower_of(model)
    theirs: Any = import_module(type(visual).__module__)

    def places(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angle = _angles(position_ids, self.config.rope_parameters["rope_theta"], 4)
        angle = angle.flatten(1).repeat(1, 2)
        return angle.cos(), angle.sin()

    def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos[:, None], sin[:, None]
        return q * cos + theirs.rotate_half(q) * sin, k * cos + theirs.rotate_half(k) * sin

    widen(model)
    rotary = inner.language_model.rotary_emb
    if hasattr(rotary, "recomposition_frequencies"):
        rotary.forward = MethodType(axes, rotary)
    if not hasattr(visual, "rotary_pos_emb"):
        return
    visual.rotary_pos_emb.forward = MethodType(places, visual.rotary_pos_emb)
    theirs.apply_rotary_pos_emb_vision = turned
    theirs.get_vision_interpolation_indices_and_weights = _shares
    if hasattr(visual, "embeddings"):
        visual.embeddings.forward = MethodType(_placed, visual.embeddings)


def _shares(grids: Tensor, num_grid_per_side: int, **_: Any) -> tuple[Tensor, Tensor]:
    """Return the share of each row of a square table in each patch, patches of a row together."""
    side, found = num_grid_per_side, []
    one_hot = torch.eye(side**2, dtype=torch.float64).view(1, side**2, side, side)
    for time, height, width in grids.tolist():
        sized = F.interpolate(one_hot, (height, width), mode="bilinear", align_corners=True)
        squares = sized.view(side**2, height // MERGE, MERGE, width // MERGE, MERGE)
        found += [squares.permute(1, 3, 2, 4, 0).reshape(-1, side**2)] * time
    shares = torch.cat(found)
    return torch.arange(side**2).expand(shares.shape), shares


def _placed(self: Any, x: Tensor, lengths: Tensor, sizes: Tensor, *_: Tensor) -> Tensor:
    """Return patches with the table of a GLM-4.1V resized for each image, patches together."""
    table = self.position_embedding.weight
    side, found = round(len(table) ** 0.5), []
    for time, height, width in sizes.tolist():
        grid = table.T.view(1, -1, side, side)
        sized = F.interpolate(grid, (height, width), mode="bicubic", align_corners=False)
        squares = sized[0].view(-1, height // MERGE, MERGE, width // MERGE, MERGE)
        found += [squares.permute(1, 3, 2, 4, 0).reshape(height * width, -1)] * time
    return x + torch.cat(found)


def _angles(places: Tensor, theta: float, size: int) -> Tensor:
    """Return place / theta^(2i/size) for each pair i."""
    return places[..., None] * theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
