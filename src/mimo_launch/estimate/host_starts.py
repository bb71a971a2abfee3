"""The host's time for the forward and the backward of a stage, in passes of a plain block.

Decides: what takes the host time in a layer: its kind, norms beyond two, updates of maps, exchanges
with other ranks, weights that it gathers; how the time splits into forward and backward.
Relies on: the layers of a kind and their weights; `device_constants` for what each takes.
Leaves: how kernels hide these times to `host_waits`.

A forward runs in Python, a backward mostly in the engine of autograd, which starts kernels twice as
fast. A forward that a backward repeats is a forward.
"""

from collections.abc import Hashable, Iterator
from functools import lru_cache
from itertools import chain

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.kinds.adapters import adapter_of
from mimo_launch.kinds.block_shapes import num_updates
from mimo_launch.kinds.kind import ModelKind, grouped, layer_shape
from mimo_launch.kinds.layer import LayerKind
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.layout.layout import ModuleLayout
from mimo_launch.layout.stages import Stage
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec

# About which share of the kernels of a block each part starts.
_KERNELS = {"attention": 0.5, "mlp": 0.4, "norms": 0.1}
# Of the kernels of a block, the share of attention with its norm: some 54 of 71.
_MIXER = 0.75
# Of the host's time for a forward of a Gated DeltaNet, the share of what its backward runs again:
# convolution and recurrence, 3.6 of 6.7 ms in a profile.
_AGAIN = 0.5


@frozen
class HostStarts:
    """The work of a host for one stage, in passes of a plain block."""

    spec: Spec
    constants: Calibration
    module: ModuleLayout
    stage: Stage

    def passes(self, *, changes: bool, trains: bool, units: int) -> tuple[float, float]:
        """Return the passes of a forward and of a backward.

        `changes`: the number of tokens changes from forward to forward. `trains`: there is a
        backward. `units` counts the FSDP units of fully sharded weights.
        """
        rates = self.constants
        meetings, gathers = self._exchanges() * rates.exchange_starts, units * rates.gather_starts
        longer = rates.dynamic_starts if changes else 1.0
        forward, backward = (
            2 * longer * share for share in (rates.forward_share, 1 - rates.forward_share)
        )
        ahead = forward * self._layers() + meetings
        back = backward * self._layers() + meetings
        again = self._share_again() * (ahead - forward * self._remade())
        return ahead + gathers, (back + again + gathers if trains else 0.0)

    @property
    def _kind(self) -> ModelKind:
        return kind_of(self.spec.modules[self.module.name].model)

    def _groups(self) -> tuple[tuple[int, int], ...]:
        numbers = self._kind.numbers(self.stage.layers, is_last=self.stage.is_last)
        return _started_alike(self._kind, tuple(numbers))

    def _layers(self) -> float:
        """Return the host's time for all layers, in plain blocks."""
        own, rates, kind = self.spec.modules[self.module.name], self.constants, self._kind
        factors = dict.fromkeys(LayerKind, rates.recurrent_starts)
        factors |= {LayerKind.BLOCK: 1.0, LayerKind.EXPERTS: rates.experts_starts}
        factors[LayerKind.DELTANET] = rates.deltanet_starts
        groups = self._groups()
        found = sum(n * factors[kind.layer_kind(each)] for each, n in groups)
        # Layers of hybrids are parts of a block; only Mamba-2 and Gated DeltaNet are not.
        parts = [(kind.layer_widths(each), n) for each, n in groups if not kind.is_custom]
        found -= sum(n * _MIXER for each, n in parts if not each.scored and not each.between)
        found -= sum(n * (1 - _MIXER) for each, n in parts if each.scored and not each.inner)
        if adapter := adapter_of(own):
            layers = ((layer_shape(kind, x), n) for x, n in groups if not kind.is_depth(x))
            updates = (n * num_updates(each, adapter) for each, n in layers)
            found += rates.adapter_starts * sum(updates)
        if own.backend == "torch":
            return found + rates.norm_starts * sum(self._norms())
        return found * rates.engine_starts * (1.0 if own.fp8 is None else rates.fp8_starts)

    def _remade(self) -> float:
        """Return what a backward does not repeat, because it runs again in any case."""
        own = self.spec.modules[self.module.name]
        if not own.recomputes_mixers:
            return 0.0
        kinds = [(self._kind.layer_kind(each), n) for each, n in self._groups()]
        number = sum(n for each, n in kinds if each is LayerKind.DELTANET)
        return _AGAIN * self.constants.deltanet_starts * number

    def _norms(self) -> Iterator[int]:
        """Yield how many norms layers have beyond the two of a plain block, for each group."""
        if not self._kind.is_custom:
            for each, n in self._groups():
                yield n * max(0, _num_norms(layer_shape(self._kind, each)) - 2)

    def _exchanges(self) -> float:
        """Return how often the layers exchange data over tp or cp in one direction."""
        kind, grid = self._kind, self.module.grid
        if kind.is_custom:
            return 0.0
        widths = [(kind.layer_widths(each), n) for each, n in self._groups()]
        found = 2.0 * sum(n * each.regions for each, n in widths) if grid.size(Axis.TP) > 1 else 0.0
        if grid.size(Axis.CP) > 1:
            found += sum(n * (bool(each.exchanges) + bool(each.gathers)) for each, n in widths)
        return found

    def _share_again(self) -> float:
        """Return which share of the kernels of a forward runs again in its backward."""
        own = self.spec.modules[self.module.name]
        return float(own.recomputes) or sum(_KERNELS[part] for part in own.recomputed_parts)


@lru_cache(maxsize=1024)
def _started_alike(kind: ModelKind, numbers: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the first of each group of layers that a host starts alike, and the group's size."""

    def key(number: int) -> Hashable:
        shape = None if kind.is_custom else layer_shape(kind, number)
        return shape, kind.layer_kind(number), kind.is_depth(number)

    return grouped(numbers, key)


@lru_cache(maxsize=1024)
def _num_norms(shape: LayerShape) -> int:
    names = (each.name for each in chain.from_iterable(shape.weights()))
    return sum(name.endswith("norm.weight") for name in names)
