"""A linear layer in 8 bits with a scale per tile or per tensor, in float64, and the package's own.

The rules are those of DeepSeek-V3 (arXiv:2412.19437, section 3.3) as Transformer Engine 2.20 takes
them: E4M3; scales are powers of 2 under which the largest number of a tile still fits; activations
and gradients have tiles of 128 numbers along the sum of a product, weights blocks of 128 x 128.
With one scale per tensor gradients are in E5M2: it has a bit less, and a wider range.

Legend: N tokens, D inputs, F outputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.layers.parallel_context import SINGLE
from mimo_launch.layers.te_fp8 import Fp8
from mimo_launch.layers.te_layers import load_transformer_engine
from mimo_launch.spec.fp8 import Fp8Spec, ScalingName

LARGEST, SIDE = 448.0, 128
ACROSS, DOWN, SQUARE = (1, SIDE), (SIDE, 1), (SIDE, SIDE)
# Tokens, inputs and outputs.
SIZES = (512, 384, 640)
RESULTS = ("output", "gradient of the input", "gradient of the weight")


def in_tiles(x: Tensor, tile: tuple[int, int]) -> Tensor:
    """Return a matrix after each tile of it was rounded to E4M3 with a scale of its own."""
    rows, columns = x.shape
    padded = F.pad(x.double(), (0, -columns % tile[1], 0, -rows % tile[0]))
    tiles = padded.unflatten(1, (-1, tile[1])).unflatten(0, (-1, tile[0]))
    largest = tiles.abs().amax(dim=(1, 3), keepdim=True)
    scale = torch.where(largest > 0, (LARGEST / largest).log2().floor().exp2(), 1.0)
    rounded = (tiles * scale).float().to(torch.float8_e4m3fn).double() / scale
    return rounded.flatten(2, 3).flatten(0, 1)[:rows, :columns]


def linear(x_ND: Tensor, weight_FD: Tensor, grad_NF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output of a linear layer, and the gradients of its input and of its weight."""
    weight = in_tiles(weight_FD, SQUARE)
    return (
        in_tiles(x_ND, ACROSS) @ weight.t(),
        in_tiles(grad_NF, ACROSS) @ weight,
        in_tiles(grad_NF, DOWN).t() @ in_tiles(x_ND, DOWN),
    )


def in_whole(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return a tensor after its rounding with one scale, under which its largest number fits."""
    scale = torch.finfo(kind).max / x.double().abs().amax()
    return (x.double() * scale).float().to(kind).double() / scale


def linear_in_whole(
    x_ND: Tensor, weight_FD: Tensor, grad_NF: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of `linear` with one scale per tensor, as `delayed` and `current` do."""
    x, weight = (in_whole(each, torch.float8_e4m3fn) for each in (x_ND, weight_FD))
    grad = in_whole(grad_NF, torch.float8_e5m2)
    return x @ weight.t(), grad @ weight, grad.t() @ x


def exact(x_ND: Tensor, weight_FD: Tensor, grad_NF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same in float64."""
    x, weight, grad = (each.double() for each in (x_ND, weight_FD, grad_NF))
    return x @ weight.t(), grad @ weight, grad.t() @ x


def factors(tokens: int, inputs: int, outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, weight and gradient in bf16.

    Magnitudes of tokens and of features span six powers of ten each, in any order. So the small
    ones are lost in tiles of the wrong shape.
    """
    generator = torch.Generator().manual_seed(5)

    def spread(*size: int) -> Tensor:
        noise = torch.randn(size, generator=generator)
        across, down = (10 ** (-6 * torch.rand(each, generator=generator)) for each in size)
        return (noise * across[:, None] * down).bfloat16()

    weight = torch.randn(outputs, inputs, generator=generator).bfloat16()
    return spread(tokens, inputs), weight, spread(tokens, outputs)


def error(found: Tensor, wanted: Tensor) -> float:
    """Return the relative error of a matrix, in which every row and every column counts alike."""
    sizes = wanted.norm(dim=1)[:, None] * wanted.norm(dim=0)
    return float(((found.double() - wanted) / sizes).norm() / (wanted / sizes).norm())


def errors_in_whole() -> dict[str, float]:
    """Return how far the results with one scale per tensor are from float64."""
    made = factors(*SIZES)
    both = zip(RESULTS, linear_in_whole(*made), exact(*made), strict=True)
    return {name: error(mine, true) for name, mine, true in both}


def package_errors(scaling: ScalingName, device_name: str) -> dict[str, tuple[float, float]]:
    """Return how far the package's results are from float64, and from those by tiles."""
    device = torch.device(device_name, torch.cuda.current_device())
    made = factors(*SIZES)
    x_ND, weight_FD, grad_NF = (each.to(device) for each in made)
    te, fp8 = load_transformer_engine(), Fp8(Fp8Spec(scaling=scaling), SINGLE, SINGLE, grad_scale=1)
    fp8.open(te)
    layer = te.Linear(*SIZES[1:], bias=False, params_dtype=torch.bfloat16, device=device)
    fp8.add("layer", layer)
    fp8.allocate()
    with torch.no_grad():
        layer.weight.copy_(weight_FD)
    x_ND.requires_grad_()
    # Delayed scales follow from the step before.
    for _ in range(2):
        x_ND.grad = layer.weight.grad = None
        with fp8.running():
            out = layer(x_ND)
        out.backward(grad_NF)
        fp8.update(None)
    found = [each.detach().cpu() for each in (out, x_ND.grad, layer.weight.grad)]
    both = zip(RESULTS, found, exact(*made), linear(*made), strict=True)
    return {name: (error(mine, true), error(mine, tiled)) for name, mine, true, tiled in both}
