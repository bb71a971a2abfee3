"""Decoders with experts of Mixtral and Qwen3-MoE shape.

Decides: what their configurations mean for experts, and the names of their tensors.
Relies on: `decoder` for the rest of a block; `config.json` as transformers 4 and 5 write it.
Leaves: reading tensors to `checkpoint`.

Source: `transformers` 5.23, models/mixtral and models/qwen3_moe; arXiv:2401.04088,
arXiv:2505.09388.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder
from mimo_launch.hugging_face.family import Family, Place, moe_keys
from mimo_launch.hugging_face.folder import Config, number, short
from mimo_launch.hugging_face.refusals import Refusal, Refusals, refusals
from mimo_launch.spec.spec import DecoderModel

# The default weight of the auxiliary loss in transformers.
BALANCE = 0.001
_MLP = re.compile(r"layers\.(\d+)\.mlp\.(router|experts\.(\d+)\.(gate|up|down))\.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeDecoderFamily:
    """A family of decoders with experts.

    `block` is the rest of a block. `only_experts`: every layer has experts, and their weights are
    normalised. `width` is the setting of the width of experts, `maps` are their tensors by ours.
    `defaults` are those that differ from dense decoders. `random` are settings of routers that
    change numbers at random in training.
    """

    block: decoder.DecoderFamily
    only_experts: bool
    width: str
    prefix: str
    maps: Mapping[str, str]
    architecture: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    random: tuple[str, ...] = ()


KINDS = {
    "mixtral": MoeDecoderFamily(
        block=decoder.DecoderFamily(
            qkv_bias=False,
            qk_norm=False,
            kv_heads=8,
            head_size=None,
            windows=decoder.WindowKeys(size=None),
        ),
        only_experts=True,
        width="intermediate_size",
        prefix="block_sparse_moe",
        maps={"gate": "w1", "up": "w3", "down": "w2"},
        architecture="MixtralForCausalLM",
        defaults={
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "intermediate_size": 14336,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
        },
        random=("router_jitter_noise",),
    ),
    "qwen3_moe": MoeDecoderFamily(
        block=decoder.DecoderFamily(
            qkv_bias=False,
            qk_norm=True,
            kv_heads=4,
            head_size=None,
            windows=decoder.WindowKeys(asked=True),
        ),
        only_experts=False,
        width="moe_intermediate_size",
        prefix="mlp",
        maps={each: f"{each}_proj" for each in ("gate", "up", "down")},
        architecture="Qwen3MoeForCausalLM",
        defaults={
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "intermediate_size": 6144,
        },
    ),
}


def not_computed(kind: MoeDecoderFamily) -> Refusals:
    """Return what our decoder does not compute of the configurations of a kind."""
    return decoder.not_computed(kind.block) + refusals(FIRST_DENSE)


def _dense_layers(config: Config) -> Iterator[str]:
    dense = config.get("mlp_only_layers") or []
    if dense != list(range(len(dense))):
        yield f"mlp_only_layers: {short(dense)}"


FIRST_DENSE = Refusal("`mlp_only_layers` other than the first ones", _dense_layers)


def keys(kind: MoeDecoderFamily, config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    config = {**kind.defaults, **config}
    found = decoder.keys(kind.block, config)
    # transformers 5 writes the former and reads both.
    count = next(key for key in ("num_local_experts", "num_experts") if key in config)
    moe = {
        "experts": number(config, count),
        "top_k": number(config, "num_experts_per_tok"),
        "width": number(config, kind.width),
    }
    if kind.only_experts:
        del found["mlp"]
    else:
        moe |= {
            "normalize": bool(config.get("norm_topk_prob", False)),
            "every": number(config, "decoder_sparse_step", 1),
            "first_dense": len(config.get("mlp_only_layers") or []),
        }
    return {**found, "moe": moe_keys(**moe)}


def balance(config: Config) -> dict[str, Any]:
    """Return the training settings of a configuration, as keys of `moe`. Raises: ConfigError."""
    return {"aux_loss": number(config, "router_aux_loss_coef", BALANCE)}


def place(kind: MoeDecoderFamily, name: str, model: DecoderModel) -> Place:
    """Return the place of our tensor `name`, which is given without the module.

    Raises: KeyError for a name that a decoder does not have.
    """
    found = _MLP.fullmatch(name)
    if found is None:
        return decoder.place(name, model)
    layer, what, expert, weight = found.groups()
    inner = "gate" if what == "router" else f"experts.{expert}.{kind.maps[weight]}"
    return Place(f"model.layers.{layer}.{kind.prefix}.{inner}.weight")


def config_of(model_type: str, model: DecoderModel) -> Config:
    """Return the configuration of our decoder with experts, as transformers 5 writes it."""
    kind, moe = KINDS[model_type], model.moe
    if moe is None:
        raise ValueError(f"a {model_type} has experts")
    config = {
        **decoder.config_of(model_type, model),
        **decoder.windows_of(kind.block, model),
        "num_local_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        kind.width: moe.width,
    }
    if kind.only_experts:
        return config
    return {
        **config,
        "norm_topk_prob": moe.normalize,
        "decoder_sparse_step": moe.every,
        "mlp_only_layers": list(range(moe.first_dense)),
    }


FAMILIES = tuple(
    Family(
        model_type=name,
        kind="decoder",
        not_computed=not_computed(kind),
        random=("attention_dropout", *kind.random),
        keys=partial(keys, kind),
        place=partial(place, kind),
        is_ignored=decoder.is_ignored,
        fits=partial(decoder.fits, kind.block),
        config=partial(config_of, name),
        architecture=kind.architecture,
        training=balance,
        of_experts=True,
    )
    for name, kind in KINDS.items()
)
