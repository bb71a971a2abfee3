"""Ten thousand samples of shards: an epoch on any layout, and over a kill and another layout."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.support.shard_runs import read_parts, shard_spec
from tests.support.shards import planted, tokenizer_folder, write_shards

from mimo_launch.data.build import build_dataset

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
# With the two whose damage only decoding shows, whole steps of 60.
GOOD, BAD, STEP = 10_078, 20, 60
STEPS = (GOOD + 2) // STEP

SPEC = """
version: 1
name: epoch
modules:
  vision:
    model: {{kind: vit, layers: 1, hidden: 16, heads: 2, patch: 4, channels: 3}}
    {vision}
  language:
    model: {{kind: decoder, layers: 1, hidden: 16, heads: 2, vocab: 400}}
    {language}
batch: {{global: 60, seq: 192}}
data:
  {{kind: webdataset, shards: "../*.tar", tokenizer: ../tokenizer, template: chat, max_rows: 24}}
train: {{steps: 168, log_every: 20}}
checkpoint: {{every: 20}}
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("shards")
    tokenizer_folder(folder / "tokenizer")
    return folder, write_shards(folder, samples=GOOD, bad=BAD, shards=10)


def keys_of_good() -> set[str]:
    return {f"{number:06d}" for number in range(GOOD)}


@pytest.mark.parametrize("dp", [1, 2, 3, 4])
def test_an_epoch_of_ten_thousand_has_every_good_sample_once(
    shards: tuple[Path, dict[str, str]], dp: int
) -> None:
    folder, said = shards
    made = shard_spec(folder, dp, placed="same")
    dataset = build_dataset(made)
    given = read_parts([(made, 0, dataset.num_samples("train"))])
    assert {name.split()[1] for name in given.texts} == keys_of_good()
    assert set(given.texts.values()) == {1}
    assert given.images == given.texts
    named = {each["key"]: each["why"] for each in dataset.splits["train"].index.bad()}
    named |= {name.split()[1]: why for name, why in given.bad.items()}
    assert named.keys() == said.keys()
    assert all(said[key] in why for key, why in named.items())


def started(folder: Path, layout: dict[str, str], spied: str) -> subprocess.Popen[str]:
    """Train in a folder, on a layout."""
    (folder / "spec.yaml").write_text(SPEC.format(**layout))
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    driver = Path(__file__).parent / "spied_train.py"
    return subprocess.Popen(
        [sys.executable, str(driver), spied, "train", "spec.yaml", "--device", "cpu"],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def read_by(spied: Path, ranks: list[int], steps: int | None = None) -> Counter[str]:
    """Keys that language ranks read in their first steps, which share a step evenly."""
    each = STEP // len(ranks)
    found: Counter[str] = Counter()
    for rank in ranks:
        keys = (spied / f"rank-{rank}").read_text().split()
        found.update(keys if steps is None else keys[: steps * each])
    return found


def test_a_killed_run_goes_on_exactly_on_another_layout(
    shards: tuple[Path, dict[str, str]],
) -> None:
    """SIGKILL for launcher and ranks after 70 of 168 steps; dp 2 beside vision, then dp 3."""
    folder, said = shards
    run = folder / "run"
    run.mkdir()
    metrics = run / "runs" / "epoch" / "metrics.jsonl"
    beside = {"vision": "ranks: 0", "language": "ranks: 1-2\n    grid: {dp: 2}"}
    first = started(run, beside, "first")
    limit = time.time() + 400
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 70:
        assert first.poll() is None, first.communicate()[0]
        assert time.time() < limit
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    dp3 = "ranks: 0-2\n    grid: {dp: 3}"
    second = started(run, {"vision": dp3, "language": dp3}, "second")
    out, _ = second.communicate(timeout=500)
    assert second.returncode == 0, out
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [each["step"] for each in records if "loss" in each] == list(range(1, STEPS + 1))
    resumed = int(out.partition("resumes after step ")[2].partition(";")[0])
    assert 40 <= resumed <= 80
    assert resumed % 20 == 0
    taken = read_by(run / "first", [1, 2], resumed) + read_by(run / "second", [0, 1, 2])
    decoding = {key for number, key in enumerate(said) if planted(number)[2]}
    assert taken == Counter(dict.fromkeys(keys_of_good() | decoding, 1))
    assert f"{BAD - len(decoding)} bad, see" in out
    assert sum(each.get("bad_samples", 0) for each in records) == len(decoding)
