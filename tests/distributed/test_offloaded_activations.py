"""Saved activations in the memory of the host: the same gradients on every layout."""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from tests.support.planted_experts import mixture
from tests.support.proof import failures, training_verdicts, verdicts
from tests.support.specs import box, hybrid, spec
from torch import Tensor

from mimo_launch.comm import host_link
from mimo_launch.layers import offload
from mimo_launch.models import build
from mimo_launch.spec.spec import Spec


def away(*also: str, **rest: Any) -> dict[str, Any]:
    """A box that keeps its activations on the host."""
    return box(offload=["activations", *also], **rest)


def made(vision: dict[str, Any], language: dict[str, Any], **rest: Any) -> Spec:
    modules = {"vision": vision, "language": language}
    return spec(modules, **({"microbatches": 2, "mbs": 2} | rest))


SP = {"tp": 2, "sequence_parallel": True}
LAYOUTS: dict[str, Callable[[], Spec]] = {
    "sequence parallelism and recomputed parts": lambda: made(
        away(**SP), away(recompute=["norms"], **SP)
    ),
    "pp 2, recomputed layers": lambda: made(
        away(dp=2), away(pp=2, recompute="full"), microbatches=4
    ),
    "fully sharded, with moments": lambda: made(
        away(dp=2, sharding="full"), away("optimizer", dp=2, sharding="full")
    ),
    "cp 2, packed documents": lambda: made(away(dp=2), away(cp=2), packing=True),
    "experts, adapters, further tokens": lambda: made(
        away(dp=4, adapter={"rank": 3}),
        away(
            tp=2, dp=2, experts={"ep": 2}, model={**mixture(width=8, shared=8), "mtp": {"depth": 1}}
        ),
    ),
    "a hybrid, lowest layers frozen": lambda: made(
        box(frozen=True), away(model=hybrid({}, "M*G-"), frozen={"layers": "0-1"}), seq=16
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_activations_on_the_host_give_the_gradients_of_one_rank(layout: str) -> None:
    compare = training_verdicts if "moments" in layout else verdicts
    assert not failures(compare(LAYOUTS[layout]()))


class SlowLink(host_link.HostLink):
    """Copies that run only when something waits for them, from whatever is there by then."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.jobs: list[Callable[[], Any]] = []

    def send(self, here: Tensor) -> Tensor:
        there, source = torch.full_like(here, 255), ref(here)

        def job() -> None:
            found = source()
            # Other tensors have taken its place.
            there.fill_(255) if found is None else there.copy_(found)

        self.jobs.append(job)
        return there

    def fetch(self, there: Tensor) -> Tensor:
        here = torch.full_like(there, 255)
        self.jobs.append(partial(here.copy_, there))
        return here

    def mark(self) -> Any:
        return len(self.jobs)

    def wait(self, mark: Any) -> None:
        for number in range(mark or 0):
            self.jobs[number]()
            self.jobs[number] = lambda: None


def slow_copies() -> None:
    build.HostLink = SlowLink  # type: ignore[attr-defined]


def memory_given_up_too_early() -> None:
    """Others take the place of a tensor before its copy to the host has ended."""
    slow_copies()
    right = offload._Layer.leave

    def leave(self: Any, link: Any) -> None:
        self.sent = None
        right(self, link)

    offload._Layer.leave = leave  # type: ignore[method-assign]


def tensors_used_before_they_are_back() -> None:
    """A backward does not wait for the copies that it needs."""
    slow_copies()
    right = offload._Layer.fetch

    def fetch(self: Any, link: Any) -> None:
        right(self, link)
        self.fetched = None

    offload._Layer.fetch = fetch  # type: ignore[method-assign]


def pipeline() -> Spec:
    return made(away(), away(pp=2), microbatches=4)


def test_copies_may_run_late() -> None:
    assert not failures(verdicts(pipeline(), prepare=slow_copies))


@pytest.mark.parametrize("bug", [memory_given_up_too_early, tensors_used_before_they_are_back])
def test_copies_that_are_not_waited_for_are_rejected(bug: Callable[[], None]) -> None:
    assert failures(verdicts(pipeline(), prepare=bug))
