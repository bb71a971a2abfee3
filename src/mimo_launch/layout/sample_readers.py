"""Which rank reads what of a step's samples.

Decides: who needs texts, documents, answers and pixels.
Relies on: ownership of samples by `samples` and `sample_owners`; stages by `layout`.
Leaves: reading to `train.prefetch`.

Pixels are read on the first stage of an encoder only; later stages know the sizes of images from
the StepData. Which patches a cp rank holds depends on the samples that turn out to be readable, so
every cp rank reads its replica's.
"""

from dataclasses import dataclass

from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.sample_owners import encoder_samples
from mimo_launch.layout.step_data import StepData


@dataclass(frozen=True, slots=True)
class Reads:
    """Positions in the step of the samples that one rank reads, by what it needs of them."""

    texts: tuple[int, ...]
    documents: tuple[int, ...]
    answers: tuple[int, ...]
    images: dict[str, tuple[int, ...]]


def reads_of(layout: Layout, data: StepData, rank: int, *, decode: bool) -> Reads:
    """Return what `rank` reads of a step; with `decode`, also what judging greedy answers takes."""
    texts: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()
    images = {
        module.name: samples_of(layout, data, module, rank)
        for module in layout.encoders
        if rank in module.grid and module.grid.index("pp", rank) == 0
    }
    language = layout.language
    if rank in language.grid:
        documents = samples_of(layout, data, language, rank)
        # Tokens go into the first stage, labels into the last.
        if decode or any(stage.is_first or stage.is_last for stage in language.stages_of(rank)):
            texts = documents
        if decode and is_scorer(language, rank):
            answers = documents
    return Reads(texts, documents, answers, images)


def is_scorer(language: ModuleLayout, rank: int) -> bool:
    """Return whether `rank` is the one of its replica that judges the answers."""
    return not any(language.grid.index(axis, rank) for axis in ("tp", "cp", "pp"))


def samples_of(layout: Layout, data: StepData, module: ModuleLayout, rank: int) -> tuple[int, ...]:
    """Return the samples of a rank's replica of a module, in the order of the step."""
    replica, microbatches = module.grid.index("dp", rank), layout.samples.microbatches
    if module.is_language:
        groups = [tuple(layout.samples.language(replica, m)) for m in range(microbatches)]
    else:
        num_groups = microbatches // module.group_size
        groups = [encoder_samples(layout, data, module, replica, g) for g in range(num_groups)]
    return tuple(sorted(position for group in groups for position in group))
