"""Flow generators: transformers that learn to turn noise into images, given rows.

Decides: the layers before and after the blocks, and their work.
Relies on: `transformer_encoder` for the blocks.
Leaves: noise to `data.random_draws`, the loss to `models.flow`.
"""

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.generator import GeneratorKind
from mimo_launch.kinds.layer import Ends, Flops, Workload
from mimo_launch.kinds.saved_activations import HeldAtEnds
from mimo_launch.kinds.shapes import NormShape, WholeShape
from mimo_launch.kinds.transformer_encoder import BlocksKind, MapsShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.encoders import FlowModel
from mimo_launch.spec.spec import Images


@frozen
class TimeShape(LayerShape):
    """Two linear maps of a time."""

    layer = "mimo_launch.models.flow:TimeEmbedding"

    up: WholeShape
    down: WholeShape


@frozen
class NoiseShape(LayerShape):
    """The layers of a flow generator before its blocks."""

    patch: WholeShape
    time: TimeShape
    reads: MapsShape


@frozen
class VelocityShape(LayerShape):
    """The layers of a flow generator after its blocks."""

    norm: NormShape
    velocity: WholeShape


@frozen
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

    def before(self, ends: Ends) -> NoiseShape:
        """Return the maps of patches, times and rows."""
        width = self.model.hidden
        return NoiseShape(
            patch=WholeShape(self.model.patch_size, width),
            time=TimeShape(up=WholeShape(width, width), down=WholeShape(width, width)),
            reads=MapsShape(ends.sources, width),
        )

    def after(self, ends: Ends) -> VelocityShape:
        """Return final norm and head."""
        return VelocityShape(self.norm(), WholeShape(self.model.hidden, self.model.patch_size))

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
        if ends.is_first and held.through_embedding:
            total += held.patches // held.sequence_parts * (model.patch_size + 3 * width)
            total += self._saved_by_maps(ends, held)
        if ends.is_last:
            norm = width * held.passes.of_norm(self.norm().kind)
            total += held.patches // held.sequence_parts * (width + 2 * model.patch_size + norm)
        return total
