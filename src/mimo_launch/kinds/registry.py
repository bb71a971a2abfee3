"""Which kind a model of the spec is.

Decides: the one table of kinds.
Relies on: a file per kind.
Leaves: everything about a kind to its file.
"""

from mimo_launch.kinds.audio import AudioKind
from mimo_launch.kinds.custom import CustomKind
from mimo_launch.kinds.decoder import DecoderKind
from mimo_launch.kinds.hybrid import HybridKind
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.vision import VisionKind
from mimo_launch.spec.model import (
    AudioModel,
    CustomModel,
    DecoderModel,
    EncoderModel,
    HybridModel,
    LanguageModel,
    VitModel,
)

KINDS: dict[type, type[ModelKind]] = {
    VitModel: VisionKind,
    AudioModel: AudioKind,
    CustomModel: CustomKind,
    DecoderModel: DecoderKind,
    HybridModel: HybridKind,
}


def kind_of(model: EncoderModel | LanguageModel) -> ModelKind:
    """Return what the kind of a model says of it."""
    return KINDS[type(model)](model)
