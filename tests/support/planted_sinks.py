"""Known ways to get sinks, YaRN and biases of experts wrong; `planted` lists them as well."""

from typing import Any

import torch
from tests.support.lists import by_lists
from tests.support.specs import behind_vision

from mimo_launch.layers import rotary_angles
from mimo_launch.layers.experts import Experts
from mimo_launch.layers.norms import Sinks
from mimo_launch.spec.spec import RopeScaling, Spec

# Every second layer attends in windows, as in GPT-OSS.
MODEL: dict[str, Any] = {
    "layers": 2, "heads": 4, "kv_heads": 2, "attention_sinks": True, "rope_theta": 200.0,
    "qkv_bias": True, "output_bias": True, "activation": "clamped_silu",
    "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "truncate": False,
        "original_max_position_embeddings": 32,
    },
    "sliding_window": {"size": 5, "full": [1]},
}  # fmt: skip

EXPERTS: dict[str, Any] = {
    "model": {"moe": {"experts": 4, "top_k": 2, "width": 32, "bias": True}},
    "experts": {"ep": 2},
}


def sunk(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with attention sinks behind vision, on ranks of its own."""
    return behind_vision(MODEL, data, **language)


def sinks_of_other_heads() -> None:
    """The sinks of a tp rank's heads are taken from the last head to the first."""
    correct = Sinks.forward
    Sinks.forward = lambda self: correct(self).flip(0)


def sinks_scaled_like_scores() -> None:
    """Sinks are divided as scores are."""
    correct = Sinks.forward
    Sinks.forward = lambda self: correct(self) * 0.5


def sinks_lost_in_the_backward() -> None:
    """The kernel over lists makes its weights anew without the sinks."""
    by_lists()
    torch.logaddexp = lambda sums, sinks: sums


def scores_not_stretched() -> None:
    """Long wavelengths turn slower, but scores do not grow."""
    RopeScaling.stretch = property(lambda self: 1.0)


def bounds_of_yarn_rounded() -> None:
    """The bounds between which pairs are interpolated are whole, whatever the spec says."""
    correct = rotary_angles._interpolated

    def rounded(pairs: int, scaling: Any, theta: float) -> tuple[float, float]:
        return correct(pairs, scaling.model_copy(update={"truncate": True}), theta)

    rotary_angles._interpolated = rounded


def biases_of_other_experts() -> None:
    """The biases of a rank's experts are taken from the last expert to the first."""
    correct = Experts._of_tokens

    def other(self: Any, bias: torch.Tensor, counts: tuple[int, ...]) -> torch.Tensor:
        return correct(self, bias.view(self.num_own, -1).flip(0).flatten(), counts)

    Experts._of_tokens = other


SINK_BUGS = {
    "biases of other experts": (biases_of_other_experts, sunk(dp=2, **EXPERTS)),
    "scores not stretched": (scores_not_stretched, sunk()),
    "bounds of YaRN rounded": (bounds_of_yarn_rounded, sunk()),
    "sinks of other heads": (sinks_of_other_heads, sunk(tp=2)),
    "sinks scaled like scores": (sinks_scaled_like_scores, sunk()),
    "sinks lost in the backward": (sinks_lost_in_the_backward, sunk(cp=2)),
}
