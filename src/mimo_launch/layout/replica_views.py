"""The work of one replica: the samples that it encodes for a group, or a microbatch of language.

Decides: which facts about its samples and rows a replica may use, each computed once.
Relies on: `row_owners` for how rows are cut over ranks.
Leaves: which samples a replica has to `step_views`, pairing the two ends of a bridge to
`bridge_routing`, tensors to `runtime`.

Encoder end: the rows of a view are the rows of its samples, one sample after another.
Language end: the token list of a microbatch is the samples one after another. Context parallelism
gives a rank two zigzag chunks of every sample, sequence parallelism a contiguous cut of that list.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import TypeVar

from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.row_owners import (
    Piece,
    Run,
    cut_by_shards,
    cut_runs,
    held_patches,
    local_extra_tokens,
    local_rows,
    row_cut,
    shards_of_cp_rank,
    zigzag_parts,
)
from mimo_launch.layout.step_data import ImageSpan, StepData
from mimo_launch.spec.base import LANGUAGE, Axis

Found = TypeVar("Found")


@frozen(eq=False, slots=False)
class EncoderView:
    """The samples that one replica of an encoder encodes for one group of microbatches.

    `samples` are positions in the step, in the order in which the replica encodes them. Of those in
    `split` it encodes only some media, numbered as in `shares.Share`.
    """

    module: ModuleLayout
    data: StepData
    replica: int
    samples: tuple[int, ...]
    split: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def places(self, sample: int) -> frozenset[int]:
        """Return the places, as indexed, of the images that it encodes of a split sample."""
        media = self.data.places_of_media(self.module.name, sample)
        return frozenset(chain.from_iterable(media[number] for number in self.split[sample]))

    def own(self, sample: int, of_images: Sequence[Found]) -> Sequence[Found]:
        """Return those of something for each image of a sample that are for images of the view."""
        if sample not in self.split:
            return of_images
        mine, readable = self.places(sample), self.data.readable_places(self.module.name, sample)
        return [each for place, each in zip(readable, of_images, strict=True) if place in mine]

    def spans(self, sample: int) -> tuple[ImageSpan, ...]:
        """Return all images of a sample, those of other replicas included."""
        return self.data.samples[sample].spans.get(self.module.name, ())

    @cached_property
    def images(self) -> tuple[ImageSpan, ...]:
        """All images, in the order of their rows."""
        each = (self.own(sample, self.spans(sample)) for sample in self.samples)
        return tuple(chain.from_iterable(each))

    @cached_property
    def _rows(self) -> list[int]:
        """Rows of each image."""
        return [image.rows for image in self.images]

    @cached_property
    def num_rows(self) -> int:
        """Number of rows that the replica makes."""
        return sum(self._rows)

    @cached_property
    def num_units(self) -> int:
        """Number of units in which patches are cut over ranks: rows, without learned ones."""
        if self.module.tiles is None:
            return self.num_rows
        return sum(self.lengths) // self.module.patches_per_row

    @property
    def lengths(self) -> list[int]:
        """Patches of each image, or of each of its tiles."""
        if (tiles := self.module.tiles) is not None:
            number = sum(tiles.num_tiles(image.shown) for image in self.images)
            return [tiles.patches * self.module.patches_per_row] * number
        return [rows * self.module.patches_per_row for rows in self._rows]

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Height and width of each image, in rows."""
        return tuple((image.height, image.width) for image in self.images)

    @property
    def windows(self) -> tuple[list[int], list[int]]:
        """Patches and extra tokens in each window of all images; whole images without windows."""
        side = self.module.window_side
        if side is None:
            return self.lengths, self.extras
        lengths: list[int] = []
        extras: list[int] = []
        for (height, width), loose in zip(self.sizes, self.extras, strict=True):
            rows = [
                min(side, height - y) * min(side, width - x)
                for y in range(0, height, side)
                for x in range(0, width, side)
            ]
            # The last tokens of a clip fill no row; after whole windows they get their own window.
            if loose and width % side == 0:
                rows.append(0)
            lengths += [each * self.module.patches_per_row for each in rows]
            extras += [0] * (len(rows) - 1) + [loose]
        return lengths, extras

    @cached_property
    def extras(self) -> list[int]:
        """Tokens of each image besides its patches: learned tokens, rows read, or loose tokens."""
        if self.module.learned_tokens or self.module.tiles is not None:
            return [self.module.learned_tokens] * len(self.lengths)
        if not self.module.reads_beside:
            return [image.loose for image in self.images]
        per_sample = (self._reads(sample) for sample in self.samples)
        return [
            sum(reads) if self.module.reads_in_turn else reads[0]
            for of in per_sample
            for reads in of
        ]

    @cached_property
    def extra_tokens(self) -> int:
        """Extra tokens that each shard holds, padding included."""
        return local_extra_tokens(self.module, sum(self.extras))

    @property
    def rows_read(self) -> tuple[int, ...]:
        """Number of rows that the replica takes from each module that it reads."""
        if not self.module.reads:
            return ()
        per_image = [reads for sample in self.samples for reads in self._reads(sample)]
        return tuple(sum(rows) for rows in zip(*per_image, strict=True)) or (0,) * len(
            self.module.reads
        )

    def _reads(self, sample: int) -> list[list[int]]:
        """Return, per image of a sample, the number of rows that it takes from each module."""
        spans = self.data.samples[sample].spans
        found = []
        for number, image in enumerate(spans.get(self.module.name, ())):
            found.append(
                [
                    image.num_positions if name == LANGUAGE else spans[name][number].rows
                    for name in self.module.reads
                ]
            )
        return found

    def runs(self, source: str, cp: int) -> list[Run]:
        """Return the places of the rows of `source` in the tokens of cp rank `cp`."""
        module = self.module
        shards = shards_of_cp_rank(module)
        held = len(self.held(cp)) // shards, self.extra_tokens
        size, mine = sum(held), range(cp * shards, (cp + 1) * shards)
        which = module.reads.index(source)
        part, start = (held[1], held[0]) if module.reads_beside else (held[0], 0)
        found: list[Run] = []
        index = 0
        for sample in self.samples:
            first_row = 0
            for reads in self._reads(sample):
                before = sum(reads[:which]) if module.reads_in_turn else 0
                whole = Run(sample, first_row, reads[which], index + before)
                found += cut_by_shards(whole, part, size, start)
                first_row += reads[which]
                index += sum(reads) if module.reads_in_turn else reads[0]
        first = mine.start * size
        return [
            replace(run, place=run.place - first)
            for run in found
            if run.place // max(1, size) in mine
        ]

    def cuts(self, source: str, cp: int) -> list[list[Run]]:
        """Return the part of these runs that each tp rank of cp rank `cp` owns."""
        tokens = len(self.held(cp)) + shards_of_cp_rank(self.module) * self.extra_tokens
        return cut_runs(self.module, self.runs(source, cp), tokens)

    def held(self, cp: int) -> range:
        """Return the patches that cp rank `cp` holds, padding included."""
        return held_patches(self.module, self.num_units, cp)

    def made(self, cp: int, tp: int) -> range:
        """Return the rows of images in tiles that a rank makes, padding included."""
        size, shards = local_rows(self.module, self.num_rows), shards_of_cp_rank(self.module)
        first = cp * size + (tp * size // shards if shards > 1 else 0)
        return range(first, first + size // shards)

    def owned(self, cp: int) -> tuple[int, ...]:
        """Return the number of rows that each tp rank of cp rank `cp` owns."""
        tp_ranks = range(self.module.grid.size(Axis.TP))
        return tuple(len(row_cut(self.module, self.num_rows, cp, tp)) for tp in tp_ranks)

    @cached_property
    def pieces(self) -> dict[int, list[Piece]]:
        """The rows of each sample that each rank of the last stage owns."""
        module, grid = self.module, self.module.grid
        last = module.pp_index(len(module.stages) - 1)
        owners = [
            (
                grid.rank_at(cp=cp, tp=tp, dp=self.replica, pp=last),
                row_cut(module, self.num_rows, cp, tp),
            )
            for cp in range(grid.size(Axis.CP))
            for tp in range(grid.size(Axis.TP))
        ]
        pieces: dict[int, list[Piece]] = {}
        offset = 0
        for sample, rows in self._stretches():
            end, skipped = offset + len(rows), rows.start - offset
            pieces.setdefault(sample, []).extend(
                Piece(rank, sample, first + skipped, last - first, first - owned.start)
                for rank, owned in owners
                if (first := max(offset, owned.start)) < (last := min(end, owned.stop))
            )
            offset = end
        return pieces

    def _stretches(self) -> Iterator[tuple[int, range]]:
        """Yield consecutive rows of its samples, in order: all of one, or those of an image."""
        for sample in self.samples:
            *firsts, last = accumulate((image.rows for image in self.spans(sample)), initial=0)
            if sample in self.split:
                for each in self.own(sample, [*map(range, firsts, [*firsts[1:], last])]):
                    yield sample, each
            else:
                yield sample, range(last)


@frozen(eq=False, slots=False)
class LanguageView:
    """One microbatch of one language replica; `samples` are positions in the step."""

    layout: Layout
    data: StepData
    replica: int
    samples: range

    def runs(self, encoder: str, cp: int) -> list[Run]:
        """Return the places of an encoder's rows in the token list of cp rank `cp`.

        The list has `microbatch_size * seq / cp` tokens; runs are in increasing order of place.
        """
        cp_size = self.layout.language.grid.size(Axis.CP)
        local_seq = self.layout.seq // cp_size
        runs = []
        for item, sample in enumerate(self.samples):
            first_row = 0
            spans = self.data.samples[sample].spans.get(encoder, ())
            for line in (line for span in spans for line in span.lines):
                for position, length, place in zigzag_parts(
                    line.position, line.num_positions, self.layout.seq, cp, cp_size
                ):
                    row = first_row + position - line.position
                    runs.append(Run(sample, row, length, item * local_seq + place))
                first_row += line.num_positions
        return sorted(runs, key=lambda run: run.place)

    def cuts(self, encoder: str, cp: int) -> list[list[Run]]:
        """Return the part of these runs that each tp rank of cp rank `cp` owns."""
        language = self.layout.language
        tokens = len(self.samples) * self.layout.seq // language.grid.size(Axis.CP)
        return cut_runs(language, self.runs(encoder, cp), tokens)

    def pieces(self, encoder: str, stage: int = 0) -> dict[int, list[Piece]]:
        """Return, per sample, the rows that each rank of a stage owns."""
        language = self.layout.language
        return pieces_of(language, self.replica, stage, lambda cp: self.cuts(encoder, cp))


def pieces_of(
    module: ModuleLayout, replica: int, stage: int, cuts: Callable[[int], list[list[Run]]]
) -> dict[int, list[Piece]]:
    """Return, per sample, the rows that each rank of a stage owns; `cuts(cp)` are by tp rank."""
    grid, place = module.grid, module.pp_index(stage)
    pieces: dict[int, list[Piece]] = {}
    for cp in range(grid.size(Axis.CP)):
        for tp, cut in enumerate(cuts(cp)):
            rank = grid.rank_at(tp=tp, cp=cp, dp=replica, pp=place)
            start = 0
            for run in cut:
                pieces.setdefault(run.sample, []).append(
                    Piece(rank, run.sample, run.first_row, run.num_rows, start)
                )
                start += run.num_rows
    return pieces
