"""Known ways to get connectors and generators wrong; `planted` lists them with the others."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from tests.support.graphs import connector, flow, talker
from tests.support.specs import box, spec

from mimo_launch.data.random_draws import Noise, noises_of
from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.layout.row_owners import Run
from mimo_launch.models import stage_interface
from mimo_launch.models import talker as talker_stage
from mimo_launch.models.code_predictor import CodePredictor
from mimo_launch.models.language_model import LanguageStage
from mimo_launch.models.noise import HeldNoise
from mimo_launch.models.row_places import RowReader, rows_at
from mimo_launch.models.talker import ApartMaps
from mimo_launch.runtime import compute
from mimo_launch.runtime.bridges import RankBridge
from mimo_launch.runtime.mailbox import Address, Mailbox
from mimo_launch.spec.spec import Spec

ROWS_OF_AN_IMAGE = 3


def two_readers() -> Spec:
    """Language and a resampler read the same encoder: two images in a sample, all of one size."""
    return spec(
        {
            "vision": box(0),
            "merger": box(1, **connector("vision", queries=2)),
            "language": box(1, reads=["vision", "merger"]),
        },
        microbatches=2,
        mbs=2,
        max_images=2,
        data={
            "kind": "synthetic",
            "image": [1, ROWS_OF_AN_IMAGE],
            "min_images": 2,
            "max_images": 2,
        },
        seq=64,
    )


def two_towers() -> Spec:
    """A connector adds the rows of two encoders."""
    towers = connector("vision", "depth", merge="width")
    modules = {"vision": box(0), "depth": box(0), "merger": box(1, **towers), "language": box(1)}
    return spec(modules, microbatches=2, mbs=2, max_patches=8)


def frozen_between() -> Spec:
    """A frozen connector and a frozen language model behind an encoder that trains."""
    return spec(
        {
            "vision": box(0),
            "merger": box(1, frozen=True, **connector("vision")),
            "language": box(1, frozen=True),
        },
        microbatches=2,
        mbs=2,
        max_patches=8,
    )


def drawn(**grid: int) -> Spec:
    """A generator with a weight behind language on one rank."""
    drawer = box(0, **grid, **flow(loss_weight=0.3))
    return spec(
        {"language": box(0), "drawer": drawer}, microbatches=2, mbs=2, max_patches=8, max_images=2
    )


def scaled_second_reader(factor: float) -> None:
    """Change what the last reader of several answers, before the gradients are added."""
    correct = Mailbox.backward

    def scaling(self: Any, outputs: Any, loss: Any) -> None:
        if len(outputs) > 1:
            self.gradients.peek(outputs[-1]).mul_(factor)
        correct(self, outputs, loss)

    Mailbox.backward = scaling


def second_reader_dropped() -> None:
    """Of two readers of an encoder only the first one's gradient counts."""
    scaled_second_reader(0.0)


def second_reader_counted_twice() -> None:
    """The gradient of the second reader is added twice."""
    scaled_second_reader(2.0)


def scaled_loss_of_generator(factor: Any) -> None:
    """Multiply the loss of a generator by what a function makes of its stages, action and step."""
    correct = compute.Stages.forward

    def scaling(self: Any, action: Any, step: Any) -> None:
        correct(self, action, step)
        module = self.layout[action.module]
        if not module.is_language and module.stages[action.stage].is_last and module.computes_loss:
            outputs, at = self.mail.outputs, Address.of(action)
            outputs.put(at, outputs.take(at) * factor(self, action, step))

    compute.Stages.forward = scaling


def local_patch_count() -> None:
    """Each replica divides by its own patches of a forward instead of the step's."""

    def to_local(stages: Any, action: Any, step: Any) -> float:
        module = stages.layout[action.module]
        replica = module.grid.index("dp", stages.rank)
        mine = step.views.encoder(module.name, replica, action.index).num_rows
        parts = module.grid.size("dp") * stages.layout.num_groups(module)
        return step.data.num_terms(module.name) / max(1, mine) / parts

    scaled_loss_of_generator(to_local)


def weight_applied_twice() -> None:
    """The weight of a generator's loss counts in the runtime and once more behind it."""
    scaled_loss_of_generator(
        lambda stages, action, _: stages.layout[action.module].losses[0].weight
    )


def towers_swapped() -> None:
    """A connector of two encoders takes the rows of each for those of the other."""
    correct = RowReader.forward

    def swapped(self: Any, x_nD: Any, rows: Any, places: Any) -> Any:
        names = [name for name, _ in self.named_children()]
        rows = {name: rows[other] for name, other in zip(names, reversed(names), strict=True)}
        return correct(self, x_nD, rows, places)

    RowReader.forward = swapped


def noise_by_place() -> None:
    """Noise is drawn by the place of a sample in its replica's list, not by its number."""
    correct = HeldNoise.of

    def by_place(forward: Any) -> Any:
        samples, given = forward.view.samples, forward.samples

        def noises(sample: int, generator: str, numbers: int) -> list[Noise]:
            record = replace(given.data.samples[sample], id=samples.index(sample))
            return noises_of(given.seed, given.data, record, generator, numbers)

        return correct(replace(forward, samples=SimpleNamespace(noises=noises)))

    HeldNoise.of = by_place  # type: ignore[method-assign]


def time_of_the_neighbour() -> None:
    """The first patch of an image gets the time of the image before it."""
    correct = HeldNoise.towards

    def shifted(self: Any, images: Any) -> Any:
        return correct(replace(self, times=self.times.roll(1)), images)

    HeldNoise.towards = shifted


def images_of_a_sample_reversed() -> None:
    """A connector takes the rows of a sample's last image for those of its first."""
    correct = EncoderView.runs

    def mirrored(run: Run, num_rows: int) -> Run:
        image, row = divmod(run.first_row, ROWS_OF_AN_IMAGE)
        last = num_rows // ROWS_OF_AN_IMAGE - 1
        return replace(run, first_row=(last - image) * ROWS_OF_AN_IMAGE + row)

    def reversed_images(self: Any, source: str, cp: int) -> list[Run]:
        samples = self.data.samples
        return [
            mirrored(run, samples[run.sample].rows(source)) for run in correct(self, source, cp)
        ]

    EncoderView.runs = reversed_images


def frozen_passes_nothing() -> None:
    """What is frozen answers with zeros although something in front of it trains."""
    correct = RankBridge._outgoing

    def nothing(self: Any, state: Any, *, forward: bool) -> torch.Tensor | None:
        made = correct(self, state, forward=forward)
        frozen = self.layout[self.bridge.target].frozen
        return made * 0 if made is not None and frozen and not forward else made

    RankBridge._outgoing = nothing


def spoken(model: Mapping[str, Any] = MappingProxyType({}), **grid: int) -> Spec:
    """A talker that reads text of a language model in two stages."""
    speech = talker(reads_text=True, model=dict(model))
    modules = {"language": box(0, pp=2), "speech": box(0, **grid, **speech)}
    return spec(modules, microbatches=2, mbs=2, max_patches=8, max_images=2)


def maps_swapped() -> None:
    """Text goes through the map of states, and states through that of text."""
    correct = ApartMaps.forward

    def swapped(self: Any, x_rE: Any, where: Any) -> Any:
        return correct(self, x_rE, replace(where, apart=where.apart[::-1]))

    ApartMaps.forward = swapped


def state_of_the_end() -> None:
    """A talker reads the last state of language in place of that after a layer."""
    correct = LanguageStage._sent

    def late(self: Any, reader: str, states: Any, where: Any, batch: Any) -> Any:
        ends = {layer: states[None] + 0 * each for layer, each in states.items()}
        return correct(self, reader, ends, where, batch)

    LanguageStage._sent = late


def seen() -> Spec:
    """A talker of states and text, apart, behind images and language in two stages."""
    model = {"reads_layer": 1}
    speech = talker(reads_text="instead", model=model)
    return spec(
        {"vision": box(0), "language": box(0, pp=2), "speech": box(0, **speech)},
        microbatches=2,
        mbs=2,
        max_patches=8,
        max_images=2,
    )


# A talker with a code predictor.
PREDICTED = {
    "layers": 2, "codebooks": 3, "vocab": 13, "predictor": {"layers": 1, "heads": 2, "vocab": 11},
}  # fmt: skip


def frame_sees_itself() -> None:
    """A talker sees the frame that it is to say."""
    correct = talker_stage.code_frames

    def shifted(read: Any) -> Any:
        frames = correct(read)
        return replace(frames, tokens=frames.tokens.roll(-1, dims=0))

    talker_stage.code_frames = shifted


def talker_sees_ahead() -> None:
    """A frame attends to those behind it."""
    correct = stage_interface.two_list_context

    def unmasked(*args: Any, **options: Any) -> Any:
        made = correct(*args, **options)
        return replace(made, valid=made.valid.any(dim=1, keepdim=True))

    stage_interface.two_list_context = unmasked


def text_of_the_neighbour() -> None:
    """Each row of language gets the embedding of the token before its own."""
    correct = LanguageStage._sent

    def shifted(self: Any, reader: str, states: Any, where: Any, batch: Any) -> Any:
        moved = replace(batch, tokens=batch.tokens.roll(1, dims=1))
        return correct(self, reader, states, where, moved)

    LanguageStage._sent = shifted


def text_learns_nothing() -> None:
    """The talker's gradient does not reach the embedding of the text that it reads."""
    correct = LanguageStage._sent

    def cut(self: Any, reader: str, states: Any, where: Any, batch: Any) -> Any:
        made = correct(self, reader, states, where, batch)
        own = rows_at(states[None], where, self.context)
        # Its weight stays on the graph.
        return own + (made - own).detach() + 0 * made

    LanguageStage._sent = cut


def frames_shifted() -> None:
    """Codes are predicted from the frame after theirs."""
    correct = CodePredictor.forward

    def shifted(self: Any, state_nD: Any, read_NJ: Any, tables: Any) -> Any:
        return [each.roll(-1, dims=0) for each in correct(self, state_nD, read_NJ, tables)]

    CodePredictor.forward = shifted


def _learns_nothing(table: Any, ids: Any) -> Any:
    rows = table.own_rows(ids)
    return rows.detach() + 0 * rows


def table_of_one_end() -> None:
    """The table of codes learns only from the sums that frames read, not from the predictor."""
    correct = CodePredictor.forward

    def cut(self: Any, state_nD: Any, read_NJ: Any, tables: Any) -> Any:
        fixed = [SimpleNamespace(own_rows=partial(_learns_nothing, each)) for each in tables]
        return correct(self, state_nD, read_NJ, fixed)

    CodePredictor.forward = cut


GRAPH_BUGS = {
    "second reader dropped": (second_reader_dropped, two_readers()),
    "second reader counted twice": (second_reader_counted_twice, two_readers()),
    "patches counted per replica": (local_patch_count, drawn(dp=2)),
    "weight of a loss applied twice": (weight_applied_twice, drawn(dp=2)),
    "towers swapped": (towers_swapped, two_towers()),
    "noise by place": (noise_by_place, drawn(dp=2)),
    "time of the neighbour": (time_of_the_neighbour, drawn(cp=2)),
    "images of a sample reversed to a connector": (images_of_a_sample_reversed, two_readers()),
    "frozen passes nothing": (frozen_passes_nothing, frozen_between()),
    "frame sees itself": (frame_sees_itself, spoken()),
    "talker sees ahead": (talker_sees_ahead, spoken(cp=2)),
    "text of the neighbour": (text_of_the_neighbour, spoken()),
    "text learns nothing": (text_learns_nothing, spoken()),
    "frames of a predictor shifted": (frames_shifted, spoken(model=PREDICTED)),
    "maps of states and text swapped": (maps_swapped, seen()),
    "state of the end": (state_of_the_end, seen()),
    "table of one end": (table_of_one_end, spoken(model=PREDICTED, pp=2)),
}
