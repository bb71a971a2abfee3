"""Facts about many rows of an index at once, from its columns.

Decides: how the spans of media and the runs of labels of rows are counted, without a loop.
Relies on: `columns` for what each column means.
Leaves: single rows and where they are cut to `index_rows`, which rows are samples to `open_split`.
"""

from collections.abc import Callable, Mapping, Sequence

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

    def images(self, rows: Int64s, ends: Int64s | None) -> dict[str, ImageFacts]:
        """Return the images of each module in rows of which so many tokens are used, None: all."""
        record, width, of_images = self._used(rows, ends)
        modules, member = of_images("module"), of_images("member")
        joined, shapes = np.zeros_like(width), np.empty((len(width), len(SHAPE)), np.int64)
        of_modules = [np.flatnonzero(modules == number) for number in range(len(self.names))]
        for of in of_modules:
            # As in `columns.placed_from`.
            same = member[of[1:]] == member[of[:-1]]
            joined[of[1:]] = same & (record[of[1:]] == record[of[:-1]])
        known = {"width": width, "joined": joined}
        for place, name in enumerate(SHAPE):
            shapes[:, place] = known[name] if name in known else of_images(name)
        found = zip(self.names, of_modules, strict=True)
        return {name: ImageFacts(record[of], shapes[of]) for name, of in found if len(of)}

    def num_rows(self, rows: Int64s, ends: Int64s | None) -> dict[str, Int64s]:
        """Return `RecordFacts.rows` of each module with images, without the shapes of images."""
        record, width, of_images = self._used(rows, ends)
        modules, number = of_images("module"), len(self.names)
        made = np.bincount(
            record * number + modules,
            weights=width * of_images("height"),
            minlength=len(rows) * number,
        ).astype(np.int64)
        names = enumerate(self.names)
        return {name: made[each::number] for each, name in names if (modules == each).any()}

    def _used(
        self, rows: Int64s, ends: Int64s | None
    ) -> tuple[Int64s, Int64s, Callable[[str], Column]]:
        """Return the images in rows of which so many tokens are used.

        Of each the place of its row, its width in rows, and any column of spans, by its name.
        """
        record, at = self._spans(rows)

        def column(name: str) -> Column:
            return self.columns[f"span_{name}"][at]

        # A clip in several parts is one.
        is_first = column("before") == 0
        width, used = column("width").astype(np.int64), np.flatnonzero(is_first)
        if len(used) < len(is_first):
            width = np.add.reduceat(width, used)
        if ends is not None:
            # As in `IndexRows.spans_used`.
            end = (column("position") + np.maximum(1, column("reads")))[used]
            fits = end <= ends[record[used]]
            used, width = used[fits], width[fits]
        return record[used], width, lambda name: column(name)[used]

    def _spans(self, rows: Int64s) -> tuple[Int64s, Int64s | slice]:
        """Return the places of spans of rows in their columns, and before them each one's row.

        Those of rows that follow each other are a slice, of which no column is copied.
        """
        begins, ends = self._bounds("span", rows)
        if len(rows) and (begins[1:] == ends[:-1]).all():
            return np.repeat(np.arange(len(rows)), ends - begins), slice(begins[0], ends[-1])
        return spread_out(begins, ends)

    def labels(self, rows: Int64s, ends: Int64s, after: int = 0) -> Int64s:
        """Return `IndexRows.num_labels` of rows of which so many tokens are used."""
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
