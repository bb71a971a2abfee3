"""The records of shards as a plan may know them: from their index, or from a look at some of them.

Decides: that an index counts for more than a look.
Relies on: `index` for the columns of records, `looked_at_shards` if there is no index.
Leaves: making an index to `train` and `data`, the steps of a run to `expected_steps`.
"""

import numpy as np

from mimo_launch.data.fact_source import Source
from mimo_launch.data.index.find_index import find_index
from mimo_launch.data.index.open_split import OpenSplit
from mimo_launch.data.record_facts import Int64s, RecordFacts
from mimo_launch.data.run_records import MOST, Records
from mimo_launch.data.samples.media_rows import ShardInputs
from mimo_launch.layout.step_data import SampleData
from mimo_launch.processors.files import ProcessorError, TokenizerError
from mimo_launch.spec.spec import Spec, UserData


def records_of_shards(spec: Spec, data: UserData) -> Records | None:
    """Return the records of the shards; None if they or their tokenizer or processor are not here.

    None, too, if there is nothing to train on, or a template cannot be used: `train` says why.
    """
    try:
        inputs = ShardInputs(spec, data)
        index = find_index(spec, data, inputs, "train")
        if index is None:
            # Imported where needed: it reads records, with templates and tokenizers.
            from mimo_launch.data.looked_at_shards import looked_at

            return looked_at(spec, data)
    except (OSError, IndexError, TokenizerError, ProcessorError):
        return None
    split = OpenSplit(spec, data, inputs, "train", index, fetches=False)
    if not split.num_samples:
        return None
    return IndexRecords(split)


class IndexRecords(Records):
    """All records of a run, by their index."""

    source, most = Source.INDEX, MOST

    def __init__(self, split: OpenSplit) -> None:
        self._split = split
        self.in_all = self.number = split.num_samples
        self.basis = f"the run's own steps, from the index of {self.number:,} samples"
        self.sources, self.captions = split.sources, split.num_captions

    def tokens(self, ids: Int64s) -> Int64s:
        """Return the number of tokens of each of these records."""
        return self._split.rows.lengths[self._split.rows_at(ids)].astype(np.int64)

    def rows(self, ids: Int64s) -> dict[str, Int64s]:
        """Return the rows that each module with images makes of each of these records."""
        return self._split.num_rows(ids)

    def facts(self, ids: Int64s) -> RecordFacts:
        """Return facts about these records."""
        return self._split.facts(ids)

    def describe(self, index: int) -> SampleData:
        """Return a record as a run describes it."""
        return self._split.describe(index)
