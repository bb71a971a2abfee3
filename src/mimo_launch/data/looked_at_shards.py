"""The records of shards without an index, after a look at some of them.

Decides: which records are looked at, and how many there are: as many as the bytes of all shards
hold at the mean size of those.
Relies on: `index.indexer` to read records as an index would.
Leaves: records of an index to `known_shards`.
"""

from collections import defaultdict
from itertools import islice
from pathlib import Path

import numpy as np

from mimo_launch.data.fact_source import Source
from mimo_launch.data.index.columns import Bad, Columns, ShardRows, records_of
from mimo_launch.data.index.indexer import SampleIndexer, read_part
from mimo_launch.data.index.open_split import OpenSplit
from mimo_launch.data.order.captions import first_epoch
from mimo_launch.data.run_records import Records, records_like
from mimo_launch.data.samples.template_program import TemplateRefused
from mimo_launch.data.sources.file_formats import open_file, split_files
from mimo_launch.data.sources.source_file import Part
from mimo_launch.spec.spec import Spec, UserData

# The records to look at, and the shards that they lie in.
_LOOKED_AT, _SHARDS = 512, 16


def looked_at(spec: Spec, data: UserData) -> Records | None:
    """Return records like those of the shards, after a look at some of them.

    None if there is nothing to train on, or a template cannot be used.

    Raises: OSError, IndexError, TokenizerError, ProcessorError.
    """
    shards = split_files(data, "train")
    evenly = {round(each) for each in np.linspace(0, len(shards) - 1, _SHARDS)}
    # And one file of each source, as a mixture has samples of all of them.
    of_source = {each.source: number for number, each in reversed([*enumerate(shards)])}
    chosen = sorted(evenly | {*of_source.values()})
    try:
        indexer = SampleIndexer(spec, data)
    except TemplateRefused:
        return None
    rows, bad = ShardRows(0), list[Bad]()
    # By source, because bytes of a sample differ between formats.
    seen_bytes, each = defaultdict[int, float](float), max(1, _LOOKED_AT // len(chosen))
    for number in chosen:
        rows.number, shard = number, shards[number]
        seen = list(islice(read_part(indexer, shard, Part(), rows, bad), each))
        # The share of the file up to the last of them; all of it, if that was its end.
        share = open_file(shard).share(seen[-1].places) if len(seen) == each else 1.0
        seen_bytes[shard.source] += shard.times * share * shard.path.stat().st_size
    found = rows.index(bad)
    columns = {**found.columns, **records_of(found.columns["caption"])}
    index = Columns(Path(), columns, {"num_bad": len(bad), "suffixes": list(found.suffixes)})
    split = OpenSplit(spec, data, indexer.inputs, "train", index, fetches=False)
    records = first_epoch(split.num_captions, spec.train.seed, np.arange(split.num_samples))
    given = [split.describe(sample) for sample in records.tolist()]
    if not given:
        return None
    in_all = defaultdict[int, float](float)
    for shard in shards:
        in_all[shard.source] += shard.times * shard.path.stat().st_size
    samples = [each.number for each in split.sources] or [len(given)]
    times = (in_all[source] / (seen_bytes[source] or 1) for source in range(len(samples)))
    likely = sum(number * more for number, more in zip(samples, times, strict=True))
    number = max(len(given), round(likely))
    of = f"{len(given):,} of about {number:,}" if number > len(given) else f"{number:,}"
    basis = f"{of} samples, looked at because there is no index yet"
    sources = split.sources if all(each.number for each in split.sources) else ()
    return records_like(Source.HEADERS, basis, given, number, sources)
