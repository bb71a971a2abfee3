"""The shape of an entry of the table of codes.

Decides: what each code has to explain.
Relies on: nothing.
Leaves: the entries to `codes`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """One code: its name says the wrong pattern, the rest says why it is wrong and what is right.

    `example` is a fragment of a spec that has the fault, `instead` the same fragment without it.
    """

    name: str
    summary: str
    explanation: str
    example: str
    instead: str
    is_warning: bool = False
