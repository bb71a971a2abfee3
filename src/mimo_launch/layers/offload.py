"""Keeps what layers save for their backward in the memory of the host.

Decides: which tensors move, and when: a layer's at its end, while the next one computes; back when
the backward reaches the layer after it. At any time the device holds those of two layers.
Relies on: autograd's hooks on what it saves; `comm.host_link` for copies.
Leaves: the choice of modules to `models.build`, what is computed again to `recompute`: inside what
is, nothing is saved but its input, which moves like any other tensor.

Storages move, not tensors: views of one storage move once and share one storage when they are back,
as before, in the same strides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from mimo_launch.comm.host_link import HostLink, Mark
from mimo_launch.layers.parameter_segments import local_tensor

# Smaller storages stay, in bytes: a copy would take longer to start than to run.
LEAST = 1024


def offload_layers(layers: Mapping[str, nn.Module], link: HostLink) -> None:
    """Let the layers of a stage, in the order of its forward, keep what they save on the host.

    The keys of `layers` name them in errors.
    """
    stage = _Stage(link)
    for number, (name, layer) in enumerate(layers.items()):
        layer.forward = partial(stage.run, name, layer, layer.forward, number == 0)


class _Kept:
    """The bytes of one storage: here, on the host, or on both.

    `source` is the tensor that was saved, as long as `here` is its storage. If it `stays`, the
    layers after it save it, too.
    """

    __slots__ = ("__weakref__", "bytes", "here", "layer", "source", "stays", "version")

    def __init__(self, layer: "_Layer", here: Tensor, source: Tensor) -> None:
        self.layer, self.bytes = layer, Tensor()
        self.here: Tensor | None = here
        self.source: Tensor | None = source
        self.version, self.stays = source._version, False

    def check(self) -> None:
        """Raise RuntimeError if the tensor was changed in place, as autograd does without hooks."""
        if self.source is not None and self.source._version != self.version:
            name = self.layer.name
            raise RuntimeError(f"a tensor that {name} keeps for its backward was changed in place")

    def leave(self) -> None:
        """Give up what is on the device."""
        self.check()
        if self.stays:
            self.bytes = Tensor()
        else:
            self.here = self.source = None


@dataclass(frozen=True, slots=True)
class _View:
    """A saved tensor, as a view of a storage."""

    kept: _Kept
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Layer:
    """One forward of the layer `name`; `before` is that of the layer before it.

    `kept` has the storages that it saved, by address, as long as the graph needs them; `shared` has
    those that a layer before it saved, too, such as angles of rotations, which stay on the device.
    `weights` are the addresses of weights.
    """

    def __init__(self, name: str, before: "_Layer | None", weights: frozenset[int]) -> None:
        self.name, self.before = name, before
        self.weights, self.is_here = weights, True
        self.kept: WeakValueDictionary[int, _Kept] = WeakValueDictionary()
        shared = () if before is None else before.shared
        self.shared: WeakValueDictionary[int, _Kept] = WeakValueDictionary(shared)
        self.sent: Mark = None
        self.fetched: Mark = None
        # Copies may still write into these after their graph was dropped.
        self.arriving: list[Tensor] = []

    def send(self, link: HostLink) -> None:
        """Start to copy to the host."""
        for kept in self.kept.values():
            if kept.here is not None:
                kept.bytes = link.send(kept.here)
        self.sent = link.mark()

    def leave(self, link: HostLink) -> None:
        """Give up what is on the device, once its copies have ended."""
        link.wait(self.sent)
        self.arrive(link)
        for kept in self.kept.values():
            kept.leave()
        self.is_here, self.sent = False, None

    def fetch(self, link: HostLink) -> None:
        """Start to copy to the device."""
        for kept in self.kept.values():
            if not kept.stays:
                kept.here = link.fetch(kept.bytes)
                self.arriving.append(kept.here)
        self.is_here, self.fetched = True, link.mark()

    def arrive(self, link: HostLink) -> None:
        """Let the work of the device wait for the copies of `fetch`."""
        link.wait(self.fetched)
        self.fetched = None
        self.arriving.clear()


class _Stage:
    """The layers of a stage, in all of its forwards that wait for their backward."""

    def __init__(self, link: HostLink) -> None:
        self._link = link
        self._last: _Layer | None = None  # Of the present forward.
        self._here: list[_Layer] = []
        self._reached: _Layer | None = None  # By the present backward.

    def run(self, name: str, module: nn.Module, forward: Any, is_first: bool, *args: Any) -> Any:
        """Return what a layer makes of its arguments."""
        if not torch.is_grad_enabled():
            return forward(*args)
        # FSDP has gathered them for this forward, and frees them at its end, before copies end.
        held = chain(module.parameters(), module.buffers())
        weights = frozenset(local_tensor(each).untyped_storage().data_ptr() for each in held)
        layer = _Layer(name, None if is_first else self._last, weights)
        self._reached = None
        with saved_tensors_hooks(partial(self._pack, layer), self._unpack):
            out = forward(*args)
        self._leave_but()
        layer.send(self._link)
        self._here, self._last = [layer], layer
        return out

    def _leave_but(self, *others: _Layer) -> None:
        for layer in self._here:
            if layer not in others:
                layer.leave(self._link)

    def _pack(self, layer: _Layer, tensor: Tensor) -> Tensor | _View:
        """Return what to keep of a tensor that a layer saves."""
        storage = tensor.untyped_storage()
        # Detached, so that no result keeps the node that made it.
        stays = tensor if tensor.is_leaf else tensor.detach()
        if not self._moves(tensor) or storage.nbytes() < LEAST:
            return stays
        place, before = storage.data_ptr(), layer.before
        earlier = None if before is None else before.kept.get(place)
        if earlier is not None and earlier.here is not None:
            # The layer before is still here, so this is its storage and no later one.
            earlier.stays, layer.shared[place] = True, earlier
        if place in layer.shared or place in layer.weights:
            return stays
        kept = layer.kept.get(place)
        if kept is None:
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            kept = layer.kept[place] = _Kept(layer, whole, tensor.detach())
        offset = int(tensor.storage_offset())
        return _View(kept, tensor.dtype, tensor.shape, tensor.stride(), offset)

    def _moves(self, tensor: Tensor) -> bool:
        """Return whether a tensor is an activation on the device.

        Weights stay, with their views, and so do inputs of a stage, which the runtime holds. This
        alone tells weights of experts, which are gathered inside their layer.
        """
        base = tensor if tensor._base is None else tensor._base
        is_held = isinstance(base, nn.Parameter) or (base.is_leaf and base.requires_grad)
        is_here = tensor.device.type == self._link.device.type
        return type(tensor) is Tensor and not is_held and is_here

    def _unpack(self, packed: Tensor | _View) -> Tensor:
        """Return a saved tensor."""
        if isinstance(packed, Tensor):
            return packed
        kept = packed.kept
        if kept.layer is not self._reached or kept.here is None:
            self._reach(kept.layer)
        if kept.here is None:
            raise RuntimeError("a saved tensor did not come back from the host")
        kept.check()
        tensor = torch.empty(0, dtype=packed.dtype, device=kept.here.device)
        storage = kept.here.untyped_storage()
        return tensor.set_(storage, packed.offset, packed.size, packed.stride)

    def _reach(self, layer: _Layer) -> None:
        """Let a layer's tensors be on the device, and start to fetch those of the layer before."""
        wanted = [each for each in (layer, layer.before) if each is not None]
        self._leave_but(*wanted)
        for each in wanted:
            if not each.is_here:
                each.fetch(self._link)
        layer.arrive(self._link)
        self._here, self._reached = wanted, layer
