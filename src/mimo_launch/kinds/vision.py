"""Vision transformers: what they do not share with other encoders.

Decides: weights and work of the embedding of patches, class tokens, rotated queries and keys.
Relies on: `transformer_encoder` for the rest.
Leaves: cutting images to `models.encoder_inputs`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mimo_launch.kinds.layer import Ends, Weight, Widths
from mimo_launch.kinds.saved_activations import ROTATED, HeldAtEnds, Passes, Saved
from mimo_launch.kinds.transformer_encoder import BLOCK, PatchWork, TransformerEncoderKind
from mimo_launch.spec.spec import Images, VitModel

# Besides, where passes are not compiled.
QUICK_GELU = Saved(name="sigmoid of up", inner=1)


@dataclass(frozen=True, slots=True)
class VisionKind(TransformerEncoderKind):
    """A ViT (arXiv:2010.11929) over images of any size."""

    model: VitModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.vision_encoder:VisionStage"

    @property
    def input(self) -> Images:
        """Images."""
        return self.model

    @property
    def has_class_token(self) -> bool:
        """Whether each image has a token besides its patches."""
        return self.model.class_token

    @property
    def turns_patches(self) -> bool:
        """Whether queries and keys rotate by the place of a patch."""
        return self.model.positions == "rope2d"

    @property
    def learned_grid(self) -> tuple[int, int] | None:
        """Height and width, in patches, of the table of learned positions, if there is one."""
        return self.model.image if self.model.positions == "learned" else None

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm stands between the last block and the projector."""
        return self.model.final_norm

    @property
    def patch_work(self) -> PatchWork:
        """One linear map."""
        size = self.model.patch_numbers
        return PatchWork(products=size * self.model.hidden, saved=size)

    def embedding_weights(self, ends: Ends) -> Iterator[Weight]:
        """Yield the weights of patches, class token, positions, and the norm after them."""
        model, width = self.model, self.model.hidden
        yield Weight((width, model.patch_numbers))
        one_row = model.patch_bias + model.class_token + 2 * model.pre_norm
        yield from (Weight((width,)),) * one_row
        if (grid := self.learned_grid) is not None:
            yield Weight((model.class_token + grid[0] * grid[1], width))

    def _saved_compiled(self, layer: Widths) -> tuple[Saved, ...]:
        return (*BLOCK, ROTATED) if self.turns_patches else BLOCK

    def _saved_besides(self, layer: Widths, passes: Passes) -> tuple[Saved, ...]:
        besides = TransformerEncoderKind._saved_besides(self, layer, passes)
        return (*besides, QUICK_GELU) if self.model.activation == "quick_gelu" else besides

    def _saved_behind_embedding(self, held: HeldAtEnds) -> int:
        return held.stream_tokens * self.model.hidden if self.model.pre_norm else 0
