"""Encoders as users write them: one of plain torch, one of layers that are cut over tp."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mimo_launch.custom import (
    Attention,
    ColumnLinear,
    EncoderInput,
    EncoderStage,
    Norm,
    RowLinear,
    SegmentedModule,
    projector,
    replicated,
)


class MixerLayer(nn.Module):
    """ConvMixer (arXiv:2201.09792) in its simplest form: mix patches, then channels."""

    def __init__(self, stage: "Mixer") -> None:
        super().__init__()
        width = stage.model.hidden
        self.over_images = stage.over_images
        self.norm = nn.LayerNorm(width)
        self.patches = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.channels = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))
        self.register_buffer("sign", torch.tensor([-1.0]), persistent=False)

    def forward(self, x: Tensor, packed: EncoderInput) -> Tensor:
        mixed = self.over_images(self._mix, self.norm(x), packed)
        return x + self.scale * self.channels(nn.functional.gelu(self.sign * mixed))

    def _mix(self, maps: Tensor) -> Tensor:
        return self.patches(maps.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Mixer(EncoderStage):
    def make_embedding(self) -> nn.Module:
        return nn.Linear(self.patch_width, self.model.hidden)

    def make_layer(self, number: int) -> nn.Module:
        return MixerLayer(self)

    def make_projector(self) -> nn.Module:
        return nn.Linear(self.row_width, self.language_width)


class Scale(SegmentedModule):
    """A factor per channel; `tp_grad` says whose gradient it is."""

    def __init__(self, context: Any, width: int, tp_grad: Any) -> None:
        super().__init__()
        segment = replicated("weight", (width,), tp_grad, counted=context.counts, init="ones")
        self.declare("weight", segment, dtype=context.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class WideLayer(nn.Module):
    """Attention and a squared-ReLU MLP, side by side, cut over tp; images see themselves only."""

    def __init__(self, stage: "Wide") -> None:
        super().__init__()
        context, width, heads = stage.context, stage.model.hidden, stage.model.heads or 1
        self.context = context
        self.norm = Norm(context, width, "rms")
        self.attention = Attention(
            context,
            width=width,
            heads=heads,
            kv_heads=heads,
            head_size=width // heads,
            bias=False,
            qkv_bias=False,
            qk_norm=False,
            eps=1e-5,
            out_scale=1.0,
        )
        inner = stage.options["inner"]
        self.mlp = nn.Module()
        self.mlp.up = ColumnLinear(context, width, {"up": inner}, bias=True)
        self.mlp.down = RowLinear(context, "down", inner, width, bias=True)
        # Under sequence parallelism each tp rank has seen its own tokens only.
        wrong = stage.options.get("forget_the_sum", False)
        self.scale = Scale(context, width, "complete" if wrong else context.token_grad)

    def forward(self, x: Tensor, packed: EncoderInput) -> Tensor:
        y = self.norm(x)
        inner = torch.relu(self.mlp.up(self.context.enter(y))).square()
        return x + self.scale(self.attention(y, packed.mask) + self.mlp.down(inner))


class WideEmbedding(SegmentedModule):
    def __init__(self, stage: "Wide") -> None:
        super().__init__()
        context, shape = stage.context, (stage.model.hidden, stage.patch_width)
        self.declare(
            "weight",
            replicated("weight", shape, context.token_grad, counted=context.counts, std=0.2),
            dtype=context.dtype,
        )

    def forward(self, patches: Tensor) -> Tensor:
        return nn.functional.linear(patches, self.weight)


class Wide(EncoderStage):
    cuts = frozenset({"tp", "cp", "pp"})

    def make_embedding(self) -> nn.Module:
        return WideEmbedding(self)

    def make_layer(self, number: int) -> nn.Module:
        return WideLayer(self)

    def make_projector(self) -> nn.Module:
        return projector(self.context, "mlp", self.row_width, self.language_width)


class Blurred(Mixer):
    """Looks over the edges of images: all that it encodes at once is one map to it."""

    def over_images(self, function: Any, x_ND: Tensor, packed: EncoderInput) -> Tensor:
        return function(x_ND[None, None])[0, 0]


class Partly(Mixer):
    """Each of whose plain layers has a weight that stays as it is."""

    def make_layer(self, number: int) -> nn.Module:
        layer = super().make_layer(number)
        layer.channels.weight.requires_grad_(False)
        return layer


class Fixed(Wide):
    """Each of whose layers has a declared weight that stays as it is."""

    def make_layer(self, number: int) -> nn.Module:
        layer = WideLayer(self)
        layer.scale.requires_grad_(False)
        return layer


class Chatty(Mixer):
    """Prints and warns when it is built and when it runs; raises on the rank `fails_on`."""

    def make_embedding(self) -> nn.Module:
        self.talk("is built")
        return super().make_embedding()

    def over_images(self, function: Any, x_ND: Tensor, packed: EncoderInput) -> Tensor:
        self.talk("runs")
        if self.options.get("fails_on") == dist.get_rank():
            raise RuntimeError(f"broken on purpose on rank {dist.get_rank()}")
        return super().over_images(function, x_ND, packed)

    def talk(self, what: str) -> None:
        if dist.is_initialized():
            print(f"rank {dist.get_rank()} {what}")
            warnings.warn(f"rank {dist.get_rank()} {what}", stacklevel=2)
