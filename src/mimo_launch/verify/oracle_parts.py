"""The product's parts in the oracle: initial weights by name, and users' own classes.

Decides: that a user's class is right by definition where every axis is 1: the proof only shows
differences between a layout and one rank, and between an image among others and an image alone.
Relies on: names, shapes and initial values as `layers` declares and draws them; the class itself,
and the packing of one image.
Leaves: everything that is computed to the other files of the oracle, which import no layer and no
model.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from mimo_launch.data.random_draws import Noise
from mimo_launch.kinds.language import LOSS, is_of_loss
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import ends_of
from mimo_launch.layers.image_contexts import image_context, two_list_context
from mimo_launch.layers.initial_weights import initial_values
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import declared_parameters
from mimo_launch.models.build import build_network, keep_activations
from mimo_launch.models.custom_encoder import EncoderInput
from mimo_launch.models.custom_loss import given_tokens
from mimo_launch.models.custom_stages import plain_values, whole_stage
from mimo_launch.models.noise import PatchTargets
from mimo_launch.models.patches import Patches, Reader, pack, reader
from mimo_launch.models.row_places import RowPlaces
from mimo_launch.spec.module import FrozenLayers
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.oracle_dropout import Weights
from mimo_launch.verify.oracle_quantized import rounded


@dataclass(frozen=True, slots=True)
class Parts:
    """Full weights in float64, by name, those that train with gradients; users' own networks.

    `decays` says of the parameters of users' own classes whether they decay.
    """

    weights: Weights
    networks: dict[str, "OneRankEncoder"]
    decays: dict[str, bool]
    losses: dict[str, "OneRankLoss"]


def parts_of(spec: Spec, *, randomise: bool) -> Parts:
    """Draw the same initial weights as every layout of a spec."""
    found = Parts(Weights(spec), {}, {}, {})
    context = ParallelContext(dtype=torch.float64, compute_dtype=torch.float64)
    for name, module in spec.modules.items():
        # A second forward would use the weights of the network, not the oracle's.
        network = build_network(keep_activations(spec), whole_stage(spec, name), context)
        given = plain_values(spec, name, network)
        is_custom = kind_of(module.model).is_custom
        if isinstance(loss := getattr(network, LOSS, None), nn.Module):
            found.losses[name] = OneRankLoss(loss, f"{name}.{LOSS}")
        if is_custom:
            how = reader(module.model)
            found.networks[name] = OneRankEncoder(name, network, how, context)
        for declared in declared_parameters(name, network):
            for placed in declared.placed:
                values = initial_values(
                    placed.name,
                    placed.segment,
                    spec.train.seed,
                    randomise=randomise,
                    given=given.get(placed.name),
                )
                if placed.segment.packed is not None:
                    values = rounded(values, placed.segment.packed)
                learns = _learns(spec, name, placed.name)
                if placed.name.startswith(f"{name}.projector."):
                    learns |= module.frozen == "except_projector"
                learns |= ".lora_" in placed.name
                learns |= is_of_loss(placed.name) and module.frozen is not True
                found.weights[placed.name] = values.requires_grad_(placed.segment.trains and learns)
                if is_custom or is_of_loss(placed.name):
                    found.decays[placed.name] = declared.decays(
                        embeddings=spec.optimizer.decay.embeddings
                    )
    return found


def _learns(spec: Spec, module: str, name: str) -> bool:
    """Return whether a weight that is neither a projector's nor an adapter's trains."""
    own = spec.modules[module]
    if own.adapter is not None or not isinstance(own.frozen, FrozenLayers):
        return own.frozen is False and own.adapter is None
    first, _, last = own.frozen.layers.partition("-")
    kind, ends = kind_of(own.model), ends_of(spec, module, is_first=True, is_last=False)
    before = {f"{module}.{each.name}" for held in kind.before(ends).weights() for each in held}
    in_layer = re.match(rf"{module}\.layers\.(\d+)\.", name)
    number = int(in_layer[1]) if in_layer else 0 if name in before else own.model.layers
    return not int(first) <= number <= int(last or first)


@dataclass(frozen=True, slots=True)
class OneRankLoss:
    """A user's loss, called with the oracle's weights, which have this prefix."""

    network: nn.Module
    prefix: str

    def terms(
        self,
        weights: Mapping[str, Tensor],
        labels: Tensor,
        columns: Mapping[str, Tensor],
        hidden: Tensor,
        logits: Tensor,
    ) -> Tensor:
        """Return the term of each label, [M]."""
        names = [name for name, _ in self.network.named_parameters()]
        values = {name: weights[f"{self.prefix}.{name}"] for name in names}
        tokens = given_tokens(labels, columns, hidden, logits)
        made: Tensor = functional_call(self.network, values, (tokens,))
        return made


class OneRankEncoder:
    """A network of one stage, an encoder or generator, called with the oracle's weights."""

    def __init__(
        self, name: str, network: nn.Module, how: Reader, context: ParallelContext
    ) -> None:
        self.network, self.how, self.context = network, how, context
        path_of = {id(p): path for path, p in network.named_parameters()}
        # A parameter is one segment, or several fused along dim 0.
        self.segments = {
            path_of[id(declared.parameter)]: [placed.name for placed in declared.placed]
            for declared in declared_parameters(name, network)
        }

    def rows(self, weights: Mapping[str, Tensor], array: np.ndarray) -> Tensor:
        """Return the rows [r, L] of one image; `weights` are by segment."""
        return self._called(weights, self._packed(array))

    def loss(
        self,
        weights: Mapping[str, Tensor],
        array: np.ndarray,
        read: Mapping[str, Tensor],
        draw: Callable[[tuple[int, int]], Noise],
    ) -> Tensor:
        """Return the summed loss of one image, generated from the rows that one module sends."""
        ((source, read_rD),) = read.items()
        packed, device = self._packed(array), self.context.device
        patches = self._patches(array)
        size, extra = len(patches.values), len(read_rD)
        noise, time = draw((packed.sizes[0], self.how.row_width))
        one = torch.ones(size, dtype=torch.float64)
        target = PatchTargets(
            patches.values.double(),
            patches.positions,
            torch.from_numpy(noise).double().reshape(size, -1),
            time * one,
            one,
        )
        full = replace(
            packed,
            mask=two_list_context([size], [extra], (size, extra), range(1), device, alone=True),
            extra_tokens=extra,
            extras=(extra,),
            own=range(size),
            rows={source: read_rD},
            row_places={source: RowPlaces((extra,), torch.arange(size, size + extra))},
            made=target,
        )
        return self._called(weights, full)

    def _patches(self, array: np.ndarray) -> Patches:
        cut = self.how.cut(array, dtype=self.context.compute_dtype, pinned=False)
        return pack([cut], self.how, self.context, range(len(cut.values)))

    def _packed(self, array: np.ndarray) -> EncoderInput:
        source, patches = self.how.source, self._patches(array)
        held = range(len(patches.values))
        return EncoderInput(
            mask=image_context([len(held)], held, self.context.device, alone=True),
            sizes=(len(held) // source.patches_per_row,),
            patches=patches,
            images=(source.size_in_rows(array.shape),),
        )

    def _called(self, weights: Mapping[str, Tensor], packed: EncoderInput) -> Tensor:
        values = {
            path: torch.cat([weights[name] for name in names])
            for path, names in self.segments.items()
        }
        made: Tensor = functional_call(self.network, values, (None, packed))
        return made
