"""The files that records name: where they may lie, and their bytes.

Decides: that a record names plain files inside of the folders that the spec names, after all links
are followed, and nothing on the network; the largest file.
Relies on: the file system that every host sees.
Leaves: which keys name files to `named_media`.
"""

import os
import re
import stat
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from mimo_launch.data.sources.named_media import BadRecord, Medium
from mimo_launch.data.sources.record_shapes import ShapedRecord
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.data.sources.source_file import Member, MemberPlace, Places, Recent

# The largest file of an image, clip or video, and the longest record, in bytes.
MAX_FILE, MAX_RECORD = 4 << 30, 64 << 20
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class MediaFolders:
    """Folders with the media of records. Relative names begin in the first, if any."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._base = str(folders[0]) if folders else ""
        # The folders as they are after links: a record may not lead out of these.
        self._inside = tuple(os.path.join(os.path.realpath(each), "") for each in folders)
        # An index asks for a file several times.
        self._paths = Recent(64)

    def size(self, medium: Medium) -> int:
        """Return the size in bytes of a medium, in base64 if it is that. Raises: BadRecord."""
        for held in (medium.data, medium.encoded):
            if held is not None:
                return len(held)
        return _size(self._path(medium), medium.said)

    def read(self, medium: Medium, limit: int | None = None) -> bytes:
        """Return the bytes of a medium, or the first `limit`. Raises: BadRecord, OSError."""
        if (held := medium.held(limit)) is not None:
            return held
        path = self._path(medium)
        size = _size(path, medium.said)
        with open(path, "rb") as file:
            return file.read(size if limit is None else limit)

    def _path(self, medium: Medium) -> str:
        """Return where a file is. Raises: BadRecord if it may not be read."""
        kind, name = medium.kind, medium.said
        return self._paths.get(name, lambda: self._found(kind, name), lambda _: 1)

    def _found(self, kind: str, name: str) -> str:
        if _ADDRESS.match(name):
            raise BadRecord(
                f"its {kind} is the address {name[:80]}, and nothing is fetched while a run "
                "reads: copy the files to a folder, and write their paths"
            )
        if "\0" in name:
            raise BadRecord(f"the name of its {kind} has a zero byte")
        if not self._inside:
            raise BadRecord(
                f"its {kind} is the file `{name[:200]}`, and its record comes from elsewhere: "
                "write `media: FOLDER` in the source, or put the bytes into the records"
            )
        path = os.path.realpath(os.path.join(self._base, name))
        if not path.startswith(self._inside):
            raise BadRecord(
                f"its {kind} `{name[:200]}` lies outside of {self._base}: write "
                f"`media: [{self._base}, FOLDER]` in the source with the folder that holds it"
            )
        return path


def _size(path: str, name: str) -> int:
    try:
        found = os.stat(path)
    except OSError as error:
        raise BadRecord(f"`{name[:200]}` cannot be read: {error.strerror}") from error
    # A pipe or a device would be read for ever.
    if not stat.S_ISREG(found.st_mode):
        raise BadRecord(f"`{name[:200]}` is no plain file")
    if found.st_size > MAX_FILE:
        raise BadRecord(f"`{name[:200]}` has {found.st_size:,} bytes; it may have {MAX_FILE:,}")
    return found.st_size


class ShapedRecords:
    """The records of one file and their media; those that were read last are in `recent`."""

    def __init__(
        self,
        shard: NamedShard,
        make: Callable[[MemberPlace], ShapedRecord],
        recent: Recent,
        key: Hashable = (),
    ) -> None:
        """Read records with `make`, and what they name in folders.

        A `key` tells apart several sets of records with the same path.
        """
        beside = (shard.path.parent,) if isinstance(shard.path, Path) else ()
        self._folders = MediaFolders(shard.media or beside)
        self._of, self._make, self._recent = (shard.path, key), make, recent

    def member(self, key: str, place: MemberPlace, read: Callable[[], ShapedRecord]) -> Member:
        """Return a record as a sample of the file; its fault if it is bad, or a file it names."""
        places = {"json": place}
        try:
            record = read()
            for suffix, medium in record.media.items():
                places[suffix] = MemberPlace(0, self._folders.size(medium))
        except BadRecord as error:
            return Member(key, fault=str(error))
        except (TypeError, ValueError, RecursionError) as error:
            return Member(key, fault=f"{type(error).__name__}: {error}")
        self._recent.keep((self._of, place), record, record.size)
        return Member(key, places)

    def read(self, places: Places, suffix: str, limit: int | None) -> bytes:
        """Return the text of a record, or a medium. Raises: OSError, EOFError, BadRecord."""
        place = places["json"]
        record = self._recent.get(
            (self._of, place), lambda: self._make(place), lambda made: made.size
        )
        if suffix == "json":
            return record.text
        if suffix not in record.media:
            raise BadRecord("it is not the record of the index")
        return self._folders.read(record.media[suffix], limit)
