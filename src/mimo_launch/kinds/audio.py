"""Audio encoders: what they do not share with other encoders.

Decides: weights and work of the two convolutions of Whisper (arXiv:2212.04356).
Relies on: `transformer_encoder` for the rest.
Leaves: cutting clips to `models.encoder_inputs`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mimo_launch.kinds.layer import Ends, Weight, Widths, Workload
from mimo_launch.kinds.saved_activations import IN_ORDER, Saved
from mimo_launch.kinds.transformer_encoder import BLOCK, PatchWork, TransformerEncoderKind
from mimo_launch.spec.audio import FRAMES_PER_TOKEN
from mimo_launch.spec.spec import AudioModel, Clips


@dataclass(frozen=True, slots=True)
class AudioKind(TransformerEncoderKind):
    """The encoder of Whisper over log-mel clips."""

    model: AudioModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.audio_encoder:AudioStage"

    @property
    def input(self) -> Clips:
        """Clips."""
        return self.model

    @property
    def has_key_bias(self) -> bool:
        """Keys have no bias."""
        return False

    @property
    def patch_work(self) -> PatchWork:
        """The first convolution at three places, then the second one; GELU after both."""
        width = self.model.hidden
        joined = 3 * width
        windows = 3 * 3 * self.model.mels
        saved = windows + 2 * joined + width
        return PatchWork(products=(windows + joined) * width, saved=saved)

    def _embedded(self, work: Workload) -> int:
        """Return the number of tokens, including tokens that do not fill a row."""
        return work.tokens

    def _saved_compiled(self, layer: Widths) -> tuple[Saved, ...]:
        return (*BLOCK, IN_ORDER) if self.model.unpadded else BLOCK

    def embedding_weights(self, ends: Ends) -> Iterator[Weight]:
        """Yield the weights of both convolutions, and the positions, which never train."""
        model, width = self.model, self.model.hidden
        yield from (Weight((width, model.mels, 3)), Weight((width,)))
        yield from (Weight((width, width, 3)), Weight((width,)))
        yield Weight((model.frames // FRAMES_PER_TOKEN, width), "constant")
