"""Layers of a conformer: attention by scores of distances, and a convolution inside clips.

Decides: that clips of several lengths are rows of one batch, with zeros after each clip; that the
backward computes scores and convolutions again, so that only their inputs are kept.
Relies on: the places of clips in `image_contexts`; that this rank holds whole clips.
Leaves: norms and residual connections to `models.conformer`.
Sources: Conformer (arXiv:2005.08100), FastConformer (arXiv:2305.05084), relative positions of
Transformer-XL (arXiv:1901.02860, section 3.3); `transformers` 5.24, models/parakeet
and models/phi4_multimodal.

Legend: N tokens of a list, D width, f features of this tp rank, h its heads, K head size; B clips
of up to S tokens, P = 2 S - 1 distances.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.conformer_shapes import (
    CausalConvolutionShape,
    ConvolutionShape,
    DepthwiseShape,
    RelativeAttentionShape,
    ShiftedGateShape,
    StatisticsShape,
)
from mimo_launch.layers.image_contexts import ImageContext
from mimo_launch.layers.linear import ColumnLinear, RowLinear, WholeLinear
from mimo_launch.layers.pointwise import EPSILON, widened
from mimo_launch.layers.recompute import Remake, recomputed
from mimo_launch.layers.shaped_layer import ShapedLayer


def in_clips(x_Nf: Tensor, clips: ImageContext) -> Tensor:
    """Return the tokens of each clip, [B, S, f]; after a shorter clip there is any token."""
    if clips.same is not None:
        return x_Nf.view(*clips.same, -1)
    places = clips.queries
    return x_Nf.index_select(0, places.flatten()).view(*places.shape, -1)


def in_list(x_BSf: Tensor, clips: ImageContext, tokens: int) -> Tensor:
    """Return the tokens of all clips, one after another, [N, f]; padding is 0."""
    flat = x_BSf.flatten(0, 1)
    if clips.same is not None:
        return flat
    own = flat.index_select(0, clips.tokens)
    return F.pad(own, (0, 0, 0, tokens - len(own)))


def outside(clips: ImageContext) -> Tensor | None:
    """Return which places of a batch are after the end of their clip, [B, 1, S]; None: none."""
    return None if clips.same is not None else ~clips.valid


def no_clip(clips: ImageContext) -> bool:
    """Return whether the list has no clip."""
    return clips.same is None and clips.tokens.numel() == 0


def distances(tokens: int, width: int, like: Tensor) -> Tensor:
    """Return sines and cosines in turn of the distances from `tokens` - 1 down to its negative."""
    wide, device = torch.promote_types(like.dtype, torch.float32), like.device
    places = torch.arange(tokens - 1, -tokens, -1, device=device, dtype=wide)
    exponents = torch.arange(0, width, 2, device=device, dtype=wide) / width
    angles = places[:, None] * (1.0 / 10000.0**exponents)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(like.dtype)


def by_place(scores_BhSP: Tensor) -> Tensor:
    """Return [B, h, S, S]: the score of query i and key j is that of the distance i - j."""
    batch, heads, tokens, number = scores_BhSP.shape
    shifted = F.pad(scores_BhSP, (1, 0)).view(batch, heads, number + 1, tokens)
    return shifted[:, :, 1:].reshape(batch, heads, tokens, number)[..., :tokens]


def by_distance(numbers_Ph: Tensor, tokens: int) -> Tensor:
    """Return [h, S, S] from the numbers of P distances, half of them less than 0.

    The number of query i and key j is that of j - i, or of the last distance on its side.
    """
    far, places = len(numbers_Ph) // 2, torch.arange(tokens, device=numbers_Ph.device)
    ahead_SS = (places - places[:, None]).clamp(-far, far - 1)
    return F.embedding(ahead_SS + far, numbers_Ph).permute(2, 0, 1)


class RelativeAttention(ShapedLayer[RelativeAttentionShape]):
    """Attention inside clips, by contents and by distances: [n, D] -> [n, D]."""

    inputs: ColumnLinear
    distances: ColumnLinear | None
    output: RowLinear
    bias_u: Tensor
    bias_v: Tensor

    def forward(self, x_nD: Tensor, clips: ImageContext, again: Remake | None = None) -> Tensor:
        """Return what attention gives to every token; `clips` has the numbers of distances."""
        fused_Nf = self.inputs.of_tokens(x_nD, clips.draws, again)
        out: Tensor = self.output(recomputed(partial(self._attended, clips), fused_Nf))
        return out

    def _attended(self, clips: ImageContext, fused_Nf: Tensor) -> Tensor:
        size = self.shape.head_size
        batch = (0, 1) if no_clip(clips) else clips.same or clips.queries.shape
        if no_clip(clips):
            # Stay on the graph, so that backward still reaches every weight.
            q, k, v = fused_Nf.chunk(3, dim=1)
            nothing: Tensor = (q + k + v) * 0 + self._unused(clips, fused_Nf) * 0
            return nothing
        q, k, v = (
            in_clips(x, clips).view(*batch, -1, size).transpose(1, 2)
            for x in fused_Nf.chunk(3, dim=1)
        )
        if self.distances is None:
            scores_BhSS = widened(q @ k.mT) * size**-0.5
            scores_BhSS = scores_BhSS + widened(by_distance(numbers_of(clips), batch[1]))
        else:
            contents = (q + self.bias_u[:, None]) @ k.mT
            places = by_place((q + self.bias_v[:, None]) @ self._maps(batch[1], fused_Nf))
            scores_BhSS = (widened(contents) + widened(places)) * size**-0.5
        after = outside(clips)
        if after is not None:
            scores_BhSS = scores_BhSS.masked_fill(after[:, None], float("-inf"))
        out = scores_BhSS.softmax(dim=-1).to(v.dtype) @ v
        return in_list(out.transpose(1, 2).flatten(2), clips, len(fused_Nf))

    def _maps(self, tokens: int, like: Tensor) -> Tensor:
        """Return what multiplies queries for each distance, [h, K, P]. Raises: ValueError."""
        if self.distances is None:
            raise ValueError("the distances of this attention are numbers of a table")
        sines_PD = distances(tokens, self.shape.width, like)
        made: Tensor = self.distances(sines_PD)
        return made.view(len(sines_PD), -1, self.shape.head_size).permute(1, 2, 0)

    def _unused(self, clips: ImageContext, like: Tensor) -> Tensor:
        """Return the sum of the weights that only the scores of a clip read."""
        if self.distances is None:
            return numbers_of(clips).sum()
        return self.bias_u.sum() + self.bias_v.sum() + self._maps(1, like).sum()


def numbers_of(clips: ImageContext) -> Tensor:
    """Return the numbers of distances of all layers. Raises: ValueError if they are not there."""
    if clips.distances is None:
        raise ValueError("attention needs the numbers of distances")
    return clips.distances


class StoredNorm(ShapedLayer[StatisticsShape]):
    """A batch norm with its stored statistics, a fixed map of each channel: [..., f] -> [..., f].

    The statistics of a batch would depend on the clips of a rank, and so on the layout.
    """

    mean: Tensor
    variance: Tensor
    weight: Tensor
    bias: Tensor

    def forward(self, x_BSf: Tensor) -> Tensor:
        """Return the normed channels, computed in at least fp32."""
        part = self.context.part(self.shape.channels)
        mean, variance = (
            widened(each[part.start : part.stop]) for each in (self.mean, self.variance)
        )
        scale = widened(self.weight) * (variance + EPSILON).rsqrt()
        return ((widened(x_BSf) - mean) * scale + widened(self.bias)).to(x_BSf.dtype)


class GatedConvolution(ShapedLayer[ConvolutionShape]):
    """Channels times gates, a convolution inside clips, a norm, SiLU, a map: [n, D] -> [n, D]."""

    inputs: ColumnLinear
    depthwise: ShapedLayer[DepthwiseShape]
    norm: StoredNorm
    output: RowLinear

    def forward(self, x_nD: Tensor, clips: ImageContext, again: Remake | None = None) -> Tensor:
        """Return what the convolution gives to every token."""
        fused_Nf = self.inputs.of_tokens(x_nD, clips.draws, again)
        out: Tensor = self.output(recomputed(partial(self._convolved, clips), fused_Nf))
        return out

    def _convolved(self, clips: ImageContext, fused_Nf: Tensor) -> Tensor:
        x_Nf = F.glu(fused_Nf, dim=1)
        weight, bias = self.depthwise.weight, self.depthwise.bias
        if no_clip(clips):
            unused = sum(each.sum() for each in self.parameters() if each.dim() < 3)
            return x_Nf + unused * 0
        x_BSf, after = in_clips(x_Nf, clips), outside(clips)
        if after is not None:
            x_BSf = x_BSf.masked_fill(after.mT, 0)
        around = self.shape.tokens // 2
        mixed = F.conv1d(x_BSf.mT, weight[:, None], bias, padding=around, groups=len(weight)).mT
        return in_list(F.silu(self.norm(mixed)), clips, len(fused_Nf))


class ShiftedGate(ShapedLayer[ShiftedGateShape]):
    """Channels times SiLU of gates, each after its own bias: [n, 2 f] -> [n, f]."""

    value: Tensor
    gate: Tensor

    def forward(self, fused_Nf: Tensor) -> Tensor:
        """Return the gated channels."""
        value, gate = fused_Nf.chunk(2, dim=1)
        gated: Tensor = (value + self.value.mT) * F.silu(gate + self.gate.mT)
        return gated


class CausalConvolution(ShapedLayer[CausalConvolutionShape]):
    """Channels times SiLU of gates, a convolution over earlier tokens, a map, SiLU, a map."""

    inputs: ColumnLinear
    shift: ShiftedGate
    depthwise: ShapedLayer[DepthwiseShape]
    mixed: RowLinear
    out: WholeLinear

    def forward(self, x_nD: Tensor, clips: ImageContext, again: Remake | None = None) -> Tensor:
        """Return what the convolution gives to every token."""
        fused_Nf = self.inputs.of_tokens(x_nD, clips.draws, again)
        mixed: Tensor = self.mixed(recomputed(partial(self._convolved, clips), fused_Nf))
        out: Tensor = self.out(F.silu(mixed))
        return out

    def _convolved(self, clips: ImageContext, fused_Nf: Tensor) -> Tensor:
        x_Nf: Tensor = self.shift(fused_Nf)
        weight, bias = self.depthwise.weight, self.depthwise.bias
        if no_clip(clips):
            unused = weight.sum() + (0 if bias is None else bias.sum())
            return x_Nf + unused * 0
        x_BfS = F.pad(in_clips(x_Nf, clips).mT, (self.shape.tokens - 1, 0))
        mixed = F.conv1d(x_BfS, weight[:, None], bias, groups=len(weight)).mT
        return in_list(mixed, clips, len(fused_Nf))
