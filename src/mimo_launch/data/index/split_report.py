"""The report on a split: what is left out of it, and why it cannot be trained on.

Decides: how many bad records are too many, and the words for those that are left out.
Relies on: `open_split` for the samples.
Leaves: when this is said to `shard_samples` and the commands.
"""

from collections.abc import Container, Sequence
from itertools import islice

import numpy as np

from mimo_launch.data.index.columns import BAD
from mimo_launch.data.index.open_split import OpenSplit
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.data.sources.tables import copied_bytes
from mimo_launch.spec.spec import FilesData

_MOST_LISTED = 5


class NotTrainable(ValueError):
    """Shards hold no sample, too many bad records, or a too long one under `too_long: error`."""


def check_trainable(split: OpenSplit) -> None:
    """Raise NotTrainable if the samples of a split must not be trained on."""
    index, data, rows = split.index, split.data, split.rows
    if index.num_bad > data.max_bad_samples:
        raise NotTrainable(
            f"{index.num_bad} records of the data ({split.split}) are bad, but "
            f"`data.max_bad_samples` allows {data.max_bad_samples}; {index.folder / BAD} lists "
            f"them, the first:\n{first_bad(split)}"
        )
    if rows.num_too_long and data.too_long == "error":
        row = int(np.argmax(index.columns["tokens"] > split.seq))
        raise NotTrainable(
            f"{rows.num_too_long} samples ({split.split}) are longer than `batch.seq` "
            f"{split.seq}; the first is {split.name(row)} with {index.columns['tokens'][row]} "
            f"tokens; raise `batch.seq`, or write `too_long: drop` or `truncate` in `data`"
        )
    if split.num_samples == 0:
        raise NotTrainable(
            f"the data ({split.split}) hold no usable sample: {index.num_bad} are bad, "
            f"{rows.num_too_long} are longer than `batch.seq` {split.seq}\n{first_bad(split)}"
        )
    if isinstance(data, FilesData) and data.is_mixed:
        for number, source in enumerate(split.sources):
            if not source.number:
                is_of = [each.source == number for each in split.shards]
                raise none_usable(split, f"the source `{source.name}`", is_of)


def none_usable(split: OpenSplit, of: str, is_of: Sequence[bool]) -> NotTrainable:
    """Return the error that some of the files hold no usable sample, and why."""
    mine, others = (
        {each.path.name for each, own in zip(split.shards, is_of, strict=True) if own is wanted}
        for wanted in (True, False)
    )
    columns, why = split.index.columns, list[str]()
    is_long = (columns["tokens"] > split.seq) & np.array(is_of)[columns["shard"]]
    if too_long := int(is_long.sum()):
        records = "1 record is" if too_long == 1 else f"{too_long:,} records are"
        why.append(f"{records} longer than `batch.seq` {split.seq}")
    # Bad records have the name of a file, which files of other sources may have, too.
    if bad := first_bad(split, mine - others):
        why.append(f"{split.index.folder / BAD} lists bad records, the first:\n{bad}")
    if not why:
        is_bad = split.index.num_bad
        why = [f"{split.index.folder / BAD} lists bad records" if is_bad else "it has no record"]
    return NotTrainable(f"{of} holds no usable sample: {'; '.join(why)}")


def first_bad(split: OpenSplit, names: Container[str] | None = None) -> str:
    """Return the first bad records, one per line; with `names`, of files with these names."""
    found = (each for each in split.index.bad() if names is None or each["shard"] in names)
    first = islice(found, _MOST_LISTED)
    return "\n".join(f"{each['shard']} {each['key']}: {each['why']}" for each in first)


def summary_of(split: OpenSplit) -> str:
    """Return the number of samples and of records left out, in one line."""
    words = [f"{split.num_samples:,} samples ({split.split})"]
    if split.captions is not None:
        how = "one of each learnt in an epoch" if split.split == "train" else "the first are used"
        words[0] += f" with {split.captions.counts.sum():,} captions, {how}"
    if split.rows.num_too_long:
        cut = "left out" if split.data.too_long == "drop" else "cut"
        if cut == "cut" and (bare := split.rows.num_without_labels()):
            cut += f", nothing is learnt of {bare:,} of them"
        words.append(f"{split.rows.num_too_long:,} longer than {split.seq} tokens, {cut}")
    if split.index.num_bad:
        words.append(f"{split.index.num_bad:,} bad, see {split.index.folder / BAD}")
    if kinds := len(split.index.ignored):
        what = "kinds of keys or members" if kinds > 1 else "kind of key or member"
        words.append(f"{kinds} {what} ignored, which `mimo-launch data` counts")
    if copied := sum(map(copied_bytes, split.shards)):
        words.append(f"{copied / 1e9:.1f} GB of large row groups copied beside the index")
    if repeats := _repeats(split.shards):
        words.append(repeats)
    return "; ".join(words)


def _repeats(shards: Sequence[NamedShard]) -> str:
    """Return a note on shards that are named more than once or under several names, or ""."""
    repeated = [each for each in shards if each.times > 1 or each.others]
    if not repeated:
        return ""
    first, more = repeated[0], len(repeated) - 1
    words = f"{first.path.name} counts {f'{first.times} times' if first.times > 1 else 'once'}"
    if first.others:
        names = ", ".join(each.name for each in islice(first.others, _MOST_LISTED))
        words += f" ({names} {'are' if len(first.others) > 1 else 'is'} the same file)"
    if more:
        is_ = "s are" if more > 1 else " is"
        words += f", and {more:,} more shard{is_} written more than once"
    return words
