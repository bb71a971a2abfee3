"""Size and number of key/value heads of layers without windows, where they differ from others.

Decides: how configurations write them: for all of these layers, or by layer since transformers
5.24; which settings of single layers no family reads.
Relies on: `folder` for values of a configuration.
Leaves: which layers have windows to the families.
"""

from collections.abc import Collection, Iterator

from mimo_launch.hugging_face.folder import Config, ConfigError, number, short

HEAD, KEYS, SHARED = "head_dim", "num_key_value_heads", "attention_k_eq_v"
GLOBAL_HEAD, GLOBAL_KEYS = "global_head_dim", "num_global_key_value_heads"
BY_LAYER = "per_layer_config"


def heads_of(config: Config, full: Collection[int]) -> Config:
    """Return the settings of heads of the layers `full`. Raises: ConfigError."""
    own: Config = {}
    if config.get(BY_LAYER) is not None:
        by_layer = _by_layer(config)
        own = next((by_layer[i] for i in full if i in by_layer), {})
    else:
        own[HEAD] = number(config, GLOBAL_HEAD, 512)
        if config.get(SHARED) and config.get(GLOBAL_KEYS) is not None:
            own[KEYS] = number(config, GLOBAL_KEYS)
    return {HEAD: number(config, HEAD, 256), KEYS: number(config, KEYS, 4), **own}


def uneven(config: Config, full: Collection[int]) -> Iterator[str]:
    """Yield settings of single layers other than heads, the same in all layers of `full`."""
    try:
        by_layer = _by_layer(config)
    except ConfigError:
        yield f"{BY_LAYER}: {short(config[BY_LAYER])}"
        return
    found = [by_layer.get(i, {}) for i in full]
    keys = {key for each in found for key in each}
    is_alike = all(each == found[0] for each in found)
    if by_layer.keys() - set(full) or keys - {HEAD, KEYS} or not is_alike:
        yield f"{BY_LAYER}: {short(config[BY_LAYER])}"


def _by_layer(config: Config) -> dict[int, Config]:
    """Return the settings of single layers; files have `05` for layer 5. Raises: ConfigError."""
    said = config.get(BY_LAYER) or {}
    try:
        return {int(layer): dict(each) for layer, each in said.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"`{BY_LAYER}` is {short(said)}, not settings by layer") from None
