"""Actions and programs: the work of one rank in one step, as text that parses back.

Decides: the vocabulary of a schedule.
Relies on: nothing.
Leaves: their order to `generate`, their meaning in time to `deadlock_proof`, their work to
`runtime`.

Text form: `vision.0F2` is the forward of stage 0 of `vision` on group 2; `language.1SEND_B3` sends
the gradient of microbatch 3 from stage 1 to stage 0; `vision>SEND_F2` sends group 2 over the bridge
from `vision` to `language`, `vision>merger>SEND_F2` over the bridge to `merger`,
`vision>EXCHANGE_F0` moves a whole group as one collective. Actions joined by `+` are posted
together, and the rank waits for all of them. `language.0B3+language.0REDUCE3` is a backward that
ends with a sum of gradients over dp and cp. `language:SUM_TP` and `language:SUM_TIED` finish the
gradients of a module; `step:NORM` and `step:UPDATE` end the step. Between them
`language:ORTHOGONALISE` gathers the matrices that Muon updates. `language:SHARE` ends a pass of
greedy decoding: the last stage sends its choices to its replica. The last stage of a generator
sends the velocities of a drawing step in the same way.
"""

import re
from enum import StrEnum

from mimo_launch.diag.frozen import frozen


class Kind(StrEnum):
    """The operation of an action. Sends and receives name the end of the edge on which they run."""

    FORWARD = "F"
    BACKWARD = "B"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    EXCHANGE_F = "EXCHANGE_F"
    EXCHANGE_B = "EXCHANGE_B"
    REDUCE = "REDUCE"
    SUM_TP = "SUM_TP"
    SUM_TIED = "SUM_TIED"
    NORM = "NORM"
    ORTHOGONALISE = "ORTHOGONALISE"
    UPDATE = "UPDATE"
    SHARE = "SHARE"

    @property
    def is_transfer(self) -> bool:
        """Whether the action sends to single ranks or receives from them."""
        return self in (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)

    @property
    def sends(self) -> bool:
        """Whether the action sends to single ranks."""
        return self in (Kind.SEND_F, Kind.SEND_B)

    @property
    def at_source(self) -> bool:
        """Whether a send or receive is at the end of its edge from which activations come."""
        return self in (Kind.SEND_F, Kind.RECV_B)

    @property
    def goes_forward(self) -> bool:
        """Whether a transfer moves activations rather than gradients."""
        return self in (Kind.SEND_F, Kind.RECV_F, Kind.EXCHANGE_F)

    @property
    def is_compute(self) -> bool:
        """Whether the action runs a stage rather than moving data."""
        return self in (Kind.FORWARD, Kind.BACKWARD)

    @property
    def is_collective(self) -> bool:
        """Whether every rank of a bridge component takes part."""
        return self in (Kind.EXCHANGE_F, Kind.EXCHANGE_B)


# These occur once in a program, without an index.
ONCE = (Kind.SUM_TP, Kind.SUM_TIED, Kind.NORM, Kind.ORTHOGONALISE, Kind.UPDATE, Kind.SHARE)
STEP = "step"


@frozen
class Action:
    """One thing that a rank does.

    `stage` is None on a bridge, where `module` is the name of the bridge. It is also None for an
    action that occurs once per module or, with `step` as the `module`, once per step. `index`
    counts microbatches for language, groups of microbatches for other modules and for bridges.
    """

    module: str
    stage: int | None
    kind: Kind
    index: int

    def __str__(self) -> str:
        if self.kind in ONCE:
            return f"{self.module}:{self.kind.value}"
        place = ">" if self.stage is None else f".{self.stage}"
        return f"{self.module}{place}{self.kind.value}{self.index}"


Slot = tuple[Action, ...]
Program = tuple[Slot, ...]

_OFTEN = "|".join(kind.value for kind in Kind if kind not in ONCE)
_ONCE = "|".join(kind.value for kind in ONCE)
_ACTION = re.compile(
    rf"([a-z][a-z0-9_]*(?:>[a-z][a-z0-9_]*)?)(?:(?:\.(\d+)|>)({_OFTEN})(\d+)|:({_ONCE}))"
)


def parse_action(text: str) -> Action:
    """Return the action that `str(action)` printed.

    Raises: ValueError if the text is not an action.
    """
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an action such as `vision.0F2` or `vision>SEND_F2`")
    module, stage, kind, index, once = match.groups()
    if once:
        return Action(module, None, Kind(once), 0)
    return Action(module, None if stage is None else int(stage), Kind(kind), int(index))


def format_slot(slot: Slot) -> str:
    """Return a slot as text."""
    return "+".join(str(action) for action in slot)


def format_program(program: Program) -> str:
    """Return a program as text, slots separated by blanks."""
    return " ".join(format_slot(slot) for slot in program)


def parse_program(text: str) -> Program:
    """Return the program that `format_program` printed.

    Raises: ValueError if any part is not an action.
    """
    return tuple(tuple(parse_action(part) for part in slot.split("+")) for slot in text.split())
