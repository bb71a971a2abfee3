"""Three minutes of training from a server that is slow, fails, and is gone for a while."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.file_server import served_folder
from tests.support.shards import image_bytes, tokenizer_folder, write_shard

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
STEPS, OUTAGE = 220, 20.0
SPEC = """
version: 1
name: {name}
modules:
  vision:
    model: {{kind: vit, layers: 1, hidden: 16, heads: 2, patch: 4, channels: 3}}
    ranks: 0-1
    grid: {{dp: 2}}
  language:
    model: {{kind: decoder, layers: 1, hidden: 16, heads: 2, vocab: 400}}
    ranks: 0-1
    grid: {{dp: 2}}
batch: {{global: 8, seq: 192}}
data:
  kind: webdataset
  shards: "{shards}"
  tokenizer: {folder}/tokenizer
  template: chat
  max_rows: 24
  index: {folder}/{index}
  fetch: {{folder: {folder}/cache, gib: {gib}, patience: 60}}
train: {{steps: {steps}, log_every: 20}}
"""


def run(folder: Path, command: str, name: str, *options: str, **values: Any) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(SPEC.format(name=name, folder=folder, steps=STEPS, **values))
    subprocess.run(
        [sys.executable, "-m", "mimo_launch", command, str(path), *options],
        cwd=folder,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )
    return folder / "runs" / name


def photo(number: int) -> tuple[str, dict[str, Any]]:
    said = [
        {"role": "user", "content": f"<image>What is in {number}?"},
        {"role": "assistant", "content": "Two cats."},
    ]
    picture = image_bytes(300, 300, seed=number)
    return f"{number:06d}", {"json": {"messages": said}, "png": picture}


def steps_of(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [each for each in lines if "loss" in each and "reading" in each]


def test_a_run_over_a_bad_network_is_bit_equal_to_one_over_files(tmp_path: Path) -> None:
    """With a cache of 40 % of the data, so that most samples are fetched during the run."""
    (there := tmp_path / "there").mkdir()
    tokenizer_folder(tmp_path / "tokenizer")
    for shard in range(12):
        write_shard(there / f"{shard:02d}.tar", [photo(32 * shard + n) for n in range(32)])
    size = sum(each.stat().st_size for each in there.iterdir())
    near = {"shards": f"{there}/*.tar", "index": "near", "gib": 1}
    local = steps_of(run(tmp_path, "train", "near", **near))
    with served_folder(there) as server:
        names = sorted(each.name for each in there.iterdir())
        far = {
            "shards": f"{server.url}/{{{','.join(names)}}}",
            "index": "far",
            "gib": 0.4 * size / 2**30,
        }
        run(tmp_path, "data", "far", "--index-to", "shipped", "--show", "0", "--steps", "1", **far)
        shutil.rmtree(tmp_path / "cache")
        far["index"] = "shipped"
        server.delay, server.failing, server.cut = 0.2, 0.03, 0.02
        server.wrong = 0.02
        server.asked.clear()
        threading.Timer(60, lambda: setattr(server, "is_down", True)).start()
        threading.Timer(60 + OUTAGE, lambda: setattr(server, "is_down", False)).start()
        begin = time.monotonic()
        remote = steps_of(run(tmp_path, "train", "far", **far))
        seconds = time.monotonic() - begin
        asked = len(server.fetched())
    waited = [each["reading"]["waited_s"] for each in remote]
    print(
        f"{seconds:.0f} s, {asked:,} requests, {len(waited)} steps, waited {sum(waited):.0f} s, "
        f"at most {max(waited):.1f} s, median {sorted(waited)[len(waited) // 2]:.2f} s"
    )
    assert len(remote) == STEPS
    assert [each["loss"] for each in remote] == [each["loss"] for each in local]
    assert max(waited) > OUTAGE / 2
