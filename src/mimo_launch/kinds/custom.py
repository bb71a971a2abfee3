"""Users' encoders and generators: what is known without importing their class.

Decides: that their parameters are spread evenly over layers and over tp.
Relies on: their settings in the spec.
Leaves: building them to `models.custom_stages`.
"""

from collections.abc import Mapping, Sequence

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.facts import RowReading, TpCuts
from mimo_launch.kinds.generator import ReadingBeside
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.layer import Ends, Flops, LayerKind, Widths, Workload
from mimo_launch.kinds.saved_activations import (
    PLAIN_TEMPORARY,
    RECOMPUTED,
    HeldAtEnds,
    Passes,
    Saved,
    Temporary,
)
from mimo_launch.kinds.weights import LayerShape, Parameters, Weight
from mimo_launch.spec.spec import Clips, CustomModel, Images


@frozen
class CustomCuts(TpCuts):
    """Heads, if the spec gives any."""

    model: CustomModel

    @property
    def heads(self) -> int | None:
        """Number of query heads."""
        return self.model.heads


@frozen
class UsersShape(LayerShape):
    """A layer of a user's class: a number of parameters, and as many regions as a block."""

    parameters: int

    def own(self, tp: int) -> Parameters:
        """Return its parameters together."""
        weight = Weight(name="weight", shape=(self.parameters,), axis=0)
        return {"weight": (weight,) if self.parameters else ()}

    def widths(self) -> Widths:
        """Return its regions; its sizes are unknown."""
        return Widths(regions=2)


@frozen
class CustomKind(ModelKind):
    """A user's class, which is not imported here."""

    model: CustomModel

    @property
    def stage(self) -> str:
        """The class that builds a stage of the user's class."""
        return "mimo_launch.models.custom_stages:CustomStages"

    @property
    def is_custom(self) -> bool:
        """A user's class builds it."""
        return True

    @property
    def cuts(self) -> TpCuts:
        """Heads, if the spec gives any; the class decides their width."""
        return CustomCuts(self.model)

    @property
    def input(self) -> Images | Clips:
        """The input that the spec gives."""
        return self.model.input

    @property
    def computes_loss(self) -> bool:
        """Whether it is a generator, by the spec."""
        return self.model.loss

    @property
    def reading(self) -> RowReading:
        """A generator reads rows of language beside the patches of their image."""
        return ReadingBeside() if self.model.loss else RowReading()

    @property
    def not_estimated(self) -> tuple[str, ...]:
        """Activations always; weights and work if the spec gives no `parameters`."""
        return ("activations",) if self.model.parameters else ("weights", "work", "activations")

    def layer(self, number: int) -> LayerShape:
        """Return a layer's share of the parameters that the spec gives."""
        return UsersShape(-(-(self.model.parameters or 0) // self.model.layers))

    def before(self, ends: Ends) -> LayerShape:
        """Return nothing: all parameters are counted with the layers."""
        return LayerShape()

    def after(self, ends: Ends) -> LayerShape:
        """Return nothing: all parameters are counted with the layers."""
        return LayerShape()

    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return nothing: all operations are counted with the layers."""
        return Flops()

    def forward_flops(
        self,
        numbers: Sequence[int],
        ends: Ends,
        work: Workload,
    ) -> Mapping[LayerKind, Flops]:
        """Return two operations per token and parameter."""
        weights = (self.model.parameters or 0) * len(numbers) / self.model.layers
        return {LayerKind.BLOCK: Flops(linear=2.0 * work.tokens * weights)}

    def saved_activations(self, number: int, passes: Passes) -> tuple[Saved, ...]:
        """Return the input of a layer; its other saved tensors are unknown."""
        return RECOMPUTED

    def temporary_activations(self, number: int) -> Temporary:
        """Return streams and their gradients, as in built-in encoders."""
        return PLAIN_TEMPORARY

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return 0, because there are only layers."""
        return 0
