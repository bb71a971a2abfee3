"""The parts of a step's samples that each rank reads.

Decides: which ranks need texts, documents, answers and pixels.
Relies on: `step_views` for the samples of a replica; stages by `layout`.
Leaves: reading to `train.prefetch`.

Pixels are read only on the first stage of an encoder; later stages know the sizes of images from
the StepData. Which patches a cp rank holds depends on the samples that turn out to be readable, so
every cp rank reads all of its replica's.
"""

from dataclasses import dataclass

from mimo_launch.layout.layout import ModuleLayout
from mimo_launch.layout.step_views import StepViews


@dataclass(frozen=True, slots=True)
class Reads:
    """Positions in the step of the samples that one rank reads, by the part that it needs."""

    texts: tuple[int, ...]
    documents: tuple[int, ...]
    answers: tuple[int, ...]
    images: dict[str, tuple[int, ...]]


def reads_of(views: StepViews, rank: int, *, decode: bool) -> Reads:
    """Return what `rank` reads of a step; with `decode`, also what scoring greedy answers needs."""
    layout = views.layout
    texts: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()
    images = {
        module.name: views.samples_of(module, rank)
        for module in layout.modules
        if rank in module.grid and needs_arrays(module, rank)
    }
    language = layout.language
    if rank in language.grid:
        documents = views.samples_of(language, rank)
        # Tokens go into the first stage, labels into the last.
        if decode or any(stage.is_first or stage.is_last for stage in language.stages_of(rank)):
            texts = documents
        if decode and is_scorer(language, rank):
            answers = documents
    return Reads(texts, documents, answers, images)


def needs_arrays(module: ModuleLayout, rank: int) -> bool:
    """Return whether a rank reads images: the first stage, and a last one that learns to make them.

    Later stages know their sizes from the StepData.
    """
    held = module.stages_of(rank)
    return module.reads_arrays and any(
        stage.is_first or (stage.is_last and module.computes_loss) for stage in held
    )


def is_scorer(language: ModuleLayout, rank: int) -> bool:
    """Return whether `rank` is the one of its replica that scores the answers."""
    return not any(language.grid.index(axis, rank) for axis in ("tp", "cp", "pp"))
