"""The reference for an encoder of a user's own: its class on one rank, one image at a time.

Decides: that one stage with every axis at 1 is right by definition, and an image alone.
Relies on: the class itself, and on the packing of one image; what differs between one rank and a
layout, and between an image alone and beside others, is what the proof shows.
Leaves: the loss and the update to `oracle`.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from mimo_launch.layers.attention_masks import image_mask
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import declared_parameters
from mimo_launch.models.encoder_inputs import EncoderInput, pack, reader
from mimo_launch.spec.model import CustomModel, Spec


def keep_activations(spec: Spec) -> Spec:
    """Return a spec that recomputes nothing: a second forward would miss the weights from outside.

    See `OneRankEncoder`.
    """
    modules = {n: m.model_copy(update={"recompute": "none"}) for n, m in spec.modules.items()}
    return spec.model_copy(update={"modules": modules})


class OneRankEncoder:
    """A network of one stage, called with weights from outside."""

    def __init__(
        self, name: str, network: nn.Module, model: CustomModel, context: ParallelContext
    ) -> None:
        self.network, self.model, self.context = network, model, context
        path_of = {id(p): path for path, p in network.named_parameters()}
        # One segment or several, fused along dim 0, make a parameter.
        self.segments = {
            path_of[id(declared.parameter)]: [placed.name for placed in declared.placed]
            for declared in declared_parameters(name, network)
        }

    def rows(self, weights: Mapping[str, Tensor], array: np.ndarray) -> Tensor:
        """Return the rows [r, L] of one image, by the weights of all segments."""
        how, per_row = reader(self.model), self.model.patches_per_row
        cut = how.cut(array, dtype=self.context.compute_dtype, pinned=False)
        size = len(cut.values)
        held = range(size)
        packed = EncoderInput(
            mask=image_mask([size], held, self.context.device, alone=True),
            sizes=(size // per_row,),
            patches=pack([cut], how, self.context, held),
            images=(self.model.input.size_in_rows(array.shape),),
        )
        values = {
            path: torch.cat([weights[name] for name in names])
            for path, names in self.segments.items()
        }
        rows: Tensor = functional_call(self.network, values, (None, packed))
        return rows
