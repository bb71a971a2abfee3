"""What all ranks must agree on: modules, grids, stages, sample ownership, groups.

Decides: everything about ranks that does not depend on the data of a step.
Relies on: a spec that `checks` has passed.
Leaves: the order of work to `schedule`, rows to `bridge_routing`.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from itertools import takewhile
from typing import Any, Concatenate, ParamSpec, TypeVar

from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import text_readers
from mimo_launch.layout.bridge import Bridge
from mimo_launch.layout.encoder_placement import group_size, runs_in_phases
from mimo_launch.layout.rank_grid import ExpertView, RankGrid
from mimo_launch.layout.samples import SampleMap
from mimo_launch.layout.stages import Stage, cut_into_stages
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import (
    Balance,
    ExpertGrid,
    ScheduleKind,
    Spec,
    rank_range,
)

# The (module, stage) pairs that a rank holds, encoders first.
Role = tuple[tuple[str, int], ...]
More = ParamSpec("More")
Made = TypeVar("Made")


@dataclass(frozen=True)
class ModuleLayout:
    """One module: its grid, its stages and how it takes part in a step.

    `in_phases` is true for an encoder that runs on groups of `group_size` microbatches between the
    language phases (see `runs_in_phases`). Other encoders run upstream of the language pipeline,
    one microbatch at a time (`group_size` 1). A `frozen` module trains nothing; `first_trained` is
    the first stage with anything to train, beyond which no gradient flows back; with
    `full_sharding` gradients are summed at every backward, not only the last. In an encoder,
    `patches_per_row` patches become one row (pixel shuffle), each image may also have a
    `class_token`, tokens of some layers attend in windows of `window_side` x `window_side` rows,
    and samples move among replicas as `balance` says (see `layout.balance`). `experts` are the
    ranks of a mixture of experts. `fp8`: blocks multiply in 8 bits, which needs multiples of some
    number of tokens. `tied`: first and last stage hold the same embedding, for the output layer or
    for generators that read text. `reads` names the modules whose rows this one takes: beside its
    own tokens, or as these; those of several modules in turn, or added to each other. `is_causal`:
    a token attends to those of its image before it, rows that it reads first.
    `whole_images` are the encoders the tokens of whose images attend to each other in language.
    `reads_arrays`: it reads images or clips of the data set. If it computes a loss, that counts
    `loss_weight`.
    """

    name: str
    grid: RankGrid
    stages: tuple[Stage, ...]
    sequence_parallel: bool
    frozen: bool
    in_phases: bool
    group_size: int
    tied: bool = False
    full_sharding: bool = False
    first_trained: int = 0
    patches_per_row: int = 1
    class_token: bool = False
    window_side: int | None = None
    balance: Balance = "linked"
    experts: ExpertView | None = None
    fp8: bool = False
    reads: tuple[str, ...] = ()
    reads_beside: bool = False
    reads_in_turn: bool = True
    is_causal: bool = False
    whole_images: tuple[str, ...] = ()
    reads_arrays: bool = False
    computes_loss: bool = False
    draws: bool = False
    loss_weight: float = 1.0

    @property
    def is_language(self) -> bool:
        """Whether this is the language model."""
        return self.name == LANGUAGE

    def stages_of(self, rank: int) -> tuple[Stage, ...]:
        """Return the stages that `rank` holds: one, or every pp-th with virtual stages."""
        return self.stages[self.grid.index("pp", rank) :: self.grid.size("pp")]

    def pp_index(self, stage: int) -> int:
        """Return the position along pp that holds `stage`."""
        return stage % self.grid.size("pp")

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """Return the ranks that hold `stage`, in increasing order."""
        return self.grid.slice(pp=self.pp_index(stage))


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A process group to create: a name made of module and axes, and its ranks."""

    name: str
    ranks: tuple[int, ...]


def cached_in_layout(
    function: Callable[Concatenate["Layout", More], Made],
) -> Callable[Concatenate["Layout", More], Made]:
    """Keep what a pure function makes of a layout in that layout, as long as that lives."""

    @wraps(function)
    def cached(layout: "Layout", /, *args: More.args, **kwargs: More.kwargs) -> Made:
        key = (function, *args, *kwargs.items())
        if key not in layout._made:
            layout._made[key] = function(layout, *args, **kwargs)
        made: Made = layout._made[key]
        return made

    return cached


@dataclass(frozen=True, eq=False)
class Layout:
    """The whole job, the same on every rank; a module stands behind those that it reads."""

    world_size: int
    modules: tuple[ModuleLayout, ...]
    samples: SampleMap
    seq: int
    schedule: ScheduleKind = "1f1b"
    # What `cached_in_layout` keeps.
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def __getitem__(self, name: str) -> ModuleLayout:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, ModuleLayout]:
        return {module.name: module for module in self.modules}

    @property
    def language(self) -> ModuleLayout:
        """The language model."""
        return self[LANGUAGE]

    @cached_property
    def encoders(self) -> tuple[ModuleLayout, ...]:
        """The modules in front of language, each behind those that it reads."""
        return tuple(takewhile(lambda module: not module.is_language, self.modules))

    @cached_property
    def moving(self) -> tuple[ModuleLayout, ...]:
        """The modules whose samples may move among several replicas: any but language."""
        others = (module for module in self.modules if not module.is_language)
        return tuple(module for module in others if module.grid.size("dp") > 1)

    @cached_property
    def losses(self) -> tuple[ModuleLayout, ...]:
        """The modules that compute a loss."""
        return tuple(module for module in self.modules if module.computes_loss)

    @cached_property
    def bridges(self) -> dict[str, Bridge]:
        """Every bridge by name, in the order of its source, then of its target."""
        found = [
            Bridge(name, module.name, self[name].group_size, module.group_size)
            for module in self.modules
            for name in module.reads
        ]
        order = {module.name: place for place, module in enumerate(self.modules)}
        found.sort(key=lambda bridge: (order[bridge.source], order[bridge.target]))
        return {bridge.name: bridge for bridge in found}

    @cached_property
    def is_star(self) -> bool:
        """Whether language reads every other module, and nothing else is read."""
        return all(bridge.target == LANGUAGE for bridge in self.bridges.values())

    def bridges_into(self, module: str) -> tuple[Bridge, ...]:
        """Return the bridges that bring rows to a module."""
        return tuple(bridge for bridge in self.bridges.values() if bridge.target == module)

    def bridges_from(self, module: str) -> tuple[Bridge, ...]:
        """Return the bridges that take rows from a module."""
        return tuple(bridge for bridge in self.bridges.values() if bridge.source == module)

    def modules_of(self, rank: int) -> tuple[ModuleLayout, ...]:
        """Return the modules that `rank` holds a stage of."""
        return tuple(module for module in self.modules if rank in module.grid)

    def num_groups(self, module: ModuleLayout) -> int:
        """Return the number of forwards that a stage of a module runs in a step."""
        return self.samples.microbatches // module.group_size

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """The stages that each rank holds; ranks that hold the same share one object."""
        held: list[tuple[tuple[int, int], ...]] = [()] * self.world_size
        for number, module in enumerate(self.modules):
            for index in range(module.grid.size("pp")):
                place = (number, index)
                for rank in module.grid.slice(pp=index):
                    held[rank] = (*held[rank], place)
        roles = {places: self._role(places) for places in dict.fromkeys(held)}
        return tuple(roles[places] for places in held)

    def _role(self, places: tuple[tuple[int, int], ...]) -> Role:
        """Return the stages at some places along pp of some modules."""
        return tuple(
            (self.modules[number].name, stage.index)
            for number, index in places
            for stage in self.modules[number].stages[index :: self.modules[number].grid.size("pp")]
        )

    @cached_property
    def groups(self) -> tuple[RankGroup, ...]:
        """Every process group of every module, in the one order in which all ranks create them."""
        along_axes = (
            RankGroup(_name(module, axes), ranks)
            for module in self.modules
            for axes in MODULE_GROUPS
            for ranks in module.grid.groups(*axes)
        )
        return (*along_axes, *self._expert_groups(), *self._tied_groups())

    def groups_of(self, rank: int) -> Iterator[RankGroup]:
        """Yield the process groups that hold `rank`."""
        for module in self.modules_of(rank):
            for axes in MODULE_GROUPS:
                yield RankGroup(_name(module, axes), module.grid.group_of(rank, *axes))
            if module.experts is not None:
                for axis, name in EXPERT_GROUPS.items():
                    yield RankGroup(f"{module.name}.{name}", module.experts.group_of(rank, axis))
        if rank in self.tied_ranks:
            yield RankGroup(f"{self.language.name}.tied", self.tied_ranks[rank])

    def _expert_groups(self) -> Iterator[RankGroup]:
        for module in self.modules:
            if module.experts is not None:
                for axis, name in EXPERT_GROUPS.items():
                    for ranks in module.experts.groups(axis):
                        yield RankGroup(f"{module.name}.{name}", ranks)

    def _tied_groups(self) -> Iterator[RankGroup]:
        """Yield the ranks of first and last stage that hold the same part of a tied embedding."""
        for ranks in dict.fromkeys(self.tied_ranks.values()):
            yield RankGroup(f"{self.language.name}.tied", ranks)

    @cached_property
    def tied_ranks(self) -> dict[int, tuple[int, int]]:
        """The two ranks that hold the same part of a tied embedding, by each of them."""
        module, found = self.language, dict[int, tuple[int, int]]()
        last = module.pp_index(len(module.stages) - 1)
        if module.tied and last != 0:
            apart = last * module.grid.strides["pp"]
            for rank in module.grid.slice(pp=0):
                found[rank] = found[rank + apart] = rank, rank + apart
        return found


# tp: layers; cp: keys and values; dp x cp: gradients and sharded weights; pp: greedy answers of the
# last stage. Stage edges use point-to-point groups.
MODULE_GROUPS: tuple[tuple[str, ...], ...] = (("tp",), ("cp",), ("dp", "cp"), ("pp",))
# Along the axes of the experts. ep: tokens to their experts; tp: tokens of a split expert; dp: its
# gradients and sharded weights.
EXPERT_GROUPS = {"ep": "ep", "tp": "expert_tp", "dp": "expert_dp"}


def _name(module: ModuleLayout, axes: tuple[str, ...]) -> str:
    return f"{module.name}.{'_'.join(axes)}"


def world_size(spec: Spec) -> int:
    """Return the number of ranks of a spec: one more than its last rank, idle ranks included."""
    ranges = [module.rank_range for module in spec.modules.values()]
    if spec.idle_ranks is not None:
        ranges.append(rank_range(spec.idle_ranks))
    return max(ranks.stop for ranks in ranges)


def build_layout(spec: Spec) -> Layout:
    """Return the layout of a checked spec."""
    names = [*spec.encoders, LANGUAGE, *spec.generators]
    return Layout(
        world_size=world_size(spec),
        modules=tuple(_module_layout(spec, name) for name in names),
        samples=SampleMap(spec.batch.global_, spec.language.grid.dp, spec.schedule.microbatches),
        seq=spec.batch.seq,
        schedule=spec.schedule.kind,
    )


def _whole_images(spec: Spec, name: str) -> tuple[str, ...]:
    """Return the encoders the tokens of whose images attend to each other in a module.

    Through a connector it reads rows like text.
    """
    if not kind_of(spec.modules[name].model).bidirectional_images:
        return ()
    return tuple(x for x in spec.sources_of(name) if kind_of(spec.modules[x].model).images)


def _module_layout(spec: Spec, name: str) -> ModuleLayout:
    module = spec.modules[name]
    kind, virtual = kind_of(module.model), spec.schedule.virtual_stages
    # Rows for layers of language come over bridges to its first stage.
    lanes = partial(kind.lanes, deep_rows=spec.deep_rows if name == LANGUAGE else 0)
    stages = cut_into_stages(name, module, virtual if name == LANGUAGE else 1, lanes)
    sizes = tuple(getattr(module.grid, axis) for axis in module.order)
    grid = RankGrid(module.order, sizes, module.rank_range.start)
    experts = None
    if kind.moe is not None:
        split = module.experts or ExpertGrid()
        experts = ExpertView.of(grid, tp=split.tp, ep=split.ep)
    return ModuleLayout(
        name=name,
        grid=grid,
        stages=stages,
        sequence_parallel=module.sequence_parallel and module.grid.tp > 1,
        frozen=module.frozen is True,
        in_phases=name in spec.encoders and runs_in_phases(spec, name),
        group_size=group_size(spec, name),
        full_sharding=module.sharding == "full",
        tied=kind.is_tied or (name == LANGUAGE and bool(text_readers(spec))),
        first_trained=len(stages) - 1 if module.frozen == "except_projector" else 0,
        patches_per_row=kind.patches_per_row,
        class_token=kind.has_class_token,
        window_side=None if kind.windows is None else kind.windows.side,
        balance=module.balance,
        experts=experts,
        fp8=module.fp8 is not None,
        reads=spec.sources_of(name),
        reads_beside=kind.reads_beside,
        reads_in_turn=kind.reads_in_turn,
        is_causal=kind.is_causal,
        whole_images=_whole_images(spec, name),
        reads_arrays=kind.input is not None,
        computes_loss=kind.computes_loss,
        draws=kind.draws,
        loss_weight=module.loss_weight,
    )
