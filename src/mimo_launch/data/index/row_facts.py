"""Facts about many rows of an index at once, from its columns.

Decides: how the spans of media and the runs of labels of rows are counted, without a loop.
Relies on: `columns` for what each column means.
Leaves: which rows are samples, and where they are cut, to `open_split`, which also describes single
rows in the same terms.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from mimo_launch.data.index.columns import Column
from mimo_launch.data.record_facts import SHAPE, ImageFacts, Int64s, spread_out
from mimo_launch.diag.frozen import frozen

# Rows of which spans are read at once.
_AT_ONCE = 1 << 16


@frozen
class RowFacts:
    """Rows of an index by its `columns`; spans have the numbers of the modules `names`."""

    columns: Mapping[str, Column]
    names: Sequence[str]

    def images(self, rows: Int64s, ends: Int64s) -> dict[str, ImageFacts]:
        """Return the images of each module in rows of which so many tokens are used."""
        columns = self.columns
        record, at, width = self._used(rows, ends)
        modules, shapes = columns["span_module"][at], np.empty((len(at), len(SHAPE)), np.int64)
        joined = np.zeros_like(width)
        of_modules = [np.flatnonzero(modules == number) for number in range(len(self.names))]
        for of in of_modules:
            # As in `columns.placed_from`.
            same = columns["span_member"][at[of[1:]]] == columns["span_member"][at[of[:-1]]]
            joined[of[1:]] = same & (record[of[1:]] == record[of[:-1]])
        known = {"width": width, "joined": joined}
        for place, name in enumerate(SHAPE):
            shapes[:, place] = known[name] if name in known else columns[f"span_{name}"][at]
        found = zip(self.names, of_modules, strict=True)
        return {name: ImageFacts(record[of], shapes[of]) for name, of in found if len(of)}

    def num_rows(self, rows: Int64s, ends: Int64s) -> dict[str, Int64s]:
        """Return `RecordFacts.rows` of each module with images, without the shapes of images."""
        record, at, width = self._used(rows, ends)
        modules, found = self.columns["span_module"][at], dict[str, Int64s]()
        made = width * self.columns["span_height"][at]
        for number, name in enumerate(self.names):
            if (of := modules == number).any():
                sums = np.bincount(record[of], weights=made[of], minlength=len(rows))
                found[name] = sums.astype(np.int64)
        return found

    def _used(self, rows: Int64s, ends: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the images in rows of which so many tokens are used.

        Of each the place of its row, its place in the columns of spans, and its width in rows.
        """
        columns = self.columns
        record, at = spread_out(*self._bounds("span", rows))
        # A clip in several parts is one.
        is_first = columns["span_before"][at] == 0
        firsts, width = np.flatnonzero(is_first), columns["span_width"][at].astype(np.int64)
        if len(firsts) < len(at):
            width = np.add.reduceat(width, firsts)
            record, at = record[firsts], at[firsts]
        # As in `OpenSplit.spans_used`.
        end = columns["span_position"][at] + np.maximum(1, columns["span_reads"][at])
        used = end <= ends[record]
        return record[used], at[used], width[used]

    def labels(self, rows: Int64s, ends: Int64s, after: int = 0) -> Int64s:
        """Return `OpenSplit.num_labels` of rows of which so many tokens are used."""
        columns = self.columns
        record, at = spread_out(*self._bounds("run", rows))
        last, least = ends[record], np.minimum(after + 1, ends[record])
        number = columns["run_last"][at].clip(least, last).astype(np.int64)
        number -= columns["run_first"][at].clip(least, last).astype(np.int64)
        return np.bincount(record, weights=number, minlength=len(rows)).astype(np.int64)

    def perhaps_split(self, seq: int, gap_of: Sequence[int]) -> Int64s:
        """Return the rows longer than `seq` with an image or a clip that ends after it.

        Lines of an image of module n have `gap_of[n]` tokens between them.
        """
        columns, gaps = self.columns, np.array(gap_of, dtype=np.int64)
        is_cut, found = np.flatnonzero(columns["tokens"] > seq), [np.empty(0, np.int64)]
        for first in range(0, len(is_cut), _AT_ONCE):
            rows = is_cut[first : first + _AT_ONCE]
            record, at = spread_out(*self._bounds("span", rows))
            widths = columns["span_width"][at] + gaps[columns["span_module"][at]]
            sizes = np.maximum(columns["span_height"][at] * widths, columns["span_reads"][at])
            is_late = columns["span_position"][at] + sizes > seq
            found.append(rows[np.unique(record[is_late])])
        return np.concatenate(found)

    def _bounds(self, name: str, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return where the parts of rows begin and end in the columns of a list."""
        ends = self.columns[f"{name}_end"]
        return np.where(rows > 0, ends[rows - 1], 0).astype(np.int64), ends[rows].astype(np.int64)
