"""An epoch of shards: every good sample once on any layout and over a change of it, bad ones named.

The same over 10,000 samples is in tests/faults/test_shards.py.
"""

from collections import Counter
from pathlib import Path

import pytest
from tests.support.shard_runs import GLOBAL, read_parts, shard_spec
from tests.support.shards import planted, write_shards

from mimo_launch.train.data.dataset import build_dataset


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
