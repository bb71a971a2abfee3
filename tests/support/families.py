"""One table of families: a tiny model of each, and how it is compared with ours.

`tests/distributed/test_families.py` takes every row through the same suites.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support import (
    emu3,
    hearing,
    hugging_face,
    llava,
    llava_onevision,
    nemotron_h,
    nemotron_omni,
    omni,
    phi4,
    phi4_audio,
    qwen3_next,
    qwen_vl,
    seeing,
)
from tests.support.hugging_face import save, tokens_of, widen, widen_softmax
from tests.support.whole_models import OPTIMIZERS, TinyModel, labels_of
from torch import Tensor

from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.spec.spec import Spec

EP2: dict[str, Any] = {"experts": {"ep": 2}}
EP2_SP: dict[str, Any] = EP2 | {"sequence_parallel": True}
# A first step of AdamW is the sign of a gradient, which rounding may change: in float64 alone.
FP64 = [(optimizer, "fp64") for optimizer in OPTIMIZERS]


def steps(*often: str, of: Any = FP64) -> dict[tuple[str, str], bool]:
    """Return steps, of which those in fp64 with some optimizers run by default."""
    return {each: each[0] in often for each in of}


def plain(layouts: Any) -> dict[str, dict[str, Any]]:
    """Return layouts without further settings."""
    return {each: {} for each in layouts}


# Decoders.


def own_loss(model: Any, asked: Spec) -> Tensor:
    """Return the mean over labels that a model of `transformers` takes."""
    tokens, labels = tokens_of(asked), labels_of(asked)
    # Labels that are the tokens would leave out the last place, whose label is in no sequence.
    loss: Tensor = model(input_ids=tokens, labels=tokens, shift_labels=labels).loss
    return loss


def exact_text(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute norms, angles, rotations and softmax in float64."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    widen(model)
    widen_softmax(monkeypatch)


def exact_experts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float64 all that `transformers` computes in float32."""
    exact_text(model, monkeypatch)
    # The others have no kernel for float64, and routers say fp32 in three ways.
    model.set_experts_implementation("eager")
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch.Tensor, "type", lambda x, dtype: x.double())


# Per-layer embeddings are on one stage.
_SMALL = ("gemma4_text, small",)
_IN_ONE_STAGE = (*(x for x in hugging_face.LAYOUTS if "pp" not in x), "tp4 dp2")
_OFTEN = ("llama", "qwen2", "qwen3", "mistral")
_STEPS_OFTEN = ("apertus", "gemma2", "gemma3_text", "gemma4_text", "glm4", "qwen3")
_UNTOUCHED = (
    "gemma", "phi3", "phi3, long", "seed_oss", "olmo2", "olmo3", "exaone4", "granite", "ernie4_5",
    "helium", "cwm", "ministral", "youtu", "ministral3", "internlm3", "iquestcoder", "vaultgemma",
    "hyperclovax", "cohere", "cohere2", "stablelm",
    "apertus", "arcee", "starcoder2", "hunyuan_v1_dense",
    "cohere_compass_text", "gemma4_text", *_SMALL,
    "smollm3", "exaone", "lfm2",
)  # fmt: skip
_DECODERS = {
    kind: TinyModel(
        tiny=partial(hugging_face.tiny, kind),
        made=partial(hugging_face.made, kind),
        widen=exact_text,
        layouts=plain(_IN_ONE_STAGE if kind in _SMALL else hugging_face.LAYOUTS),
        often=hugging_face.LAYOUTS if kind in _OFTEN else ("cp2",),
        steps={
            (each, "fp64"): each == "adamw" and kind in (*_STEPS_OFTEN, *_SMALL)
            for each in OPTIMIZERS
        },
        loss_of=own_loss,
        # One bias for all keys of a query changes nothing.
        free=r"k_proj\.bias$",
        # Numbers of layers do not train.
        stays=r"layer_scalar$|act_fn\.(beta|eps)$",
        # `test_exported_weights.py` has the others, in several types and sizes of files.
        untouched={} if kind in _UNTOUCHED else None,
    )
    for kind in hugging_face.KINDS
}
_MOE_LAYOUTS: dict[str, tuple[dict[str, dict[str, Any]], set[str]]] = {
    "mixtral": ({"one rank": {}, "tp2": EP2}, {"one rank", "tp2"}),
    "qwen3_moe": ({"one rank": {}, "tp2 pp2": EP2_SP}, {"one rank", "tp2 pp2"}),
    "gpt_oss": (
        {
            "one rank": {}, "cp2": EP2, "tp2": {"experts": {"tp": 2}}, "tp2 pp2": EP2,
            "colocated dp2": {}, "pp2": {},
        },
        {"one rank", "cp2", "tp2"},
    ),
    "deepseek_v3": (
        {"one rank": {}, "tp2 pp2": EP2_SP, **plain(("tp4", "cp2", "pp2", "colocated dp2"))},
        {"one rank", "tp2 pp2"},
    ),
    "mellum": ({"cp2": EP2, "tp2": {}}, {"cp2"}),
    "llama4_text": ({"one rank": {}, "tp2 pp2": EP2_SP, "cp2": EP2, "tp4": {}}, {"tp2 pp2"}),
    "gemma4_text, experts": (
        {
            "one rank": {}, "cp2": EP2, "tp2": EP2, "tp2 pp2": EP2_SP,
            **plain(("tp4", "colocated dp2")),
        },
        {"one rank", "cp2", "tp2 pp2"},
    ),
    "exaone_moe": ({"tp2 pp2": EP2_SP, "one rank": {}}, {"tp2 pp2"}),
    "solar_open": ({"tp2": EP2, "pp2": {}}, {"tp2"}),
    "mistral4": ({"tp2 pp2": EP2_SP, "cp2": EP2, "one rank": {}}, {"tp2 pp2"}),
    "sarvam_mla": ({"tp2": EP2, "cp2": {}}, {"tp2"}),
    "sarvam_moe": ({"tp2": EP2, "pp2": {}}, {"tp2"}),
    "granitemoe": ({"tp2": EP2, "pp2": {}}, {"tp2"}),
    "granitemoeshared": ({"cp2": EP2, "tp2 pp2": EP2_SP}, {"cp2"}),
    "ernie4_5_moe": ({"tp2": EP2, "cp2": {}}, {"tp2"}),
    "hy_v3": ({"tp2 pp2": EP2_SP, "cp2": EP2}, {"tp2 pp2"}),
    "olmoe": ({"one rank": {}, "tp2": EP2, "cp2": EP2}, {"cp2"}),
    "flex_olmo": ({"tp2": EP2, "pp2": {}}, {"tp2"}),
    "minimax_m2": ({"one rank": {}, "tp2 pp2": EP2_SP, "tp4": {}}, {"tp2 pp2"}),
    "qwen2_moe": ({"one rank": {}, "tp2": EP2, "pp2": {}}, {"tp2"}),
    "dots1": ({"one rank": {}, "tp2": EP2, "cp2": EP2}, {"cp2"}),
    "glm4_moe_lite": ({"tp2 pp2": EP2_SP, "tp4": {}}, {"tp2 pp2"}),
    "glm4_moe": (
        {"cp2": EP2, "tp2 pp2": EP2_SP, **plain(("one rank", "tp4", "pp2", "colocated dp2"))},
        {"cp2"},
    ),
}  # fmt: skip
_EXPERTS = {
    kind: TinyModel(
        tiny=partial(hugging_face.tiny, kind),
        made=partial(hugging_face.made, kind),
        widen=exact_experts,
        layouts=layouts,
        often=often,
        steps=steps(*(["adamw"] if kind == "gpt_oss" else [])),
        step_settings={"model": {"moe": {**hugging_face.model_keys(kind)["moe"], "aux_loss": 0.0}}},
        undecided="(correction|expert)_bias$",
        stays=r"layer_scalar$",
        untouched=EP2,
        auto=f"AutoModelFor{'ImageTextToText' if kind == 'mistral4' else 'CausalLM'}",
    )
    for kind, (layouts, often) in _MOE_LAYOUTS.items()
}

# A Kimi-K2 is a DeepSeek-V3 in a form of its own; both ends of its YaRN are the same.
KIMI_SCALING = {
    "factor": 4.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
KIMI_THETA = 500.0


def kimi(dtype: torch.dtype = torch.float32) -> Any:
    rope = {"rope_type": "yarn", **KIMI_SCALING, "rope_theta": KIMI_THETA}
    return hugging_face.tiny("deepseek_v3", dtype, rope_parameters=rope, n_group=1, topk_group=1)


def save_kimi(model: Any, folder: Path) -> None:
    """Save a model in the form of the published folders."""
    save(model, folder)
    config = json.loads((folder / "config.json").read_text())
    if config.pop("rope_parameters", None) is None:
        return
    config |= {
        "model_type": "kimi_k2", "rope_theta": KIMI_THETA,
        "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
        "rope_scaling": {"type": "yarn", **KIMI_SCALING}, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "moe_layer_freq": 1, "num_nextn_predict_layers": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def made_kimi(layout: str, folder: Path, precision: str = "fp32", **more: Any) -> Spec:
    """Return a spec that says of rotary embeddings and experts what the folder says."""
    [module] = read_contents(folder).modules
    assert (module.model_type, module.not_computed) == ("kimi_k2", ())
    keys = {key: module.keys[key] for key in ("rope_scaling", "query_pre_attn_scalar")}
    moe = hugging_face.model_keys("deepseek_v3")["moe"] | {"groups": 1, "top_groups": 1}
    model = {**keys, "moe": moe}
    return hugging_face.made("deepseek_v3", layout, folder, precision, model=model, **more)


_KIMI = TinyModel(
    tiny=kimi,
    made=made_kimi,
    saved=save_kimi,
    widen=exact_experts,
    layouts={"tp2": EP2, "one rank": {}, "cp2": {}, "tp2 pp2": EP2_SP},
    often={"tp2"},
    steps=steps(),
    undecided="correction_bias$",
    untouched=None,  # `test_kimi_k2.py`, with its form.
)

# Models that see or hear.

_LLAVAS = {
    f"llava of {tower} and {text}": TinyModel(
        tiny=partial(llava.tiny_llava, tower, text, token),
        made=partial(llava.made_llava, tower, text, placeholder=given),
        logits_of=llava.logits_of,
        layouts=plain(llava.LAYOUTS),
        often=llava.LAYOUTS,
        steps={},
        untouched=None,
    )
    # The last word is the placeholder of a spec that names none.
    for tower, text, token, given in (("clip", "llama", 7, 7), ("siglip", "qwen2", 40, None))
}
_LLAVAS["llava of two layers"] = replace(
    _LLAVAS["llava of clip and llama"],
    tiny=partial(llava.tiny_llava, "clip", "llama", 7, chosen=[1, -2]),
    made=partial(llava.made_llava, "clip", "llama", placeholder=7, features=(0, 1)),
    often={"pp2"},
    untouched={},
)
_SEEING_OFTEN = {
    "gemma3": ("cp2", "adamw"), "internvl": ("apart", "adamw"), "internvl_large": ("tp2", ""),
    "gemma4": ("cp2", "adamw"), "llama4": ("cp2", "adamw"),
    "gemma4_small": ("tp2", "sgd"),
    "video_llama_3": ("apart", "adamw"), "janus": ("", "adamw"), "video_llava": ("", "sgd"),
    "kimi_k25": ("apart", "sgd"),
    "cohere2_vision": ("apart", "sgd"), "aya_vision": ("cp2", ""),
    "paddleocr_vl": ("cp2", "adamw"), "paligemma": ("apart", "sgd"),
    "ovis2": ("apart", "adamw"), "ovis2_untied": ("cp2", "sgd"),
    "vipllava": ("apart", "sgd"), "minicpm_ocr": ("cp2", "sgd"),
    "lfm2_vl": ("cp2", "sgd"),
    "mistral3": ("apart", "sgd"), "smolvlm": ("cp2", "sgd"), "ministral3": ("cp2", "adamw"),
}  # fmt: skip

# Their towers take images of one size.
_ONE_SIZE = (
    "gemma3", "deepseek_vl", "janus", "video_llava", "cohere2_vision", "aya_vision",
    "paligemma", "paligemma2", "vipllava", "llama4", "ovis2", "ovis2_untied",
)  # fmt: skip
# Parts that are left out.
_STAYS = {
    "janus": r"vqmodel|generation_", "video_llava": r"post_layernorm|layers\.2\.|video_tower",
    "aya_vision": "post_layernorm", "vipllava": "post_layernorm",
    "gemma4": r"layer_scalar$|std_bias$|std_scale$",
    "gemma4_small": r"layer_scalar$|std_bias$|std_scale$|put_min$|put_max$",
    **dict.fromkeys(("minicpm_ocr", "minicpmv4_6"), "vit_merger"),
}  # fmt: skip


def _together(kind: str) -> Iterable[str]:
    """Return the layouts without pipelines of language, or all."""
    if kind != "gemma4_small":
        return llava.LAYOUTS
    return (name for name, (_, language) in llava.LAYOUTS.items() if "pp" not in language)


def _of_sizes(kind: str) -> dict[str, dict[str, Any]]:
    """Return layouts with images of other sizes than the table's, or each of a size of its own."""
    found: dict[str, dict[str, Any]] = {}
    if kind not in _ONE_SIZE:
        found |= {f"tp2; images of {side}": {"side": side} for side in (2, 6, 10)}
    if kind in (
        "lighton_ocr",
        "ministral3",
        "mistral3",
        "pixtral",
        "video_llama_3",
        "paddleocr_vl",
        "minicpm_ocr",
        "lfm2_vl",
        "gemma4",
    ):
        layout = "tp2" if kind == "mistral3" else "one rank"
        found[f"{layout}; images of any size"] = {"side": None}
    return found


_SEEING = {
    f"{kind}, seeing": TinyModel(
        tiny=partial(seeing.tiny, kind),
        made=partial(seeing.made, kind),
        saved=partial(seeing.save, kind),
        logits_of=seeing.logits_of,
        widen=seeing.exact,
        layouts=plain(_together(kind)) | _of_sizes(kind),
        often=(
            *_SEEING_OFTEN.get(kind, ("",))[:1],
            *(f"{x}; images of any size" for x in ("one rank", "tp2")),
        ),
        # Images of another size than the table's, but for towers of one size.
        exact={} if kind in _ONE_SIZE else {"side": 6},
        exact_often=kind
        not in (
            "idefics3",
            "minicpmv4_6",
            "ministral3",
            "mistral4",
            "pixtral",
        ),
        steps=steps(*_SEEING_OFTEN.get(kind, ("", ""))[1:]),
        stays=_STAYS.get(kind, "$^"),
        undecided=r"k_proj\.bias$",
        sections=("vision_config", "text_config"),
        derived=frozenset({"layer_types"}),
        token=(("image_token_id", "image_token_index"), seeing.TOKEN),
    )
    for kind in seeing.KINDS
}
_SEEING["mistral4, seeing"] = replace(
    _SEEING["mistral4, seeing"], widen=exact_experts, undecided=r"k_proj\.bias$|\.experts\."
)


def exact_llama4(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float64 what both parts compute in float32, with angles of that type."""
    exact_experts(model, monkeypatch)
    seeing.turn_patches(model)


_SEEING["llama4, seeing"] = replace(
    _SEEING["llama4, seeing"], widen=exact_llama4, undecided=r"k_proj\.bias$|\.experts\."
)
# A Gemma 3 under another name.
_SEEING["shieldgemma2, seeing"] = replace(
    _SEEING["gemma3, seeing"], saved=seeing.save_shieldgemma2, layouts={}, exact=None, steps={}
)


def exact_delta(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute all in float64, the recurrence and its norm, too, which ask for float32 by `to`."""
    to = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor,
        "to",
        lambda x, *given, **named: to(
            x, *(torch.float64 if each is torch.float32 else each for each in given), **named
        ),
    )
    exact_experts(model, monkeypatch)


def exact_kimi(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float64 what both parts compute in float32."""
    exact_experts(model, monkeypatch)
    seeing.exact_kimi(model, monkeypatch)


_SEEING["kimi_k25, seeing"] = replace(
    _SEEING["kimi_k25, seeing"],
    widen=exact_kimi,
    # An expert may get no token.
    undecided=r"correction_bias$|\.experts\.",
)
for _kind in ("minicpm_ocr", "minicpmv4_6"):
    _SEEING[f"{_kind}, seeing"] = replace(_SEEING[f"{_kind}, seeing"], widen=exact_delta)
_QWEN_OFTEN: dict[str, tuple[Any, str]] = {
    "qwen2_vl": (qwen_vl.LAYOUTS.keys() - {"tp4", "unequal, apart"}, ""),
    "qwen2_5_vl": ({"one rank", "cp2, apart"}, "sgd"),
    "qwen3_vl": ({"one rank", "pp2, apart"}, "adamw"),
    "qwen3_vl_moe": ({"tp2"}, ""),
    "cohere_compass": ({"pp2, apart"}, "sgd"),
    "cosmos3_omni": (set[str](), "sgd"),
    "cosmos3_edge": ({"cp2, apart"}, "sgd"),
    "glm4v": ({"one rank", "unequal, apart"}, ""),
    "glm_ocr": ({"cp2, apart"}, "sgd"),
    "exaone4_5": ({"cp2, apart"}, "sgd"),
    "hyperclovax_vision_v2": ({"cp2, apart"}, "sgd"),
    "glm4v_moe": ({"tp2"}, ""),
    **dict.fromkeys(("glm46v", "glmga"), (set[str](), "")),
    "qwen3_5": ({"one rank", "cp2, apart"}, "sgd"),
    "qwen3_5_moe": ({"tp2"}, ""),
}


def exact_qwen(kind: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Widen what `transformers` computes in fp32, experts and their routers as well."""
    # Of another family, for some.
    theirs: Any = import_module(type(qwen_vl.tower_of(model)).__module__)
    for name in ("apply_rotary_pos_emb_vision", "get_vision_interpolation_indices_and_weights"):
        # So that what `widen_all` does to the module is undone.
        monkeypatch.setattr(theirs, name, getattr(theirs, name, None), raising=False)
    qwen_vl.widen_all(model)
    if kind == "cosmos3_edge":
        # The table.
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    if kind.endswith("moe"):
        model.set_experts_implementation("eager")
        widen_softmax(monkeypatch)
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        monkeypatch.setattr(torch.Tensor, "type", lambda x, dtype: x.double())


def save_qwen(kind: str, model: Any, folder: Path) -> None:
    """Save a model; add the tensors that published ones have and transformers leaves out."""
    save(model, folder)
    if kind.startswith("qwen3_5") and model.dtype != torch.bfloat16:
        file = folder / "model.safetensors"
        names = ("mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight")
        more = {name: torch.ones(2, 2) for name in names}
        save_file(load_file(file) | more, file, {"format": "pt"})


_QWENS = {
    kind: TinyModel(
        tiny=partial(qwen_vl.tiny, kind=kind),
        made=partial(qwen_vl.made, kind=kind),
        saved=partial(save_qwen, kind),
        logits_of=lambda model, asked: model(**qwen_vl.inputs_of(model, asked)).logits,
        widen=partial(exact_qwen, kind),
        layouts=plain(qwen_vl.LAYOUTS),
        often=often,
        # The recurrence of the others is in fp32 in transformers, whatever the type.
        exact={} if kind in qwen_vl.KINDS else None,
        steps=steps(step, of=FP64 if kind in qwen_vl.KINDS else [("sgd", "fp32")]),
        # An expert may get no token.
        undecided=r"correction_bias$|\.experts\.|to_k\.bias$",
        # A model without `mtp` has none of these.
        left_out=r"^mtp\." if kind.startswith("qwen3_5") else "$^",
        sections=("vision_config", "text_config"),
        # A window of 9 pixels holds whole rows of 8, and is written so.
        derived=frozenset({"layer_types", "tie_word_embeddings", "window_size"}),
        token=(("video_token_id",), qwen_vl.VOCAB - 2),
    )
    for kind, (often, step) in _QWEN_OFTEN.items()
}
_QWENS["colqwen2"] = replace(
    _QWENS["qwen2_vl"],
    tiny=qwen_vl.tiny_for_retrieval,
    made=partial(qwen_vl.made, kind="qwen2_vl", language={"tied": True}),
    saved=save,
    logits_of=qwen_vl.logits_for_retrieval,
    widen=partial(exact_qwen, "qwen2_vl"),
    often=("cp2, apart",),
    steps=steps("sgd"),
    stays="embedding_proj_layer",
    sections=(),
    token=None,
)
# With one table for both ends, as folders of older versions are.
_QWENS |= {
    f"{kind}, tied": replace(
        _QWENS[kind],
        tiny=partial(qwen_vl.tiny, kind=kind, tied=True),
        layouts={},
        exact=None,
        steps={},
        untouched=None,
    )
    for kind in ("qwen2_vl", "qwen2_5_vl")
}
_ALL_STEPS = {("sgd", "fp64"): True, ("adamw", "fp64"): False, ("sgd", "fp32"): False}
_HEARING = {
    kind: TinyModel(
        tiny=partial(hearing.tiny, kind),
        made=partial(hearing.made, kind),
        logits_of=hearing.logits_of,
        widen=hearing.exact,
        layouts=plain(llava.LAYOUTS),
        often={"cp2", "apart"},
        steps=_ALL_STEPS if kind == "qwen2_audio" else steps("sgd"),
        stays="embed_positions",
        # One bias for all keys of a query changes nothing.
        undecided=r"audio.*k_proj\.bias$",
        sections=("audio_config", "text_config"),
        token=((family.token,), hearing.TOKEN),
    )
    for kind, family in hearing.KINDS.items()
}
_OMNI_OFTEN = {
    "qwen2_5_omni": ({"apart"}, "adamw"),
    "qwen3_omni_moe": ({"cp2"}, "sgd"),
}


def exact_omni(kind: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Widen what `transformers` computes in fp32, and undo it."""
    theirs: Any = import_module(type(model).__module__)
    for name in ("apply_rotary_pos_emb_vision", "get_vision_interpolation_indices_and_weights"):
        monkeypatch.setattr(theirs, name, getattr(theirs, name, None), raising=False)
    omni.widen_all(model)
    if kind.endswith("moe"):
        model.set_experts_implementation("eager")
        widen_softmax(monkeypatch)
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        monkeypatch.setattr(torch.Tensor, "type", lambda x, dtype: x.double())


_OMNIS = {
    f"{kind}, thinking": TinyModel(
        tiny=partial(omni.tiny, kind),
        made=partial(omni.made, kind),
        logits_of=omni.logits_of,
        widen=partial(exact_omni, kind),
        layouts=plain(omni.LAYOUTS),
        often=often,
        steps=steps(step),
        stays="audio_bos_eos_token",
        # One bias for all keys of a query changes nothing.
        undecided=r"\.experts\.|audio.*k_proj\.bias$",
        sections=("vision_config", "text_config", "audio_config"),
        derived=frozenset({"layer_types", "tie_word_embeddings", "window_size"}),
        token=(("audio_token_id", "audio_token_index"), omni.HEARD),
    )
    for kind, (often, step) in _OMNI_OFTEN.items()
}
_ONEVISION = TinyModel(
    tiny=llava_onevision.tiny,
    made=llava_onevision.made,
    logits_of=llava_onevision.logits_of,
    layouts=plain(llava.LAYOUTS),
    often={"cp2", "apart"},
    steps=_ALL_STEPS,
    stays="post_layernorm",
    # Queries see all keys moved by the same.
    undecided=r"vision.*k_proj\.bias$",
    sections=("vision_config", "text_config"),
    token=(("image_token_index",), llava_onevision.TOKEN),
)
_NEXT = {
    kind: replace(
        _ONEVISION,
        tiny=partial(llava_onevision.tiny_next, name),
        made=partial(llava_onevision.made, keys=llava_onevision.EACH),
        often=often,
        steps=steps(step),
        # The last layer of the tower is not used.
        stays=r"post_layernorm|vision.*layers\.2\.",
    )
    for kind, name, often, step in (
        ("llava_next", "LlavaNext", ("cp2",), "adamw"),
        ("llava_next_video", "LlavaNextVideo", (), ""),
    )
}

_PHI4 = TinyModel(
    tiny=phi4.tiny,
    made=phi4.made,
    logits_of=phi4.logits_of,
    widen=exact_text,
    layouts=plain(llava.LAYOUTS),
    often={"cp2", "apart"},
    steps=_ALL_STEPS,
    # The last layer of the tower is not used, and nothing is heard.
    stays=r"audio_embed|post_layernorm|img_processor\.(encoder\.layers\.2\.|head\.)",
    undecided=r"img_processor.*k_proj\.bias$",
    sections=("vision_config", "audio_config"),
)
_PHI4_HEARING = TinyModel(
    tiny=phi4_audio.tiny,
    made=phi4_audio.made,
    logits_of=phi4_audio.logits_of,
    widen=exact_text,
    layouts=plain(phi4_audio.LAYOUTS),
    often={"tp2", "apart"},
    steps=_ALL_STEPS,
    # Nothing is seen; maps of sound beside images, and what norms bands, do not train.
    stays=r"image_embed|vision_speech|global_(mean|invstd)",
    undecided=r"encoders.*k_proj\.bias$",
    sections=("vision_config", "audio_config"),
)
_PHI4_WHOLE = replace(
    _PHI4_HEARING,
    tiny=phi4_audio.alike,
    made=partial(phi4_audio.made, sees=True),
    often={"apart"},
    steps={},
    untouched=None,
)

# Its images are words.
_EMU3 = TinyModel(
    tiny=emu3.tiny,
    made=emu3.made,
    logits_of=emu3.logits_of,
    layouts=plain(("one rank", "tp2", "pp2", "cp2", "tp2 pp2")),
    often={"cp2"},
    steps=steps("sgd"),
    stays="vqmodel",
    sections=("text_config", "vq_config"),
)

# Hybrids.


def exact_hybrid(model: Any, monkeypatch: pytest.MonkeyPatch, *, experts: bool = True) -> None:
    """Compute norms, scans and routers in float64."""
    nemotron_h.widened(model)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    if experts:
        getattr(model, "language_model", model).set_experts_implementation("eager")
        monkeypatch.setattr(torch.Tensor, "type", lambda x, dtype: x.double())


_HYBRIDS = {
    "nemotron_h": TinyModel(
        tiny=nemotron_h.tiny,
        made=nemotron_h.made,
        widen=partial(exact_hybrid, experts=False),
        layouts=plain(nemotron_h.LAYOUTS),
        often=nemotron_h.LAYOUTS,
        steps={},
    ),
    "nemotron_h with experts": TinyModel(
        tiny=partial(nemotron_h.tiny, **nemotron_h.MOE_CONFIG),
        made=partial(nemotron_h.made, **nemotron_h.MOE_MODEL),
        widen=exact_hybrid,
        layouts=plain(nemotron_h.MOE_LAYOUTS),
        often={"one rank", "tp2, split experts", "pp2, ep3"},
        steps={},
        untouched={"layout": "ep2"},
    ),
    "nemotron_h_omni": TinyModel(
        tiny=nemotron_omni.tiny,
        made=nemotron_omni.made,
        logits_of=nemotron_omni.logits_of,
        widen=exact_hybrid,
        layouts=plain(llava.LAYOUTS),
        often={"apart"},
        exact_often=False,
        steps=steps("sgd"),
        stays=r"(summary_idxs|video_embedder\.weight|correction_bias)$",
        untouched=None,
    ),
    # With the norm behind the tower that layers for further tokens bring along.
    "nemotron_h_omni that predicts": TinyModel(
        tiny=partial(nemotron_omni.tiny, predicts=True),
        made=partial(nemotron_omni.made, final_norm=True),
        logits_of=nemotron_omni.logits_of,
        widen=exact_hybrid,
        layouts={},
        steps={},
        untouched=None,
    ),
    # With the audio tower that we leave out.
    **{
        f"nemotron_h_omni that hears{' and predicts' * predicts}": TinyModel(
            tiny=partial(nemotron_omni.tiny, hears=True, predicts=predicts),
            made=partial(nemotron_omni.made, final_norm=predicts),
            layouts={},
            exact=None,
            steps={},
            sections=("vision_config", "text_config", "audio_config"),
            derived=frozenset({"layer_types"}),
        )
        for predicts in (False, True)
    },
    "qwen3_next": TinyModel(
        tiny=qwen3_next.tiny,
        made=qwen3_next.made,
        widen=exact_delta,
        layouts=plain(qwen3_next.LAYOUTS),
        often={"tp2"},
        steps=steps("adamw"),
        untouched=None,
    ),
}
FAMILIES: Mapping[str, TinyModel] = {
    **_DECODERS, **_EXPERTS, "kimi_k2": _KIMI, **_LLAVAS, **_SEEING, **_QWENS,
    **_HEARING, "emu3": _EMU3, "phi4_multimodal": _PHI4, "phi4_multimodal, hearing": _PHI4_HEARING,
    "phi4_multimodal, seeing and hearing": _PHI4_WHOLE,
    "llava_onevision": _ONEVISION, **_NEXT, **_OMNIS, **_HYBRIDS,
}  # fmt: skip
# Settings that are wrong in our module, or in the model of transformers: each moves the logits.
WRONG: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    f"{name}: {module}, {next(iter(changed))}, {number}": (name, module, changed, often)
    for number, (name, module, changed, often) in enumerate((
        ("llama", "language", {"norm_eps": 1e-4}, True),
        ("llama", "language", {"rope_theta": 400.0}, True),
        ("gemma2", "language", {"attention_softcap": None}, True),
        ("gemma2", "language", {"logit_softcap": None}, True),
        ("gemma2", "language", {"attention_softcap": 2.1}, True),
        ("gemma2", "language", {"sliding_window": {"size": 5, "full": [0]}}, True),
        *(
            ("gemma3_text", "language", {"sliding_window": each}, each["size"] == 6)
            for each in (
                {"size": 6, "full": [1], "rope_theta": 20.0},
                {"size": 5, "full": [0], "rope_theta": 20.0},
                {"size": 5, "full": [1], "rope_theta": None},
            )
        ),
        ("gemma3_text", "language", {"rope_scaling": None}, False),
        ("gemma3_text", "language", {"activation": "silu"}, False),
        ("gemma3_text", "language", {"norm_offset": False}, False),
        ("gemma3_text", "language", {"embedding_scale": None}, False),
        ("gemma3_text", "language", {"query_pre_attn_scalar": None}, False),
        ("glm4", "language", {"rotary_interleaved": False}, True),
        ("arcee", "language", {"activation": "gelu_tanh_without_gate"}, True),
        ("apertus", "language", {"norm_eps": 1e-2}, False),
        *(
            (
                "phi3, long", "language",
                {"rope_scaling": {
                    "rope_type": "longrope", "factor": factor, "short_factor": slower,
                    "original_max_position_embeddings": 16,
                }}, True,
            )
            for factor, slower in ((4.0, [1.5, 2.4]), (3.0, [1.5, 2.5]))
        ),
        ("glm4", "language", {"rotary_factor": 1.0}, True),
        *(
            (kind, "theirs", {"num_experts_per_tok": 1}, True)
            for kind in _EXPERTS
            if kind != "gemma4_text, experts"
        ),
        ("gemma4_text, experts", "theirs", {"top_k_experts": 1}, True),
        *(
            (name, "theirs", {"sliding_window": 6}, True)
            for name in ("gemma2", "gpt_oss")
        ),
        ("llava of clip and llama", "vision", {"activation": "gelu"}, True),
        ("llava of clip and llama", "vision", {"norm_eps": 1e-4}, True),
        ("llava of clip and llama", "vision", {"projector_activation": "gelu_tanh"}, True),
        ("mistral3, seeing", "vision", {"rope_frequencies": "shared"}, False),
        ("mistral3, seeing", "vision", {"projector_norm_eps": 0.1}, False),
        ("gemma3, seeing", "vision", {"projector_norm_offset": False}, False),
        ("gemma3, seeing", "language", {"bidirectional_images": False}, False),
        ("gemma4, seeing", "language", {"bidirectional_images": True}, False),
        ("gemma4_small, seeing", "language", {"per_layer_embeddings": {"padding": 7}}, True),
        ("gemma4, seeing", "vision", {"rope_theta": 30.0}, True),
        ("gemma4, seeing", "vision", {"norm_eps": 1e-3}, False),
        ("llama4, seeing", "vision", {"rope_theta": 30.0}, True),
        ("ovis2, seeing", "vision", {"norm_eps": 1e-2}, True),
        ("paligemma, seeing", "language", {"bidirectional_prompts": False}, False),
        ("internvl, seeing", "vision", {"projector_norm_eps": 0.1}, False),
        ("internvl_large, seeing", "vision", {"norm_eps": 1e-2}, False),
        ("smolvlm, seeing", "vision", {"interpolation": "bicubic"}, False),
        ("minicpm_ocr, seeing", "vision", {"interpolation": "bicubic"}, False),
        ("lfm2", "language", {"rope_theta": 400.0}, False),
        ("lfm2_vl, seeing", "vision", {"interpolation": "bicubic"}, True),
        (
            "minicpm_ocr, seeing", "language",
            {"mrope": [1, 1, 1], "mrope_interleaved": True}, False,
        ),
        ("qwen2_vl", "language", {"mrope": [2, 1, 1]}, True),
        ("qwen2_vl", "vision", {"positions": "sincos"}, False),
        ("qwen2_vl", "vision", {"activation": "gelu"}, False),
        ("qwen2_5_vl", "vision", {"windows": None}, False),
        ("qwen2_5_vl", "vision", {"windows": {"side": 2, "full": [0]}}, True),
        ("qwen2_5_vl", "vision", {"windows": {"side": 1, "full": [1]}}, False),
        ("qwen3_vl", "vision", {"interpolation": "bicubic"}, True),
        ("qwen3_vl", "vision", {"deepstack": [0, 3]}, False),
        ("cosmos3_edge", "vision", {"interpolation": "linear"}, False),
        ("cosmos3_edge", "language", {"mrope_interleaved": False}, False),
        ("qwen3_vl", "language", {"mrope_interleaved": False}, False),
        ("glm4v", "language", {"rotary_interleaved": False}, False),
        ("exaone4_5", "vision", {"windows": None}, False),
        ("hyperclovax_vision_v2", "language", {"scaled_rows": False}, False),
        ("glm_ocr", "vision", {"norm_eps": 0.1}, False),
        ("glm4v", "vision", {"interpolation": "bilinear"}, False),
        ("glm4v", "vision", {"projector_activation": "gelu_tanh"}, False),
        ("qwen2_5_omni, thinking", "audio", {"chunk": 20}, False),
        ("qwen3_omni_moe, thinking", "audio", {"window": 1}, False),
        ("audioflamingo3", "audio", {"heads": 2}, True),
        ("qwen3_asr", "audio", {"window": 1}, True),
        ("emu3", "language", {"rope_theta": 400.0}, True),
        ("phi4_multimodal", "vision", {"norm_eps": 1e-2}, False),
        ("phi4_multimodal", "vision", {"projector_activation": "gelu_tanh"}, True),
        ("phi4_multimodal, hearing", "audio", {"scale_input": True}, True),
        ("qwen3_5", "language", {"rotary_factor": 1.0, "mrope": [2, 2, 2]}, False),
        ("nemotron_h", "language", {"mamba": {"min_step": 0.0}}, True),
        ("nemotron_h with experts", "theirs", {"norm_topk_prob": False}, True),
        ("nemotron_h with experts", "theirs", {"routed_scaling_factor": 1.0}, True),
        ("nemotron_h with experts", "theirs", {"num_experts_per_tok": 2}, True),
        ("nemotron_h_omni", "vision", {"projector_activation": "gelu"}, False),
        ("nemotron_h_omni", "vision", {"projector_norm_eps": 0.5}, False),
        ("nemotron_h_omni", "vision", {"interpolation": "bilinear"}, False),
    ))
}  # fmt: skip
# Rows of weights of theirs that a comparison in float64 sees.
ROWS: dict[str, Any] = {
    "voxtral": lambda model: model.model.multi_modal_projector.linear_2.weight[3],
    "qwen2_audio": lambda model: model.model.multi_modal_projector.linear.weight[3],
    "phi4_multimodal": lambda model: (
        model.model.embed_tokens_extend.image_embed.global_img_feature_extensor[..., 3:4]
    ),
    "phi4_multimodal, hearing": lambda model: (
        model.model.embed_tokens_extend.audio_embed.encoder.relative_attention_bias_layer
    ).bias_values.weight[2],
    "apertus": lambda model: model.model.layers[1].mlp.act_fn.alpha_n,
    "emu3": lambda model: model.model.text_model.layers[1].mlp.up_proj.weight[3],
    "qwen3_asr": lambda model: model.model.multi_modal_projector.linear_2.weight[3],
    "audioflamingo3": lambda model: model.model.multi_modal_projector.linear_1.weight[3],
    # The learned row between lines of tiles, and the one after an image.
    "ovis2, seeing": lambda model: model.model.visual_embeddings_table.weight[-2],
    "ovis2_untied, seeing": lambda model: model.model.visual_embeddings_table.weight[-1],
    **dict.fromkeys(
        ("llava_onevision", "llava_next"), lambda model: model.model.image_newline[3:4]
    ),
}
