"""Clips become tokens one by one, as if the convolutions ran over each clip by itself."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mimo_launch.kinds.audio import AudioKind
from mimo_launch.kinds.layer import Ends
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.stages import Stage
from mimo_launch.models.audio_encoder import AudioStage
from mimo_launch.models.patches import Patches, cut_clip, pack, reader
from mimo_launch.spec.spec import AudioModel

MODEL = AudioModel(kind="audio", layers=1, hidden=8, heads=1, mels=3, frames=40)


def clip(frames: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, frames)).astype(np.float32)


def first_stage(model: AudioModel, dtype: torch.dtype = torch.float64) -> Any:
    context = ParallelContext(dtype=dtype, compute_dtype=dtype)
    stage = Stage("audio", 0, 0, 1, is_first=True, is_last=False)
    ends = Ends(is_first=True, is_last=False, vocab=0, row_width=8)
    network = AudioStage(context, AudioKind(model), stage, ends, recompute="none")
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return network


def heard(network: Any, array: np.ndarray) -> torch.Tensor:
    """Return the tokens of a clip by torch's own convolutions."""
    x = torch.tensor(array).double()
    x = F.gelu(F.conv1d(x, network.conv1.weight, network.conv1.bias, padding=1))
    x = F.gelu(F.conv1d(x, network.conv2.weight, network.conv2.bias, stride=2, padding=1))
    return x.T + network.positions.weight[: x.shape[1]]


@pytest.mark.parametrize("held", [range(24), range(3, 9), range(9, 18), range(16, 24), range(0)])
def test_tokens_are_those_of_convolutions_over_each_clip(held: range) -> None:
    """Clips of 16, 2 and 20 frames; a rank may hold parts of them, or padding behind them."""
    clips = [clip(16, 0), clip(2, 1), clip(20, 2)]
    clips[1].flags.writeable = False
    network = first_stage(MODEL)
    packed = pack(clips, reader(MODEL), network.context, held)
    with torch.no_grad():
        found = network._embed(packed)
        wanted = torch.cat([heard(network, each) for each in clips])[held.start : held.stop]
    assert found.shape == (len(held), 8)
    assert torch.allclose(found[: len(wanted)], wanted, rtol=0, atol=1e-12)


def test_places_count_from_the_start_of_each_clip() -> None:
    cut = cut_clip(clip(10, 0), dtype=torch.bfloat16, pinned=False)
    assert cut.values.dtype == torch.bfloat16
    assert cut.values.shape == (5, 15)
    assert cut.positions.flatten().tolist() == [0, 1, 2, 3, 4]


def test_in_front_of_the_blocks_is_kept_what_the_estimates_say() -> None:
    model = MODEL.model_copy(update={"hidden": 64, "mels": 10})
    network = first_stage(model, torch.float32)
    packed = Patches(torch.randn(50, 50), torch.arange(50)[:, None] % 20)
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        # The mask of the first place and the places themselves are left out.
        if tensor.is_floating_point() and tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = network._embed(packed)
    assert sum(kept.values()) == 4 * 50 * AudioKind(model).patch_work.saved
    assert out.shape == (50, 64)
