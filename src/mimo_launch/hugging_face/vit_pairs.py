"""Models with a SigLIP or CLIP tower and a text encoder, which is left out.

Decides: which part of their folders is the tower.
Relies on: `vit` for the tower.
Leaves: nothing; no module computes the text encoder.

Source: `transformers` 5.23, models/siglip and models/clip.
"""

from dataclasses import dataclass
from typing import Any

from mimo_launch.hugging_face.family import Family, NoSuchPart, Part
from mimo_launch.hugging_face.folder import Config, section
from mimo_launch.hugging_face.refusals import Refusals, left_out, refusals
from mimo_launch.hugging_face.vit import BESIDE, BY_TYPE, CLIP, SIGLIP
from mimo_launch.spec.spec import VitModel


@dataclass(frozen=True, slots=True)
class Pair:
    """A SiglipModel or CLIPModel: a tower beside a text encoder, which we do not have."""

    model_type: str
    tower: Family[VitModel]
    refusals: Refusals
    architecture: str = ""

    @property
    def families(self) -> tuple[Family[Any], ...]:
        """The family of the tower."""
        return (self.tower,)

    def part(self, config: Config, kind: str) -> Part[VitModel]:
        """Return the vision tower. Raises: NoSuchPart."""
        # Old folders of CLIP describe the tower twice; only the second description is complete.
        said = "vision_config_dict" if config.get("vision_config_dict") else "vision_config"
        inner = {"model_type": self.tower.model_type, **section(config, said)}
        if kind != "vit" or inner["model_type"] not in BY_TYPE:
            raise NoSuchPart(f"model_type: {config['model_type']}")
        return Part(
            family=BY_TYPE[inner["model_type"]],
            config=inner,
            prefixes=(("vision_model.", ""),),
            elsewhere=BESIDE,
            may_end_early=True,
        )


_LEFT_OUT = refusals(left_out("the text encoder"))
PAIRS = Pair("siglip", BY_TYPE[SIGLIP], _LEFT_OUT), Pair("clip", BY_TYPE[CLIP], _LEFT_OUT)
