"""Products in bf16 on processors, which take up to forty times as long where these have none."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

# All their results have the type of their operands.
_PRODUCTS = ("mm", "addmm", "bmm", "_scaled_dot_product_flash_attention_for_cpu_backward")


def _through_fp32(name: str) -> Callable[..., Any]:
    kernel = torch.library.get_kernel(f"aten::{name}", "CPU")

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype == torch.bfloat16 else tensor

    def product(keys: Any, first: torch.Tensor, *others: Any, **settings: Any) -> Any:
        operands = tree_map_only(torch.Tensor, widen, (first, *others))
        made = kernel.call_boxed(keys, *operands, **settings)
        return tree_map_only(torch.Tensor, lambda each: each.to(first.dtype), made)

    return product


@contextmanager
def products_in_fp32() -> Iterator[None]:
    """Multiply in fp32 and round once, as bf16 kernels do; autograd keeps what it kept."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            for name in _PRODUCTS:
                library.impl(name, _through_fp32(name), "CPU", with_keyset=True)
        yield
