"""Inputs of a connector or a generator as one stage on one rank, without runtime."""

from typing import Any

import torch
from tests.support.works import nominal_work

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.image_contexts import image_context, two_list_context
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.code_frames import CodeFrames
from mimo_launch.models.flow import FlowInput
from mimo_launch.models.noise import NoisedPatches
from mimo_launch.models.patches import Patches
from mimo_launch.models.row_places import RowPlaces
from mimo_launch.models.stage_interface import RowsInput
from mimo_launch.models.talker import SpeechInput
from mimo_launch.spec.spec import Spec

CPU = torch.device("cpu")


def nominal_input(made: Spec, name: str, dtype: torch.dtype = torch.float32) -> RowsInput:
    """Return the input of one forward on equal images, with rows that need a gradient."""
    layout = build_layout(made)
    module = layout[name]
    work = nominal_work(layout, module, made)
    own, extra, images = work.rows, work.extra_tokens, work.spans.total()
    if extra:
        each = [own // images] * images, [extra // images] * images
        causal = module.is_causal
        mask = two_list_context(*each, (own, extra), range(1), CPU, alone=True, causal=causal)
    else:
        mask = image_context(list(work.spans.elements()), range(own), CPU, alone=True)
    rows, places, first = {}, {}, own if extra else 0
    for source, number in zip(module.reads, work.reads, strict=True):
        width = made.row_width(source)
        rows[source] = torch.randn(number, width, dtype=dtype, requires_grad=True)
        places[source] = RowPlaces((number,), torch.arange(first, first + number))
        first += number
    given: Any = {"mask": mask, "sizes": (own,), "extra_tokens": extra, "own": range(own)}
    given |= {"rows": rows, "row_places": places}
    if (codes := kind_of(made.modules[name].model).codes) is not None:
        frames = torch.randint(0, codes.vocab, (2, own, codes.codebooks))
        return SpeechInput(frames=CodeFrames(*frames), **given)
    if module.computes_loss:
        size = made.modules[name].model.patch_size
        patches = Patches(torch.randn(own, size, dtype=dtype), torch.zeros(own, 2).long())
        wide = torch.randn(own, size)
        noised = NoisedPatches(patches, torch.rand(own), wide, torch.ones(own))
        return FlowInput(noised=noised, **given)
    return RowsInput(**given)
