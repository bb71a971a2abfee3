"""Products in 8 bits are refused where a size, the backend or the hardware is in the way."""

from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.launcher import gpus
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.row_owners import held_patches, local_rows
from mimo_launch.spec.fp8 import SCALINGS, ScalingName
from mimo_launch.spec.spec import Spec

ENGINE = {"backend": "transformer_engine", "fp8": {}}
WIDE = {"hidden": 64, "heads": 4, "kv_heads": 2, "mlp": 128, "head_dim": 16}
IN_TILES = {"hidden": 256, "heads": 8, "kv_heads": 4, "mlp": 512, "head_dim": 32}
BLOCKWISE = {"fp8": {"scaling": "blockwise"}, "model": IN_TILES}


def made(language: dict[str, Any], seq: int = 48, mbs: int = 1, **sections: Any) -> Spec:
    """Return a spec whose language multiplies in 8 bits."""
    sizes = {"model": WIDE} | ENGINE | language
    modules = {"language": box(0, **sizes)}
    return spec(modules, seq=seq, mbs=mbs, train={"precision": "bf16"}, **sections)


def words(given: Spec) -> list[str]:
    """Return why each finding about FP8 was made."""
    return [item.why or "" for item in check(given) if item.code == "fp8-cannot"]


def test_sizes_that_fit_are_accepted() -> None:
    assert words(made({})) == []
    assert words(made({"fp8": {"scaling": "current", "format": "e4m3"}})) == []
    assert words(made(BLOCKWISE, seq=128)) == []


@pytest.mark.parametrize(
    ("language", "why"),
    [
        ({"backend": "torch"}, "the backend `torch`"),
        ({"fp8": {"scaling": "current", "amax_history": 16}}, "keeps no history"),
        ({"fp8": {"scaling": "blockwise", "amax_history": 16}}, "keeps no history"),
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


@pytest.mark.parametrize(
    ("language", "seq", "why", "help_"),
    [
        ({"model": IN_TILES | {"hidden": 320}}, 128, "tokens on a tp rank are 320", "current"),
        ({"model": IN_TILES | {"mlp": 576}}, 128, "inner MLPs on a tp rank are 576", "current"),
        ({"model": IN_TILES | {"mlp": 904}}, 128, "inner MLPs on a tp rank are 904", None),
        ({"tp": 2, "sequence_parallel": True}, 128, "holds 64 tokens", "current"),
        ({}, 80, "holds 80 tokens", "current"),
        ({}, 72, "holds 72 tokens", None),
        ({"tp": 4, "cp": 2}, 256, "heads on a tp rank are 64", "current"),
    ],
)
def test_tiles_of_128_fit_into_every_size_of_a_rank(
    language: dict[str, Any], seq: int, why: str, help_: str | None
) -> None:
    """And where a scale for a whole tensor would do, the finding says so."""
    found = check(made(BLOCKWISE | language, seq=seq))
    [only] = [each for each in found if each.code == "fp8-cannot"]
    assert why in (only.why or "")
    other = "or delete `fp8`" if help_ is None else f"or write `scaling: {help_}`"
    assert (only.help or "").endswith(other)


@pytest.mark.parametrize(
    ("sizes", "seq", "whys", "help_"),
    [
        ({"hidden": 320, "mlp": 904}, 128, ("are 320", "are 904"), "or delete `fp8`"),
        ({"hidden": 320}, 72, ("are 320", "holds 72"), "or delete `fp8`"),
        ({"hidden": 320, "mlp": 576}, 80, ("are 320", "are 576", "holds 80"), "scaling: current`"),
    ],
)
def test_a_scaling_is_offered_only_if_it_takes_every_size(
    sizes: dict[str, int], seq: int, whys: tuple[str, ...], help_: str
) -> None:
    found = check(made(BLOCKWISE | {"model": IN_TILES | sizes}, seq=seq))
    about = [each for each in found if each.code == "fp8-cannot"]
    assert all(why in (each.why or "") for each, why in zip(about, whys, strict=True))
    assert all((each.help or "").endswith(help_) for each in about)


@pytest.mark.parametrize(
    ("gpu", "scaling", "can"),
    [
        *(("a100-80gb", scaling, False) for scaling in SCALINGS),
        *((gpu, scaling, True) for gpu in ("h100-80gb", "b200-180gb") for scaling in SCALINGS),
    ],
)
def test_gpus_that_cannot_are_named(gpu: str, scaling: str, can: bool) -> None:
    given = BLOCKWISE | {"fp8": {"scaling": scaling}}
    found = words(made(given, seq=128, nodes={"gpus": 4, "gpu": gpu}))
    assert found == [] if can else "NVIDIA A100 80GB has 8.0" in found[0]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("total", [1, 3, 16, 37])
@pytest.mark.parametrize("grid", [{}, {"tp": 2, "sequence_parallel": True}, {"cp": 2}])
def test_patches_are_padded_to_steps_on_every_shard(
    grid: dict[str, Any], total: int, scaling: ScalingName
) -> None:
    step, engine = SCALINGS[scaling].step, ENGINE | {"fp8": {"scaling": scaling}}
    given = spec(
        {
            "vision": box(0, model={"shuffle": 2}, **engine, **grid),
            "language": box(0, tp=2 if grid else 1),
        },
        train={"precision": "bf16"},
    )
    module = build_layout(given)["vision"]
    shards = module.grid.size("tp") if module.sequence_parallel else 1
    for cp in range(module.grid.size("cp")):
        assert len(held_patches(module, total, cp)) % (step * shards) == 0
    assert local_rows(module, total) * module.grid.size("cp") < total + step // 4 * shards * 2 + 1


def test_a_host_that_cannot_is_told_before_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    given = made({})
    with pytest.raises(gpus.NotEnoughGpus, match=r"needs GPUs; write .*backend=torch .*fp8=null"):
        gpus.refuse_backends(given, "cpu")
    monkeypatch.setattr(gpus, "gpus_here", lambda: gpus.Gpus(2, (8, 0)))
    with pytest.raises(gpus.NotEnoughGpus, match=r"has one of 8\.0; write"):
        gpus.refuse_backends(given, "cuda")
    monkeypatch.setattr(gpus, "gpus_here", lambda: gpus.Gpus(2, (8, 9)))
    gpus.refuse_backends(given, "cuda")
    in_tiles = made(BLOCKWISE, seq=128)
    with pytest.raises(gpus.NotEnoughGpus, match=r"9\.0 or later .*8\.9; .*fp8\.scaling=current"):
        gpus.refuse_backends(in_tiles, "cuda")
    monkeypatch.setattr(gpus, "gpus_here", lambda: gpus.Gpus(2, (9, 0)))
    gpus.refuse_backends(given, "cuda")
    gpus.refuse_backends(in_tiles, "cuda")
    gpus.refuse_backends(made({"fp8": None, "backend": "torch"}), "cpu")
