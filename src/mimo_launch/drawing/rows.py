"""The facts of a report about a plan, as frozen rows of plain values.

Decides: which facts a report holds; their names are the keys of `plan --json` (docs/plan-json.md).
The JSON leaves out facts at their default, which apply only to some jobs.
Relies on: `layer_rows` for kinds of layers, `estimate.rows` for the estimates of a step,
`search.answer` for proposed changes.
Leaves: computing the facts to `plan_report` and its siblings, drawing to `cli`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mimo_launch.diag.frozen import frozen
from mimo_launch.drawing.layer_rows import ExpertsRow, LayerRow
from mimo_launch.estimate.host_costs import HostCosts
from mimo_launch.estimate.rows import Estimates

if TYPE_CHECKING:  # Ranks that train import this file, but neither the checks nor the search.
    from mimo_launch.search.answer import PlanAnswer, WhatFits

Ranks = tuple[int, ...]


@frozen(kw_only=True)
class Header:
    """The step as a whole; `nominal_rows` are the rows of one sample, by encoder or generator.

    `steps` is the length of the run, which follows from `epochs` if the spec counts these.
    `nominal` says which samples: `mean`, of a step of the run, or `largest`. `source` and `basis`
    say where their sizes come from; `padding` is the share of positions without a token,
    `padding_if_packed` that of the same data with `packing: true`, if it could be set.
    """

    name: str
    world_size: int
    plan_hash: str
    steps: int
    epochs: float | None
    global_batch: int
    microbatches: int
    microbatch_size: int
    seq: int
    ranks_per_node: int | None
    nominal: str
    nominal_rows: dict[str, int]
    nominal_labels: int
    source: str
    basis: str
    padding: float
    padding_if_packed: float | None


@frozen(kw_only=True)
class ModuleRow:
    """One module; `placement` relates its ranks to language's, and is None for language.

    `role` and `reads` are set if language is not the only module that reads others. `role` is
    `encoder`, `connector`, `language` or `generator`; `reads` are the modules that send it rows.
    """

    name: str
    kind: str
    first_rank: int
    last_rank: int
    grid: dict[str, int]
    order: tuple[str, ...]
    layers: int
    placement: str | None
    sequence_parallel: bool
    frozen: bool
    frozen_part: str | None
    sharding: str
    shard_over: int | None
    adapter_rank: int | None
    quantize_base: str | None
    backend: str
    fp8: str | None
    recompute: str | tuple[str, ...]
    offload: tuple[str, ...]
    role: str | None = None
    reads: tuple[str, ...] | None = None

    @property
    def recomputed_parts(self) -> tuple[str, ...]:
        """The parts of layers that are computed again, if not whole layers are."""
        return () if isinstance(self.recompute, str) else self.recompute


@frozen(kw_only=True)
class HeldModule:
    """One module on one rank: `groups` forwards per step, each of `group_size` microbatches."""

    module: str
    coords: dict[str, int]
    stage: int
    first_layer: int
    last_layer: int
    samples: int
    groups: int
    group_size: int


@frozen(kw_only=True)
class RankRow:
    """One rank; `modules` is empty when it is idle, `node` is None when hosts are unknown."""

    rank: int
    node: int | None
    modules: tuple[HeldModule, ...]


@frozen(kw_only=True)
class GroupRow:
    """All groups of a module along some axes; `num_crossing` of the groups span several nodes."""

    module: str
    axes: tuple[str, ...]
    groups: tuple[Ranks, ...]
    num_crossing: int


@frozen(kw_only=True)
class StageRow:
    """One stage; `peak_live` is the most microbatches with activations in memory at one time."""

    module: str
    stage: int
    first_layer: int
    last_layer: int
    ranks: Ranks
    peak_live: int


@frozen(kw_only=True)
class Link:
    """Rows that one rank sends to another in a nominal step; `src` = `dst` means a local copy."""

    src: int
    dst: int
    rows: int


@frozen(kw_only=True)
class BridgeRow:
    """One bridge; samples move among `sharing` replicas of the encoder or generator (1: never).

    `encoder` is the name of the bridge. `how` is `collective` (an exchange inside each of
    `components`) or `pairwise` (one transfer per link). `rows`, `local_rows` and `crossing_rows`
    count a nominal step, forward. `source`, `target` and the `bytes` of these rows are set if
    language is not the only module that reads others.
    """

    encoder: str
    fan: str
    num_src: int
    num_dst: int
    balance: str
    sharing: int
    how: str
    groups: int
    group_size: int
    has_backward: bool
    rows: int
    local_rows: int
    crossing_rows: int
    components: tuple[Ranks, ...]
    links: tuple[Link, ...]
    source: str | None = None
    target: str | None = None
    bytes: int | None = None


@frozen(kw_only=True)
class LossRow:
    """The loss of a module: the mean of `terms` in a nominal step, with factor `weight`.

    The losses of further tokens are called `language.mtp`.
    """

    module: str
    weight: float
    terms: int


@frozen(kw_only=True)
class Work:
    """One forward or backward in model time."""

    action: str
    start: float
    stop: float


@frozen(kw_only=True)
class TimelineRow:
    """Ranks that do the same work at the same times; `role` is the stages that they hold."""

    role: tuple[str, ...]
    ranks: Ranks
    bubble: float
    work: tuple[Work, ...]


@frozen(kw_only=True)
class ProgramRow:
    """The program of ranks with one role, as text."""

    role: tuple[str, ...]
    ranks: Ranks
    program: str


@frozen(kw_only=True)
class Schedule:
    """The step in model time: one unit is a forward or a backward of one microbatch.

    No order of the same work ends before `lower_bound`. `programs` belong to a training step;
    `evaluation` and `decoding` are empty in a spec without evaluation.
    """

    makespan: float
    lower_bound: float
    bubble: float
    timeline: tuple[TimelineRow, ...]
    programs: tuple[ProgramRow, ...]
    evaluation: tuple[ProgramRow, ...]
    decoding: tuple[ProgramRow, ...]


@frozen(kw_only=True)
class Report:
    """Everything about all ranks; `fitting` is for a job that does not fit its GPUs."""

    header: Header
    modules: tuple[ModuleRow, ...]
    ranks: Sequence[RankRow]
    groups: tuple[GroupRow, ...]
    layers: tuple[LayerRow, ...]
    experts: tuple[ExpertsRow, ...]
    stages: tuple[StageRow, ...]
    bridges: tuple[BridgeRow, ...]
    schedule: Schedule
    estimates: Estimates
    hosts: HostCosts
    answer: "PlanAnswer"
    losses: tuple[LossRow, ...] = ()
    fitting: "WhatFits | None" = None


@frozen(kw_only=True)
class SampleRow:
    """Samples of a rank's module in one forward, as inclusive ranges of indices.

    Other replicas encode some images of those in `split`.
    """

    module: str
    index: int
    ranges: tuple[tuple[int, int], ...]
    split: tuple[tuple[int, int], ...] = ()


@frozen(kw_only=True)
class PeerRow:
    """Rows between a rank and one peer; `rows[i]` is for group i. `way`: send, receive, copy."""

    bridge: str
    way: str
    peer: int
    rows: tuple[int, ...]


@frozen(kw_only=True)
class RankReport:
    """Everything about one rank."""

    header: Header
    rank: RankRow
    groups: tuple[GroupRow, ...]
    samples: tuple[SampleRow, ...]
    peers: tuple[PeerRow, ...]
    makespan: float
    timeline: TimelineRow
    program: str
    evaluation: str
    decoding: str
    estimates: Estimates
