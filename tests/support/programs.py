"""What tests of schedules share: small layouts, programs as text, and what to read off a step."""

from hypothesis import note
from hypothesis import strategies as st
from tests.support.specs import Box, box, brief, layout_specs, spec

from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.schedule.actions import Kind, format_program, parse_program
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.simulation_result import Simulation


def layout_of(
    microbatches: int,
    k: int | None = None,
    kind: str = "1f1b",
    v: int = 1,
    mbs: int = 1,
    **modules: Box,
) -> Layout:
    """Layout of some modules; `language` alone on rank 0 where none is given."""
    made = spec(
        modules,
        microbatches=microbatches,
        encoder_microbatches=k,
        kind=kind,
        virtual_stages=v,
        mbs=mbs,
    )
    return build_layout(made)


def chain(
    microbatches: int, language: int, kind: str = "1f1b", v: int = 1, **encoders: int
) -> Layout:
    """Layout of pipelines of the given depths, one rank per stage, encoders first."""
    modules, first = {}, 0
    for name, depth in [*encoders.items(), ("language", language)]:
        modules[name] = box(first, pp=depth)
        first += depth
    return layout_of(microbatches, None, kind, v, **modules)


def texts(programs: Programs) -> list[str]:
    """Programs as text, one per rank."""
    return [format_program(program) for program in programs]


def computes(program_text: str) -> str:
    """The forwards and backwards of a program."""
    return " ".join(
        str(action) for (action, *_) in parse_program(program_text) if action.kind.is_compute
    )


def timeline(simulation: Simulation, rank: int) -> str:
    """Forwards (F) and backwards (b) of a rank, one column per unit of model time."""
    cells = ["."] * int(simulation.makespan)
    for event in simulation.events[rank]:
        action = event.slot[0]
        if action.kind.is_compute:
            assert cells[int(event.start)] == "."
            cells[int(event.start)] = "F" if action.kind is Kind.FORWARD else "b"
    return "".join(cells)


def peaks(layout: Layout, simulation: Simulation, name: str) -> list[int]:
    """Most live microbatches of each stage of a module."""
    return [
        simulation.peak_live(rank, name, stage.index)
        for stage in layout[name].stages
        for rank in layout[name].stage_ranks(stage.index)
    ]


@st.composite
def layouts(draw: st.DrawFn, max_ranks: int = 32, kinds: tuple[str, ...] = ()) -> Layout:
    """Layouts of every kind, or of some kinds of schedule."""
    made = draw(layout_specs(max_ranks, supported_only=False, kinds=kinds))
    layout = build_layout(made)
    note(brief(made))
    return layout


def with_program(programs: Programs, rank: int, text: str) -> Programs:
    """Replace the program of one rank."""
    return (*programs[:rank], parse_program(text), *programs[rank + 1 :])


def with_words(programs: Programs, rank: int, *changes: tuple[str, str]) -> Programs:
    """Replace words in the program of one rank, all at once; "" deletes a slot."""
    table = dict(changes)
    words = format_program(programs[rank]).split()
    assert table.keys() <= set(words)
    return with_program(programs, rank, " ".join(table.get(word, word) for word in words))
