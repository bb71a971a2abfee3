"""Decoders with experts of Mixtral and Qwen3-MoE shape.

Decides: what their configurations mean for experts, and the names of experts' tensors.
Relies on: `decoder` for the rest of a block; `config.json` as transformers 4 and 5 write it.
Leaves: reading tensors to `checkpoint`.

Source: `transformers` 5.23, models/mixtral and models/qwen3_moe; arXiv:2401.04088,
arXiv:2505.09388.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder
from mimo_launch.hugging_face.family import Family, moe_keys
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.names import Names, in_layers
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.hugging_face.windows import WindowKeys
from mimo_launch.spec.spec import DecoderModel

# The default weight of the auxiliary loss in transformers.
BALANCE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeDecoderFamily:
    """A family of decoders with experts.

    `block` is the rest of a block. `only_experts`: every layer has experts, and their weights are
    normalised. `settings` are the settings for `moe`, `experts` is the layer that holds the
    experts, `maps` are their tensors by ours. `defaults` differ from dense decoders. `random` are
    settings of routers that change numbers at random in training.
    """

    block: decoder.DecoderFamily
    only_experts: bool
    settings: Settings
    experts: str
    maps: Mapping[str, str]
    architecture: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    random: tuple[str, ...] = ()


KINDS = {
    "mixtral": MoeDecoderFamily(
        block=decoder.DecoderFamily(kv_heads=8, windows=WindowKeys(size=None)),
        only_experts=True,
        settings=Settings({"top_k": "num_experts_per_tok", "width": "intermediate_size"}),
        experts="block_sparse_moe",
        maps={"gate": "w1", "up": "w3", "down": "w2"},
        architecture="MixtralForCausalLM",
        defaults={
            "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 14336,
            "rms_norm_eps": 1e-5, "rope_theta": 1e6,
        },
        random=("router_jitter_noise",),
    ),
    "qwen3_moe": MoeDecoderFamily(
        block=decoder.DecoderFamily(qk_norm=True, kv_heads=4, windows=WindowKeys(asked=True)),
        only_experts=False,
        settings=Settings({
            "top_k": "num_experts_per_tok", "width": "moe_intermediate_size",
            "normalize": ("norm_topk_prob", False), "every": ("decoder_sparse_step", 1),
        }),
        experts="mlp",
        maps={each: f"{each}_proj" for each in decoder.MLP},
        architecture="Qwen3MoeForCausalLM",
        defaults={
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
            "intermediate_size": 6144,
        },
    ),
}  # fmt: skip
# The rule that the layers without experts come first.
FIRST_DENSE = where(
    "mlp_only_layers",
    "other than the first ones",
    lambda config: (dense := config.get("mlp_only_layers") or []) != list(range(len(dense))),
)


def keys(kind: MoeDecoderFamily, config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    config = {**kind.defaults, **config}
    found = decoder.keys(kind.block, config)
    moe = {"experts": count_of(config), **kind.settings.keys(config)}
    if kind.only_experts:
        del found["mlp"]
    else:
        moe["first_dense"] = len(config.get("mlp_only_layers") or [])
    return {**found, "moe": moe_keys(**moe)}


def count_of(config: Config, default: int | None = None) -> float:
    """Return the number of experts. Raises: ConfigError."""
    # transformers 5 writes the former and reads both.
    key = "num_local_experts" if "num_local_experts" in config else "num_experts"
    return number(config, key, default)


def balance(config: Config) -> dict[str, Any]:
    """Return the training settings of a configuration, as keys of `moe`. Raises: ConfigError."""
    return {"aux_loss": number(config, "router_aux_loss_coef", BALANCE)}


def names(kind: MoeDecoderFamily) -> Names:
    """Return the names of tensors."""
    experts = {f"experts.*.{ours}": f"experts.*.{theirs}" for ours, theirs in kind.maps.items()}
    weights = {"router": "gate", **experts}.items()
    inside = {f"mlp.{ours}.weight": f"{kind.experts}.{theirs}.weight" for ours, theirs in weights}
    return decoder.place | in_layers(decoder.LAYERS, inside)


def config_of(model_type: str, model: DecoderModel) -> Config:
    """Return the configuration of our decoder with experts, as transformers 5 writes it."""
    kind, moe = KINDS[model_type], model.moe
    if moe is None:
        raise ValueError(f"a {model_type} has experts")
    config = {
        **decoder.config_of(model_type, model, kind.block.windows),
        "num_local_experts": moe.experts,
        **kind.settings.config(moe),
    }
    if not kind.only_experts:
        config["mlp_only_layers"] = list(range(moe.first_dense))
    return config


FAMILIES = tuple(
    Family(
        model_type=name,
        kind="decoder",
        not_computed=decoder.not_computed(kind.block) + refusals(FIRST_DENSE),
        random=("attention_dropout", *kind.random),
        keys=partial(keys, kind),
        place=names(kind),
        is_ignored=decoder.is_ignored,
        fits=partial(decoder.fits, kind.block),
        config=partial(config_of, name),
        architecture=kind.architecture,
        training=balance,
        of_experts=True,
    )
    for name, kind in KINDS.items()
)
