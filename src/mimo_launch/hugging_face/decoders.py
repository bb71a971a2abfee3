"""What language models share: sizes, windows and experts in configurations, names of tensors.

Decides: the tables of settings and of tensors of a Llama, and what families change in them;
which settings our decoders do not compute.
Relies on: `config.json` as transformers 4 and 5 write it, with the defaults of its config classes;
`rotary`.
Leaves: what else a family has, and its own defaults, to `families`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.folder import Config, number, short
from mimo_launch.hugging_face.refusals import Refusal, Refusals, listed, only, refusals, where
from mimo_launch.hugging_face.rotary import FACTOR, rope, rope_refusal
from mimo_launch.hugging_face.settings import (
    Computed,
    Fixed,
    InnerSettings,
    Settings,
    architecture,
    defaults_of,
)
from mimo_launch.hugging_face.tensors import (
    EMBEDDING,
    HEAD,
    MLP,
    Beyond,
    Dropped,
    Place,
    Tensors,
    in_layers,
)
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.layers import SlidingWindow
from mimo_launch.spec.spec import DecoderModel, HybridModel

NORM_EPS = 1e-6
LAYERS = "model.layers.*."
_WIDTH, _HEADS = "hidden_size", "num_attention_heads"


# Layers that attend in windows.

FULL, SLIDING = "full_attention", "sliding_attention"
# Qwen2 and Qwen3: layers before this one have no window.
_FIRST = 28


@frozen(kw_only=True)
class WindowKeys:
    """How a configuration selects layers that attend in windows: the entry `sliding_window`.

    `size` is the default. `asked`: only with `use_sliding_window`. `by_layer`: only layers that
    `layer_types` names, or layers from `max_window_layers` on; otherwise all. `never`: no layer
    does, whatever the configuration says.
    """

    size: int | None = 4096
    asked: bool = False
    by_layer: bool = False
    never: bool = False

    @property
    def words(self) -> str:
        """Where windows come from, for the page of families."""
        asked = " with `use_sliding_window`" if self.asked else ""
        where = ", in layers by `layer_types` or `max_window_layers`" if self.by_layer else ""
        return "" if self.never else f"`sliding_window`{asked}{where}; {self.size or 'none'}"

    @property
    def layer_types(self) -> tuple[str, ...]:
        """The values of `layer_types` that our decoder computes."""
        return (FULL, SLIDING) if self.by_layer else (FULL,)

    def refusal(self) -> Refusal:
        """Return the rule for kinds of layers that our decoder does not compute."""

        def found(config: Config) -> Iterator[str]:
            layers = config.get("layer_types") or []
            layers = layers if isinstance(layers, list) else [layers]
            # A layer with a window of unknown size cannot be computed.
            known = self.layer_types if self._size_of(config) is not None else (FULL,)
            if others := [x for x in layers if x not in known]:
                yield f"layer_types: {short(others[0])}"

        return Refusal(f"`layer_types` other than {listed(self.layer_types)}", found)

    def _size_of(self, config: Config) -> int | float | None:
        """Return how many tokens layers with windows attend to, None if no layer has one."""
        if self.never or (self.asked and not config.get("use_sliding_window")):
            return None
        if config.get("sliding_window", self.size) is None:
            return None
        return number(config, "sliding_window", self.size)

    def read(self, config: Config) -> dict[str, Any] | None:
        """Return a configuration as `sliding_window`. Raises: ConfigError."""
        size, layers = self._size_of(config), int(number(config, "num_hidden_layers"))
        if size is None:
            return None
        full = []
        if self.by_layer:
            first = number(config, "max_window_layers", _FIRST)
            types = config.get("layer_types")
            slides = (
                [each != FULL for each in types] if types else [i >= first for i in range(layers)]
            )
            full = [i for i, each in enumerate(slides) if not each]
        if len(full) >= layers:
            return None
        return defaults_of(SlidingWindow) | {"size": size, "full": tuple(full)}

    def write(self, _ours: str, model: Any) -> Config:
        """Return the settings of windows, as transformers 5 writes them."""
        if self.never:
            return {}
        ours = model.sliding_window
        # Where only `layer_types` decides, there is a size even if no layer uses it.
        unused = self.size if self.by_layer and not self.asked else None
        found: Config = {"sliding_window": unused if ours is None else ours.size}
        if self.asked:
            found["use_sliding_window"] = ours is not None
        if self.by_layer:
            full = range(model.layers) if ours is None else ours.full
            found["layer_types"] = [FULL if i in full else SLIDING for i in range(model.layers)]
        return found


NO_WINDOWS = WindowKeys(never=True)


def in_turn(config: Config, every: int) -> Config:
    """Return a configuration with `layer_types`; by default one layer in `every` has no window."""
    if config.get("layer_types"):
        return config
    layers = range(1, int(number(config, "num_hidden_layers")) + 1)
    return config | {"layer_types": [SLIDING if i % every else FULL for i in layers]}


# Blocks.


def sizes(*, kv_heads: int | None = None, head_size: int | None = None) -> dict[str, Any]:
    """Return the entries of a decoder's sizes; a default of None follows from other settings."""
    return {
        "layers": "num_hidden_layers",
        "hidden": _WIDTH,
        "heads": _HEADS,
        "kv_heads": ("num_key_value_heads", kv_heads, lambda x: number(x, _HEADS)),
        "head_dim": (
            "head_dim", head_size, lambda x: number(x, _WIDTH) // max(1, int(number(x, _HEADS))),
        ),
        "mlp": "intermediate_size",
        "vocab": "vocab_size",
    }  # fmt: skip


def head_size_of(block: Mapping[str, Any], config: Config) -> float:
    """Return the size of a head, by the entries of a decoder's `sizes`. Raises: ConfigError."""
    size: float = Settings({"head_dim": block["head_dim"]}).keys(config)["head_dim"]
    return size


# Heads that fill the width of the stream.
FILLED = Computed(
    lambda x: number(x, _WIDTH) // max(1, int(number(x, _HEADS))),
    words=f"`{_WIDTH}` / `{_HEADS}`",
)


def decoder(
    block: Mapping[str, Any], windows: WindowKeys = NO_WINDOWS, /, **parts: Any
) -> Settings:
    """Return the settings of a decoder like Llama; `parts` are entries, or keys that are fixed.

    Our keys without an entry are off in every configuration.
    """
    entries = {
        key: each if hasattr(each, "read") or isinstance(each, tuple) else Fixed(each)
        for key, each in parts.items()
    }
    table = {
        **block,
        "tied": ("tie_word_embeddings", False),
        **{key: entries.pop(key, Fixed(False)) for key in ("qkv_bias", "output_bias", "qk_norm")},
        "norm_eps": entries.pop("norm_eps", ("rms_norm_eps", NORM_EPS)),
        **rope(),
        "sliding_window": windows,
        "bidirectional_images": Fixed(False),
        # In the order of our model.
        **{key: entries[key] for key in _REST if key in entries},
    }
    return Settings(table, rest=_REST)


# Keys of a model that no folder decides; the files show whether they hold `mtp`.
_FREE = frozenset({"kind", "vocab_multiple", "mtp", "mlp"})
_REST = defaults_of(DecoderModel, but=_FREE)
HYBRID_REST = defaults_of(HybridModel, but=_FREE)


def not_computed(
    windows: WindowKeys = NO_WINDOWS, *, output_bias: bool = False, but: tuple[str, ...] = ()
) -> Refusals:
    """Return the settings that our decoders do not compute, except those in `but`."""
    rules = refusals(
        only("hidden_act", "silu"),
        only("attention_bias", output_bias),
        only("mlp_bias", False),
        only(FACTOR, 1.0),
    )
    return rules.without(*but) + refusals(windows.refusal(), rope_refusal(in_part=FACTOR in but))


ENDS = {"embedding.weight": EMBEDDING, "head.weight": HEAD, "norm.weight": "model.norm.weight"}
# `lm_head.weight` of a tied model.
TIED = Dropped(HEAD, lambda model: model.tied)
ATTENTION = {
    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkvo"},
    **{f"attention.{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
}
TENSORS = Tensors(
    ENDS
    | in_layers(
        LAYERS,
        {
            "attention_norm": "input_layernorm",
            "mlp_norm": "post_attention_layernorm",
            **ATTENTION,
            **{f"mlp.{x}": f"mlp.{x}_proj" for x in MLP},
        },
    ),
    # Old versions of transformers saved the frequencies of rotary embeddings.
    (Dropped("*rotary_emb.inv_freq"), TIED),
)


def qkv_rows(model: Any) -> list[int]:
    """Return the rows of queries, keys and values in one tensor."""
    queries, keys = model.heads * model.head_size, model.num_kv_heads * model.head_size
    return [queries, keys, keys]


# Experts.

# The default weight of the auxiliary loss in transformers.
BALANCE = {"aux_loss": ("router_aux_loss_coef", 0.001)}
# The rule that the layers without experts come first.
_DENSE = "mlp_only_layers"
FIRST_DENSE = where(
    _DENSE,
    "other than the first ones",
    lambda config: (dense := config.get(_DENSE) or []) != list(range(len(dense))),
)
# Layers without experts, and layers between two with experts.
DENSE_LAYERS = {
    "first_dense": Computed(
        lambda config: len(config.get(_DENSE) or []),
        lambda moe: {_DENSE: list(range(moe.first_dense))},
        f"the number of `{_DENSE}`, which must be the first layers; 0",
    )
}

# Or a list of all layers, by their MLPs.
_MLPS, _PLAIN, _MIXTURE, _NUMBER = "mlp_layer_types", "dense", "sparse", "first_k_dense_replace"
DENSE_LATER = where(
    _MLPS,
    "with experts before an MLP",
    lambda config: (types := config.get(_MLPS) or []) != sorted(types),
)


def _listed(model: Any) -> Config:
    dense = model.layers if model.moe is None else model.moe.first_dense
    return {_MLPS: [_PLAIN if i < dense else _MIXTURE for i in range(model.layers)]}


DENSE_LIST = {
    "layers": Computed(
        lambda config: number(config, "num_hidden_layers"),
        lambda model: {"num_hidden_layers": model.layers, **_listed(model)},
        f"`num_hidden_layers`; `{_MLPS}` says how many come before experts",
    )
}


def with_dense_first(config: Config, default: int) -> Config:
    """Return a configuration with the number of the first layers, which have no experts."""
    types = config.get(_MLPS)
    dense = types.count(_PLAIN) if isinstance(types, list) else config.get(_NUMBER, default)
    return {**config, _NUMBER: dense}


# Other names of the number of experts.
EXPERTS_ALIAS = {"num_experts": "num_local_experts"}
ROUTED_ALIAS = {"num_local_experts": "n_routed_experts"}
SARVAM_ALIASES = {
    **ROUTED_ALIAS,
    "num_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
}


def count(default: int | None = None) -> Computed:
    """Return the entry of the number of experts."""

    def found(config: Config) -> float:
        # transformers 5 writes the former and reads both.
        key = "num_local_experts" if "num_local_experts" in config else "num_experts"
        return number(config, key, default)

    words = f"`num_local_experts`, or `num_experts`; {default or 'error'}"
    return Computed(found, lambda moe: {"num_local_experts": moe.experts}, words)


def experts(
    table: Mapping[str, Any], is_there: Callable[[Config], bool] | None = None, **fixed: Any
) -> InnerSettings:
    """Return the section `moe` of a family; `fixed` are keys that are the same in all models."""
    return InnerSettings(Settings(table, rest=architecture(fixed)), is_there)


_SHARED, _OF_EXPERT = "n_shared_experts", "moe_intermediate_size"
# Experts chosen as in DeepSeek-V3.
GROUPED = experts(
    {
        "experts": "n_routed_experts",
        "top_k": "num_experts_per_tok",
        "width": _OF_EXPERT,
        "score": Fixed("sigmoid"),
        "normalize": ("norm_topk_prob", True),
        "scale": "routed_scaling_factor",
        "groups": "n_group",
        "top_groups": "topk_group",
        "shared": Computed(
            lambda config: number(config, _SHARED) * number(config, _OF_EXPERT),
            lambda moe: {_SHARED: moe.shared // moe.width},
            f"`{_SHARED}` x `{_OF_EXPERT}`",
        ),
        "bias_update_rate": Fixed(0.0),
        "first_dense": "first_k_dense_replace",
    }
)
# The correction bias is not multiplied by activations.
CORRECTION = Place("mlp.gate.e_score_correction_bias", at_least_fp32=True)
GROUPED_TENSORS = Tensors(
    (
        TENSORS
        | in_layers(
            LAYERS,
            {
                "mlp.router.weight": "mlp.gate.weight",
                "mlp.router.expert_bias": CORRECTION,
                **{f"mlp.shared.{x}.weight": f"mlp.shared_experts.{x}_proj.weight" for x in MLP},
                **{f"mlp.experts.*.{x}.weight": f"mlp.experts.*.{x}_proj.weight" for x in MLP},
            },
        )
    ).table,
    # Layers of a depth of multi-token prediction that we leave out.
    (Beyond("model.layers.", lambda x: x.layers + kind_of(x).depths), *TENSORS.dropped),
)
