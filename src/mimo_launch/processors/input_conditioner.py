"""The input conditioner of a RADIO, which normalises pixels inside the model.

Decides: that here it is a step of the image processor, after the steps from the folder.
Relies on: `config.json` of the folder that the weights came from.
Leaves: the other steps to `image_processor`.

Source: `transformers` 5.23, models/radio.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mimo_launch.spec.files import read_json
from mimo_launch.spec.load import earlier_specs
from mimo_launch.spec.spec import Spec

# The file of the weights' settings.
_CONFIG = "config.json"
# The values of CLIP.
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class Conditioner:
    """Mean and standard deviation of each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def behind(
        self, mean: Sequence[float], std: Sequence[float]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and deviation of one step equal to a step with these values, then this."""
        pairs = list(zip(mean, std, strict=True))
        means = (m + s * own for (m, s), own in zip(pairs, self.mean, strict=True))
        return tuple(means), tuple(s * own for (_, s), own in zip(pairs, self.std, strict=True))


def conditioner_of(spec: Spec, encoder: str) -> Conditioner | None:
    """Return the conditioner of the model that an encoder's weights came from, if it has one.

    Raises: ValueError if the folder has values other than numbers.
    """
    for start, _ in earlier_specs(spec.modules[encoder].init_from, encoder):
        file = Path(start) / _CONFIG
        if not os.path.lexists(file):
            continue
        try:
            config = read_json(file)
        except (OSError, ValueError):
            return None  # `checks.init_from_folder` reports it.
        if not isinstance(config, dict) or config.get("model_type") != "radio":
            return None
        said = (config.get("norm_mean") or MEAN, config.get("norm_std") or STD)
        return Conditioner(*(tuple(map(float, each)) for each in said))
    return None
