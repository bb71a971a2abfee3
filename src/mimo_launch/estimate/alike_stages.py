"""Which stages have the same costs and memory, in all layouts of the same models and data.

Decides: what the work of a stage depends on: its module, as it is cut and shared out, and its
layers by their sizes and positions.
Relies on: `layout` for who gets which samples, `workload` for what trains.
Leaves: keeping what is computed for such stages to `cost_model` and `search.bounds`.
"""

from collections.abc import Hashable
from functools import lru_cache

from mimo_launch.estimate.workload import backward_path
from mimo_launch.kinds.language import LanguageKind
from mimo_launch.kinds.registry import kind_of, layer_of
from mimo_launch.layout.balance import replicas_that_share
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.row_owners import shards_of_cp_rank
from mimo_launch.layout.stages import Stage
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Model, Spec


def key_of_module(spec: Spec, module: ModuleLayout) -> Hashable:
    """Return what the costs of all stages of a module depend on besides its work.

    Of its ranks only the place of the first on its host matters, unless one host has all of them.
    """
    own, nodes = spec.modules[module.name], spec.nodes
    ranks, place = own.rank_range, 0
    if nodes and ranks[0] // nodes.gpus != ranks[-1] // nodes.gpus:
        place = ranks[0] % nodes.gpus
    return module.name, own.replace(ranks=str(place)), spec.train.precision


def key_of_work(layout: Layout, module: ModuleLayout) -> Hashable:
    """Return what the forwards of a module depend on, in a given step."""
    return (
        module.name,
        # Lists are padded to whole tokens of each tp rank under sequence parallelism, and for FP8.
        (module.grid.size(Axis.DP), module.grid.size(Axis.CP)),
        (shards_of_cp_rank(module), module.token_step),
        (layout.samples, module.group_size, module.in_phases, replicas_that_share(layout, module)),
    )


def key_of_weights(spec: Spec, module: ModuleLayout) -> Hashable:
    """Return what the memory of the weights of all stages of a module depends on."""
    own = spec.modules[module.name]
    return module.name, own.replace(ranks="0", recompute="none"), spec.train.precision


def key_of_stage(spec: Spec, layout: Layout, module: ModuleLayout, stage: Stage) -> Hashable:
    """Return what the costs of a stage depend on besides its module."""
    alike, first = alike_layers(spec.modules[module.name].model), stage.first_layer
    path = backward_path(spec, layout, module, stage)
    return (
        alike[first : first + stage.num_layers],
        tuple(len(unit) for unit in stage.units),
        (stage.lanes, stage.is_first, stage.is_last),
        needs_backward(layout, module, stage.index),
        tuple(number - first for number in path.layers),
        tuple(number - first for number in path.trained),
        path.before,
    )


@lru_cache(maxsize=64)
def alike_layers(model: Model) -> tuple[int, ...]:
    """Return a number for each layer of a model, the same for layers that cost and keep the same.

    Sizes may be the same where positions are not: some layers rotate nothing, or at another base.
    """
    kind, numbers = kind_of(model), dict[Hashable, int]()

    def seen(number: int) -> Hashable:
        sight = kind.sight(number) if isinstance(kind, LanguageKind) else None
        return kind.attending.in_windows(number), kind.attention_pattern(number), sight

    layers = ((n, kind.layer_kind(n), seen(n)) for n in range(model.layers))
    return tuple(numbers.setdefault((layer_of(model, n), *rest), n) for n, *rest in layers)
