"""Users' own encoders and generators in the oracle: called with one image or clip at a time.

Decides: that such a class is right by definition where every axis is 1: the proof only shows
differences between a layout and one rank, and between an image among others and an image alone.
Relies on: the class itself, and the packing of one image.
Leaves: where rows go, and what language computes from them, to `oracle`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from mimo_launch.data.random_draws import Noise
from mimo_launch.layers.image_contexts import image_context, two_list_context
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import declared_parameters
from mimo_launch.models.encoder_inputs import EncoderInput, Patches, PatchTargets, Reader, pack
from mimo_launch.models.row_places import RowPlaces


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
