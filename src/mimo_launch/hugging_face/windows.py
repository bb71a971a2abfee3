"""Layers of decoders that attend in windows, in configurations.

Decides: which layers do, and the size of their windows.
Relies on: `config.json` as transformers 4 and 5 write it.
Leaves: a separate rotary base for these layers to `gemma3_text`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mimo_launch.hugging_face.folder import Config, number, short
from mimo_launch.hugging_face.refusals import Refusal, listed

FULL, SLIDING = "full_attention", "sliding_attention"
# Layers before this one have no window.
_FIRST = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowKeys:
    """How a configuration selects layers that attend in windows.

    `size` is the default. `asked`: only with `use_sliding_window`. `by_layer`: only layers that
    `layer_types` names, or layers from `max_window_layers` on; otherwise all. `never`: no layer
    does, whatever the configuration says.
    """

    size: int | None = 4096
    asked: bool = False
    by_layer: bool = False
    never: bool = False

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

    def of(self, config: Config) -> dict[str, Any] | None:
        """Return a configuration as `sliding_window`. Raises: ConfigError."""
        size, layers = self._size_of(config), int(number(config, "num_hidden_layers"))
        if size is None:
            return None
        full = []
        if self.by_layer:
            first = number(config, "max_window_layers", _FIRST)
            types = config.get("layer_types")
            slides = [i >= first for i in range(layers)]
            if types:
                slides = [each != FULL for each in types]
            full = [i for i, each in enumerate(slides) if not each]
        if len(full) >= layers:
            return None
        return {"size": size, "full": tuple(full), "rope_theta": None}

    def config(self, model: Any) -> Config:
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
