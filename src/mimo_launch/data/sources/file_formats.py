"""The files of a spec's data, and the class that opens each one.

Decides: which files of a split there are, in which order; the format of a file.
Relies on: `shard_names` for patterns; a module per format.
Leaves: records to the formats.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from mimo_launch.data.sources.shard_names import NamedShard, named_shards
from mimo_launch.data.sources.source_file import SourceFile
from mimo_launch.data.sources.tar_files import TarFile
from mimo_launch.spec.spec import UserData, WebdatasetData
from mimo_launch.spec.user_data import patterns_of

# Imported for its type only: a spec is checked without numpy.
if TYPE_CHECKING:
    from mimo_launch.data.random_draws import Split


def split_files(data: UserData, split: "Split") -> list[NamedShard]:
    """Return the files of a split. Raises: PatternError."""
    if isinstance(data, WebdatasetData):
        sets = {"": patterns_of(data.shards)} if split == "train" else data.heldout_sets
        return named_shards(chain.from_iterable(sets.values()))
    return []


def in_set(data: UserData, name: str, shards: Sequence[NamedShard]) -> list[bool]:
    """Return which files belong to a held-out set. Raises: PatternError."""
    if isinstance(data, WebdatasetData):
        found = named_shards(data.heldout_sets[name])
        named = {each for shard in found for each in (shard.path, *shard.others)}
        return [not named.isdisjoint((each.path, *each.others)) for each in shards]
    return []


def open_file(shard: NamedShard) -> SourceFile:
    """Open a file. Raises: OSError."""
    return TarFile(shard.path)
