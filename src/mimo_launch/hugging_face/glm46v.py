"""GLM-4.6V as a separate type in `transformers`: the parts of a GLM-4.1V, another processor.

Decides: which text and vision parts it may have, and that its videos are not read: their sampling
and the text of their times differ.
Relies on: `glm4v` for both parts.
Leaves: the published folders, of types `glm4v` and `glm4v_moe`, to these families.

Source: `transformers` 5.24, models/glm46v.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mimo_launch.hugging_face import glm4v
from mimo_launch.hugging_face.family import Part
from mimo_launch.hugging_face.folder import Config, section, short
from mimo_launch.hugging_face.qwen_vl import QwenVl
from mimo_launch.hugging_face.refusals import Refusal, Refusals

MODEL_TYPE = "glm46v"
_PARTS = {
    "text_config": glm4v.TEXT.model_type,
    "vision_config": glm4v.WHOLE.vision.model_type,
}


def _of_type(part: str, usual: str) -> Refusal:
    """Return the rule that a part is of one type, which the configuration may omit."""

    def found(config: Config) -> Iterator[str]:
        if (said := section(config, part).get("model_type", usual)) != usual:
            yield f"{part}.model_type: {short(said)}"

    return Refusal(f"`{part}.model_type` other than `{usual}`", found)


_TYPES = Refusals(tuple(_of_type(part, usual) for part, usual in _PARTS.items()))


def _no_videos(_: Config) -> None:
    """Return None, because it is not known how the model reads videos."""


@dataclass(frozen=True, kw_only=True)
class Glm46V(QwenVl):
    """The whole model, refused if its parts have other types."""

    @property
    def refusals(self) -> Refusals:
        """Rows must be as wide as language, and parts must be those of a GLM-4.1V."""
        return super().refusals + _TYPES

    def part(self, config: Config, kind: str) -> Part[Any]:
        """Return the vision part with its merger, or the text part. Raises: NoSuchPart."""
        found = super().part(config, kind)
        refused = tuple(dict.fromkeys((*found.refused, *_TYPES(config))))
        family = replace(found.family, video=_no_videos)
        return replace(found, family=family, refused=refused)


WHOLE = Glm46V(
    model_type=MODEL_TYPE,
    architecture="Glm46VForConditionalGeneration",
    vision=glm4v.WHOLE.vision,
    text=glm4v.TEXT,
    nested=True,
)
