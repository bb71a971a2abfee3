"""Times an index of many samples: `python -m tests.faults.index_scale FOLDER SAMPLES [TIMES]`.

Makes shards of 10,000 samples (one PNG of 24 x 32 pixels and a short conversation each), indexes
them, opens the index and plans steps, and prints one line of JSON. With TIMES, the index is written
so many times over before it is opened. docs/shards.md has the numbers.
"""

import json
import resource
import shutil
import sys
import tarfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.shards import image_bytes, tokenizer_folder
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.index.columns import ColumnWriter, write_bad
from mimo_launch.spec.spec import Spec

PER_SHARD = 10_000


def shard(path: Path, first: int, images: list[bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(first, first + PER_SHARD):
            turns = [
                {"from": "human", "value": f"<image>\nWhat is number {number}?"},
                {"from": "gpt", "value": f"A small red house, number {number}, on a green hill."},
            ]
            members = {
                "png": images[number % len(images)],
                "json": json.dumps({"conversations": turns}).encode(),
            }
            for suffix, data in members.items():
                info = tarfile.TarInfo(f"{number:09d}.{suffix}")
                info.size = len(data)
                tar.addfile(info, BytesIO(data))


def made_spec(folder: Path) -> Spec:
    return spec(
        {"vision": box(model={"patch": 4, "channels": 3}), "language": box(model={"vocab": 400})},
        data={
            "kind": "webdataset",
            "shards": str(folder / "*.tar"),
            "tokenizer": str(tokenizer_folder(folder / "tokenizer")),
            "template": "chat",
        },
        seq=256,
    )


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def resident() -> dict[str, int]:
    """Memory of this process in MB: of its own, and mapped from files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {key: int(values[key].split()[0]) // 1024 for key in ("RssAnon", "RssFile")}


def repeat(dataset: Any, times: int) -> None:
    """Write the index of a data set so many times over, in its place."""
    index = dataset.splits["train"].index
    folder = index.folder.with_name("repeated")
    folder.mkdir()
    writer = ColumnWriter(folder)
    for _ in range(times):
        writer.append(index.columns)
    write_bad(folder, ())
    kept = ("identity", "suffixes", "num_bad", "ignored")
    writer.finish({key: index.meta[key] for key in kept})
    shutil.rmtree(index.folder)
    folder.rename(index.folder)


def main() -> None:
    folder, samples = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    images = [image_bytes(24, 32, seed) for seed in range(16)]
    for first in range(0, samples, PER_SHARD):
        path = folder / f"{first // PER_SHARD:05d}.tar"
        if not path.exists():
            shard(path, first, images)
    made, found = made_spec(folder), {"samples": samples}
    begin, cpu = time.perf_counter(), cpu_seconds()
    build_dataset(made)
    found["index_s"] = round(time.perf_counter() - begin, 1)
    found["index_cpu_s"] = round(cpu_seconds() - cpu, 1)
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    found["largest_process_mb"] = max(
        child, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    )
    if len(sys.argv) > 3:
        repeat(build_dataset(made), int(sys.argv[3]))
    before, begin = resident(), time.perf_counter()
    dataset = build_dataset(made)
    found["open_s"] = round(time.perf_counter() - begin, 3)
    after = resident()
    found["open_own_mb"] = after["RssAnon"] - before["RssAnon"]
    total = dataset.num_samples("train")
    ids = np.random.default_rng(0).integers(0, total, 4096).tolist()
    begin = time.perf_counter()
    for index in ids:
        dataset.describe("train", index)
    found["plan_us"] = round((time.perf_counter() - begin) / len(ids) * 1e6, 1)
    found["planned_own_mb"] = resident()["RssAnon"] - before["RssAnon"]
    index = dataset.splits["train"].index.folder  # type: ignore[attr-defined]
    found["disk_mb"] = sum(file.stat().st_size for file in index.iterdir()) >> 20
    print(json.dumps(found))


if __name__ == "__main__":
    main()
