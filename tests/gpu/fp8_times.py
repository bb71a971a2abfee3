"""How long the kernels of linear layers take in bf16 and in each scaling of FP8, on one GPU.

python -m tests.gpu.fp8_times [--tokens 8192]

The sizes are those of R1's language. Of each it prints the rates of the products forward and
backward, and the time of all other kernels: casts, their scales and transposes.
"""

import argparse
import re
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from mimo_launch.layers.parallel_context import SINGLE
from mimo_launch.layers.te_fp8 import Fp8
from mimo_launch.layers.te_layers import load_transformer_engine
from mimo_launch.spec.fp8 import SCALINGS, Fp8Spec, ScalingName

SIZES = ((4096, 6144), (4096, 28672), (14336, 4096))
_PRODUCT = re.compile("gemm|nvjet|cutlass|matmul|xmma", re.IGNORECASE)
_RUNS = 10
# A backward has two products.
_WAYS = {1: "forward", 2: "backward"}
Times = dict[str, float]


def kernels(scaling: ScalingName | None, inputs: int, outputs: int, tokens: int) -> Iterator[Times]:
    """Yield the microseconds of each kernel: in a forward, then in a backward."""
    te = load_transformer_engine()
    fp8 = Fp8(Fp8Spec(scaling=scaling or "delayed"), SINGLE, SINGLE, grad_scale=1.0)
    fp8.open(te)
    layer = te.Linear(inputs, outputs, bias=False, params_dtype=torch.bfloat16, device="cuda")
    fp8.add("layer", layer)
    fp8.allocate()
    x = torch.randn(tokens, inputs, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    grad = torch.randn(tokens, outputs, dtype=torch.bfloat16, device="cuda")
    made: list[Tensor] = []

    def forward() -> None:
        with nullcontext() if scaling is None else fp8.running():
            made.append(layer(x))

    def backward() -> None:
        torch.autograd.grad(made.pop(), (x, layer.weight), grad)

    for _ in range(3):
        forward()
        backward()
        fp8.update(None)
    for run in (forward, backward):
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            for _ in range(_RUNS):
                run()
            torch.cuda.synchronize()
        yield {each.key: each.self_device_time_total / _RUNS for each in trace.key_averages()}


def main() -> None:
    """Print a line per size and scaling, then the names of the kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    tokens, names = parser.parse_args().tokens, set()
    for inputs, outputs in SIZES:
        for scaling in (None, *SCALINGS):
            line = f"{inputs:6d} x {outputs:6d} {scaling or 'bf16':10s}"
            for number, times in enumerate(kernels(scaling, inputs, outputs, tokens), 1):
                products = sum(us for name, us in times.items() if _PRODUCT.search(name))
                rate = 2e-6 * number * tokens * inputs * outputs / max(products, 1e-9)
                others = sum(times.values()) - products
                line += f"  {_WAYS[number]} {rate:5.0f} TFLOP/s, others {others:6.0f} us"
                names |= {(scaling or "bf16", name[:90]) for name, us in times.items() if us > 1}
            print(line, flush=True)
    for word, name in sorted(names):
        print(f"{word:10s} {name}")


if __name__ == "__main__":
    main()
