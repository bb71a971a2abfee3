"""Numbers the tokens of a forward for dropout: by record and place, whatever rank holds them.

Decides: that a token of text is named by its record and its place there, a token of an image or a
clip by its record, the number of the image there and its place in the image; that an evaluation
drops nothing.
Relies on: `layout.replica_views` for the samples and images of a replica.
Leaves: what is drawn for a token to `layers.dropout`.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.layers.dropout import Draws, states
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.replica_views import EncoderView, LanguageView
from mimo_launch.layout.row_owners import shards_of_cp_rank
from mimo_launch.layout.step_data import StepData
from mimo_launch.models.patches import own_tokens

# Places of tokens of an image besides its patches begin here; images are numbered above them.
EXTRA, IMAGE = 2**31, 2**32


def text_draws(
    view: LanguageView, data: StepData, held: Tensor, context: ParallelContext
) -> Draws | None:
    """Return the draws of a microbatch, of which a cp rank has the positions `held`."""
    if context.draws is None or data.heldout:
        return None
    records = np.zeros((len(view.samples), view.layout.seq), dtype=np.int64)
    places = np.zeros_like(records)
    for row, sample in enumerate(view.samples):
        for record in data.samples[sample].records:
            records[row, record.first :] = record.id
            places[row, record.first :] = np.arange(view.layout.seq - record.first)
    numbers = (to_device(each, context.device) for each in (records, places))
    every = states(context.draws, data.step, *numbers)
    tokens = every[:, held].flatten()
    return Draws(tokens, own_tokens(tokens, context), every)


def list_draws(view: EncoderView, held: range, extras: range, context: ParallelContext) -> Draws:
    """Return the draws of a list of images, of which a cp rank has patches and extra tokens."""
    named = list(_named(view))
    shards = shards_of_cp_rank(view.module)
    parts = [
        _of(named, view.lengths, 0, held).reshape(shards, -1, 2),
        _of(named, view.extras, EXTRA, extras).reshape(shards, -1, 2),
    ]
    numbers = to_device(np.concatenate(parts, axis=1).reshape(-1, 2), context.device)
    tokens = states(context.draws or 0, view.data.step, numbers[:, 0], numbers[:, 1])
    return Draws(tokens, own_tokens(tokens, context))


def _named(view: EncoderView) -> Iterator[tuple[int, int]]:
    """Yield the record and the number in it of each image or tile of a list."""
    tiles = view.module.tiles
    for sample in view.samples:
        of_images: list[list[tuple[int, int]]] = []
        for record in view.data.samples[sample].records:
            number = 0
            for image in record.spans.get(view.module.name, ()):
                more = 1 if tiles is None else tiles.num_tiles(image.shown)
                of_images.append([(record.id, number + each) for each in range(more)])
                number += more
        yield from chain.from_iterable(view.own(sample, of_images))


def _of(
    named: Iterable[tuple[int, int]], lengths: Iterable[int], first: int, held: range
) -> np.ndarray:
    """Return record and place of the tokens `held` of a list, int64 [N, 2]; 0 for padding."""
    found = [np.zeros((0, 2), dtype=np.int64)]
    for (record, number), length in zip(named, lengths, strict=True):
        places = number * IMAGE + first + np.arange(length)
        found.append(np.stack([np.full(length, record), places], axis=1))
    every = np.concatenate(found)
    padded = np.zeros((max(len(every), held.stop), 2), dtype=np.int64)
    padded[: len(every)] = every
    return padded[held.start : held.stop]
