"""Clips become tokens one by one, as if the convolutions ran over each clip by itself."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mimo_launch.kinds.conformer_shapes import RelativeAttentionShape
from mimo_launch.kinds.layer import Ends
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.conformer import by_distance
from mimo_launch.layers.image_contexts import image_context
from mimo_launch.layers.initial_weights import sinusoids
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.shaped_layer import built
from mimo_launch.layout.stages import Stage
from mimo_launch.models.audio_encoder import AudioStage
from mimo_launch.models.aut import AutStage
from mimo_launch.models.conformer import ConformerStage
from mimo_launch.models.patches import Patches, cut_clip, pack, reader
from mimo_launch.spec.aut import AutModel
from mimo_launch.spec.conformer import ConformerModel
from mimo_launch.spec.spec import AudioModel

MODEL = AudioModel(kind="audio", layers=1, hidden=8, heads=1, mels=3, frames=40)
AUT = AutModel(kind="aut", layers=1, hidden=8, heads=1, channels=4)
CONFORMER = ConformerModel(kind="conformer", layers=1, hidden=8, heads=1, channels=4)


def clip(frames: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, frames)).astype(np.float32)


def first_stage(model: AudioModel, dtype: torch.dtype = torch.float64) -> Any:
    context = ParallelContext(dtype=dtype, compute_dtype=dtype)
    stage = Stage("audio", 0, 0, 1, is_first=True, is_last=False)
    ends = Ends(is_first=True, is_last=False, vocab=0, row_width=8)
    kind = kind_of(model)
    stages = {"audio": AudioStage, "aut": AutStage, "conformer": ConformerStage}
    made = stages[model.kind]
    network = made(context, kind, stage, ends, recompute="none")
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return network


def heard(network: Any, array: np.ndarray) -> torch.Tensor:
    """Return the tokens of a clip by torch's own convolutions."""
    x = torch.tensor(array).double()
    x = F.gelu(F.conv1d(x, network.conv1.weight, network.conv1.bias, padding=1))
    x = F.gelu(F.conv1d(x, network.conv2.weight, network.conv2.bias, stride=2, padding=1))
    if network.positions is None:
        return x.T + torch.from_numpy(sinusoids(range(x.shape[1]), len(x)))
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


@pytest.mark.parametrize("frames", [1, 7, 8, 9, 15, 16, 20])
def test_chunks_are_convolved_one_by_one(frames: int) -> None:
    """The last one may be shorter, and end in the middle of a token."""
    model = MODEL.model_copy(update={"chunk": 8})
    network, array = first_stage(model), clip(frames, 3)
    held = range(-(-frames // 2))
    with torch.no_grad():
        found = network._embed(pack([array], reader(model), network.context, held))
        chunks = [array[:, each : each + 8] for each in range(0, frames, 8)]
        wanted = torch.cat([heard(network, each) for each in chunks])
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, rtol=0, atol=1e-12)


def test_places_count_from_the_start_of_each_clip() -> None:
    cut = cut_clip(clip(10, 0), clips=MODEL, dtype=torch.bfloat16, pinned=False)
    assert cut.values.dtype == torch.bfloat16
    assert cut.values.shape == (5, 15)
    assert cut.positions.tolist() == [[place, 0] for place in range(5)]


@pytest.mark.parametrize("model", [MODEL, AUT, CONFORMER], ids=["audio", "aut", "conformer"])
def test_in_front_of_the_blocks_is_kept_what_the_estimates_say(model: AudioModel) -> None:
    model = model.model_copy(update={"hidden": 64, "mels": 16})
    network = first_stage(model, torch.float32)
    places = torch.stack([torch.arange(50) % 20, torch.zeros(50, dtype=torch.int64)], dim=1)
    packed = Patches(torch.randn(50, 16 * model.frames_seen), places)
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        # Masks and places are left out.
        if tensor.is_floating_point() and tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = network._embed(packed)
    assert sum(kept.values()) == 4 * 50 * network.kind.patch_work.saved
    assert out.shape == (50, 64)


BF16 = ParallelContext(dtype=torch.bfloat16, compute_dtype=torch.bfloat16)


def test_scores_of_bf16_are_scaled_in_fp32() -> None:
    """And get the numbers of their distances in fp32."""
    size, heads, tokens = 3, 2, 40
    layer = built(BF16, RelativeAttentionShape(6, heads, bias=False, out_scale=1.0, shared=True))
    torch.manual_seed(0)
    fused, numbers = torch.randn(tokens, 3 * 6).bfloat16(), torch.randn(8, heads).bfloat16()
    clips = image_context([tokens], range(tokens), torch.device("cpu"), alone=True)
    q, k, v = fused.view(tokens, 3, heads, size).permute(1, 2, 0, 3)
    scores = (q @ k.mT).float() * size**-0.5 + by_distance(numbers, tokens).float()
    wanted = (scores.softmax(-1).bfloat16() @ v).transpose(0, 1).flatten(1)
    assert torch.equal(layer._attended(replace(clips, distances=numbers), fused), wanted)
