"""Cuts the layers of a module into pipeline stages.

Decides: which layers a stage holds.
Relies on: the spec's types only.
Leaves: which ranks hold a stage to `layout`.
"""

from dataclasses import dataclass

from mimo_launch.spec.spec import ModuleSpec


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers of one module.

    Stage i is held by pp index i modulo pp: with virtual stages a rank holds several.
    """

    module: str
    index: int
    first_layer: int
    num_layers: int
    is_first: bool
    is_last: bool

    @property
    def layers(self) -> range:
        """Numbers of its layers in the module, from 0."""
        return range(self.first_layer, self.first_layer + self.num_layers)


def cut_into_stages(name: str, module: ModuleSpec, virtual: int) -> tuple[Stage, ...]:
    """Cut the layers into consecutive runs, as equal as possible, earlier ones longer."""
    total = module.grid.pp * virtual
    share, extra = divmod(module.model.layers, total)
    stages, first = [], 0
    for index in range(total):
        num_layers = share + (index < extra)
        stages.append(Stage(name, index, first, num_layers, index == 0, index == total - 1))
        first += num_layers
    return tuple(stages)
