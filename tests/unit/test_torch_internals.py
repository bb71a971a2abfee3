"""What we rely on in torch without a promise: a version that changes any of it fails here."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from mimo_launch.comm import torch_internals
from mimo_launch.comm.gradient_reduction import GradientReduction
from mimo_launch.models.fsdp import fsdp_modules
from mimo_launch.optimizer.adamw import LocalAdamW
from mimo_launch.spec.optimizers import OptimizerSpec


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[nn.Module]:
    """One FSDP2 unit [3 -> 5] in a world of one, which reduces in fp32 and computes in bf16."""
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    network = nn.Linear(3, 5)
    fully_shard(
        network, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy, reshard_after_forward=False
    )
    yield network
    dist.destroy_process_group()


def test_fsdp_says_where_it_keeps_a_gradient_and_when_it_reduces_it(unit: nn.Module) -> None:
    (module,) = fsdp_modules(unit)
    weight, bias = torch_internals.fsdp_parameters(module)
    assert (weight.owner, weight.name, bias.name) == (unit, "weight", "bias")
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    module.set_requires_gradient_sync(False)
    unit(x).sum().backward()
    assert weight.reduce_dtype == torch.float32
    assert not weight.reduces_now
    assert weight.gradient is not None
    assert weight.gradient.dtype == torch.float32
    assert torch.equal(weight.gradient, torch.full((5, 3), 2.0))
    # What is put there is what FSDP2 reduces in the end, with what the last backward adds.
    weight.gradient = torch.full((5, 3), 40.0)
    module.set_requires_gradient_sync(True)
    unit(x).sum().backward()
    assert weight.reduces_now
    gradient = unit.weight.grad
    assert gradient is not None
    assert torch.equal(gradient.to_local(), torch.full((5, 3), 42.0))  # type: ignore[attr-defined]


@pytest.mark.parametrize("kept", [False, True])
def test_fsdp_asks_for_the_input_and_then_for_the_output_of_a_reduction(
    unit: nn.Module, *, kept: bool
) -> None:
    """The output is the memory of the gradient."""
    buffers: list[Tensor] = []

    class Seen(GradientReduction):
        def allocate(self, *args: Any, **settings: Any) -> Tensor:
            buffers.append(super().allocate(*args, **settings))
            return buffers[-1]

    (module,) = fsdp_modules(unit)
    module.set_custom_reduce_scatter(Seen(None, alone=True, kept=kept))  # type: ignore[arg-type]
    unit(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
    given, reduced = buffers
    assert torch.equal(given, torch.full((20,), 2.0))
    assert unit.weight.grad.to_local().data_ptr() == reduced.data_ptr()  # type: ignore[union-attr,operator]
    assert (given.data_ptr() == reduced.data_ptr()) == kept


# As torch's optimizers ask for moments.
KEPT = {"memory_format": torch.preserve_format}


def sharded_weight(rows: int) -> Tensor:
    """Return the weight [rows, 3] of a layer that gets memory after it is sharded."""
    with torch.device("meta"):
        network = nn.Linear(3, rows)
    fully_shard(network, mesh=init_device_mesh("cpu", (1,)))
    return network.to_empty(device="cpu").weight


@pytest.fixture
def made(unit: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[FakeTensorMode]:
    """The modes of fake tensors that have been made since."""
    made: list[FakeTensorMode] = []
    start = FakeTensorMode.__init__

    def counted(mode: FakeTensorMode, *args: Any, **settings: Any) -> None:
        made.append(mode)
        start(mode, *args, **settings)

    monkeypatch.setattr(FakeTensorMode, "__init__", counted)
    return made


def test_weights_get_the_shapes_of_their_operands_without_fake_tensors(
    made: list[FakeTensorMode],
) -> None:
    # DTensor remembers shapes, so each way has its own.
    with torch_internals.shapes_of_operands():
        ours = sharded_weight(11)
        turned = distribute_tensor(torch.ones(13, 3).t(), init_device_mesh("cpu", (1,)))
        moments = [torch.zeros_like(ours), torch.zeros_like(ours, **KEPT)]
        assert made == []
        for like in (torch.empty_like, torch.zeros_like):
            assert like(turned).stride() == (1, 3)
            assert like(ours, dtype=torch.float64).dtype == torch.float64
    made.clear()
    torchs = sharded_weight(12)
    assert made
    assert isinstance(ours, DTensor)
    assert isinstance(torchs, DTensor)
    assert (ours.shape, ours.stride(), ours.dtype) == ((11, 3), torchs.stride(), torchs.dtype)
    for each in (ours, *moments):
        assert (each.placements, each.device_mesh) == (torchs.placements, torchs.device_mesh)
    for each in moments:
        assert torch.equal(each.to_local(), torch.zeros(11, 3))
        assert (each.shape, each.stride(), each.dtype) == (ours.shape, ours.stride(), ours.dtype)


@pytest.mark.parametrize("at_once", [False, True])
def test_the_moments_of_weights_are_made_without_fake_tensors(
    at_once: bool, made: list[FakeTensorMode]
) -> None:
    """By the first step, and before it for a checkpoint."""
    with torch_internals.shapes_of_operands():
        weight = sharded_weight(17 + at_once)
        weight.grad = weight.detach()
    optimizer = LocalAdamW([{"params": [weight]}], OptimizerSpec())
    if at_once:
        optimizer.initial_state(weight)
    else:
        optimizer.step()
    assert made == []


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_an_optimizer_hands_its_kernel_local_shards(
    kind: type[torch.optim.Optimizer], unit: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Local(torch_internals.LocalKernels, kind):  # type: ignore[misc, valid-type]
        pass

    before = unit.weight.to_local().clone()  # type: ignore[operator]
    unit(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
    seen = []
    name = f"_fused_{kind.__name__.lower()}_"
    fused = getattr(torch, name)
    monkeypatch.setattr(torch, name, lambda *a, **k: (seen.extend(a[0]), fused(*a, **k))[1])
    Local(unit.parameters(), lr=0.5, weight_decay=0.0, fused=True).step()
    assert {type(each) for each in seen} <= {torch.Tensor, nn.Parameter}
    assert len(seen) == 2
    assert not torch.equal(unit.weight.to_local(), before)  # type: ignore[operator]


def test_kernels_over_many_tensors() -> None:
    small, large = torch.tensor([3.0, 4.0]), torch.full((4,), 1e25)
    found = torch_internals.norms([small, large], 2, torch.float64)
    assert [each.dtype for each in found] == [torch.float64] * 2
    assert [each.item() for each in found] == pytest.approx([5.0, 2e25])
    torch_internals.divide_([small, large], torch.tensor(2.0))
    assert small.tolist() == [1.5, 2.0]
    torch_internals.copy_([small], [torch.ones(2)])
    assert small.tolist() == [1.0, 1.0]


def test_runs_of_rows_times_a_matrix_each() -> None:
    x, weights = torch.randn(5, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16()
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = torch_internals.grouped_matmul(x, weights, ends)
    assert torch.allclose(found, torch.cat([x[:2] @ weights[0], x[2:] @ weights[2]]), atol=0.1)


def test_a_product_adds_to_a_sum_of_a_wider_type() -> None:
    a, b = torch.full((2, 4), 1.0078125).bfloat16(), torch.full((4, 3), 1.0078125).bfloat16()
    total = torch.full((2, 3), 0.5)
    torch_internals.add_product_(total, a, b)
    assert torch.equal(total, torch.full((2, 3), 0.5 + 4 * 1.0078125**2))


def test_a_product_of_two_matrices_in_8_bits() -> None:
    left, right = (torch.randn(n, 64).to(torch.float8_e4m3fn) for n in (32, 48))
    made = torch_internals.scaled_product(left, right, is_fast=False)
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made.float(), left.float() @ right.float().t(), rtol=0.01, atol=0.1)


def test_attention_over_lists_gives_a_log_sum_exp_and_its_backward_takes_another() -> None:
    """Its kernel needs a GPU, so only shapes are computed here."""
    with FakeTensorMode():
        q, k = torch.empty(5, 4, 8), torch.empty(7, 2, 8)
        bounds = torch.empty(2, dtype=torch.int32)
        lists = {"bounds": (bounds, bounds), "longest": (5, 7), "scale": 0.5, "window": (2, 0)}
        out, log_sum_exp = torch_internals.varlen_forward((q, k, k), **lists)  # type: ignore[arg-type]
        found = torch_internals.varlen_backward(q, (q, k, k), q, torch.empty(4, 5), **lists)  # type: ignore[arg-type]
    assert (out.shape, log_sum_exp.shape) == (q.shape, (4, 5))
    assert [each.shape for each in found] == [q.shape, k.shape, k.shape]


def test_what_a_gpu_allocates_is_recorded_by_these_calls() -> None:
    """They need a GPU, so only what they take is looked at here."""
    memory = torch.cuda.memory
    assert {"enabled", "context"} <= set(
        inspect.signature(memory._record_memory_history).parameters
    )
    assert "filename" in inspect.signature(memory._dump_snapshot).parameters


def test_the_allocator_takes_settings() -> None:
    torch_internals.set_allocator("max_split_size_mb:512")
    with pytest.raises(TypeError):
        torch_internals.set_allocator(512)  # type: ignore[arg-type]


def test_a_gpu_can_be_held_back() -> None:
    """A call takes cycles; only a GPU can be asked to wait."""
    assert callable(torch.cuda._sleep)


def test_groups_that_were_shut_down_keep_their_connections(unit: nn.Module) -> None:
    """Gloo still answers: its sockets close with the process, not while a peer closes its own."""
    second = dist.new_group([0])
    torch_internals.shut_down_groups()
    for group in (dist.group.WORLD, second):
        one = torch.ones(1)
        dist.all_reduce(one, group=group)
        assert one.item() == 1


def test_compiled_functions_keep_what_a_second_backward_needs_where_that_is_asked() -> None:
    """The setting that the error names of a compiled backward that runs again."""
    settings = torch_internals.compiled_autograd
    # What `monkeypatch` undoes is hidden from torch afterwards.
    with settings.patch(donated_buffer=True):  # type: ignore[attr-defined]
        torch_internals.keep_for_second_backwards()
        assert settings.donated_buffer is False
