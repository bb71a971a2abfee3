"""Hybrids of attention and Gated DeltaNet in configurations: the mixer of each layer, and sizes.

Decides: the letters of `layer_types`, its default, and the sizes of a DeltaNet.
Relies on: the configuration classes of Qwen3.5 and Qwen3-Next in transformers, for names and
defaults.
Leaves: all other settings to the families.
"""

from collections.abc import Sequence
from typing import Any

from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.refusals import layer_types
from mimo_launch.spec.hybrid import ATTENTION, DELTANET
from mimo_launch.spec.spec import DeltaNetSizes, HybridModel

_LETTERS = {"linear_attention": DELTANET, "full_attention": ATTENTION}
_NAMES = {letter: name for name, letter in _LETTERS.items()}
# Every fourth layer attends.
_INTERVAL = 4
# Our keys of a DeltaNet, each with the key and default of transformers.
_SIZES = {
    "heads": ("linear_num_value_heads", 32),
    "key_heads": ("linear_num_key_heads", 16),
    "head_dim": ("linear_value_head_dim", 128),
    "key_dim": ("linear_key_head_dim", 128),
    "conv": ("linear_conv_kernel_dim", 4),
}


def _types(config: Config) -> Sequence[Any]:
    """Return the name of the mixer of each layer. Raises: ConfigError."""
    said = config.get("layer_types")
    if said is None:
        every = max(1, int(number(config, "full_attention_interval", _INTERVAL)))
        depth = int(number(config, "num_hidden_layers"))
        return [_NAMES[DELTANET if (i + 1) % every else ATTENTION] for i in range(depth)]
    if not isinstance(said, list):
        raise ConfigError(f"`layer_types` is {short(said)}, not a list")
    return said


MIXERS = layer_types(tuple(_LETTERS), _types)


def mixer_keys(config: Config, behind: str) -> dict[str, Any]:
    """Return `deltanet`, and `pattern` with the letter `behind` after each mixer's letter.

    Raises: ConfigError.
    """
    letters = [_LETTERS.get(each, "?") for each in _types(config)]
    sizes = {ours: number(config, *theirs) for ours, theirs in _SIZES.items()}
    return {
        "pattern": "".join(each + behind for each in letters),
        "deltanet": sizes if DELTANET in letters else None,
    }


def mixer_config(model: HybridModel) -> Config:
    """Return our model's mixers as transformers 5 writes them; missing sizes get defaults."""
    sizes = model.deltanet or DeltaNetSizes.model_validate({"heads": 32, "key_heads": 16})
    held = sizes.architecture()
    return {
        "layer_types": [_NAMES.get(each, _NAMES[ATTENTION]) for each in model.pattern[::2]],
        "num_hidden_layers": -(-model.layers // 2),
        **{theirs: held[ours] for ours, (theirs, _) in _SIZES.items()},
    }
