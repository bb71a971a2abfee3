"""Minutes of training from a server that is slow, fails, and is gone for a while.

`FAULTS_MINUTES=30` trains from a bucket for so long, with an outage of a minute.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.faults.runs import without_times
from tests.support.file_server import Faults, served_bucket, served_folder
from tests.support.saved_tensors import tensors
from tests.support.shards import image_bytes, tokenizer_folder, write_shard

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
MINUTES = int(os.environ.get("FAULTS_MINUTES", "3"))
# Shards for each minute: some minutes take each sample once. `ENDLESS` steps take hours.
SHARDS, ENDLESS = 4, 100_000
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
  fetch: {{folder: {folder}/cache, gib: {gib}, patience: 240}}
train: {{steps: {steps}, log_every: 20}}
"""


def run(
    folder: Path,
    command: str,
    name: str,
    *options: str,
    stop_after: float | None = None,
    **values: Any,
) -> Path:
    """Run a command to its end, or stop it by a signal after so many seconds."""
    path = folder / f"{name}.yaml"
    path.write_text(SPEC.format(name=name, folder=folder, **values))
    process = subprocess.Popen(
        [sys.executable, "-m", "mimo_launch", command, str(path), *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )
    if stop_after is None:
        assert process.wait() == 0
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(stop_after)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
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


def untimed(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what every run of the same steps has: all fields but times."""
    return without_times([{k: v for k, v in each.items() if k != "reading"} for each in steps])


@contextmanager
def served_http(there: Path) -> Iterator[tuple[Faults, str]]:
    """Serve a folder; yield the faults of the server and the address of the folder."""
    with served_folder(there) as server:
        yield server, server.url


@contextmanager
def served_s3(there: Path) -> Iterator[tuple[Faults, str]]:
    """Serve the files of a folder from a bucket."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("s3fs")
    keys = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch, served_bucket() as server:
        for name, value in {**keys, "ENDPOINT_URL": server.url}.items():
            patch.setenv(f"AWS_{name}", value)
        store = boto3.client("s3")
        store.create_bucket(Bucket="bucket")
        for each in there.iterdir():
            store.upload_file(str(each), "bucket", each.name)
        store.close()
        yield server, "s3://bucket"


def bounds(ranged: str) -> tuple[int, int]:
    """Return the first byte and the last one of `bytes=FIRST-LAST`."""
    first, last = ranged.removeprefix("bytes=").split("-")
    return int(first), int(last)


def asks_again(server: Faults, place: int) -> bool:
    """Return whether the bytes of a request were asked for once more, by any rank."""
    _, path, ranged = server.asked[place]
    wanted, _ = bounds(ranged)
    return any(
        path == other and bounds(more)[0] <= wanted <= bounds(more)[1]
        for method, other, more in server.asked[place + 1 :]
        if method == "GET" and more
    )


@pytest.mark.parametrize(
    ("serve", "minutes", "failing", "outage"),
    [(served_http, 3, 0.03, 20.0), (served_s3, MINUTES, 0.05, 20.0 if MINUTES < 10 else 60.0)],
)
def test_a_run_over_a_bad_network_is_bit_equal_to_one_over_files(
    serve: Any, minutes: int, failing: float, outage: float, tmp_path: Path
) -> None:
    """With a cache of 40 % of the data, so that most samples are fetched during the run."""
    (there := tmp_path / "there").mkdir()
    tokenizer_folder(tmp_path / "tokenizer")
    for shard in range(SHARDS * minutes):
        write_shard(there / f"{shard:03d}.tar", [photo(32 * shard + n) for n in range(32)])
    size = sum(each.stat().st_size for each in there.iterdir())
    with serve(there) as (server, url):
        far = {
            "shards": f"{url}/{{000..{SHARDS * minutes - 1:03d}}}.tar",
            "index": "far",
            "gib": 0.4 * size / 2**30,
            "steps": ENDLESS,
        }
        run(tmp_path, "data", "far", "--index-to", "shipped", "--show", "0", "--steps", "1", **far)
        shutil.rmtree(tmp_path / "cache")
        far["index"] = "shipped"
        server.delay, server.failing, server.cut = 0.2, failing, 0.02
        server.wrong = 0.02
        server.asked.clear(), server.poisoned.clear()
        down = 20 * minutes
        threading.Timer(down, lambda: setattr(server, "is_down", True)).start()
        threading.Timer(down + outage, lambda: setattr(server, "is_down", False)).start()
        begin = time.monotonic()
        far_run = run(tmp_path, "train", "far", stop_after=60 * minutes, **far)
        seconds = time.monotonic() - begin
        asked, poisoned = len(server.fetched()), list(server.poisoned)
    remote = steps_of(far_run)
    waited = [each["reading"]["waited_s"] for each in remote]
    print(
        f"{seconds:.0f} s, {asked:,} requests, {len(poisoned)} with a wrong byte, {len(waited)} "
        f"steps, waited {sum(waited):.0f} s, at most {max(waited):.1f} s, median "
        f"{sorted(waited)[len(waited) // 2]:.2f} s"
    )
    near = {"shards": f"{there}/*.tar", "index": "near", "gib": 1, "steps": len(remote)}
    near_run = run(tmp_path, "train", "near", **near)
    assert untimed(remote) == untimed(steps_of(near_run))
    assert [each["step"] for each in remote] == list(range(1, len(remote) + 1))
    assert not any(each["bad_samples"] for each in remote)
    expected, found = tensors(near_run), tensors(far_run)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
    assert max(waited) > outage / 2
    assert poisoned
    assert all(asks_again(server, place) for place in poisoned)
