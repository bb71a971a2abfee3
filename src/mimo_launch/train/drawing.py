"""Pictures from generators: runs them from noise, and puts the patches of a replica together.

Decides: which rank has the pictures of a replica: its first one.
Relies on: the drawing program of the plan, on the rows that an evaluation forward left.
Leaves: judging pictures to the data set, writing them to `cli`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mimo_launch.comm.collectives import all_gather
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.step_data import StepData
from mimo_launch.models.build import RankModule
from mimo_launch.runtime.stage_inputs import StepState
from mimo_launch.spec.spec import Images
from mimo_launch.train.rank_session import RankSession

# More steps change the pictures of a straight flow little.
DRAWING_STEPS = 20


@dataclass(frozen=True, slots=True)
class Drawn:
    """The pictures that a generator made for one record, in the form of its images."""

    generator: str
    record: int
    images: tuple[npt.NDArray[np.float32], ...]


def draw(
    session: RankSession, forwarded: StepState, data: StepData, num_steps: int
) -> Iterator[Drawn]:
    """Yield the pictures of the step that `forwarded` has run forward, record by record.

    Ranks: collective over each replica of a generator, whose first rank yields.
    """
    if not session.mine.drawing:
        return  # No generator, or none on this rank.
    made = session.executor.draw(session.mine.drawing, forwarded, num_steps)
    for (name, group), patches in made.items():
        module = session.modules[name]
        whole = _of_replica(module, patches)
        if any(module.layout.grid.index(axis, session.rank) for axis in ("tp", "cp", "pp")):
            continue
        images = kind_of(session.spec.modules[name].model).images
        if images is None:
            raise TypeError(f"{name}: a model that makes no images")
        replica = module.layout.grid.index("dp", session.rank)
        first = 0
        for sample in forwarded.views.encoder(name, replica, group).samples:
            for record in data.samples[sample].records:
                pictures = []
                for span in record.spans.get(name, ()):
                    part = whole[first : first + span.rows]
                    pictures.append(picture(part, span.height, span.width, images))
                    first += span.rows
                if pictures:
                    yield Drawn(name, record.id, tuple(pictures))


def _of_replica(module: RankModule, patches: Tensor) -> Tensor:
    """Return the patches of all ranks of a stage, in the order of the replica's list."""
    whole = patches.contiguous()
    if module.context.sequence_parallel:
        whole = all_gather(whole, module.context.tp)
    return all_gather(whole, module.context.cp).float().cpu()


def picture(patches_NP: Tensor, height: int, width: int, images: Images) -> npt.NDArray[np.float32]:
    """Return the picture [channels, height, width] of its patches, the reverse of `cut_image`."""
    side, channels = images.patch, images.channels
    squares = patches_NP.view(height, width, channels, side, side)
    made = squares.permute(2, 0, 3, 1, 4).reshape(channels, height * side, width * side)
    found: npt.NDArray[np.float32] = made.to(torch.float32).numpy()
    return found
