"""The plan of a job: everything that can be known from the spec before a process starts.

Decides: the contents of a plan. It is made once; `plan`, `train`, `verify` and `bench` read it.
Relies on: a spec that the checks have passed; `layout` and `schedule` for the parts.
Leaves: carrying it out to `runtime`, showing it to `drawing.plan_report`.
"""

import json
from dataclasses import replace
from functools import cached_property
from hashlib import sha256

from mimo_launch import __version__
from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.bridge_routing import components
from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.layout.rank_groups import RankGroup, rank_groups
from mimo_launch.plan.rank_plan import RankPlan
from mimo_launch.schedule.actions import format_program
from mimo_launch.schedule.channels import (
    P2PGroup,
    channels_of,
    p2p_groups_of,
)
from mimo_launch.schedule.deadlock_proof import proven
from mimo_launch.schedule.generate import (
    Programs,
    completed,
    generate,
    generate_decoding,
    generate_drawing,
    generate_forward,
)
from mimo_launch.schedule.simulation_result import Costs, Simulation
from mimo_launch.spec.spec import Spec


@frozen(eq=False, slots=False)
class Plan:
    """What all ranks of a job do. Its parts are made when they are first asked for."""

    spec: Spec
    layout: Layout

    @classmethod
    def of(cls, spec: Spec) -> "Plan":
        """Return the plan of a checked spec."""
        return cls(spec, build_layout(spec))

    @cached_property
    def groups(self) -> tuple[RankGroup, ...]:
        """Every group of ranks that meet in collectives, in the one order of their creation."""
        bridges = (
            RankGroup(f"{bridge}.bridge", ranks)
            for bridge in self.layout.bridges
            for ranks in components(self.layout, bridge)
        )
        return (*rank_groups(self.layout), *bridges)

    @property
    def p2p_groups(self) -> tuple[P2PGroup, ...]:
        """The job-wide groups that carry channels, created after `groups` in this order."""
        return p2p_groups_of(self.layout)

    @cached_property
    def work(self) -> Programs:
        """The computes and transfers of each rank in a training step."""
        return generate(self.layout)

    @cached_property
    def training(self) -> Programs:
        """The program of each rank for a training step: its work, and the end of the step."""
        return completed(self.layout, self.work)

    @cached_property
    def evaluation(self) -> Programs:
        """The program of each rank for a step without gradients."""
        return generate_forward(self.layout)

    @cached_property
    def decoding(self) -> Programs:
        """The program of each rank that finds the next token of all samples."""
        return generate_decoding(self.layout, self.evaluation)

    @cached_property
    def drawing(self) -> Programs:
        """The program of each rank for one drawing step of the generators, away from noise."""
        return generate_drawing(self.layout, self.evaluation)

    @cached_property
    def simulation(self) -> Simulation:
        """A training step in model time: a forward or backward of a microbatch takes one unit.

        Raises: DeadlockError if the programs do not end.
        """
        return proven(self.layout, self.training, self.units)

    @property
    def units(self) -> Costs:
        """One unit per microbatch, k for a group of k, so that group sizes can be compared."""
        units = {module.name: float(module.group_size) for module in self.layout.modules}
        return Costs(forward=units, backward=units)

    def prove(self) -> None:
        """Prove that training steps end, and evaluations if there are any.

        Raises: DeadlockError.
        """
        _ = self.simulation
        if self.spec.eval is not None:
            proven(self.layout, self.evaluation)
            # The rows exist already: no module waits for the modules that made them.
            learning = (module for module in self.layout.modules if module.computes_loss)
            alone = tuple(replace(module, reads=()) for module in learning)
            proven(replace(self.layout, modules=alone[:1]), self.decoding)
            proven(replace(self.layout, modules=alone), self.drawing)

    @cached_property
    def identity(self) -> str:
        """A hash (12 hex digits) of the resolved spec, the programs and the version.

        Ranks with equal hashes will do the same things. A setting at its default does not count, so
        that new settings change no plan.
        """
        every = [self.training]
        if self.spec.eval is not None:
            every += [self.evaluation, self.decoding, self.drawing]
        different = {id(program): program for programs in every for program in programs}
        programs = {format_program(program) for program in different.values()}
        settings = self.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        content = [__version__, settings, sorted(programs)]
        return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def rank(self, rank: int) -> RankPlan:
        """Return one rank's part.

        Raises: ValueError if the job has no such rank.
        """
        if not 0 <= rank < self.layout.world_size:
            raise ValueError(f"rank {rank} is not in 0-{self.layout.world_size - 1}")
        program = self.training[rank]
        channels = channels_of(self.layout, rank, program)
        passes = self.evaluation[rank], self.decoding[rank], self.drawing[rank]
        return RankPlan(rank, program, *passes, channels)
