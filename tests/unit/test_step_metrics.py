"""Sums behind the norm of a step."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.specs import box, spec
from torch import nn

from mimo_launch.comm.async_copies import HostCopy
from mimo_launch.comm.finite_flags import FiniteFlag, not_finite
from mimo_launch.comm.gradient_reduction import GradientReduction
from mimo_launch.comm.process_groups import Group
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import declared_parameters, local_segments
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.build import build_network
from mimo_launch.optimizer.gradients import (
    num_zeros,
    sum_of_squares,
    sum_partial_gradients,
    sum_tied_gradients,
)
from mimo_launch.optimizer.step_end import StepEnd
from mimo_launch.optimizer.step_metrics import PendingMetrics, SourceLosses, reduce_metrics
from mimo_launch.schedule.actions import ONCE, Kind
from mimo_launch.schedule.step_end import END_OF
from mimo_launch.spec.spec import Spec


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_squares_of_gradients_of_any_type_are_summed_in_float64(dtype: torch.dtype) -> None:
    """Summed in bf16 they would be off by 1e-3, in float32 by 1e-8."""
    torch.manual_seed(0)
    tensors = [torch.randn(size).to(dtype) for size in (10_000, 1, 77)]
    exact = sum(float(t.double().square().sum()) for t in tensors)
    found = sum_of_squares(tensors, torch.device("cpu"))
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(exact, rel=1e-13)


def test_no_gradients_have_no_squares() -> None:
    """Still in float64: what is summed with others decides the type of all."""
    found = sum_of_squares([], torch.device("cpu"))
    assert (found.dtype, float(found)) == (torch.float64, 0.0)


def test_more_zeros_are_counted_than_float32_can_count() -> None:
    """2^24 + 1 would be 2^24."""
    many = torch.zeros(1, dtype=torch.bfloat16).expand(2**24)
    found = num_zeros([torch.tensor([0.0, 1.0]), many], torch.device("cpu"))
    assert int(found) == 2**24 + 1


@pytest.mark.parametrize(("counts", "zeros"), [([], None), ([0.0, 0.0], {"a": 0, "b": 0})])
def test_no_zeros_differ_from_zeros_that_were_not_counted(
    counts: list[float], zeros: dict[str, int] | None
) -> None:
    """Behind loss, norm and the balance of experts come each loss, squares by module, flags."""
    number = torch.ones(())
    squares = {"a": number, "b": number}
    host = HostCopy(torch.tensor([3.0, 5.0, 0.5, 3.0, 9.0, 16.0, 1.0, *counts]))
    pending = PendingMetrics(number, ("a",), number, squares, {}, num_flags=1, host=host)
    found = pending.read()
    assert (found.norms, found.flags, found.zeros) == ({"a": 3.0, "b": 4.0}, (1,), zeros)


def test_a_source_without_a_label_in_the_step_has_no_loss() -> None:
    """A loss of 0 would look like one that was learnt."""
    number = torch.ones(())
    host = HostCopy(torch.tensor([3.0, 5.0, 0.5, 3.0, 9.0, 2.0, 0.0]))
    labels = {"books": 4, "charts": 0}
    pending = PendingMetrics(number, ("a",), number, {"a": number}, {}, 0, host, sources=labels)
    assert pending.read().sources == {"books": 2.0}


def with_gradients(made: Spec, context: ParallelContext, value: float) -> tuple[nn.Module, Any]:
    """Return the network of a rank with equal gradients, and what metrics read of its module."""
    [stage] = build_layout(made)["language"].stages
    network = build_network(made, stage, context)
    for parameter in network.parameters():
        parameter.grad = torch.full_like(parameter, value)
    declared = list(declared_parameters("language", network))
    return network, SimpleNamespace(declared=lambda: declared, context=context, aux_loss=None)


def test_counting_zeros_leaves_all_other_numbers_as_they_are() -> None:
    """Norms, flags and the losses of sources."""
    sources = SourceLosses({"books": 3.0, "web": 1.0}, torch.tensor([0.25, 0.5]).double())
    made = spec({"language": box(0)})
    network, module = with_gradients(made, ParallelContext(), 0.5)
    network.norm.weight.grad.zero_()
    layout, losses = build_layout(made), {"language": torch.ones(())}
    plain, counted = (
        reduce_metrics(
            layout, {"language": module}, losses, (1, 0), count_zeros=count, sources=sources
        ).read()
        for count in (False, True)
    )
    assert (plain.flags, plain.sources) == ((1, 0), {"books": 0.25, "web": 0.5})
    assert counted.zeros == {"language": network.norm.weight.numel()}
    assert replace(counted, zeros=None) == plain


@pytest.mark.parametrize(
    ("loss", "gradient"), [(1.0, 0.5), (math.inf, 0.5), (1.0, math.nan), (math.nan, math.inf)]
)
def test_the_device_skips_the_steps_that_the_host_calls_skipped(
    loss: float, gradient: float
) -> None:
    """A loss may be infinite although every gradient is finite."""
    made = spec({"language": box(0)})
    _, module = with_gradients(made, ParallelContext(), gradient)
    losses = {"language": torch.tensor(loss)}
    found = reduce_metrics(build_layout(made), {"language": module}, losses)
    is_finite = math.isfinite(loss) and math.isfinite(gradient)
    assert (float(found.bad), found.read().finite) == (float(not is_finite), is_finite)


def test_a_tied_gradient_of_the_other_stage_is_not_shown_as_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sum is NaN on both stages; only the stage whose own gradient was NaN is to blame."""
    made = spec({"language": box(0, model={"tied": True})})
    network, module = with_gradients(made, ParallelContext(), 0.5)
    flag, handle = FiniteFlag(torch.device("cpu")), object()
    monkeypatch.setattr(dist, "all_reduce", lambda x, group: x.fill_(math.nan))
    sum_tied_gradients(module.declared(), Group((0, 1), 0, handle), flag)
    assert network.embedding.weight.grad.isnan().all()
    assert float(flag.value) == 0.5 * network.embedding.weight.numel()


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_tp_ranks_count_each_zero_once_also_of_key_heads_that_they_share(key_heads: int) -> None:
    """Four ranks in one process; the sum over ranks is taken here."""
    model = {"heads": 4, "kv_heads": key_heads, "hidden": 64}
    made = spec({"language": box(0, tp=4, model=model)})
    layout, losses = build_layout(made), {"language": torch.ones(())}
    whole, _ = with_gradients(made, ParallelContext(), 0.0)
    found = 0
    for rank in range(4):
        _, module = with_gradients(made, ParallelContext(Group((0, 1, 2, 3), rank, None)), 0.0)
        modules = {"language": module}
        zeros = reduce_metrics(layout, modules, losses, count_zeros=True).read().zeros or {}
        found += zeros["language"]
    assert found == sum(parameter.numel() for parameter in whole.parameters())


@pytest.mark.parametrize("tp", [1, 2])
def test_only_a_sum_over_tp_is_no_sign_of_the_rank_that_spoilt_it(tp: int) -> None:
    """At tp 1 there is no sum over tp, although the gradient of a norm would have terms."""
    made = spec({"language": box(0, tp=tp, model={"heads": 2})})
    context = ParallelContext(Group(tuple(range(tp)), 0, None), sequence_parallel=True)
    network, module = with_gradients(made, context, 0.5)
    network.norm.weight.grad.fill_(math.nan)
    losses = {"language": torch.ones(())}
    found = reduce_metrics(build_layout(made), {"language": module}, losses)
    assert found.squares["language"].isnan()
    assert bool(found.unshared_squares["language"].isnan()) == (tp == 1)


def test_ranks_that_share_a_key_head_sum_its_gradient_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight ranks in one process, two for each of four heads; rank r has gradients of 2 ** r."""
    model = {"heads": 8, "kv_heads": 4, "hidden": 64}
    made = spec({"language": box(0, tp=8, model=model)})
    buffers: list[torch.Tensor] = []

    def summed(rank: int) -> dict[str, list[float]]:
        handle: Any = object()
        tp = Group(tuple(range(8)), rank, handle)
        declared = with_gradients(made, ParallelContext(tp), 2.0**rank)[1].declared()
        sum_partial_gradients(declared, tp, FiniteFlag(torch.device("cpu")))
        shared = [each for each in local_segments(declared) if each.segment.tp_grad == "partial"]
        return {each.name: each.local.unique().tolist() for each in shared}

    monkeypatch.setattr(dist, "all_reduce", lambda x, group: buffers.append(x.clone()))
    names = {name for rank in range(8) for name in summed(rank)}
    assert {name.rpartition(".attention.")[2] for name in names} == {"k.weight", "v.weight"}
    total = torch.stack(buffers).sum(0)
    monkeypatch.setattr(dist, "all_reduce", lambda x, group: x.copy_(total))
    for rank in range(8):
        both = 3 * 2.0 ** (rank // 2 * 2)
        assert summed(rank) == {name: [both] for name in names}


def test_every_action_that_ends_a_step_has_a_handler() -> None:
    nothing: Any = None
    assert StepEnd(nothing, nothing).handlers.keys() == END_OF.keys() == set(ONCE) - {Kind.SHARE}


def test_a_partial_gradient_of_another_rank_is_not_shown_as_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sum is NaN on all ranks of tp; only the rank with a NaN of its own is to blame."""
    handle: Any = object()
    tp = Group((0, 1), 0, handle)
    made = spec({"language": box(0, tp=2, model={"heads": 2, "kv_heads": 1, "hidden": 64})})
    declared = with_gradients(made, ParallelContext(tp), 0.5)[1].declared()
    flag = FiniteFlag(torch.device("cpu"))
    monkeypatch.setattr(dist, "all_reduce", lambda x, group: x.fill_(math.nan))
    sum_partial_gradients(declared, tp, flag)
    assert any(each.local.isnan().any() for each in local_segments(declared))
    assert math.isfinite(float(flag.value))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("value", [1.0, math.nan])
def test_gradients_over_one_rank_are_seen_once_they_are_in_the_buffer(
    value: float, *, alone: bool, kept: bool
) -> None:
    """FSDP2 asks for the output after it has filled the input; over several ranks it is reduced."""
    flag, cpu = FiniteFlag(torch.device("cpu")), torch.device("cpu")
    reduction = GradientReduction(flag, alone=alone, kept=kept)
    for _ in range(2):
        filled = reduction.allocate([4], dtype=torch.float32, device=cpu).fill_(value)
        assert not flag.value.isnan()
        output = reduction.allocate([4], dtype=torch.float32, device=cpu)
        assert bool(flag.value.isnan()) == (alone and math.isnan(value))
        assert (output is filled) == (alone and kept)
        flag.clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_are_not_finite_by_their_numbers_not_by_their_sum(dtype: torch.dtype) -> None:
    largest = torch.full((8,), torch.finfo(dtype).max, dtype=dtype)
    both = torch.tensor([math.inf, 0, -math.inf], dtype=dtype)
    named = [("large", largest), ("both", both), ("fine", torch.ones(3, dtype=dtype))]
    assert not largest.sum().isfinite()
    assert not_finite([*named, ("nothing", largest[:0]), ("nan", both * 0)]) == ["both", "nan"]
    assert not_finite([]) == []
