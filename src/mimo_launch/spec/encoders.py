"""The kinds of encoder.

Decides: the kinds that a spec accepts, besides users' own classes.
Relies on: `vit`, `audio` and `connector`, which have their keys.
Leaves: language models to `language_models`, what fits together to `checks`.
"""

from mimo_launch.spec.audio import AudioModel
from mimo_launch.spec.connector import ConnectorModel
from mimo_launch.spec.vit import VitModel

# Every kind of encoder except users' own classes.
EncoderKinds = VitModel | AudioModel | ConnectorModel
