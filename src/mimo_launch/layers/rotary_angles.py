"""The angles by which positions rotate the pairs of a head.

Decides: the frequency of each pair, and its scaling in models trained further on longer sequences.
Relies on: the spec for the settings of a scaling.
Leaves: positions to the contexts, rotation to `pointwise`.
"""

import math

import torch
from torch import Tensor

from mimo_launch.spec.spec import RopeScaling

# Base of the 2-D rotary embedding, the same in every published model that has one.
ROPE2D_THETA = 10000.0


def cos_and_sin(angle: Tensor, scaling: RopeScaling | None) -> tuple[Tensor, Tensor]:
    """Return the factors of queries and keys, from the angles of the pairs of a head."""
    angle = torch.cat([angle, angle], dim=-1)
    stretch = 1.0 if scaling is None else scaling.stretch
    return angle.cos() * stretch, angle.sin() * stretch


def angles(
    positions: Tensor, head_size: int, theta: float, dtype: torch.dtype, scaling: RopeScaling | None
) -> Tensor:
    """Return the angle of each pair of a head at each position, in at least fp32."""
    wide = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_size, 2, device=positions.device, dtype=wide) / head_size
    frequency = theta**-exponent
    if scaling is not None:
        frequency = scaled(frequency, scaling, theta)
    return positions.to(wide).unsqueeze(-1) * frequency


def scaled(frequency: Tensor, scaling: RopeScaling, theta: float) -> Tensor:
    """Return the frequencies of a model that was trained further on longer sequences.

    Sources: Llama 3.1 (arXiv:2407.21783, section 3.4.2), as in its published code; linear:
    arXiv:2306.15595, section 3; YaRN: arXiv:2309.00071, section 3.2, by pairs as in its code;
    proportional: Gemma 4, and LongRoPE (arXiv:2402.13753): Phi-3, up to the original length, as in
    `transformers` 5.24, modeling_rope_utils.
    """
    if scaling.rope_type == "linear":
        return frequency / scaling.factor
    if scaling.rope_type == "longrope":
        return frequency / frequency.new_tensor(scaling.short_factor)
    if scaling.rope_type == "proportional":
        turning = int(scaling.partial_rotary_factor * len(frequency))
        pair = torch.arange(len(frequency), device=frequency.device)
        return frequency / scaling.factor * (pair < turning)
    if scaling.rope_type == "yarn":
        pair = torch.arange(len(frequency), device=frequency.device, dtype=frequency.dtype)
        first, last = _interpolated(len(frequency), scaling, theta)
        kept = 1 - ((pair - first) / (last - first)).clamp(0, 1)
        return frequency * (kept + (1 - kept) / scaling.factor)
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    # Equal factors, as in Llama 4 Scout, leave nothing to interpolate.
    between = (turns >= low).to(turns) if low == high else (turns - low) / (high - low)
    kept = between.clamp(0, 1)
    return frequency * (kept + (1 - kept) / scaling.factor)


def _interpolated(pairs: int, scaling: RopeScaling, theta: float) -> tuple[float, float]:
    """Return the two pair numbers, as fractions, between which YaRN interpolates."""

    def turning(times: float) -> float:
        """Return the pair that turns `times` times within the original length."""
        length = scaling.original_max_position_embeddings / (2 * math.pi * times)
        return pairs * math.log(length) / math.log(theta)

    first, last = turning(scaling.beta_fast), turning(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    # As published, to avoid a division by 0.
    return first, last if last != first else last + 0.001
