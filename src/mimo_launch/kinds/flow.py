"""Flow generators: transformers that learn to turn noise into images, given rows.

Decides: their weights and work before the blocks and after them.
Relies on: `transformer_encoder` for the blocks.
Leaves: noise to `data.random_draws`, the loss to `models.flow`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mimo_launch.kinds.generator import GeneratorKind
from mimo_launch.kinds.layer import Ends, Flops, Share, Weight, Workload
from mimo_launch.kinds.saved_activations import HeldAtEnds
from mimo_launch.kinds.transformer_encoder import BlocksKind
from mimo_launch.spec.spec import FlowModel, Images


@dataclass(frozen=True, slots=True)
class FlowKind(GeneratorKind, BlocksKind):
    """A rectified flow (arXiv:2209.03003) over the patches of images."""

    model: FlowModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.flow:FlowStage"

    @property
    def input(self) -> Images:
        """The images that it learns to generate."""
        return self.model

    def end_weights(self, ends: Ends, share: Share) -> Iterator[Weight]:
        """Yield the weights for patches, times and rows, and of the head."""
        model, width = self.model, self.model.hidden
        if ends.is_first:
            for inputs in (model.patch_size, width, width, *ends.source_widths):
                yield from (Weight((width, inputs)), Weight((width,)))
        if ends.is_last:
            yield from (Weight((width,)),) * 2
            yield from (Weight((model.patch_size, width)), Weight((model.patch_size,)))

    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return the operations of the maps of patches, times and rows, and of the head."""
        model, width, patch, head = self.model, self.model.hidden, 0.0, 0.0
        if ends.is_first:
            patch = 2.0 * work.rows * width * (model.patch_size + 2 * width)
            patch += self._flops_of_maps(ends, work)
        if ends.is_last:
            head = 2.0 * work.rows * width * model.patch_size
        return Flops(patch=patch, head=head)

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers saved by the maps before the blocks, and by the head."""
        model, width, total = self.model, self.model.hidden, 0
        if ends.is_first and held.through_layers:
            total += held.patches // held.sequence_parts * (model.patch_size + 3 * width)
            total += ends.numbers_in(held.gathered)
        if ends.is_last:
            total += held.patches // held.sequence_parts * (width + 2 * model.patch_size)
        return total
