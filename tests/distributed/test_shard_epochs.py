"""An epoch of shards: every good sample once on any layout and over a change of it, bad ones named.

The same over 10,000 samples is in tests/faults/test_shards.py.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.shard_runs import GLOBAL, read_parts, shard_spec
from tests.support.shards import planted, write_shard, write_shards
from tests.support.specs import box

from mimo_launch.data.build import build_dataset
from mimo_launch.data.index.split_report import NotTrainable
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import EvalFinished, StepFinished
from mimo_launch.train.loop import train
from mimo_launch.train.rank_session import RankSession


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("shards")
    return folder, write_shards(folder, samples=100, bad=10, shards=3)


@pytest.mark.parametrize("sizes", [(1,), (2, 3)])
def test_an_epoch_has_every_good_sample_once(
    shards: tuple[Path, dict[str, str]], sizes: tuple[int, ...]
) -> None:
    """Read by dp 1 on one rank; and by dp 2 up to the middle, by dp 3 from there."""
    folder, said = shards
    specs = [shard_spec(folder, dp, placed="same" if dp == 1 else "disjoint") for dp in sizes]
    total = build_dataset(specs[0]).num_samples("train")
    cuts = [len(range(0, total, GLOBAL)) * i // len(sizes) * GLOBAL for i in range(len(sizes))]
    ends = [*cuts[1:], total]
    given = read_parts(list(zip(specs, cuts, ends, strict=True)))
    keys = {name.split()[1]: name for name in given.texts}
    decoding = {key for n, key in enumerate(said) if planted(n)[2]}
    good = {f"{n:06d}" for n in range(100)}
    assert set(keys) == good
    assert given.texts == Counter(dict.fromkeys(given.texts, 1))
    assert given.images == given.texts
    assert {name.split()[1] for name in given.bad} == decoding
    for name, why in given.bad.items():
        assert why.startswith(name)
        assert said[name.split()[1]] in why


def losses(made: Spec) -> list[tuple[float, int]]:
    events: list[Any] = []
    with RankSession(Plan.of(made)) as session:
        train(session, events.append)
    return [(each.loss, each.tokens) for each in events if isinstance(each, StepFinished)]


def test_layouts_learn_the_same_from_shards(shards: tuple[Path, dict[str, str]]) -> None:
    """Images to both replicas of vision, text to both tp ranks; four steps in float64."""
    folder, _ = shards
    alone, wide = (
        shard_spec(
            folder,
            1,
            modules=modules,
            train={"steps": 4, "precision": "fp64"},
            optimizer={"kind": "sgd", "lr": 0.1},
        )
        for modules in (
            {"vision": box(0), "language": box(0)},
            {"vision": box(0, dp=2), "language": box(2, tp=2, pp=2)},
        )
    )
    (want,) = run_ranks(losses, alone, world_size=1)
    for found in run_ranks(losses, wide, world_size=6):
        for (loss, tokens), (expected, same) in zip(found, want, strict=True):
            assert tokens == same
            assert loss == pytest.approx(expected, rel=1e-10)
    assert want[0][0] != pytest.approx(want[-1][0], rel=1e-4), "it learns something"


def evaluations(made: Spec) -> list[EvalFinished]:
    events: list[Any] = []
    with RankSession(Plan.of(made), randomise=True) as session:
        train(session, events.append)
    return [each for each in events if isinstance(each, EvalFinished)]


def test_each_named_set_has_the_numbers_of_one_rank_that_evaluates_it_alone(
    shards: tuple[Path, dict[str, str]],
) -> None:
    """On six ranks; a shard of two sets counts in both."""
    folder, _ = shards
    parts = {"photos": ["000", "001"], "charts": ["001", "002"], "few": ["002"]}
    sets = {n: tuple(str(folder / f"{each}.tar") for each in names) for n, names in parts.items()}
    one = {"vision": box(0), "language": box(0)}
    wide = {"vision": box(0, dp=2), "language": box(2, tp=2, pp=2)}

    def asked(modules: dict[str, Any], held: Any) -> Spec:
        train = {"steps": 1, "precision": "fp64"}
        made = shard_spec(folder, 1, modules=modules, train=train, eval={"samples": "all"})
        return made.replace(data=made.data.replace(eval_shards=held))

    ((right,),) = run_ranks(evaluations, asked(one, sets["charts"]), world_size=1)
    for found in run_ranks(evaluations, asked(wide, sets), world_size=6):
        assert [each.eval_set for each in found] == list(sets)
        assert len({each.samples for each in found}) == len({each.eval_loss for each in found}) == 3
        assert found[1].samples == right.samples
        assert found[1].eval_loss == pytest.approx(right.eval_loss, rel=1e-9)


def test_a_named_set_without_a_sample_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=4, bad=0, shards=2)
    (tmp_path / "empty").mkdir()
    write_shard(tmp_path / "empty" / "0.tar", [("x", {"txt": b"no conversation"})])
    held = {"full": str(tmp_path / "000.tar"), "none": str(tmp_path / "empty" / "*.tar")}
    made = shard_spec(tmp_path, 1, eval={"samples": "all"})
    with pytest.raises(NotTrainable, match="the held-out set `none` holds no usable sample"):
        build_dataset(made.replace(data=made.data.replace(eval_shards=held)))
