"""The `webdataset` data set: samples of the user's shards, from their index.

Decides: what becomes of a sample's members when it is trained on.
Relies on: `splits` for everything that needs no record; `sample_encoder`, `decode` and
`image_processing` for what is in them.
Leaves: the order of samples to `data.sample_order`, threads to `loader`.
"""

from functools import partial

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.random_draws import Split
from mimo_launch.data.webdataset.decode import decode_clip, decode_image, medium_of
from mimo_launch.data.webdataset.image_processing import process
from mimo_launch.data.webdataset.index import Say
from mimo_launch.data.webdataset.indexer import Looker
from mimo_launch.data.webdataset.media_rows import Intake, rows_among
from mimo_launch.data.webdataset.records import read_record
from mimo_launch.data.webdataset.sample_encoder import learnt_among
from mimo_launch.data.webdataset.splits import OpenSplit
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD, placeholder_id
from mimo_launch.layout.step_data import ImageSpan, SampleData
from mimo_launch.spec.model import Spec, WebdatasetData, clip_input, image_input

Int64s = npt.NDArray[np.int64]
Array = npt.NDArray[np.float32]


class ShardSamples:
    """Samples by index; see `dataset.Dataset` for what the methods return."""

    def __init__(self, spec: Spec, data: WebdatasetData, say: Say = lambda progress: None) -> None:
        """Open the index, or make it; `say` hears of the making.

        Raises:
            NotTrainable: There is no sample, or there are more bad ones than `max_bad_samples`, or
                one is too long and `too_long: error`.
            OSError: A shard is not there, or the index can be written nowhere.
            ValueError: The tokenizer, its chat template or a processor cannot be used.
        """
        looker = Looker(spec, data)
        self._data, self._seq = data, spec.batch.seq
        self._writer, self._intakes = looker.writer, looker.intakes
        self.notes = looker.writer.notes
        self._placeholders = [placeholder_id(spec, intake.encoder) for intake in self._intakes]
        wanted: tuple[Split, ...] = ("train",) if spec.eval is None else ("train", "heldout")
        self.splits = {split: OpenSplit(looker, split, say) for split in wanted}

    def num_samples(self, split: Split) -> int:
        """Number of good samples that fit in a sequence, or are cut to fit."""
        return self.splits[split].num_samples

    def length(self, split: Split, index: int) -> int:
        """Tokens of a sample, rows included."""
        found = self.splits[split]
        found.row(index)
        return int(found.lengths[index])

    def name(self, split: Split, index: int) -> str:
        """Return shard and key of a sample."""
        found = self.splits[split]
        return found.name(found.row(index))

    def describe(self, split: Split, index: int) -> SampleData:
        """Lengths and places of a sample, from the index alone."""
        found = self.splits[split]
        row = found.row(index)
        end = found.end(row)
        spans: dict[str, tuple[ImageSpan, ...]] = {}
        for number, _, span in found.spans(row):
            if span.position < end:
                name = self._intakes[number].encoder
                spans[name] = (*spans.get(name, ()), span)
        return SampleData(index, end, found.num_labels(row), spans)

    def text(self, split: Split, index: int) -> tuple[Int64s, Int64s]:
        """Tokens and labels int64 [seq]; rows are placeholders of their encoders."""
        found = self.splits[split]
        row = found.row(index)
        return found.named(row, partial(self._text, found, row))

    def images(self, split: Split, index: int, encoder: str) -> list[Array]:
        """Images [channels, height, width] or log-mel clips [mels, frames] of a sample."""
        found = self.splits[split]
        row = found.row(index)
        end = found.end(row)
        return [
            found.named(row, partial(self._array, found, row, self._intakes[number], member, span))
            for number, member, span in found.spans(row)
            if self._intakes[number].encoder == encoder and span.position < end
        ]

    def documents(self, split: Split, index: int) -> Int64s:
        """Zeros [seq]: a sample is one document."""
        self.splits[split].row(index)
        return np.zeros(self._seq, dtype=np.int64)

    def answer(self, split: Split, index: int) -> tuple[int, ...]:
        """Empty: answers in free text are not scored."""
        self.splits[split].row(index)
        return ()

    def _text(self, found: OpenSplit, row: int) -> tuple[Int64s, Int64s]:
        members = found.members(row)
        record = read_record(
            self._data,
            lambda suffix: found.read(row, members[suffix]) if suffix in members else None,
        )
        media = [medium_of(suffix) for suffix in members]
        written = self._writer.write(
            record, {"image": media.count("image"), "audio": media.count("audio")}
        )
        spans = found.spans(row)
        is_row = rows_among(len(written.tokens), [span for _, _, span in spans])
        if len(is_row) != (expected := found.index.columns["tokens"][row]):
            raise BadSample(f"it has {len(is_row)} tokens, and {expected} in the index")
        all_tokens = np.empty(len(is_row), dtype=np.int64)
        all_tokens[~is_row] = written.tokens
        for number, _, span in spans:
            all_tokens[span.position : span.position + span.rows] = self._placeholders[number]
        end = found.end(row)
        learnt = np.flatnonzero(learnt_among(written.learnt, is_row)[:end])
        tokens = np.full(self._seq, PAD, dtype=np.int64)
        labels = np.full(self._seq, IGNORE_LABEL, dtype=np.int64)
        tokens[:end] = all_tokens[:end]
        labels[learnt - 1] = all_tokens[learnt]
        return tokens, labels

    def _array(
        self, found: OpenSplit, row: int, intake: Intake, member: int, span: ImageSpan
    ) -> Array:
        """Return the `member`-th image or clip of a sample as its encoder takes it."""
        members = found.members(row)
        suffix = [each for each in members if medium_of(each) == intake.medium][member]
        data = found.read(row, members[suffix])
        shape = intake.model.input_shape(span.height, span.width)
        if clips := clip_input(intake.model):
            from mimo_launch.data.log_mel import HOP, RATE, log_mel

            # One second more than is seen: resampling looks a little ahead.
            clip = decode_clip(suffix, data, seconds=1 + shape[-1] * HOP / RATE)
            return log_mel(*clip, clips.mels, frames=shape[-1])
        images = image_input(intake.model)
        if images is None or intake.recipe is None:
            raise TypeError(f"{intake.encoder} takes no images")
        pixels = process(decode_image(suffix, data, channels=images.channels), intake.recipe)
        # What is left over at the right and below makes no whole row: convolutions drop it, too.
        return pixels[:, : shape[1], : shape[2]]
