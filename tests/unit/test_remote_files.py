"""Files at addresses give the samples of files that are here, whatever the network does."""

import base64
import json
import os
import pickle
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from tests.support.file_server import Faults, served_bucket, served_folder
from tests.support.shards import image_bytes
from tests.unit.test_shard_samples import opened, with_vocab
from tests.unit.test_sources import as_arrow, as_tar, chats, everything, files_spec, rows

from mimo_launch.data.known_shards import records_of_shards
from mimo_launch.data.sources import block_cache, fetching, remote_files
from mimo_launch.data.sources.block_cache import BLOCK, BlockCache, held
from mimo_launch.data.sources.cached_file import CachedFile
from mimo_launch.data.sources.fetching import Fetching, SourceGone
from mimo_launch.data.sources.file_formats import split_files
from mimo_launch.data.sources.remote_files import RemotePath
from mimo_launch.layout.step_views import Reads
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import read_step, step_inputs

GIVEN = chats(12)


def as_lines(folder: Path) -> Path:
    """Records that hold their images, as there is no folder of media elsewhere."""
    text = "\n".join(json.dumps(each) for each in lines())
    (folder / "x.jsonl").write_text(text, encoding="utf-8")
    return folder / "x.jsonl"


def lines() -> list[dict[str, Any]]:
    return [
        {
            "messages": said,
            "images": [f"data:image/png;base64,{base64.b64encode(i).decode()}" for i in images],
        }
        for said, images in GIVEN
    ]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same conversations in a file of each format."""
    folder = tmp_path_factory.mktemp("there")
    as_tar(folder, GIVEN)
    as_lines(folder)
    as_arrow(folder, GIVEN)
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(rows(GIVEN)), folder / "x.parquet", row_group_size=5
    )
    return folder


@pytest.fixture
def server(there: Path) -> Iterator[Faults]:
    with served_folder(there) as faults:
        yield faults


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fetching, remote_files):
        monkeypatch.setattr(module, "pause", lambda tries: 0.01)


def remote_spec(folder: Path, server: Faults, name: str, host: str = "a", **fetch: Any) -> Spec:
    """A spec over a file of the server, as a host with a disk of its own reads it."""
    cache = {"folder": str(folder / host / "cache"), "patience": 2, **fetch}
    return files_spec(
        folder, f"{server.url}/{name}", index=str(folder / host / "index"), fetch=cache
    )


@pytest.mark.parametrize("name", ["x.tar", "x.jsonl", "x.parquet", "x.arrow"])
def test_a_file_elsewhere_has_the_samples_of_one_that_is_here(
    name: str, there: Path, server: Faults, tmp_path: Path
) -> None:
    """Also with a server that fails often, cuts answers and, at last, is not needed any more."""
    wanted = everything(opened(files_spec(tmp_path, str(there / name), index=str(tmp_path))))
    server.failing = server.cut = 0.3
    made = remote_spec(tmp_path, server, name)
    assert everything(opened(made)) == wanted
    first = len(server.fetched())
    server.failing = server.cut = 0.0
    found = opened(made)
    assert everything(found) == wanted
    assert len(server.fetched()) == first
    # Another host has the index, but not the bytes.
    found.copy_index(tmp_path / "b" / "index")
    other = opened(remote_spec(tmp_path, server, name, "b"))
    assert len(server.fetched()) == first
    assert everything(other) == wanted
    assert len(server.fetched()) > first


def test_wrong_bytes_are_found_and_fetched_again(server: Faults, tmp_path: Path) -> None:
    wanted = everything(opened(remote_spec(tmp_path, server, "x.tar")))
    shutil.rmtree(tmp_path / "a" / "cache")
    server.poison = 2
    assert everything(opened(remote_spec(tmp_path, server, "x.tar"))) == wanted
    assert server.poison == 0
    shutil.rmtree(tmp_path / "a" / "cache")
    server.poison = 99
    with pytest.raises(SourceGone, match=r"x\.tar: bytes 0 to .* in 3 requests: restore"):
        everything(opened(remote_spec(tmp_path, server, "x.tar")))
    # On the disk, too.
    server.poison = 0
    everything(opened(remote_spec(tmp_path, server, "x.tar")))
    (data,) = (tmp_path / "a" / "cache").glob("*.data")
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data.write_bytes(damaged)
    before = len(server.fetched())
    assert everything(opened(remote_spec(tmp_path, server, "x.tar"))) == wanted
    assert len(server.fetched()) == before + 1


def test_a_source_that_is_gone_ends_a_run_and_loses_no_record(
    server: Faults, tmp_path: Path
) -> None:
    found = opened(remote_spec(tmp_path, server, "x.tar"))
    shutil.rmtree(tmp_path / "a" / "cache")
    server.is_down = True
    with pytest.raises(SourceGone, match=r"x\.tar could not be fetched in \d+ tries over 2 s: "):
        found.text("train", 0)
    with pytest.raises(SourceGone, match=r"wait longer with `fetch: \{patience: SECONDS\}`"):
        found.fetch("train", [0], [])
    server.is_down = False
    with pytest.raises(SourceGone, match=r"gone\.tar could not be fetched"):
        opened(remote_spec(tmp_path, server, "gone.tar"))
    assert not found.splits["train"].index.num_bad


def test_an_outage_shorter_than_the_patience_is_waited_for(server: Faults, tmp_path: Path) -> None:
    found = opened(remote_spec(tmp_path, server, "x.tar", patience=20))
    wanted = everything(found)
    shutil.rmtree(tmp_path / "a" / "cache")
    server.is_down = True
    threading.Timer(0.5, lambda: setattr(server, "is_down", False)).start()
    begin = time.monotonic()
    assert everything(found) == wanted
    assert time.monotonic() - begin > 0.4


def test_a_file_that_has_changed_is_indexed_anew(
    there: Path, server: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (changing := tmp_path / "there").mkdir()
    with served_folder(changing) as server:
        as_tar(changing, GIVEN[:4])
        assert opened(remote_spec(tmp_path, server, "x.tar")).num_samples("train") == 4
        as_tar(changing, GIVEN[:6])
        monkeypatch.setattr(fetching, "_FRESH", 0.0)
        assert opened(remote_spec(tmp_path, server, "x.tar")).num_samples("train") == 6


def test_a_plan_uses_no_network(server: Faults, tmp_path: Path) -> None:
    """It knows the steps of a run if the index is here, its own or one from another host."""
    made = remote_spec(tmp_path, server, "x.tar")
    assert records_of_shards(made, made.data) is None
    assert not server.asked
    opened(made)
    (shard,) = pickle.loads(pickle.dumps(split_files(made.data, "train", fetches=True)))
    assert shard.path.stat().st_size  # As a process of the pool that makes an index gets it.
    asked = len(server.asked)
    made = with_vocab(made)
    records = records_of_shards(made, made.data)
    assert records is not None
    assert (records.source, records.in_all) == ("index", 12)
    shutil.copytree(tmp_path / "a" / "index", tmp_path / "b" / "index")
    other = with_vocab(remote_spec(tmp_path, server, "x.tar", "b"))
    assert records_of_shards(other, other.data) is not None
    assert len(server.asked) == asked


def test_the_samples_of_a_step_are_fetched_at_once(tmp_path: Path) -> None:
    """A rank waits for few delays, not for one of each sample."""
    said = chats(2)[1][0]
    big = [(said, [image_bytes(300, 300, seed=n, kind="BMP")]) for n in range(12)]
    (there := tmp_path / "there").mkdir()
    as_tar(there, big)
    with served_folder(there) as server:
        made = remote_spec(tmp_path, server, "x.tar")
        found, everyone = opened(made), tuple(range(12))
        shutil.rmtree(tmp_path / "a" / "cache")
        server.delay = 0.25
        source = step_inputs(found, "train", everyone, 0)
        server.most_at_once = 0
        reads = Reads(everyone, (), (), {"vision": everyone})
        read, reasons = read_step(source, reads, with_vocab(made), lambda: None)
        assert server.most_at_once >= 6
        assert (reasons, len(read.texts), len(read.pixels)) == ({}, 12, 12)
        # A rank of language alone fetches no images.
        shutil.rmtree(tmp_path / "a" / "cache")
        asked = len(server.fetched())
        read_step(source, Reads((3,), (), (), {}), with_vocab(made), lambda: None)
        assert len(server.fetched()) == asked + 1


def test_the_cache_is_bounded_and_keeps_what_is_read(tmp_path: Path) -> None:
    """A file that a process holds remains, others go, the longest unused first."""
    cache = BlockCache(tmp_path, 4 * BLOCK)
    data = os.urandom(2 * BLOCK)
    fetched = list[int]()

    def fetch(begin: int, end: int) -> bytes:
        fetched.append(begin)
        return data[begin:end]

    files = [CachedFile(cache, f"{n}", len(data), fetch) for n in range(5)]
    with held_after(files[0], data):
        for n in range(1, 5):
            assert files[n].read(0, len(data)) == data
            os.utime(files[n].path, (n, n))
        assert files[0].path.exists()
        assert sum(each.path.exists() for each in files) <= 3
        assert not files[1].path.exists()
    before = len(fetched)
    assert files[1].read(BLOCK - 3, 6) == data[BLOCK - 3 : BLOCK + 3]
    assert len(fetched) == before + 1
    # Its checksums are those of its first touch.
    os.utime(files[1].path, (0, 0))
    files[2].read(0, 1)
    files[3].read(0, len(data))
    assert not files[1].path.exists()
    data = bytes([data[0] ^ 1]) + data[1:]
    with pytest.raises(block_cache.WrongBytes):
        files[1].read(0, 1)


def held_after(file: CachedFile, data: bytes) -> Any:
    assert file.read(0, len(data)) == data
    os.utime(file.path, (0, 0))
    return held(file.path)


def test_threads_and_processes_fetch_a_block_once(tmp_path: Path) -> None:
    fetched = list[int]()

    def fetch(begin: int, end: int) -> bytes:
        fetched.append(begin)
        time.sleep(0.05)
        return bytes(end - begin)

    def read() -> None:
        file = CachedFile(BlockCache(tmp_path, 1 << 30), "x", 3 * BLOCK + 7, fetch)
        assert file.read(BLOCK + 1, BLOCK) == bytes(BLOCK)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert fetched == [BLOCK]


def test_a_missing_package_is_named_by_its_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "is_installed", lambda name: name == "fsspec")
    path = RemotePath("gs://bucket/x.tar", Fetching(BlockCache(tmp_path, 1 << 30), 1.0))
    with pytest.raises(SourceGone, match=r"pip install 'gcsfs>=2024\.6'"):
        path.stat()


def test_a_bucket_is_listed_and_read(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with served_bucket() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        store = boto3.client("s3")
        store.create_bucket(Bucket="bucket")
        for n in (1, 2):
            store.upload_file(str(there / "x.tar"), "bucket", f"data/{n}.tar")
        fetch = {"folder": str(tmp_path / "cache"), "patience": 5}
        made = files_spec(
            tmp_path, "s3://bucket/data/*.tar", index=str(tmp_path / "index"), fetch=fetch
        )
        server.failing = 0.1
        found = opened(made)
        wanted = everything(opened(files_spec(tmp_path, str(there / "x.tar"), index=str(tmp_path))))
        assert [each[:3] for each in everything(found)] == [each[:3] for each in wanted * 2]
        assert found.name("train", 12) == "2.tar 0000"
        store.close()


def test_a_range_may_cross_the_segments_of_a_file(tmp_path: Path) -> None:
    """Each has its own checksums of the index, and is removed by itself."""
    each = BLOCK * block_cache.MOST_BLOCKS
    data = os.urandom(each + 3 * BLOCK + 7)
    asked = list[tuple[int, int]]()

    def fetch(begin: int, end: int) -> bytes:
        asked.append((begin, end))
        return data[begin:end]

    first = CachedFile(BlockCache(tmp_path / "a", 1 << 30), "x", len(data), fetch)
    assert first.read(each - 5, 10) == data[each - 5 : each + 5]
    assert asked == [(each - BLOCK, each), (each, each + BLOCK)]
    checksums = first.checksums()
    assert len(checksums) == block_cache.MOST_BLOCKS + 4
    second = CachedFile(BlockCache(tmp_path / "b", 1 << 30), "x", len(data), fetch)
    second.expect(checksums)
    assert second.read(0, len(data)) == data
    third = CachedFile(BlockCache(tmp_path / "c", 1 << 30), "x", len(data), fetch)
    third.expect(checksums)
    data = data[:-1] + bytes([data[-1] ^ 1])
    assert third.read(each, 5) == data[each : each + 5]
    with pytest.raises(block_cache.WrongBytes, match="bytes 17,563,648 to "):
        third.read(len(data) - 1, 1)
