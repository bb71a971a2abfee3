"""Recognises files that are named as shards but are not plain tar files, and says what to do.

Decides: which addresses and formats are known: an address by how it begins, a file by its first
bytes, or else by its name.
Relies on: the first block of a file. A tar file without members is sound, but a long file of
zeros is not: a copy that was cut off leaves one.
Leaves: whether the records inside are good to the index.
"""

import re
import tarfile
from pathlib import Path

from mimo_launch.data.sources.file_formats import NoFormat, beginning
from mimo_launch.diag.frozen import frozen

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+)://|(pipe):", re.IGNORECASE)
# Commands that copy files to this host, by the scheme of an address.
_COPIES = {
    "s3": "aws s3 cp --recursive",
    "gs": "gcloud storage cp --recursive",
    "hf": "hf download --repo-type dataset",
    "http": "curl -O",
    "https": "curl -O",
}
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".lz4")


@frozen
class OtherFormat:
    """The format of a file, in words that follow its name, and the remedy.

    `of_source` is the remedy for `kind: files`, if it is another.
    """

    what: str
    instead: str = "make it again, or name only the others"
    is_packed: bool = False
    of_source: str = ""


_LINES = OtherFormat(
    "is a file of JSON, such as one record a line",
    "write `kind: files` and `sources: [PATH]` in place of `kind: webdataset` and `shards`",
    of_source="write a record in each line of it, or one list of records",
)
_TABLE = OtherFormat(
    "is a table, such as one record a row",
    "write `kind: files` and `sources: [PATH]` for Parquet or Arrow; make JSON lines of others",
    of_source="make JSON lines, Parquet or Arrow of it",
)
_WIDE = OtherFormat(
    "is text in UTF-16, not in UTF-8", "make UTF-8 of it: `iconv -f UTF-16 -t UTF-8 FILE > OTHER`"
)
_ZIP = OtherFormat(
    "is a zip file", "unpack it, and pack its files with `tar --sort=name -cf 000.tar -C FOLDER .`"
)
_PACKED = OtherFormat(
    "is compressed, and samples are read from anywhere in a file",
    "unpack them, and name the plain files",
    is_packed=True,
)
_POINTER = OtherFormat("is a pointer of Git LFS, not the file", "run `git lfs pull` beside it")
_PAGE = OtherFormat("is a web page, such as the message of a failed download", "download it again")
_NO_FILE = OtherFormat(
    "is a pipe or a device",
    "copy what it holds to a file, because samples are read from anywhere in it",
)
_BY_CONTENT = {
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), _WIDE),
    b"PAR1": _TABLE,
    b"ARROW1": _TABLE,
    b"SQLite format 3": _TABLE,
    b"PK\x03\x04": _ZIP,
    **dict.fromkeys((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"), _PACKED),
    b"\x04\x22\x4d\x18": _PACKED,
    b"version https://git-lfs": _POINTER,
    b"<!DOCTYPE": _PAGE,
    b"<html": _PAGE,
    b"{": _LINES,
    b"[": _LINES,
}
_BY_NAME = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), _LINES),
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".csv", ".tsv", ".tfrecord"), _TABLE),
    ".zip": _ZIP,
}


def help_for_address(key: str, pattern: str) -> str | None:
    """Return how to get the shards of an address such as `s3://...`; None for a path."""
    found = _ADDRESS.match(pattern)
    if found is None:
        return None
    copy = _COPIES.get((found[1] or "").lower())
    how = f"such as with `{copy}`, " if copy else ""
    name = pattern.rpartition("/")[2] if found[1] else ""
    other = _BY_NAME.get(Path(name).suffix)
    as_source = key == "path" and other is not None and other.of_source != ""
    then = f"write `{key}: FOLDER/{name if name.endswith('.tar') or as_source else '*.tar'}`"
    if other is not None and not as_source:
        then = other.instead
    return f"copy the files to a folder that every host sees, {how}and {then}"


def other_format(path: Path) -> OtherFormat | None:
    """Return what a file is, or what is wrong with its first header or its size; None if sound."""
    try:
        head, size = beginning(path), path.stat().st_size
    except NoFormat:
        return _NO_FILE
    except OSError as error:
        return OtherFormat(f"cannot be read: {error.strerror}")
    if not head:
        return OtherFormat("is empty, not even a tar file without members")
    if len(head) == head.count(0):
        if size > tarfile.RECORDSIZE:
            return OtherFormat(f"has {size:,} bytes and begins with zeros")
    else:
        try:
            tarfile.TarInfo.frombuf(head, tarfile.ENCODING, "surrogateescape")
        except tarfile.HeaderError as error:
            return _known(path, head) or OtherFormat(f"has a bad header: {error}")
    # A tar file is made of blocks.
    return OtherFormat(f"is cut off after {size:,} bytes") if size % tarfile.BLOCKSIZE else None


def known_format(path: Path) -> OtherFormat | None:
    """Return what a file is that holds no records, as far as it is known."""
    try:
        head = beginning(path)
    except NoFormat:
        return _NO_FILE
    except OSError as error:
        return OtherFormat(f"cannot be read: {error.strerror}")
    return _known(path, head) if head else OtherFormat("is empty")


def _known(path: Path, head: bytes) -> OtherFormat | None:
    """Return what a file is by its name, or by its beginning."""
    name = path.name.lower()
    if name.endswith(_COMPRESSED):
        return _PACKED
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not begin:
        blank = f"begins with {len(head)} bytes of blanks"
        return OtherFormat(blank, of_source="write a record in each line of it")
    known = next((each for start, each in _BY_CONTENT.items() if begin.startswith(start)), None)
    named = _BY_NAME.get(Path(name).suffix)
    # JSON must begin as JSON, whatever its name; other files may begin so.
    return named if known in (None, _LINES) and named not in (None, _LINES) else known
