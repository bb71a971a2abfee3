"""When the scales of FP8 move, with stand-ins for Transformer Engine's layers and for its kernel.

And which recipe of the package a spec asks for.

The kernel's rules are those of `delayed_scaling.cu`: a magnitude of 0 in what it is given is read
from the history instead, and a scale stays where the largest magnitude is 0 or no number.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from mimo_launch.comm.process_groups import Group  # noqa: E402
from mimo_launch.layers import te_fp8  # noqa: E402
from mimo_launch.layers.te_fp8 import Fp8  # noqa: E402
from mimo_launch.spec.fp8 import SCALINGS, Fp8Spec, ScalingName  # noqa: E402

LARGEST, LENGTH = 448.0, 4


def kernel(
    seen: Tensor, histories: list[Tensor], scales: list[Tensor], algo: str, dtype: str, margin: int
) -> None:
    """Do what the package's kernel does to one layer."""
    assert (algo, dtype, margin) == ("max", "e4m3", 0)
    [history], [scale] = histories, scales
    last = torch.where(seen != 0, seen, history[0])
    moved = torch.cat([torch.zeros_like(history[:1]), history[2:], last[None]])
    history.copy_(torch.where(last != 0, moved, history))
    largest = torch.where(last != 0, history.amax(dim=0), 0.0)
    follows = largest.isfinite() & (largest > 0)
    scale.copy_(torch.where(follows, LARGEST / largest, scale))


@pytest.fixture
def fp8(monkeypatch: pytest.MonkeyPatch) -> Fp8:
    """FP8 of one layer with three tensors on the way there, and two on the way back."""
    quantization = ModuleType("transformer_engine.pytorch.quantization")
    quantization.get_fp8_te_dtype = lambda recipe, forward: "e4m3"
    kernels = ModuleType("transformer_engine_torch")
    kernels.fused_amax_and_scale_update_after_reduction = kernel
    for module in (quantization, kernels):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "transformer_engine", ModuleType("transformer_engine"))
    pytorch = ModuleType("transformer_engine.pytorch")
    monkeypatch.setitem(sys.modules, pytorch.__name__, pytorch)
    alone = Group((0,), 0, None)
    made = Fp8(Fp8Spec(amax_history=LENGTH), alone, alone, grad_scale=64.0)
    made._recipe = SimpleNamespace(amax_compute_algo="max", margin=0)
    state = {
        key: SimpleNamespace(amax_history=torch.zeros(LENGTH, size), scale=torch.ones(size))
        for key, size in (("scaling_fwd", 3), ("scaling_bwd", 2))
    }
    made.add("layers.0.mlp", SimpleNamespace(fp8_meta=state))
    return made


def see(fp8: Fp8, *magnitudes: float) -> None:
    """Let the tensors of the way there have these magnitudes in a step."""
    dict(fp8.tensors())["layers.0.mlp.forward.amax_history"][0] = torch.tensor(magnitudes)


def forward_state(fp8: Fp8) -> tuple[Tensor, Tensor]:
    tensors = dict(fp8.tensors())
    name = "layers.0.mlp.forward"
    return tensors[f"{name}.amax_history"], tensors[f"{name}.scale"]


def test_scales_follow_the_largest_magnitude_of_the_history(fp8: Fp8) -> None:
    for largest in (2.0, 4.0, 1.0):
        see(fp8, largest, 0.0, 7.0)
        fp8.update(None)
    history, scale = forward_state(fp8)
    assert scale.tolist() == [LARGEST / 4, 1.0, LARGEST / 7]
    assert history[0].tolist() == [0.0, 0.0, 0.0]


def test_a_skipped_step_leaves_scales_and_histories(fp8: Fp8) -> None:
    """Of what was seen in it nothing stays behind, however large or bad it was."""
    see(fp8, 2.0, 4.0, 8.0)
    fp8.update(torch.tensor(0.0))
    before = [tensor.clone() for tensor in forward_state(fp8)]
    see(fp8, float("inf"), 100.0, float("nan"))
    fp8.update(torch.tensor(1.0))
    assert all(map(torch.equal, before, forward_state(fp8)))


def test_a_magnitude_that_is_no_number_is_forgotten(fp8: Fp8) -> None:
    """In a history it would hold a scale where it is for as many steps as that has.

    A step need not be skipped for it: what becomes an FP8 number is at most the largest of them.
    """
    see(fp8, float("inf"), float("nan"), 8.0)
    fp8.update(torch.tensor(0.0))
    see(fp8, 2.0, 4.0, 8.0)
    fp8.update(torch.tensor(0.0))
    history, scale = forward_state(fp8)
    assert bool(history.isfinite().all())
    assert scale.tolist() == [LARGEST / 2, LARGEST / 4, LARGEST / 8]


def test_magnitudes_are_the_largest_of_the_ranks_of_a_stage(
    fp8: Fp8, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that cut its layers, and of its replicas."""
    tp, replicas = Group((0, 1), 0, None), Group((0, 2), 0, None)
    elsewhere = {tp: [8.0, 0.0, 0.0, 0.0, 0.0], replicas: [0.0, 16.0, 0.0, 0.0, 32.0]}

    def largest(seen: Tensor, group: Group) -> Tensor:
        return torch.maximum(seen, torch.tensor(elsewhere[group]))

    monkeypatch.setattr(te_fp8, "all_reduce_max", largest)
    fp8._groups = tp, replicas
    see(fp8, 2.0, 4.0, 64.0)
    fp8.update(None)
    _, scale = forward_state(fp8)
    assert scale.tolist() == [LARGEST / 8, LARGEST / 16, LARGEST / 64]
    backward = dict(fp8.tensors())["layers.0.mlp.backward.scale"]
    assert backward.tolist() == [1.0, LARGEST / 32]


@pytest.mark.parametrize("scaling", [name for name in SCALINGS if name != "delayed"])
def test_other_scalings_keep_nothing_from_step_to_step(scaling: ScalingName) -> None:
    """Without the package: an update that asked it for anything would raise."""
    alone = Group((0,), 0, None)
    stateless = Fp8(Fp8Spec(scaling=scaling), alone, alone, grad_scale=64.0)
    stateless.add("layers.0.mlp", SimpleNamespace())  # type: ignore[arg-type]
    stateless.update(torch.tensor(0.0))
    assert list(stateless.tensors()) == []


@pytest.mark.parametrize(
    ("settings", "recipe"),
    [
        ({}, ("DelayedScaling", {"fp8_format": "hybrid", "amax_history_len": 1024})),
        ({"scaling": "current"}, ("Float8CurrentScaling", {"fp8_format": "hybrid"})),
        ({"scaling": "blockwise"}, ("Float8BlockScaling", {"fp8_format": "e4m3"})),
        (
            {"scaling": "blockwise", "format": "hybrid"},
            ("Float8BlockScaling", {"fp8_format": "hybrid"}),
        ),
        (
            {"format": "e4m3", "amax_history": 4},
            ("DelayedScaling", {"fp8_format": "e4m3", "amax_history_len": 4}),
        ),
    ],
)
def test_a_scaling_is_a_recipe_of_the_package(
    settings: dict[str, Any], recipe: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, reason = [], "needs another GPU"
    recipes: Any = ModuleType("transformer_engine.common.recipe")
    recipes.Format = {"HYBRID": "hybrid", "E4M3": "e4m3"}
    for name in ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling"):
        setattr(recipes, name, lambda name=name, **options: (name, options))
    common: Any = ModuleType("transformer_engine.common")
    common.recipe = recipes
    quantization: Any = ModuleType("transformer_engine.pytorch.quantization")
    for module in (recipes, common, quantization):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(te_fp8, "_hold_back_updates", lambda: None)
    quantization.check_recipe_support = asked.append
    alone = Group((0,), 0, None)
    made = Fp8(Fp8Spec(**settings), alone, alone, grad_scale=1.0)
    made.open(ModuleType("transformer_engine.pytorch"))
    assert asked == [recipe]

    def refuse(_: object) -> None:
        raise RuntimeError(reason)

    quantization.check_recipe_support = refuse
    with pytest.raises(RuntimeError, match=reason):
        made.open(ModuleType("transformer_engine.pytorch"))


@pytest.mark.parametrize(("tp", "replica"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_one_rank_of_a_stage_saves_its_scales(tp: int, replica: int) -> None:
    groups = Group((0, 1), tp, None), Group((0, 2), replica, None)
    assert Fp8(Fp8Spec(), *groups, grad_scale=1.0).saves == (tp == replica == 0)
