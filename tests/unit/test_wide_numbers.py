"""What layers of a run in bf16 compute in at least fp32: it is rounded once, at its end, or never.

Inputs are numbers that bf16 holds, so the same in fp64 says what is right.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.custom import LabelledTokens
from mimo_launch.data.random_draws import Noise
from mimo_launch.kinds.conformer import BandsShape
from mimo_launch.kinds.mlp_shapes import RouterShape
from mimo_launch.kinds.vision import PositionsShape
from mimo_launch.layers import norms, pointwise
from mimo_launch.layers.deltanet import DeltaNet
from mimo_launch.layers.image_contexts import ImageContext, turned_by_place
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.rotary_angles import angles
from mimo_launch.layers.router import Router
from mimo_launch.layers.sequence_contexts import query_factors
from mimo_launch.layers.ssd import causal_conv
from mimo_launch.models import gemma4_vision
from mimo_launch.models.conformer import StoredBands
from mimo_launch.models.noise import HeldNoise
from mimo_launch.models.positions import LearnedPositions, sincos_positions, sines
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.layers import Moe, QueryScaling
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import Event, StepFinished
from mimo_launch.train.loop import train
from mimo_launch.train.rank_session import RankSession

PLACES = torch.arange(500)
TWICE = PLACES[:, None].expand(-1, 2)
FACTORS = torch.linspace(1, 2, 18)


def drawn(*shape: int) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return made.to(torch.bfloat16)


def context(dtype: torch.dtype) -> ParallelContext:
    return ParallelContext(dtype=dtype, compute_dtype=dtype)


def turned(dtype: torch.dtype) -> Tensor:
    none = torch.empty(0)
    images = ImageContext(
        None, none, none, none, none, is_full=True, own_lengths=(), key_lengths=(), first_key=0
    )
    made = turned_by_place(images, TWICE, 16, dtype)
    return torch.cat([made.cos, made.sin])


def learned(dtype: torch.dtype) -> Tensor:
    layer = LearnedPositions(context(dtype), PositionsShape((5, 5), False, 16, "bicubic"))
    with torch.no_grad():
        layer.weight.copy_(drawn(25, 16))
    y, x = torch.meshgrid(torch.arange(7), torch.arange(7), indexing="ij")
    sides = torch.full((49,), 7)
    return layer(torch.stack([y.flatten(), x.flatten(), sides, sides], dim=1))


def normed_bands(dtype: torch.dtype) -> Tensor:
    layer = StoredBands(context(dtype), BandsShape(16))
    layer.mean.copy_(drawn(16))
    layer.over_deviation.copy_(drawn(2, 16)[0])
    return layer(drawn(9, 16).to(dtype))


def routed(dtype: torch.dtype) -> Tensor:
    moe = {"experts": 8, "top_k": 8, "width": 1, "score": "sigmoid"}
    router = Router(context(dtype), RouterShape(Moe.model_validate(moe), 64))
    with torch.no_grad():
        router.weight.copy_(drawn(8, 64) / 8)
    choice = router(drawn(50, 64).to(dtype))
    return choice.weights.gather(1, choice.experts.argsort(dim=1))


def recurred(dtype: torch.dtype) -> Tensor:
    """Return values of a Gated DeltaNet: two heads, one group of queries and keys."""
    layer: Any = SimpleNamespace(sizes=SimpleNamespace(chunk=8), context=context(dtype))
    wide = torch.promote_types(dtype, torch.float32)
    weights = {name: drawn(2).to(wide) for name in ("A_log", "dt_bias")}
    x, b, c, a, strength = (
        drawn(1, 24, *shape).to(dtype) for shape in ((2, 4), (1, 8), (1, 8), (2,), (2,))
    )
    return DeltaNet.recur(layer, x, b, c, (a, strength), weights, None)


def noise(dtype: torch.dtype) -> Tensor:
    """Of two images, of which this rank has all patches and padding."""
    both = [Noise(np.random.default_rng(n).normal(size=(3, 4)), 0.3 + n / 7) for n in range(2)]
    forward: Any = SimpleNamespace(
        how=SimpleNamespace(width=4, row_width=4),
        view=SimpleNamespace(samples=(0,)),
        samples=SimpleNamespace(noises=lambda *_: both),
        module=SimpleNamespace(name="drawer"),
        held=range(8),
        context=context(dtype),
    )
    made = HeldNoise.of(forward)
    return torch.cat([made.values.flatten(), made.times])


MADE: dict[str, Callable[[torch.dtype], Tensor]] = {
    "rotary angles": lambda dtype: angles(PLACES, 16, 1e4, dtype, None),
    "rotary angles of images": turned,
    "factors of queries": lambda dtype: query_factors(
        QueryScaling(beta=0.1, length=3), None, torch.arange(2000), 2000, dtype
    ),
    "sines of images": lambda dtype: sincos_positions(TWICE, 32, dtype),
    "sines of clips": lambda dtype: sines(PLACES, 32, dtype),
    "a resized table": learned,
    "bands of frames": normed_bands,
    "a cap": lambda dtype: pointwise.soft_capped(4 * drawn(999).to(dtype), 3.0),
    "squares of all heads": lambda dtype: norms._squares(drawn(9, 8, 16).to(dtype)),
    "a convolution": lambda dtype: causal_conv(
        drawn(2, 9, 16).to(dtype), drawn(16, 4).to(dtype), drawn(16).to(dtype)
    ),
    "an RMSNorm": lambda dtype: pointwise.rms_norm(
        drawn(9, 64).to(dtype), drawn(64).to(dtype), offset=1.0
    ),
    "a gated norm": lambda dtype: pointwise.gated_scaled(
        drawn(9, 64).to(dtype), drawn(64, 9).T.to(dtype), FACTORS.view(9, 2), drawn(64).to(dtype)
    ),
    "a gated norm of heads": lambda dtype: pointwise.gated_head_norm(
        drawn(9, 64).to(dtype), drawn(64, 9).T.to(dtype), drawn(16).to(dtype)
    ),
    "a gate of tokens": lambda dtype: norms._gated(drawn(9, 64).to(dtype), drawn(9, 1).to(dtype)),
    "rows of Gemma 4": lambda dtype: gemma4_vision._normed(
        drawn(9, 64).to(dtype), drawn(64).to(dtype), drawn(64).to(dtype), 1e-6
    ),
    "a delta rule": recurred,
    "a router": routed,
    "noise": noise,
}


ROUNDED = {
    "sines of images", "sines of clips", "a resized table", "bands of frames", "a cap",
    "a convolution", "an RMSNorm", "a gated norm", "a gated norm of heads", "a gate of tokens",
    "rows of Gemma 4", "a delta rule",
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_what_is_computed_in_fp32_is_rounded_once_or_never(name: str) -> None:
    found, right = MADE[name](torch.bfloat16), MADE[name](torch.float64)
    assert found.dtype == (torch.bfloat16 if name in ROUNDED else torch.float32)
    half_a_bit = 2**-8 if name in ROUNDED else 0.0
    torch.testing.assert_close(found.double(), right, rtol=half_a_bit + 1e-6, atol=1e-4)


def wide(tokens: LabelledTokens) -> Tensor:
    """Return terms in bf16, from logits and losses in fp32."""
    assert tokens.hidden.dtype == torch.bfloat16
    assert tokens.logits.dtype == tokens.cross_entropy().dtype == torch.float32
    return tokens.cross_entropy().to(torch.bfloat16)


def losses_of_a_step(made: Spec) -> list[float]:
    found = list[Event]()
    with RankSession(Plan.of(made)) as session:
        train(session, found.append)
    return [event.loss for event in found if isinstance(event, StepFinished)]


def test_a_loss_of_a_user_sees_logits_in_fp32_and_its_terms_are_added_in_fp32() -> None:
    own = {"kind": f"{__name__}:wide"}
    made = spec({"language": box(loss=own)}, mbs=8, seq=64, train={"steps": 1, "precision": "bf16"})
    usual = made.replace(modules={"language": made.language.replace(loss=None)})
    found, right = (
        run_on_running_ranks(losses_of_a_step, x, world_size=1)[0] for x in (made, usual)
    )
    assert found == pytest.approx(right, rel=1e-4)
    assert found != right
