"""What all ranks must agree on: modules, grids, stages, sample ownership.

Decides: everything about ranks that does not depend on the data of a step.
Relies on: a spec that `checks` has passed.
Leaves: process groups to `rank_groups`, the order of work to `schedule`, rows to `bridge_routing`.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import field
from functools import cached_property, lru_cache, partial, wraps
from itertools import chain, pairwise, repeat, takewhile
from math import prod
from typing import Any, Concatenate, ParamSpec, TypeVar

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.layer import kept_layers
from mimo_launch.kinds.module_weights import lowest_trained
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.tiles import TileRule
from mimo_launch.kinds.vocabulary import readers_of_language
from mimo_launch.kinds.weights import Share, parameters
from mimo_launch.layout.rank_grid import ExpertView, RankGrid
from mimo_launch.layout.samples import Bridge, SampleMap, group_size, runs_in_phases
from mimo_launch.layout.stages import Stage, cut_into_stages
from mimo_launch.spec.base import LANGUAGE, Axis, rank_range
from mimo_launch.spec.module import Balance
from mimo_launch.spec.optimizers import RULES, UpdateRule
from mimo_launch.spec.sections import ScheduleKind
from mimo_launch.spec.spec import ExpertGrid, Model, Spec
from mimo_launch.spec.values import SHARDINGS, Sharding

# The (module, stage) pairs that a rank holds, encoders first.
Role = tuple[tuple[str, int], ...]
More = ParamSpec("More")
Made = TypeVar("Made")


@frozen
class Loss:
    """A loss of a module, named after its metric; `weight` is its factor in the sum of a step.

    It is divided by the number of its terms in the whole step (`StepData.num_terms`). `depth` is
    the depth of multi-token prediction; an evaluation computes only depth 0.
    """

    name: str
    module: str
    weight: float = 1.0
    depth: int = 0

    @property
    def is_evaluated(self) -> bool:
        """Whether an evaluation computes it."""
        return self.depth == 0


@frozen(slots=False)
class ModuleLayout:
    """One module: its grid, its stages and how it takes part in a step.

    `in_phases` is true for an encoder that runs between the language phases (see `runs_in_phases`).
    Other encoders run upstream of the language pipeline. A module runs on `group_size` microbatches
    together. A `frozen` module trains nothing; each weight of any other follows the first of the
    `rules` that takes it; `first_trained` is the first stage with anything to train, beyond which
    no gradient flows back. In an encoder, `patches_per_row` patches become one row (pixel shuffle),
    each image may also have `learned_tokens`, some layers attend in windows of `window_side` x
    `window_side` rows, and `balance` sets how samples move among replicas (see `layout.shares`).
    `experts` is the box of ranks of a mixture of experts. Token counts are padded to multiples of
    `token_step`, for products in 8 bits. `tied`: the first and last stage hold the same embedding,
    for the output layer or for generators that read text. `reads` names the modules that send rows
    to this one. The rows join its own tokens or replace them; rows of several modules follow each
    other or are added up; with `reads_text_apart`, rows of text and of images or clips go through
    maps of their own. `is_causal`: a token attends only to earlier tokens of its image; rows
    that the module reads come first. `image_sources` names those of `reads` that read images; in
    language, all tokens of an image of the `whole_images` attend to each other, and with
    `whole_prompts` all before the first that is learnt. `tiles`: how images in tiles become rows.
    `reads_arrays`: the module reads images or clips of the data set. `keeps_rows`: rows
    are kept on disk. `losses` are in the order in which the last stage returns them.
    """

    name: str
    grid: RankGrid
    stages: tuple[Stage, ...]
    sequence_parallel: bool
    frozen: bool
    in_phases: bool
    group_size: int
    tied: bool = False
    sharding: Sharding = SHARDINGS["optimizer"]
    rules: tuple[UpdateRule, ...] = RULES["adamw"]
    first_trained: int = 0
    patches_per_row: int = 1
    learned_tokens: int = 0
    window_side: int | None = None
    balance: Balance = "linked"
    experts: ExpertView | None = None
    token_step: int = 1
    reads: tuple[str, ...] = ()
    reads_beside: bool = False
    reads_in_turn: bool = True
    reads_text_apart: bool = False
    is_causal: bool = False
    tiles: TileRule | None = None
    image_sources: tuple[str, ...] = ()
    whole_images: tuple[str, ...] = ()
    whole_prompts: bool = False
    reads_arrays: bool = False
    keeps_rows: bool = False
    losses: tuple[Loss, ...] = ()
    draws: bool = False

    @property
    def is_language(self) -> bool:
        """Whether this is the language model."""
        return self.name == LANGUAGE

    @property
    def computes_loss(self) -> bool:
        """Whether it has a loss."""
        return bool(self.losses)

    @property
    def splits_samples(self) -> bool:
        """Whether the images of a sample may be encoded by several replicas.

        Not where a sample is drawn or scored as a whole, or rows of other modules arrive by sample.
        """
        return not self.computes_loss and not self.reads

    @property
    def num_shards(self) -> int:
        """Over how many ranks its weights are sharded, except experts."""
        return prod(self.grid.size(axis) for axis in self.sharding.shard)

    def stages_of(self, rank: int) -> tuple[Stage, ...]:
        """Return the stages that `rank` holds: one, or several with virtual stages."""
        return self.stages_at(self.grid.index(Axis.PP, rank))

    def stages_at(self, index: int) -> tuple[Stage, ...]:
        """Return the stages at a position along pp."""
        return self.stages[index :: self.grid.size(Axis.PP)]

    def pp_index(self, stage: int) -> int:
        """Return the position along pp that holds `stage`."""
        return stage % self.grid.size(Axis.PP)

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """Return the ranks that hold `stage`, in increasing order."""
        return self.grid.slice(pp=self.pp_index(stage))


def cached_in_layout(
    function: Callable[Concatenate["Layout", More], Made],
) -> Callable[Concatenate["Layout", More], Made]:
    """Cache the results of a pure function of a layout in the layout itself."""

    @wraps(function)
    def cached(layout: "Layout", /, *args: More.args, **kwargs: More.kwargs) -> Made:
        key = (function, *args, *kwargs.items())
        if key not in layout._made:
            layout._made[key] = function(layout, *args, **kwargs)
        made: Made = layout._made[key]
        return made

    return cached


@frozen(eq=False, slots=False)
class Layout:
    """The whole job, the same on every rank; each module follows the modules that it reads."""

    world_size: int
    modules: tuple[ModuleLayout, ...]
    samples: SampleMap
    seq: int
    schedule: ScheduleKind = "1f1b"
    # The cache of `cached_in_layout`.
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
        """The modules before language, each after the modules that it reads."""
        return tuple(takewhile(lambda module: not module.is_language, self.modules))

    @cached_property
    def moving(self) -> tuple[ModuleLayout, ...]:
        """The modules with several replicas among which samples may move: any but language."""
        others = (module for module in self.modules if not module.is_language)
        return tuple(module for module in others if module.grid.size(Axis.DP) > 1)

    @cached_property
    def losses(self) -> tuple[Loss, ...]:
        """The losses of all modules."""
        return tuple(loss for module in self.modules for loss in module.losses)

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
        """Return the modules of which `rank` holds a stage."""
        return tuple(module for module in self.modules if rank in module.grid)

    def num_groups(self, module: ModuleLayout) -> int:
        """Return the number of forwards that a stage of a module runs in a step."""
        return self.samples.microbatches // module.group_size

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """The stages that each rank holds; ranks that hold the same share one object."""
        places = [
            (module, index) for module in self.modules for index in range(module.grid.size(Axis.PP))
        ]
        runs = [list(module.grid.runs(pp=index)) for module, index in places]
        edges = {edge for each in runs for run in each for edge in (run.start, run.stop)}
        # All ranks between two edges hold the same: far fewer numbers than ranks.
        borders = sorted(edges | {0, self.world_size})
        number_of = {edge: number for number, edge in enumerate(borders)}
        # The places of ranks along pp, as one number, which is faster than a tuple.
        held, base = [0] * (len(borders) - 1), len(places) + 1
        for place, each in enumerate(runs, start=1):
            for run in each:
                for number in range(number_of[run.start], number_of[run.stop]):
                    held[number] = held[number] * base + place
        roles = {number: self._role(places, number) for number in dict.fromkeys(held)}
        sizes = (stop - start for start, stop in pairwise(borders))
        return tuple(chain.from_iterable(map(repeat, map(roles.__getitem__, held), sizes)))

    def _role(self, places: Sequence[tuple[ModuleLayout, int]], number: int) -> Role:
        """Return the stages at places along pp of modules, which are the digits of a number."""
        if not number:
            return ()
        before, place = divmod(number, len(places) + 1)
        module, index = places[place - 1]
        stages = module.stages_at(index)
        return (*self._role(places, before), *((module.name, each.index) for each in stages))


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


def bytes_of_regions(spec: Spec, layout: Layout) -> int:
    """Return the bytes of a microbatch's tokens that tp ranks of language copy from each other.

    0 if they exchange them otherwise; see `comm.peer_copies`.
    """
    language, module = layout.language, spec.language
    if not language.sequence_parallel or module.backend != "torch":
        return 0
    samples = len(layout.samples.language(0, 0))
    tokens = samples * spec.batch.seq // language.grid.size(Axis.CP)
    return tokens * module.model.hidden * spec.train.numbers.computed.bytes


def _module_layout(spec: Spec, name: str) -> ModuleLayout:
    module = spec.modules[name]
    kind = kind_of(module.model)
    # Rows for later layers of language arrive over bridges at its first stage.
    read = dict(readers_of_language(spec)) if name == LANGUAGE else {}
    deep_rows = spec.deep_rows if name == LANGUAGE else 0
    lanes = partial(kind.lanes, deep_rows=deep_rows, kept=kept_layers(read.values()))
    split = module.experts or ExpertGrid()
    sizes = layer_sizes(module.model, Share(module.grid.tp, 0, split.ep, split.tp))
    stages = cut_into_stages(spec, name, lanes, sizes)
    grid, windows = RankGrid.of(module), kind.attending.windows
    lowest = lowest_trained(module)
    sources = spec.sources_of(name)
    images = tuple(each for each in sources if kind_of(spec.modules[each].model).images)
    experts = None
    if kind.moe is not None:
        experts = ExpertView.of(grid, tp=split.tp, ep=split.ep)
    return ModuleLayout(
        name=name,
        grid=grid,
        stages=stages,
        sequence_parallel=module.sequence_parallel and module.grid.tp > 1,
        frozen=module.frozen is True,
        in_phases=name in spec.encoders and runs_in_phases(spec, name),
        group_size=group_size(spec, name),
        sharding=module.fsdp,
        rules=spec.optimizer.rules(module.optimizer),
        # The last stage needs the embedding, too.
        tied=kind.ties_ends or any(each.text for each in read.values()),
        first_trained=sum(stage.layers.stop <= lowest for stage in stages[:-1]),
        patches_per_row=kind.tokens.per_row,
        learned_tokens=kind.tokens.learned,
        window_side=None if windows is None else windows.side,
        balance=module.balance,
        experts=experts,
        token_step=1 if module.fp8 is None else module.fp8.rule.step,
        reads=sources,
        reads_beside=kind.reading.beside,
        reads_in_turn=kind.reading.in_turn,
        reads_text_apart=LANGUAGE in sources and kind.reading.of_language.text == "instead",
        is_causal=kind.attending.in_order,
        tiles=kind.tokens.tiles,
        image_sources=images,
        # A module that reads through a connector treats rows like text.
        whole_images=images if kind.attending.whole_images else (),
        whole_prompts=kind.attending.whole_prompts,
        reads_arrays=kind.input is not None,
        keeps_rows=module.row_cache is not None,
        losses=tuple(_losses(name, kind, module.loss_weight)),
        draws=kind.draws,
    )


@lru_cache(maxsize=1024)
def layer_sizes(model: Model, share: Share) -> tuple[int, ...]:
    """Return the parameters of each layer of a module on a tp rank, without experts.

    A class of a user that does not say is taken for transformer blocks of its width.
    """
    kind = kind_of(model)
    held = [parameters(kind.layer(number), share) for number in range(model.layers)]
    if kind.is_custom and not any(held):
        return (12 * model.hidden**2 // share.tp,) * model.layers
    return tuple(sum(w.numel for w in weights if not w.experts) for weights in held)


def _losses(name: str, kind: ModelKind, weight: float) -> Iterator[Loss]:
    """Yield the losses of a module: its own, then one for each depth."""
    if kind.computes_loss:
        yield Loss(name, name, weight)
    if (mtp := kind.mtp) is not None:
        for depth in range(1, mtp.depth + 1):
            number = "" if depth == 1 else str(depth)
            yield Loss(f"{name}.mtp{number}", name, weight * mtp.loss_weight / mtp.depth, depth)
