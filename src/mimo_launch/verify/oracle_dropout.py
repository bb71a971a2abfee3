"""Dropout of the oracle: from its definition, one token and one layer at a time.

Decides: the number of a token and of a feature; which layers drop what; what an adapter with
dropout adds.
Relies on: SplitMix64 as its authors publish it (prng.di.unimi.it/splitmix64.c).
Leaves: the order of tokens to `oracle` and `oracle_encoders`, which name them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.spec.spec import Spec

_GAMMA = 0x9E3779B97F4A7C15
# The layers that hold the updates of maps, by the maps' names.
_LAYERS = {"o": "output", "down": "output", "out": "output", "q_up": "queries", "kv_up": "keys"}
_OWN = ("q_down", "kv_down", "narrow", "widen")
# Learned tokens of an image have numbers from here on; each image has its own.
EXTRA, IMAGE = 2**31, 2**32


def split_mix(state: np.ndarray, counter: np.ndarray | int) -> np.ndarray:
    """Return output `counter` of SplitMix64, from 0."""
    with np.errstate(over="ignore"):
        z = state + (np.asarray(counter).astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
        return finished(z)


def finished(z: np.ndarray) -> np.ndarray:
    """Return the output function of SplitMix64."""
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed


class Weights(dict[str, Tensor]):
    """Full weights by name; one with a low-rank update is read with the update added.

    During `drawing`, numbers are dropped, and updates with dropout are added by `change`.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self._modules, self._seed = spec.modules, spec.train.seed
        self._step, self._record, self._states = 0, 0, np.empty(0, dtype=np.uint64)

    def __getitem__(self, name: str) -> Tensor:
        weight, start = super().__getitem__(name), name.removesuffix("weight")
        if f"{start}lora_a.weight" not in self or self._rate_of_adapter(name):
            return weight
        down, up = self._matrices(start)
        return weight + self._scale(name) * up @ down

    def change(self, x: Tensor, name: str) -> Tensor | float:
        """Return what the update of map `name` with dropout adds to its output; others nothing."""
        rate = self._rate_of_adapter(name)
        if not rate or f"{name}.lora_a.weight" not in self:
            return 0.0
        down, up = self._matrices(f"{name}.")
        parent, _, own = name.rpartition(".")
        layer = own if own in _OWN else _LAYERS.get(own, "inputs")
        if f"{name}.input_min" in self:  # Each map is apart, between its own clips.
            layer = f"{layer}.inside" if own in _LAYERS else f"{layer}.{own}.inside"
        read = self._dropped(x, f"{parent}.{layer}.adapter.drop", rate)
        return self._scale(name) * F.linear(F.linear(read, down), up)

    def added(self, x: Tensor, layer: str) -> Tensor:
        """Return what a layer adds to the stream, without what it drops."""
        return self._dropped(x, layer, self._modules[layer.partition(".")[0]].dropout)

    def attended(self, weights_HST: Tensor, layer: str) -> Tensor:
        """Return the weights of attention without those that it drops."""
        rate = self._modules[layer.partition(".")[0]].attention_dropout
        if not rate or not len(self._states):
            return weights_HST
        heads, queries, keys = weights_HST.shape
        found = np.empty((heads, queries, keys), dtype=np.uint64)
        state = finished(self._states + _key(f"{layer}.drop_scores"))
        for head in range(heads):
            with np.errstate(over="ignore"):
                own = split_mix(state, head)[:, None] + self._states[None, :]
            found[head] = finished(own)
        return _kept(weights_HST, found, rate)

    @contextmanager
    def drawing(self, step: int, record: int) -> Iterator[None]:
        """Drop numbers in a record of a step, once its tokens are named."""
        self._step, self._record, self._active = step, record, True
        try:
            yield
        finally:
            self._active, self._states = False, np.empty(0, dtype=np.uint64)

    _active = False

    def name_tokens(self, places: list[int]) -> None:
        """Set the places in their record of the tokens that layers get from now on."""
        state = np.zeros(len(places), dtype=np.uint64)
        for counter in (self._seed, self._step, self._record, np.array(places, dtype=np.int64)):
            state = split_mix(state, counter)
        self._states = state if self._active else state[:0]

    def _dropped(self, x: Tensor, layer: str, rate: float) -> Tensor:
        if not rate or not len(self._states):
            return x
        state = finished(self._states + _key(layer))
        return _kept(x, split_mix(state[:, None], np.arange(x.shape[1])[None, :]), rate)

    def _matrices(self, start: str) -> tuple[Tensor, Tensor]:
        a, b = (super(Weights, self).__getitem__(f"{start}lora_{x}.weight") for x in "ab")
        return a, b

    def _rate_of_adapter(self, name: str) -> float:
        adapter = self._modules[name.partition(".")[0]].adapter
        return 0.0 if adapter is None else adapter.dropout

    def _scale(self, name: str) -> float:
        adapter = self._modules[name.partition(".")[0]].adapter
        if adapter is None:
            raise ValueError(f"{name} has no adapter")
        root = adapter.rank**0.5 if adapter.rslora else adapter.rank
        return (adapter.alpha or 2 * adapter.rank) / root


def _key(layer: str) -> np.uint64:
    """Return what the name of a layer adds to the state of a token."""
    digest = int.from_bytes(blake2b(layer.encode(), digest_size=8).digest(), "little")
    return np.uint64((digest + 1) * _GAMMA % 2**64)


def _kept(x: Tensor, numbers: np.ndarray, rate: float) -> Tensor:
    """Return x over the share that stays where a number, as a fraction of 2^64, is at least it."""
    stays = (numbers >> np.uint64(11)).astype(np.float64) / 2**53 >= rate
    return x * torch.from_numpy(stays) / (1 - rate)
