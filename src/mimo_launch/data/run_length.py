"""The number of steps of a run that counts epochs.

Decides: that a run of N epochs ends with the step that takes the last of their samples, so steps
are a whole number and nothing is left out; that the steps that are written beside them end the run
if they are fewer.
Relies on: `sample_order` for the walk through packs; the records of `expected_steps`, which are all
there where an index counts them, and else as many as a look at the files suggests.
Leaves: what to do where the number of samples is unknown to `checks`.
"""

from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from mimo_launch.data.expected_steps import records_of
from mimo_launch.data.fact_source import Source
from mimo_launch.spec.base import MAX_COUNT
from mimo_launch.spec.spec import Spec

if TYPE_CHECKING:
    from mimo_launch.data.run_records import Records

# Packs are counted one by one where each record is known, and else over so many records.
_LOOKED_AT = 2**17


class SamplesUnknown(Exception):
    """The number of samples of an epoch is not known here."""


def with_steps(spec: Spec) -> Spec:
    """Return a spec with the steps of its `train.epochs`, if it has any.

    Raises: SamplesUnknown; ValueError or OSError if the data cannot be used.
    """
    train = spec.train
    if train.epochs is None:
        return spec
    records = records_of(spec)
    if records is None:
        raise SamplesUnknown
    seq = spec.batch.seq if spec.data.packing else None
    steps = _steps(records, train.epochs, spec.batch.global_, train.seed, seq)
    if train.are_steps_known:
        steps = min(steps, train.steps)
    return spec.replace(train=train.replace(steps=min(steps, MAX_COUNT)))


@lru_cache(maxsize=4)
def _steps(records: "Records", epochs: float, batch: int, seed: int, seq: int | None) -> int:
    """Return the steps that take the records of some epochs, packed into sequences of `seq`."""
    # Imported here because it needs numpy.
    from mimo_launch.data.sample_order import GlobalOrder, PackedOrder

    wanted = ceil(Fraction(str(epochs)) * records.in_all)
    if seq is None:
        return -(-wanted // batch)
    number, times = records.in_all, Fraction(1)
    if records.source not in (Source.DRAWN, Source.INDEX) and number > _LOOKED_AT:
        number, times = _LOOKED_AT, Fraction(number, _LOOKED_AT)
    order = PackedOrder(GlobalOrder(number, batch, seed), records.tokens, seq)
    place, steps, end = 0, 0, order.place_after(ceil(wanted / times))
    while place < end:
        place, steps = order.after(place), steps + 1
    return ceil(steps * times)
