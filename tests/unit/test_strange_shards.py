"""Strange shards, made by accident or on purpose: what is strange is bad, the rest is read."""

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.shards import CHATML, image_bytes, tokenizer_folder, write_shard
from tests.unit.test_shard_samples import opened, shard_spec
from tokenizers import Tokenizer, models, pre_tokenizers

from mimo_launch.data.index.columns import TYPES, IndexedSample, ShardRows
from mimo_launch.data.index.open_index import IndexProgress
from mimo_launch.data.index.split_report import first_bad
from mimo_launch.data.samples import template_program
from mimo_launch.data.samples.template_program import Program, TemplateRefused
from mimo_launch.data.samples.text_tokens import without_panic
from mimo_launch.data.sources import source_file
from mimo_launch.data.sources.file_formats import open_file
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.data.sources.source_file import BrokenFile, Member, MemberPlace, OpenFiles
from mimo_launch.data.sources.tar_files import samples_of

ANSWER = {"role": "assistant", "content": "ho"}


def conversation(content: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"json": {"messages": [{"role": "user", "content": content, **more}, ANSWER]}}


def bad_beside_a_good_one(
    folder: Path, members: dict[str, Any], template: str = CHATML
) -> dict[str, str]:
    """Return what is said of a record that stands in a shard with a good one."""
    tokenizer_folder(folder / "tokenizer", template)
    write_shard(folder / "0.tar", [("good", conversation()), ("strange", members)])
    found = opened(shard_spec(folder))
    assert found.num_samples("train") == 1
    return {each["key"]: each["why"] for each in found.splits["train"].index.bad()}


def reader_of(paths: list[Path]) -> OpenFiles:
    return OpenFiles([NamedShard(path) for path in paths], open_file)


@pytest.fixture
def hurry() -> Iterator[None]:
    """Fail what would read for ever."""

    def stop(number: int, frame: object) -> None:
        raise SystemError("it does not end")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header with a size in base 256, which may be negative."""
    made = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    made[124:136] = (
        (size % (1 << 96)).to_bytes(12, "big") if size < 0 else b"\x80" + size.to_bytes(11, "big")
    )
    made[156:157] = kind
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(
    ("size", "kind", "why"),
    [
        (-512, tarfile.REGTYPE, "a member of -512 bytes after byte 512"),
        (-100, tarfile.REGTYPE, "a member of -100 bytes"),
        (1 << 80, tarfile.GNUTYPE_LONGNAME, f"a header of {1 << 80:,} bytes at byte 1024"),
    ],
)
def test_sizes_that_no_member_has_end_a_shard(
    tmp_path: Path, size: int, kind: bytes, why: str
) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(header("a.txt") + header("b.txt", size, kind) + bytes(1024))
    found = samples_of(path)
    assert next(found).key == "a"
    with pytest.raises(BrokenFile, match=why):
        next(found)


def test_links_and_sparse_files_are_faults_and_not_missing(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, kind in [
            ("0.jpg", tarfile.REGTYPE),
            ("1.jpg", tarfile.LNKTYPE),
            ("2.jpg", tarfile.SYMTYPE),
            ("3.jpg", tarfile.GNUTYPE_SPARSE),
            ("4.5", tarfile.DIRTYPE),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "0.jpg"
            tar.addfile(info)
            if kind != tarfile.DIRTYPE:
                tar.addfile(tarfile.TarInfo(f"{name[0]}.txt"))
    found = list(samples_of(tmp_path / "x.tar"))
    assert [each.key for each in found] == ["0", "1", "2", "3"]
    link, sparse = "its `.jpg` is a link", "its `.jpg` is a sparse file"
    assert [each.fault for each in found] == ["", link, link, sparse]


def test_a_damaged_header_is_said_after_a_sample_with_a_fault_too(tmp_path: Path) -> None:
    link = tarfile.TarInfo("0.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "1.jpg"
    (tmp_path / "x.tar").write_bytes(link.tobuf() + b"x" * 512)
    found = samples_of(tmp_path / "x.tar")
    assert next(found).fault == "its `.jpg` is a link"
    with pytest.raises(BrokenFile, match="no header of a member"):
        next(found)


def test_many_members_are_not_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    original = tarfile.TarFile.next

    def spied(self: tarfile.TarFile) -> tarfile.TarInfo | None:
        kept.append(len(self.members))
        return original(self)

    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for number in range(2500):  # Their headers take more than those of one member may.
            tar.addfile(tarfile.TarInfo(f"{number}.txt"))
    monkeypatch.setattr(tarfile.TarFile, "next", spied)
    assert len(list(samples_of(tmp_path / "x.tar"))) == 2500
    assert max(kept) <= 1


def test_threads_share_the_shards_that_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are few in a process: each that is one too many would make a good sample bad."""
    monkeypatch.setattr(source_file, "MAX_OPEN", 4)
    paths = [tmp_path / f"{number}.tar" for number in range(32)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 64)
    before, reader = len(os.listdir("/proc/self/fd")), reader_of(paths)

    def read(turn: int) -> bool:
        number = turn * 7 % len(paths)
        return reader.read(number, {"x": MemberPlace(3, 9)}, "x") == bytes([number]) * 9

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(2000)))
        assert len(os.listdir("/proc/self/fd")) - before <= 4
    with pytest.raises(EOFError):
        reader.read(0, {"x": MemberPlace(60, 9)}, "x")
    with pytest.raises(FileNotFoundError):
        reader_of([tmp_path / "none.tar"]).read(0, {"x": MemberPlace(0, 1)}, "x")


POOL = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from tests.support.specs import box, spec
from mimo_launch.data.index.indexer import _start

if __name__ == "__main__":
    made = spec({"vision": box(0)})
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_start, initargs=(made,)) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        time.sleep(100)
"""


def test_a_pool_ends_with_whoever_made_it_however_that_ends(tmp_path: Path) -> None:
    """Else its processes wait for tasks for ever, with a tokenizer in memory each."""
    script = tmp_path / "makes_a_pool.py"
    script.write_text(POOL)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment) as it:
        assert it.stdout is not None
        child = Path("/proc", it.stdout.readline().decode().strip())
        assert child.exists()
        it.kill()
    deadline = time.monotonic() + 20
    while child.exists() and ") Z " not in (child / "stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_each_sample_may_have_a_suffix_of_its_own() -> None:
    """Names such as `KEY.CHECKSUM.png`: more of them than two bytes count."""
    rows = ShardRows(0)
    for number in range((1 << 16) + 1):
        suffix = f"{number}.png"
        seen = IndexedSample(1, np.array([[0, 1]]), [], {"image": [suffix], "audio": []})
        rows.add(Member("key", {suffix: MemberPlace(0, 1)}), seen)
    column = np.array(rows.values["member_suffix"], dtype=TYPES["member_suffix"])
    assert np.array_equal(column, np.arange(len(rows.suffixes)))


def test_an_index_that_is_there_is_used_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shard(tmp_path / "0.tar", [("good", conversation())])
    made = opened(shard_spec(tmp_path)).splits["train"].index.folder
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    heard: list[IndexProgress] = []
    found = opened(shard_spec(tmp_path), heard).splits["train"].index.folder
    assert (found, heard) == (made, [])


def huge_png() -> bytes:
    """The header of 400 million pixels, more than Pillow opens."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    size = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(9)))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({**conversation("<image>"), "png": huge_png()}, "400000000 pixels"),
        (
            {**conversation("<image>?"), "svg": b"<svg/>", "0.heic": b"x"},
            "0 images and 1 marker for them; its .0.heic, .svg are not read: write images as .png",
        ),
        (
            {**conversation("<image>?"), "eps": b"%!PS", "png": b"%!PS-Adobe-3.0 EPSF"},
            "cannot be read as an image",
        ),
        (conversation([{"type": ["image"]}]), "unknown type ['image']"),
        (conversation([{"type": {}}]), "unknown type {}"),
    ],
    ids=["image", "suffix", "format", "list", "object"],
)
def test_strange_members_are_bad(tmp_path: Path, members: dict[str, Any], why: str) -> None:
    assert why in bad_beside_a_good_one(tmp_path, members)["strange"]


EXPLODES = {
    "type": "Split", "pattern": {"Regex": "^(a+)+$"}, "behavior": "Isolated", "invert": False
}  # fmt: skip
SHOWS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}MARKER{% endif %}{{ part.text }}"
    "{% endfor %}{% endif %}</s>{% endfor %}"
)
LOOPS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("{{ 1 / 0 }}", "refuses it: division"),
        ("{% for i in range(1000000000) %}{% endfor %}", "refuses it: Range too big"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "refuses it: maximum recursion"),
        ("{{ 9 ** 99999999 }}", "refuses it: a product of more than 65,536 bits"),
        (LOOPS, "takes more than 0.5 s"),
        ("{{ message.content * 300000000 }}", "takes more than 1 GiB of memory"),
        ("{{ 'x' | center(3000000000) }}", "takes more than 1 GiB of memory"),
    ],
    ids=["division", "range", "recursion", "power", "loops", "memory", "folded"],
)
def test_a_template_that_fails_on_a_record_refuses_that_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, why: str
) -> None:
    """Its time and memory are bounded; the limits of the process are the same afterwards."""
    monkeypatch.setattr(template_program, "SECONDS", 0.5)
    before = resource.getrlimit(resource.RLIMIT_AS)
    folded = "'x' | center" in fault
    asked = "true" if folded else "message.x"
    template = CHATML.replace("{{", f"{{% if {asked} %}}{fault}{{% endif %}}{{{{", 1)
    if folded:  # What is constant is computed when the template is compiled.
        with pytest.raises(TemplateRefused, match=why):
            bad_beside_a_good_one(tmp_path, conversation(), template)
    else:
        said = bad_beside_a_good_one(tmp_path, conversation(x=1), template)
        assert f"the chat template {why}" in said["strange"]
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        30 * "{% for a in [1] %}" + 30 * "{% endfor %}",
    ],
    ids=["recursion", "syntax of Python"],
)
def test_a_template_too_deep_to_compile_is_refused(source: str) -> None:
    with pytest.raises(TemplateRefused, match="cannot be compiled: "):
        Program(source, {}, None)


def test_the_limits_of_the_process_are_the_same_after_a_bounded_block() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (before[1], before[1]))
    try:
        with template_program.bounds():
            assert resource.getrlimit(resource.RLIMIT_AS) != (before[1], before[1])
        assert resource.getrlimit(resource.RLIMIT_AS) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_template_may_multiply_numbers_of_a_usual_size() -> None:
    assert Program("{{ 3 * 100000 }} {{ 2 ** 64 }}", {}, None).run() == f"300000 {2**64}"


def test_a_regex_of_a_tokenizer_that_explodes_makes_a_sample_bad_without_a_backtrace(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tokenizer_folder(tmp_path / "tokenizer")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = EXPLODES
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    image = image_bytes(8, 8)
    records = [("0", {"png": image, "txt": "cat"}), ("1", {"png": image, "txt": "a" * 40 + "!"})]
    write_shard(tmp_path / "0.tar", records)
    found = opened(shard_spec(tmp_path, template="caption"))
    assert found.num_samples("train") == 1
    assert "the tokenizer refuses its text: Onig: Regex search" in first_bad(found.splits["train"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("is_written", [True, False], ids=["template", "marker"])
def test_a_regex_that_explodes_on_a_marker_is_said_or_does_no_harm(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_written: bool
) -> None:
    """What a template writes for an image has to be tokens; a marker need not have letters."""
    marker = "a" * 40 + "!"
    folder = tokenizer_folder(tmp_path / "tokenizer", SHOWS.replace("MARKER", marker))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "pre_tokenizer": EXPLODES}))
    asked = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}
    members = {"png": image_bytes(8, 8), "json": {"messages": [asked, ANSWER]}}
    write_shard(tmp_path / "0.tar", [("0", members)])
    if is_written:
        with pytest.raises(TemplateRefused, match="its tokenizer refuses `aaa"):
            opened(shard_spec(tmp_path))
    else:
        (folder / "chat_template.jinja").write_text(CHATML)
        assert opened(shard_spec(tmp_path, image_marker=marker)).num_samples("train") == 1
    assert capfd.readouterr() == ("", "")


def test_what_a_tokenizer_writes_without_a_panic_is_not_lost(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert without_panic(lambda: os.write(2, b"a warning")) == 9
    assert capfd.readouterr().err == "a warning"


def test_a_message_of_very_many_parts_is_bad(tmp_path: Path) -> None:
    said = bad_beside_a_good_one(tmp_path, conversation([{"type": "text", "text": "a"}] * 70_000))
    assert said == {"strange": "its messages have more than 65,536 parts"}


@pytest.mark.parametrize("kind", ["attributes", "name", "many"])
def test_headers_of_any_size_end_a_shard_and_are_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
        for number in range(3000 if kind == "many" else 1):
            long = tarfile.TarInfo(f"{number}.txt")
            long.pax_headers = {"comment": "x" * (8 if kind == "many" else 3 << 20)}
            if kind == "many":  # One extended header after another, and no member.
                tar.fileobj.write(long.tobuf()[:1024])
            elif kind == "name":
                tar.fileobj.write(
                    header("long", 3 << 20, tarfile.GNUTYPE_LONGNAME) + bytes(3 << 20)
                )
            else:
                tar.addfile(long)
    found = samples_of(path)
    assert next(found).key == "a"
    with pytest.raises(BrokenFile, match=r"a header of 3,14[56],\d+ bytes|a bad header"):
        next(found)


def test_headers_of_all_members_that_grow_without_end_end_a_shard(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with path.open("wb") as file:
        for number in range(4):
            file.write(tarfile.TarInfo.create_pax_global_header({f"k{number}": "v" * 500_000}))
            file.write(tarfile.TarInfo(f"{number}.txt").tobuf())
        file.write(bytes(1024))
    found = samples_of(path)
    assert next(found).key == "0"
    with pytest.raises(BrokenFile, match=r"headers of all members have 1,500,\d+ bytes"):
        list(found)


def test_members_after_the_end_of_an_archive_are_not_lost_silently(tmp_path: Path) -> None:
    """As where two tar files were joined with `cat`."""
    parts = [
        write_shard(tmp_path / f"{number}.tar", [(f"{number}", conversation())]).read_bytes()
        for number in range(2)
    ]
    (tmp_path / "both.tar").write_bytes(b"".join(parts))
    found = samples_of(tmp_path / "both.tar")
    assert next(found).key == "0"
    with pytest.raises(BrokenFile, match=r"after the end of the archive at byte \d+.*tar -A"):
        next(found)


def test_a_template_that_refuses_images_is_refused(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{% if part.type == 'image' %}{{ raise_exception('no images') }}"
        "{% endif %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    tokenizer_folder(tmp_path / "tokenizer", template)
    write_shard(tmp_path / "0.tar", [("good", conversation())])
    with pytest.raises(TemplateRefused, match="no images"):
        opened(shard_spec(tmp_path))


def test_a_tokenizer_without_a_token_for_a_word_refuses_the_text(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "tokenizer")
    words = Tokenizer(models.WordLevel({"a": 0, "caption": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    image = image_bytes(8, 8)
    write_shard(tmp_path / "0.tar", [("0", {"png": image, "txt": "a caption"})])
    write_shard(tmp_path / "1.tar", [("1", {"png": image, "txt": "a cat"})])
    found = opened(shard_spec(tmp_path, template="caption"))
    assert found.num_samples("train") == 1
    assert "the tokenizer refuses" in first_bad(found.splits["train"])
