"""Estimates of images in tiles: each rank gathers the patches of all, and makes rows of them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.memory import memory_of
from tests.support.specs import box, spec
from tests.support.works import nominal_work
from tests.unit.test_estimates import FREE, estimator
from tests.unit.test_kept import MemoryPeak

from mimo_launch.kinds.ovis2_vision import VocabularyShape
from mimo_launch.kinds.shapes import table
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.ovis2_vision import Vocabulary
from mimo_launch.models.tiled_rows import RowSources, TiledRows
from mimo_launch.spec.spec import Spec

WIDTH, LANGUAGE_WIDTH, LAYERS = 64, 1024, 2
TOWER: dict[str, Any] = {
    "layers": LAYERS, "hidden": WIDTH, "heads": 4, "mlp": 64, "positions": "learned",
    "image": [6, 8], "tiles": {"grids": [[2, 2]]},
}  # fmt: skip


def tiled(**vision: Any) -> Spec:
    """Return a spec whose language is far wider than its tower."""
    vision = {"model": TOWER, **vision}
    decoder = {"hidden": LANGUAGE_WIDTH, "heads": 8, "head_dim": 128}
    modules = {"vision": box(0, **vision), "language": box(4, model=decoder)}
    return spec(modules, train={"steps": 1, "precision": "bf16"})


def patches_of(made: Spec) -> int:
    """Return the patches of all ranks in one forward of the tower."""
    layout = build_layout(made)
    work = nominal_work(layout, layout["vision"], made)
    return work.tokens


def test_patches_stand_beside_the_learned_row_while_rows_are_made() -> None:
    made = tiled()
    patches = patches_of(made)
    layer = TiledRows(ParallelContext(), table(LANGUAGE_WIDTH, embeds=False))
    given = torch.randn(patches, LANGUAGE_WIDTH)
    places = torch.arange(patches)[:, None]
    sources = RowSources(places, torch.ones(patches, 1))
    with torch.no_grad(), MemoryPeak(given) as peak:
        rows = layer(given, sources)
    beside = peak.largest - 2 * given.nbytes
    assert rows.shape == given.shape
    # In bf16, and by the estimate without what is kept.
    wanted = memory_of(made, "vision").forward_extra
    assert wanted == pytest.approx(beside / 2, rel=0.2)


@pytest.mark.parametrize(
    ("vision", "copies"),
    [({}, 1), ({"tp": 2}, 1), ({"cp": 2}, 2), ({"tp": 2, "sequence_parallel": True}, 2)],
)
def test_gathered_patches_stand_beside_them(vision: dict[str, Any], copies: int) -> None:
    made = tiled(**vision)
    size = patches_of(made) * LANGUAGE_WIDTH * 2
    stage = memory_of(made, "vision")
    assert stage.forward_extra == copies * size
    assert stage.end_extra >= copies * size
    first = memory_of(tiled(**vision, pp=2), "vision", 0)
    assert first.forward_extra == 0


WORDS, SMALL_ROW = 3000, 8


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("frozen", [False, "except_projector", True])
def test_gradients_of_words_stand_beside_what_is_kept(precision: str, frozen: bool | str) -> None:
    """A softmax over words needs more for each row than all other layers."""
    shape = VocabularyShape(SMALL_ROW, WORDS, SMALL_ROW)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    layer = Vocabulary(ParallelContext(), shape).to(dtype)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    rows, learns = 1600, frozen is not True
    given = torch.randn(rows, SMALL_ROW, dtype=dtype, requires_grad=learns)
    layer.requires_grad_(learns)
    with torch.set_grad_enabled(learns), MemoryPeak() as peak:
        made = layer(given)
        if learns:
            made.sum().backward()

    def estimated(words: int) -> int:
        model = {"kind": "ovis2_vision", "layers": 1, "hidden": SMALL_ROW, "heads": 1, "mlp": 8}
        model |= {"image": [4, 4], "words": words}
        modules = {
            "vision": box(0, model=model, frozen=frozen, compile=False),
            "language": box(0, model={"hidden": SMALL_ROW, "heads": 1}),
        }
        found = spec(modules, train={"steps": 1, "precision": precision})
        memory = memory_of(found, "vision")
        size = memory.kept + (memory.end_extra if learns else memory.forward_extra)
        return size // patches_of(found)

    of_word = (estimated(WORDS) - estimated(1)) / (WORDS - 1)
    assert of_word == pytest.approx(peak.largest / (rows * WORDS), rel=0.01)


def test_only_the_stage_that_makes_rows_waits_for_patches() -> None:
    slow = replace(FREE, collective_bandwidth=10.0)

    def waits(stage: int = 0, **vision: Any) -> float:
        made = tiled(**vision)
        free, paid = (estimator(made, each).typical.model.stages for each in (FREE, slow))
        return paid["vision", stage].mean[0] - free["vision", stage].mean[0]

    sent = patches_of(tiled()) * 2 / 2 / 10e9
    # Keys and values of each layer, and projected patches.
    assert waits(cp=2) == pytest.approx((LAYERS * 2 * WIDTH + LANGUAGE_WIDTH) * sent, rel=1e-3)
    assert waits(cp=2, pp=2) == pytest.approx(2 * WIDTH * sent, rel=1e-3)
    shared = waits(tp=2, sequence_parallel=True) - waits(tp=2)
    assert shared == pytest.approx(LANGUAGE_WIDTH * sent, rel=1e-3)
    # The tp ranks of each half of the patches gather that half alone.
    both = waits(tp=2, cp=2, sequence_parallel=True) - waits(tp=2, cp=2)
    assert both == pytest.approx(LANGUAGE_WIDTH * sent / 2, rel=1e-3)
