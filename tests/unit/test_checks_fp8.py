"""Products in 8 bits are refused where a size, the backend or the hardware is in the way."""

from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.launcher import gpus
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.row_owners import held_patches, local_rows
from mimo_launch.spec.spec import Spec

ENGINE = {"backend": "transformer_engine", "fp8": {}}
WIDE = {"hidden": 64, "heads": 4, "kv_heads": 2, "mlp": 128, "head_dim": 16}


def made(language: dict[str, Any], seq: int = 48, mbs: int = 1) -> Spec:
    """Return a spec whose language multiplies in 8 bits."""
    sizes = {"model": WIDE} | ENGINE | language
    modules = {"language": box(0, **sizes)}
    return spec(modules, seq=seq, mbs=mbs, train={"precision": "bf16"})


def words(given: Spec) -> list[str]:
    """Return why each finding about FP8 was made."""
    return [item.why or "" for item in check(given) if item.code == "fp8-cannot"]


def test_sizes_that_fit_are_accepted() -> None:
    assert words(made({})) == []
    assert words(made({"fp8": {"scaling": "current", "format": "e4m3"}})) == []


@pytest.mark.parametrize(
    ("language", "why"),
    [
        ({"backend": "torch"}, "the backend `torch`"),
        ({"fp8": {"scaling": "current", "amax_history": 16}}, "keeps no history"),
        ({"model": WIDE | {"hidden": 72, "head_dim": 16}}, "tokens on a tp rank are 72"),
        ({"model": WIDE | {"mlp": 136}}, "inner MLPs on a tp rank are 136"),
        ({"model": WIDE | {"mlp": 144}, "tp": 2}, "inner MLPs on a tp rank are 72"),
        ({"model": WIDE | {"head_dim": 8, "heads": 2}, "tp": 2}, "heads on a tp rank are 8"),
    ],
)
def test_what_is_in_the_way_is_named(language: dict[str, Any], why: str) -> None:
    found = words(made(language))
    assert found
    assert any(why in each for each in found), found


def test_tokens_of_a_rank_come_in_steps() -> None:
    assert any("holds 40 tokens" in each for each in words(made({}, seq=40)))
    assert words(made({}, seq=40, mbs=2)) == []
    shared = {"tp": 2, "sequence_parallel": True}
    assert any("holds 24 tokens" in each for each in words(made(shared)))
    assert words(made(shared, mbs=2)) == []


@pytest.mark.parametrize("total", [1, 3, 16, 37])
@pytest.mark.parametrize("grid", [{}, {"tp": 2, "sequence_parallel": True}, {"cp": 2}])
def test_patches_are_padded_to_steps_on_every_shard(grid: dict[str, Any], total: int) -> None:
    given = spec(
        {
            "vision": box(0, model={"shuffle": 2}, **ENGINE, **grid),
            "language": box(0, tp=2 if grid else 1),
        },
        train={"precision": "bf16"},
    )
    module = build_layout(given)["vision"]
    shards = module.grid.size("tp") if module.sequence_parallel else 1
    for cp in range(module.grid.size("cp")):
        assert len(held_patches(module, total, cp)) % (16 * shards) == 0
    assert local_rows(module, total) * module.grid.size("cp") < total + 4 * shards * 2 + 1


def test_a_host_that_cannot_is_told_before_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    given = made({})
    with pytest.raises(gpus.NotEnoughGpus, match=r"needs GPUs; write .*backend=torch .*fp8=null"):
        gpus.refuse_backends(given, "cpu")
    monkeypatch.setattr(gpus, "gpus_here", lambda: gpus.Gpus(2, (8, 0)))
    with pytest.raises(gpus.NotEnoughGpus, match=r"has one of 8\.0; write"):
        gpus.refuse_backends(given, "cuda")
    monkeypatch.setattr(gpus, "gpus_here", lambda: gpus.Gpus(2, (9, 0)))
    gpus.refuse_backends(given, "cuda")
    gpus.refuse_backends(made({"fp8": None, "backend": "torch"}), "cpu")
