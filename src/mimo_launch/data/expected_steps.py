"""The steps that a plan expects: real steps of the run where its data are known, or a guess.

Decides: which source counts (index, headers, `data.expect`, guess), and which steps stand for the
run.
Relies on: `run_records` for the sizes of records, `known_order` for the order and the packs of a
run, `heaviest_steps` for the largest step; `nominal_samples` for the guess.
Leaves: what a step costs to `estimate`, dealing samples to replicas to `layout`.
"""

from dataclasses import field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.data.fact_source import Source
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.layout.step_data import StepData
from mimo_launch.spec.spec import Spec, UserData

# Imported where needed: a spec that needs no estimates is checked without numpy.
if TYPE_CHECKING:
    from mimo_launch.data.order.known_order import KnownOrder
    from mimo_launch.data.run_records import Records

# Steps that stand for the run.
MOST_SAMPLED = 8
# Packing is worth it if sequences are then so many times as full: a step holds more samples then.
WORTH_PACKING = 1.25
GUESS_BASIS = (
    "a guess: no shards can be read here, and `data.expect` does not say what samples hold; write "
    "`expect: {images: 1.5, rows: 240, text: 400}` in `data`"
)


@frozen(kw_only=True, eq=False, slots=False)
class ExpectedSteps:
    """The steps of a run on a layout.

    The first `looked_at` of the `num_steps` steps are known; none for a guess. `sampled` stand for
    the run: evenly spaced steps of the known ones, or the nominal step. `tokens` and `positions`
    are for the whole run, without and with padding. `basis` says in words where they come from.
    """

    spec: Spec
    layout: Layout
    order: "KnownOrder | None"
    sampled: tuple[StepData, ...]
    tokens: int
    positions: int

    @property
    def source(self) -> Source:
        """Where the facts about samples come from."""
        return Source.GUESS if self.order is None else self.order.records.source

    @property
    def basis(self) -> str:
        """Where the facts about samples come from, in words."""
        return GUESS_BASIS if self.order is None else self.order.records.basis

    @property
    def num_steps(self) -> int:
        """Steps of the run."""
        return self.spec.train.steps

    @property
    def looked_at(self) -> int:
        """Known steps."""
        return 0 if self.order is None else self.order.num_steps

    @property
    def names_largest(self) -> bool:
        """Whether known steps are the run's own, so that the heaviest has a number."""
        order = self.order
        if order is None or len(order.ids) > order.records.most:
            return False
        return self.source in (Source.DRAWN, Source.INDEX)

    @property
    def padding(self) -> float:
        """The share of positions that hold no token."""
        return 1 - self.tokens / self.positions

    @cached_property
    def heaviest(self) -> tuple[StepData, ...]:
        """For every module, the known step with the most rows or tokens of a replica at once.

        See `heaviest_steps`. A step alone is the heaviest.
        """
        order = self.order
        if order is None or order.num_steps == 1:
            return self.sampled
        from mimo_launch.data.heaviest_steps import heaviest_steps

        others = [module.name for module in self.layout.modules if not module.is_language]
        rows = {name: order.rows(name) for name in others}
        found = heaviest_steps(self.layout, order.tokens, rows, order.part)
        return tuple(map(order.step, found))

    def padding_with(self, *, packing: bool) -> float:
        """Return the padding of the same records with packing, or without."""
        if packing == self.spec.data.packing or self.order is None:
            return self.padding
        return self.order.padding_with(packing=packing, seq=self.spec.batch.seq)

    def on(self, spec: Spec, layout: Layout) -> "ExpectedSteps":
        """Return the steps of a spec with other settings on another layout."""
        return expected_steps(spec, layout)


def expected_steps(spec: Spec, layout: Layout | None = None) -> ExpectedSteps:
    """Return the steps of a checked spec on a layout, by default its own.

    Other layouts of the same data take no time: a process looks at data once, until `look_again`.
    """
    return replace(_expected(_Key.of(spec)), spec=spec, layout=layout or build_layout(spec))


def look_again() -> None:
    """Forget what is known of data, because an index has been made."""
    _expected.cache_clear()
    _records.cache_clear()


@frozen
class _Key:
    """A spec as a key of what follows from its data, models and seed, on any layout."""

    spec: Spec = field(compare=False)
    data: str
    order: str = ""

    @classmethod
    def of(cls, spec: Spec) -> "_Key":
        data, train = spec.data.model_copy(update={"packing": False}), spec.train
        modules = [
            (name, module.model, module.init_from, module.placeholder, *spec.sources_of(name))
            for name, module in spec.modules.items()
        ]
        order = spec.data.packing, spec.batch.global_, train.steps
        return cls(spec, repr((data, modules, spec.batch.seq, train.seed)), repr(order))


@lru_cache(maxsize=4)
def _expected(key: _Key) -> ExpectedSteps:
    records = _records(replace(key, order=""))
    return _guess(key.spec) if records is None else _steps_of(key.spec, records)


def records_of(spec: Spec) -> "Records | None":
    """Return the records of a spec from the best source there is; None for a guess."""
    return _records(_Key.of(spec))


@lru_cache(maxsize=2)
def _records(key: _Key) -> "Records | None":
    """Return the records of a spec from the best source there is; None for a guess."""
    spec = key.spec
    if not isinstance(spec.data, UserData):
        from mimo_launch.data.build import build_dataset
        from mimo_launch.data.run_records import DrawnRecords

        return DrawnRecords(build_dataset(spec))
    from mimo_launch.data.known_shards import records_of_shards

    return records_of_shards(spec, spec.data) or expected_records(spec, spec.data)


def expected_records(spec: Spec, data: UserData) -> "Records | None":
    """Return the records that `data.expect` describes, if it is there.

    Raises: BadStatistics, NoRoom.
    """
    if data.expect is None:
        return None
    from mimo_launch.data.run_records import records_like

    if isinstance(data.expect, str):
        from mimo_launch.data.sample_statistics import read_statistics

        samples, number = read_statistics(spec, Path(data.expect))
        basis = f"samples like {len(samples):,} of {number:,}, as {data.expect} says"
        return records_like(Source.EXPECT, basis, samples, number)
    from mimo_launch.data.expected_samples import expected_samples

    samples = expected_samples(spec, data, data.expect)
    basis = "samples as `data.expect` describes them"
    return records_like(Source.EXPECT, basis, samples, data.expect.samples)


def _steps_of(spec: Spec, records: "Records") -> ExpectedSteps:
    """Return the steps of a run over these records."""
    from mimo_launch.data.order.known_order import known_order

    order = known_order(spec, records)
    last = order.num_steps - 1
    sampled = {round(last * each / (MOST_SAMPLED - 1)) for each in range(MOST_SAMPLED)}
    known = order.num_steps * order.batch * spec.batch.seq
    positions = spec.train.steps * order.batch * spec.batch.seq
    return ExpectedSteps(
        spec=spec,
        layout=build_layout(spec),
        order=order,
        sampled=tuple(map(order.step, sorted(sampled))),
        tokens=round(order.num_tokens * positions / known),
        positions=positions,
    )


def _guess(spec: Spec) -> ExpectedSteps:
    step = nominal_step_data(spec)
    sequences = spec.train.steps * spec.batch.global_
    return ExpectedSteps(
        spec=spec,
        layout=build_layout(spec),
        order=None,
        sampled=(step,),
        tokens=sequences * step.samples[0].num_tokens,
        positions=sequences * spec.batch.seq,
    )
