"""Sixty fixed ones of the random specs that `nox -s sweep` simulates by the thousand."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.support import simulated
from tests.support.features import features
from tests.support.simulated import broken_rules
from tests.support.specs import KINDS, box, brief, layout_specs, spec

from mimo_launch.layout.bridge_routing import route
from mimo_launch.schedule.actions import Kind
from mimo_launch.schedule.generate import Programs, generate
from mimo_launch.spec.spec import Spec


def test_fixed_specs_on_many_ranks_end_and_follow_the_data() -> None:
    """They cover every kind of schedule, every placement and every axis."""
    seen: set[str] = set()

    @settings(
        max_examples=60,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(made=layout_specs(64, supported_only=False))
    def each(made: Spec) -> None:
        seen.update(features(made))
        found = broken_rules(made)
        assert not found, f"{brief(made)}\n" + "\n".join(found[:10])

    each()
    row_places = {"colocated", "overlap", "disjoint", "fan-in", "fan-out", "uneven dp"}
    row_places.add("samples move")
    axes = {f"{axis} > 1" for axis in ("tp", "cp", "dp", "pp")}
    assert {*KINDS, *row_places, *axes} <= seen


def drop_last(programs: Programs) -> Programs:
    """Leave the last microbatch out on every rank: all programs still end."""
    last = max(a.index for program in programs for slot in program for a in slot)
    kept = [[tuple(a for a in slot if a.index != last) for slot in program] for program in programs]
    return tuple(tuple(slot for slot in program if slot) for program in kept)


def pass_by(programs: Programs) -> Programs:
    """Let stage 0 of language start before it has received the rows of the encoder."""
    return tuple(
        tuple(
            slot
            for slot in program
            if not any(a.module == "vision" and a.kind is Kind.RECV_F for a in slot)
        )
        for program in programs
    )


@pytest.mark.parametrize(
    ("bug", "words"), [(drop_last, "instead of"), (pass_by, "before vision>RECV_F0")]
)
def test_a_bug_of_the_generator_breaks_a_rule(bug, words, monkeypatch):
    made = spec({"vision": box(0), "language": box(1)}, microbatches=3)
    assert broken_rules(made) == []
    monkeypatch.setattr(simulated, "generate", lambda layout: bug(generate(layout)))
    assert any(words in line for line in broken_rules(made))


def test_a_row_sent_to_another_rank_breaks_a_rule(monkeypatch):
    made = spec({"vision": box(0, dp=2), "language": box(2, dp=2)})
    assert broken_rules(made) == []

    def crossed(*args):
        return tuple(replace(each, dst=5 - each.dst) for each in route(*args))

    monkeypatch.setattr(simulated, "route", crossed)
    assert any("ranks that never meet" in line for line in broken_rules(made))
