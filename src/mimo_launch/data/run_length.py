"""The number of steps of a run that counts epochs.

Decides: that a run of N epochs ends with the step that takes the last of their samples, so steps
are a whole number and nothing is left out; that the steps that are written beside them end the run
if they are fewer; that a run that goes on takes only what is left, whatever its batch was before.
Relies on: `sample_order` for the walk through packs; the records of `expected_steps`, which are all
there where an index counts them, and else as many as a look at the files suggests.
Leaves: what to do where the number of samples is unknown to `checks`.
"""

from dataclasses import field
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from mimo_launch.data.expected_steps import records_of
from mimo_launch.data.fact_source import Source
from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import MAX_COUNT
from mimo_launch.spec.spec import Spec

if TYPE_CHECKING:
    from mimo_launch.data.run_records import Records

# Packs are counted one by one where each record is known, and else over so many records.
_LOOKED_AT = 2**17


class SamplesUnknown(Exception):
    """The number of samples of an epoch is not known here."""


@frozen
class Begun:
    """What a run has done: its steps, and its place in the order of samples."""

    steps: int = 0
    place: int = 0


# A run that starts anew.
ANEW = Begun()


def with_steps(spec: Spec, begun: Begun = ANEW) -> Spec:
    """Return a spec with the steps of its `train.epochs`, if it has any, and of what has `begun`.

    Raises: SamplesUnknown; ValueError or OSError if the data cannot be used.
    """
    train = spec.train
    if train.epochs is None:
        return spec
    records = records_of(spec)
    if records is None:
        raise SamplesUnknown
    steps = _steps(
        records, _Walk(spec, repr((spec.data, spec.batch, train.seed, train.epochs))), begun
    )
    if train.written_steps is not None:
        steps = min(steps, train.written_steps)
    return spec.replace(train=train.with_counted(min(steps, MAX_COUNT)))


@frozen
class _Walk:
    """A spec as a key of its order of records and of its epochs."""

    spec: Spec = field(compare=False)
    key: str


@lru_cache(maxsize=4)
def _steps(records: "Records", walk: _Walk, begun: Begun) -> int:
    """Return the steps after which as many records are taken as the epochs have, packed or not."""
    # Imported here because it needs numpy.
    from mimo_launch.data.order.sample_order import PackedOrder, record_order

    spec = walk.spec
    wanted = ceil(Fraction(str(spec.train.epochs)) * records.in_all)
    if not spec.data.packing:
        return begun.steps + max(0, -(-(wanted - begun.place) // spec.batch.global_))
    number, times = records.in_all, Fraction(1)
    if records.source not in (Source.DRAWN, Source.INDEX) and number > _LOOKED_AT:
        number, times = _LOOKED_AT, Fraction(number, _LOOKED_AT)
    in_order = record_order(spec, number, records.sources, captions=records.captions)
    order = PackedOrder(in_order, records.tokens, spec.batch.seq)
    place, steps = ceil(begun.place / times), 0
    end = order.place_after(ceil(wanted / times))
    while place < end:
        place, steps = order.after(place), steps + 1
    return begun.steps + ceil(steps * times)
