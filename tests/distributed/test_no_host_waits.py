"""Starting a step waits for no number of the device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.distributed.test_session import two_modules
from tests.support.planted import class_tokens, turned_patches
from tests.support.planted_experts import routed
from tests.support.planted_hybrid import split_heads
from tests.support.planted_registers import registered
from tests.support.running_ranks import run_on_running_ranks
from torch.utils._python_dispatch import TorchDispatchMode

from mimo_launch.comm.async_copies import HostCopy
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import GlobalOrder
from mimo_launch.launcher.run_on_ranks import RankError, run_ranks
from mimo_launch.layers import experts
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession
from mimo_launch.train.step import StepRunner


class Reads(TorchDispatchMode):
    """Notes operations whose result the host has to wait for."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(func.__name__.startswith(name) for name in self.WAITING):
            self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def reads_of_steps(made: Spec, plant: Callable[[RankSession], None] | None) -> list[str]:
    """Return the operations that would wait for a device while steps are started."""
    reads = Reads()
    with RankSession(Plan.of(made)) as session:
        if plant is not None:
            plant(session)
        dataset, state = build_dataset(made), RunState()
        order = GlobalOrder(dataset.num_samples("train"), made.batch.global_, 0)
        with StepReader(session, dataset, state, lambda event: None) as reader:
            runner = StepRunner(session, reader, order, state, lambda event: None)
            for _ in range(3):
                with reads:
                    runner.start((0, 1))
            [first, *_] = runner.settle()
            assert first.flags == (0, session.world_size)
    return reads.seen


def peek(session: RankSession) -> None:
    """A planted bug: the norm is looked at on the host before the update."""
    update = session.update

    def peeking() -> None:
        if session.ending.metrics.norm > 0:
            update()

    session.update = peeking  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_no_step_waits_for_a_number_of_the_device(kind: str) -> None:
    """Totals, clipping, the update and the flags of a bad step; the counters of AdamW, too."""
    made = two_modules(
        train={"steps": 3, "precision": "fp32", "count_zero_grads": True},
        optimizer={"kind": kind, "lr": 0.1, "clip": 0.1},
    )
    assert run_on_running_ranks(reads_of_steps, made, None, world_size=4) == [[]] * 4
    assert all(run_on_running_ranks(reads_of_steps, made, peek, world_size=4))


def test_places_in_images_are_made_without_waiting() -> None:
    """As in Qwen2-VL: patches turned by row and column, positions on three axes."""
    train = {"steps": 3, "precision": "fp32"}
    made = turned_patches(train=train, optimizer={"kind": "sgd", "lr": 0.1})
    assert run_on_running_ranks(reads_of_steps, made, None, world_size=world_size(made)) == [[]] * 5


def test_class_tokens_and_learned_positions_are_made_without_waiting() -> None:
    train = {"steps": 3, "precision": "fp32"}
    made = class_tokens(train=train, optimizer={"kind": "sgd", "lr": 0.1})
    assert run_on_running_ranks(reads_of_steps, made, None, world_size=world_size(made)) == [[]] * 5


def test_registers_and_a_cropped_table_are_made_without_waiting() -> None:
    asked = registered({"tp": 2, "cp": 2, "sequence_parallel": True})
    more = {"train": {"steps": 3, "precision": "fp32"}, "optimizer": {"kind": "sgd", "lr": 0.1}}
    made = Spec.model_validate({**asked.model_dump(mode="json", by_alias=True), **more})
    assert run_on_running_ranks(reads_of_steps, made, None, world_size=world_size(made)) == [[]] * 5


def test_a_hybrid_model_reads_nothing_back() -> None:
    """Packed documents over cp: masks of chunks, shares of heads, the convolution."""
    train, optimizer = {"steps": 3, "precision": "fp32"}, {"kind": "sgd", "lr": 0.1}
    made = split_heads(cp=2)
    made = Spec.model_validate(
        {**made.model_dump(mode="json", by_alias=True), "train": train, "optimizer": optimizer}
    )
    assert run_on_running_ranks(reads_of_steps, made, None, world_size=2) == [[]] * 2


def test_experts_read_nothing_back_but_the_sizes_of_trips() -> None:
    """Which are fetched by a `HostCopy` while the shared expert is computed."""
    train, optimizer = {"steps": 3, "precision": "fp32"}, {"kind": "sgd", "lr": 0.1}
    made = routed({"ep": 2}, {"shared": 8}, tp=2, sequence_parallel=True)
    made = Spec.model_validate(
        {**made.model_dump(mode="json", by_alias=True), "train": train, "optimizer": optimizer}
    )
    assert run_on_running_ranks(reads_of_steps, made, None, world_size=2) == [[]] * 2


def refuse_sizes(session: RankSession) -> None:
    """Let the host fail where it reads how many tokens an expert gets."""

    class Refusing(HostCopy):
        def read(self) -> list[float]:
            raise AssertionError("the host waits for the sizes of a trip")

    experts.HostCopy = Refusing  # type: ignore[misc]


@pytest.mark.parametrize("ep", [1, 2])
def test_tokens_that_do_not_travel_have_sizes_that_only_kernels_know(ep: int) -> None:
    """Where each rank holds all experts, host and GPU stay apart."""
    train, optimizer = {"steps": 3, "precision": "fp32"}, {"kind": "sgd", "lr": 0.1}
    made = routed({"ep": ep}, {"shared": 8}, dp=2)
    made = Spec.model_validate(
        {**made.model_dump(mode="json", by_alias=True), "train": train, "optimizer": optimizer}
    )
    if ep == 1:
        assert run_ranks(reads_of_steps, made, refuse_sizes, world_size=2) == [[]] * 2
        return
    with pytest.raises(RankError, match="the host waits for the sizes of a trip"):
        run_ranks(reads_of_steps, made, refuse_sizes, world_size=2)


def test_a_copy_to_the_host_is_of_the_moment() -> None:
    numbers = torch.tensor([1.0, float("inf")], dtype=torch.float64)
    copy = HostCopy(numbers)
    numbers.zero_()
    assert copy.read() == [1.0, float("inf")]
