"""Position ids on three axes are those of `transformers`, document by document."""

import warnings
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from torch import nn

from mimo_launch.kinds.vision import PositionsShape
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.positions import LearnedPositions

torch = pytest.importorskip("torch")

from tests.support.specs import box, spec  # noqa: E402

from mimo_launch.data.build import build_dataset  # noqa: E402
from mimo_launch.kinds.vocabulary import placeholder_id  # noqa: E402
from mimo_launch.layout.layout import build_layout  # noqa: E402
from mimo_launch.layout.step_data import ImageSpan  # noqa: E402
from mimo_launch.layout.step_views import StepViews  # noqa: E402
from mimo_launch.models.language_input import read_positions  # noqa: E402
from mimo_launch.models.text_positions import axis_positions  # noqa: E402
from mimo_launch.spec.spec import Spec  # noqa: E402
from mimo_launch.train.loader import UnreadStep, step_inputs  # noqa: E402

SEQ, SAMPLES = 80, 24
MODES = {"averaged": "bilinear", "bicubic_averaged": "bicubic"}


def test_an_image_counts_rows_and_columns_and_text_goes_on_behind_its_longer_side() -> None:
    found = axis_positions([ImageSpan(2, 2, 3), ImageSpan(9, 3, 1)], 14)
    assert found.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 6, 9, 10],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9, 10],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 6, 6, 9, 10],
    ]


def test_text_has_its_places_on_all_axes() -> None:
    assert (axis_positions([], 5) == np.arange(5)).all()
    assert axis_positions([], 5).shape == (3, 5)


def several_images() -> Spec:
    """Up to four images of different sizes a sample, some samples without, two documents."""
    return spec(
        {"vision": box(0, model={"shuffle": 2}), "language": box(1)},
        mbs=SAMPLES,
        seq=SEQ,
        data={
            "kind": "synthetic",
            "max_patches": 48,
            "max_images": 4,
            "max_documents": 2,
            "text_only": 0.2,
        },
    )


def theirs(
    kind: str, made: Spec, inputs: UnreadStep, sample: int
) -> tuple[torch.Tensor, int] | None:
    """Return what `transformers` says of each document alone, and how many images there were.

    None where two images stand side by side: it takes them for one, since its texts part them.
    """
    import transformers

    model = getattr(transformers, f"{kind}Model")

    class Bare:
        config = getattr(transformers, f"{kind}Config")()
        get_vision_position_ids = model.get_vision_position_ids

    tokens, _ = inputs.text(sample)
    documents = inputs.documents(sample)
    spans = inputs.data.samples[sample].spans.get("vision", ())
    if any(a.position + a.rows == b.position for a, b in pairwise(spans)):
        return None
    found = []
    for number in range(documents[-1] + 1):
        places = np.flatnonzero(documents == number)
        ids = torch.from_numpy(tokens[places])[None]
        grids = [(1, 2 * s.height, 2 * s.width) for s in spans if s.position in places]
        kinds = (ids == placeholder_id(made, "vision")).int()
        grid = torch.tensor(grids or [(1, 0, 0)])
        found.append(model.get_rope_index(Bare(), ids, kinds, grid)[0])
    return torch.cat(found, dim=2)[:, 0], len(spans)


@pytest.mark.parametrize("kind", ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL"])
def test_position_ids_are_those_of_transformers(kind: str) -> None:
    made = several_images()
    layout = build_layout(made)
    inputs = step_inputs(build_dataset(made), "train", tuple(range(SAMPLES)), 0)
    microbatch = StepViews(layout, inputs.data).language(0, 0)
    ours = read_positions(microbatch, inputs, ["vision"], torch.device("cpu"))
    assert ours.shape == (3, SAMPLES, SEQ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = {sample: theirs(kind, made, inputs, sample) for sample in range(SAMPLES)}
    compared = {sample: each for sample, each in wanted.items() if each is not None}
    for sample, (ids, _) in compared.items():
        assert torch.equal(ours[:, sample], ids), sample
    # Text alone, several images and several documents are among them.
    assert {images for _, images in compared.values()} >= {0, 2, 3}
    assert sum(inputs.documents(sample)[-1] > 0 for sample in compared) > SAMPLES // 4


def test_rows_of_other_encoders_count_as_text() -> None:
    made = several_images()
    inputs = step_inputs(build_dataset(made), "train", tuple(range(SAMPLES)), 0)
    microbatch = StepViews(build_layout(made), inputs.data).language(0, 0)
    ours = read_positions(microbatch, inputs, [], torch.device("cpu"))
    assert (ours[0] == ours[2]).all()
    assert (ours[1] == ours[2]).all()


@pytest.mark.parametrize("side", [3, 19, 27, 41])
def test_nearest_positions_are_those_of_transformers(side: int) -> None:
    """To the place, also where rounding in fp32 decides."""
    theirs = import_module("transformers.models.idefics3.modeling_idefics3")
    config: Any = import_module("transformers.models.idefics3.configuration_idefics3")
    made = theirs.Idefics3VisionEmbeddings(
        config.Idefics3VisionConfig(hidden_size=4, image_size=side, patch_size=1, num_channels=1)
    )
    nn.init.zeros_(made.patch_embedding.weight)
    nn.init.zeros_(made.patch_embedding.bias)
    shape = PositionsShape((side, side), has_class_token=False, width=4, interpolation="nearest")
    ours = LearnedPositions(ParallelContext(), shape)
    with torch.no_grad():
        ours.weight.copy_(made.position_embedding.weight)
        for height, width in ((side, side), (2 * side, side), (5, 38), (41, 7), (1, 50)):
            grid = torch.ones(1, height, width, dtype=torch.bool)
            wanted = made(torch.zeros(1, 1, height, width), grid)[0]
            y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            sizes = torch.tensor([height, width]).expand(height * width, 2)
            places = torch.cat([torch.stack([y.flatten(), x.flatten()], dim=1), sizes], dim=1)
            assert torch.equal(ours(places), wanted)


@pytest.mark.parametrize(("interpolation", "mode"), MODES.items())
@pytest.mark.parametrize("size", [(2, 3), (5, 4), (7, 11)])
def test_averages_are_those_of_torch_with_antialias(
    interpolation: Any, mode: str, size: tuple[int, int]
) -> None:
    """Of images smaller than the table of 5 x 4 places, and larger."""
    shape = PositionsShape((5, 4), has_class_token=False, width=3, interpolation=interpolation)
    layer = LearnedPositions(ParallelContext(dtype=torch.float64), shape)
    table = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer.weight.data.copy_(table)
    grid = table.T.view(1, 3, 5, 4)
    resized = torch.nn.functional.interpolate(grid, size, mode=mode, antialias=True)
    places = torch.tensor([(y, x, *size) for y in range(size[0]) for x in range(size[1])])
    torch.testing.assert_close(layer(places), resized[0].flatten(1).T)
