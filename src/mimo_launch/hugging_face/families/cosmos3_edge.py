"""Cosmos 3 Edge: a SigLIP 2, a projector after a norm of patches, and a decoder with M-RoPE.

Source: `transformers` 5.24, models/cosmos3_edge and the names of its conversion_mapping.py.
"""

from dataclasses import replace

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.families import siglip_clip
from mimo_launch.hugging_face.families.cosmos3_omni import ENDS, GENERATES, GENERATING, TEXT_NAMES
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import number
from mimo_launch.hugging_face.refusals import left_out, one_of, only, refusals
from mimo_launch.hugging_face.tensors import Dropped, Tensors, in_layers, layers_at
from mimo_launch.hugging_face.towers import ACTIVATIONS, PLAIN_PROJECTOR
from mimo_launch.hugging_face.wholes import TowerAndDecoder

_RELU2, _INSIDE = "relu2", ("projector_hidden_size", 11520)
_MAPS = {
    **{f"attention.{x}": f"self_attn.to_{y}" for x, y in zip("qkvo", ENDS, strict=True)},
    **{f"mlp.{x}": f"mlp.{x}_proj" for x in ("up", "down")},
}
_PLAIN_MAPS = {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
_PROJECTOR = {
    f"projector.{ours}": f"model.projector.{its}"
    for ours, its in (("norm", "norm"), ("up", "linear_fc1"), ("down", "linear_fc2"))
}


def _loaded(tensors: Tensors, before: str) -> Tensors:
    """Return names in a model that transformers loads."""
    table = {ours: x for ours, x in tensors.table.items() if isinstance(x, str)}
    return Tensors({ours: before + x.removeprefix("model.") for ours, x in table.items()})


_PLAIN_TEXT = decoders.TENSORS | in_layers(decoders.LAYERS, _PLAIN_MAPS)
_TEXT = Family(
    model_type="cosmos3_edge_text",
    kind="decoder",
    architecture="Cosmos3EdgeTextModel",
    settings=decoders.decoder(
        decoders.sizes(kv_heads=8, head_size=128),
        activation="squared_relu",
        # Which no setting says.
        **rotary.mrope((24, 20, 20), interleaved=False) | {"mrope_interleaved": True},
    ).but({}, {"hidden_act": _RELU2}),
    tensors=replace(
        decoders.TENSORS | in_layers(decoders.LAYERS, _MAPS),
        dropped=(*decoders.TENSORS.dropped, *map(Dropped, GENERATES)),
    ),
    other_tensors=_PLAIN_TEXT,
    loaded=_loaded(_PLAIN_TEXT, "model.language_model."),
    refused=refusals(only("hidden_act", _RELU2)) + decoders.not_computed(but=("hidden_act",)),
    defaults={
        "vocab_size": 131072, "hidden_size": 2048, "intermediate_size": 9216,
        "num_hidden_layers": 28, "num_attention_heads": 16, "rms_norm_eps": 1e-5, "rope_theta": 1e8,
    },
    prepared=rotary.plain_rope,
)  # fmt: skip


_PLAIN_TOWER = siglip_clip.SIGLIP2.tensors
_SETTINGS = siglip_clip.settings(
    is_clip=False, patch=16, activation="gelu_pytorch_tanh", norm_eps=1e-6
)
_TOWER = Family(
    model_type="cosmos3_edge_vision",
    kind="vit",
    architecture="Cosmos3EdgeVisionModel",
    settings=replace(
        _SETTINGS.but({"image": siglip_clip.TABLE, "shuffle": ("spatial_merge_size", 2)}),
        rest={**_SETTINGS.rest, "interpolation": "averaged", "final_norm": True},
    ),
    tensors=_PLAIN_TOWER | in_layers(
        "encoder.layers.*.", {**_MAPS, "attention.o": "self_attn.out_proj"}
    ),
    other_tensors=_PLAIN_TOWER,
    loaded=_loaded(_PLAIN_TOWER, "model.visual.") | _PROJECTOR,
    refused=refusals(one_of("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh"), siglip_clip.NO_SQUARE),
    defaults={
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16,
    },
)  # fmt: skip
COSMOS3_EDGE = TowerAndDecoder(
    model_type="cosmos3_edge",
    architecture="Cosmos3EdgeForConditionalGeneration",
    published=("nvidia/Cosmos3-Edge",),
    towers=(_TOWER,),
    text=(_TEXT,),
    tower_names=(("model.visual.", ""), ("model.projector.", "model.projector.")),
    text_names=TEXT_NAMES,
    projector=layers_at(_PROJECTOR),
    fixed={
        **PLAIN_PROJECTOR, "projector": "mlp", "projector_activation": "gelu",
        "projector_norm_eps": 1e-6, "projector_norm_of": "patch",
        "projector_mlp": lambda config: number(config, *_INSIDE),
    },
    refusals=refusals(left_out("what generates")),
    beside=GENERATING,
    # Its class ties nothing, whatever the configuration says.
    tied=lambda *_: False,
    token="image_token_id",
    settings={_INSIDE[0]: lambda vision: vision.projector_mlp_width or _INSIDE[1]},
    notes="`interpolation: averaged`. Images keep their sides; videos are not read. The "
    "output layer is never tied. `export` "
    "writes the names of `transformers`: `to_q`, `to_k`, `to_v`, `to_out`, `up_proj`, `down_proj`.",
)  # fmt: skip
