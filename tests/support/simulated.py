"""What every valid spec must satisfy before a process starts: its programs and its routes.

The rules are written down here once more, from the definitions: nothing but the vocabulary of
actions is shared with the generator.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from mimo_launch.checks.all_checks import check
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.layout.bridge_routing import components, route
from mimo_launch.layout.layout import Layout, ModuleLayout, build_layout
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.channels import partners
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.schedule.deadlock_proof import simulate
from mimo_launch.schedule.generate import Programs, generate, generate_forward
from mimo_launch.schedule.simulation_result import Costs, Simulation, lower_bound
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec

F, B = Kind.FORWARD, Kind.BACKWARD
# Fractions that floating point holds exactly, so that times can be compared.
COSTS = (
    Costs(),
    Costs(
        forward={"language": 1.0, "vision": 0.25, "audio": 2.0, "depth": 0.5},
        backward={"language": 2.0, "vision": 0.5, "audio": 4.0, "depth": 1.5},
    ),
)


def broken_rules(made: Spec) -> list[str]:
    """Return what is wrong with the programs and routes of a spec, empty if nothing is."""
    errors = [item for item in check(made) if item.is_error and item.code != "not-supported-yet"]
    if errors:
        return [f"not a valid spec: {item.code}: {item.headline}" for item in errors]
    layout = build_layout(made)
    views = StepViews(layout, _thinned(nominal_step_data(made)))
    return [*_of_programs(layout), *_of_routes(views)]


def _of_programs(layout: Layout) -> Iterator[str]:
    programs, forwards = generate(layout), generate_forward(layout)
    yield from simulate(layout, forwards).stuck
    yield from _counted(layout, forwards, (F,))
    yield from _counted(layout, programs, (F, B))
    for costs in COSTS:
        simulation = simulate(layout, programs, costs)
        yield from simulation.stuck
        yield from _in_time(layout, simulation)
        if simulation.makespan < lower_bound(layout, costs) - 1e-9:
            yield f"makespan {simulation.makespan} is below the bound"


def _counted(layout: Layout, programs: Programs, kinds: tuple[Kind, ...]) -> Iterator[str]:
    """Each stage of a rank runs each of its groups once, in order."""
    for rank, program in enumerate(programs):
        found: dict[tuple[str, int | None, Kind], list[int]] = {}
        for action, *_ in program:
            if action.kind.is_compute:
                found.setdefault((action.module, action.stage, action.kind), []).append(
                    action.index
                )
        wanted = {
            (module.name, stage.index, kind): list(_groups(layout, module))
            for module in layout.modules_of(rank)
            for stage in module.stages_of(rank)
            for kind in kinds
            if kind is F or needs_backward(layout, module, stage.index)
        }
        if found != wanted:
            yield f"rank {rank} runs {found} instead of {wanted}"


def _in_time(layout: Layout, simulation: Simulation) -> Iterator[str]:
    """No stage starts before all ranks of the stages that feed it have ended."""
    starts: dict[Action, float] = {}
    ends: dict[Action, float] = {}
    for events in simulation.events:
        for event in events:
            action = event.slot[0]
            if action.kind.is_compute:
                starts[action] = min(starts.get(action, event.start), event.start)
                ends[action] = max(ends.get(action, event.stop), event.stop)
    for action, start in starts.items():
        for source in _sources(layout, action):
            # Replicas of an encoder in bubbles go on by themselves; the latest tells nothing.
            filled = layout.schedule == "bubble_filling" and layout[source.module].in_phases
            if source not in ends:
                yield f"{action} runs without {source}"
            elif ends[source] > start + 1e-9 and not (filled and action.module == source.module):
                yield f"{action} starts at {start}, {source} ends at {ends[source]}"


def _sources(layout: Layout, action: Action) -> Iterator[Action]:
    """Yield what an action waits for: the same stage, the next one over, and modules beyond."""
    module, stage, index = layout[action.module], action.stage or 0, action.index
    last = len(module.stages) - 1
    bridges = layout.bridges.values()
    if action.kind is B:
        yield Action(module.name, stage, F, index)
        if stage < last:
            yield Action(module.name, stage + 1, B, index)
            return
        for reader in (layout[each.target] for each in bridges if each.source == module.name):
            for other in _meeting(module, index, reader):
                yield Action(reader.name, 0, B, other)
    elif stage:
        yield Action(module.name, stage - 1, F, index)
    else:
        for source in (layout[name] for name in module.reads):
            for other in _meeting(module, index, source):
                yield Action(source.name, len(source.stages) - 1, F, other)


def _meeting(module: ModuleLayout, index: int, other: ModuleLayout) -> Iterator[int]:
    """Yield the forwards of another module that have a microbatch of this one's in them."""
    first = index * module.group_size
    microbatches = range(first, first + module.group_size)
    yield from dict.fromkeys(each // other.group_size for each in microbatches)


def _of_routes(views: StepViews) -> Iterator[str]:
    """Each row leaves one rank and arrives once, between ranks that the schedule lets meet."""
    layout, data = views.layout, views.data
    for name, bridge in layout.bridges.items():
        parts = components(layout, name)
        part_of = {rank: number for number, part in enumerate(parts) for rank in part}
        meets = _meetings(layout, bridge)
        # What reads language takes the rows of some tokens of each image that it makes.
        made = bridge.target if bridge.source == LANGUAGE else bridge.source
        size = bridge.group_size
        for index in range(layout.samples.microbatches // size):
            transfers = route(views, name, index)
            due = sum(
                span.num_positions if bridge.source == LANGUAGE else span.rows
                for replica in range(layout.language.grid.size("dp"))
                for microbatch in range(index * size, (index + 1) * size)
                for sample in layout.samples.language(replica, microbatch)
                for span in data.samples[sample].spans.get(made, ())
            )
            left, came = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
            for t in transfers:
                left.update((t.src, t.src_forward, t.src_start + i) for i in range(t.num_rows))
                came.update((t.dst, t.dst_forward, t.dst_start + i) for i in range(t.num_rows))
            if not due == len(left) == len(came) == left.total() == came.total():
                yield f"{name} transfer {index}: {due} rows, {left.total()} leave"
            for each in transfers:
                if part_of[each.src] != part_of[each.dst]:
                    yield f"{each} leaves its component"
                if (each.src, each.dst) not in meets:
                    yield f"{each} is between ranks that never meet"


def _meetings(layout: Layout, bridge: Bridge) -> set[tuple[int, int]]:
    send, source = Action(bridge.name, None, Kind.SEND_F, 0), layout[bridge.source]
    ends = source.stage_ranks(len(source.stages) - 1)
    return {(rank, other) for rank in ends for other in partners(layout, rank, send)}


def _groups(layout: Layout, module: ModuleLayout) -> range:
    return range(layout.samples.microbatches // module.group_size)


def _thinned(data: StepData) -> StepData:
    """Take the images of every third sample away, and those of whole microbatches with them."""
    samples = tuple(
        replace(sample, spans={}) if number % 3 == 1 else sample
        for number, sample in enumerate(data.samples)
    )
    return replace(data, samples=samples)
