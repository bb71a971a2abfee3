"""Transformer Engine's layers, built for the tp and cp groups of one module.

Decides: which of the package's layers replace ours, and with which arguments.
Relies on: transformer-engine 2.20, imported by the first module that asks for it and nowhere else.
Leaves: names and initial values of the parameters to `models.te_block`.

Legend: D width, f features of this rank, K head size.
"""

import importlib
import importlib.util
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from mimo_launch.kinds.shapes import NormShape, RowShape
from mimo_launch.layers.parallel_context import ParallelContext

NORMS = {"rms": "RMSNorm", "layer": "LayerNorm"}


class BackendError(RuntimeError):
    """The layers of a backend are not available in this process."""


@dataclass(frozen=True, slots=True)
class TeLayers:
    """Makes layers of Transformer Engine with this rank's part of the weights, unset.

    The layers themselves run the collectives of `ParallelContext.enter` and `leave` around a
    tensor-parallel region. `stream` is the second stream of ring attention, shared by all layers of
    a stage.
    """

    te: ModuleType
    context: ParallelContext
    stream: torch.cuda.Stream | None

    def norm_column(self, norm: NormShape, features: int, *, bias: bool) -> nn.Module:
        """Return a norm and a linear layer with `features` outputs on this rank.

        [n, D] -> [N, f].
        """
        return self._make(
            "LayerNormLinear",
            norm.width,
            # The package divides by tp; ranks that share a key/value head hold more than 1 / tp.
            features * self.context.tp.size,
            normalization=NORMS[norm.kind],
            eps=norm.eps,
            bias=bias,
            parallel_mode=self._mode("column"),
            init_method=_unset,
            sequence_parallel=self.context.sequence_parallel,
        )

    def row(self, shape: RowShape) -> nn.Module:
        """Return a linear layer that ends a region: [N, f] -> [n, D]."""
        return self._make(
            "Linear",
            shape.features,
            shape.width,
            bias=shape.bias,
            parallel_mode=self._mode("row"),
            init_method=_unset,
            sequence_parallel=self.context.sequence_parallel,
        )

    def norm_swiglu(self, norm: NormShape, inner: int) -> nn.Module:
        """Return a norm and a SwiGLU MLP without biases, with `inner` cut: [n, D] -> [n, D]."""
        return self._make(
            "LayerNormMLP",
            norm.width,
            inner,
            normalization=NORMS[norm.kind],
            eps=norm.eps,
            bias=False,
            activation="swiglu",
            set_parallel_mode=self.context.tp.size > 1,
            init_method=_unset,
            output_layer_init_method=_unset,
            sequence_parallel=self.context.sequence_parallel,
        )

    def head_norm(self, head_size: int, *, eps: float) -> nn.Module:
        """Return an RMSNorm over each head, [..., K] -> [..., K]."""
        norm: nn.Module = self.te.RMSNorm(
            head_size, eps=eps, device=_default_device(), dtype=self.context.dtype
        )
        return norm

    def attention(self, heads: int, kv_heads: int, head_size: int, *, ring: bool) -> nn.Module:
        """Return softmax attention of this rank's heads; each call has its mask.

        A ring passes keys and values around the cp group. Its load balancing is the same as ours:
        rank r holds chunks r and 2 * cp - 1 - r of each sequence.
        """
        cp = self.context.cp
        ends = {
            "cp_group": cp.handle,
            "cp_global_ranks": list(cp.ranks),
            "cp_stream": self.stream,
            "cp_comm_type": "p2p",
        }
        core: nn.Module = self.te.DotProductAttention(
            heads,
            head_size,
            num_gqa_groups=kv_heads,
            attention_dropout=0.0,
            attn_mask_type="no_mask",
            **(ends if ring else {}),
        )
        return core

    def _mode(self, mode: str) -> str | None:
        """Return the parallel mode; without tp, None, which adds biases inside the matmul."""
        return mode if self.context.tp.size > 1 else None

    def _make(self, layer: str, *sizes: int, **options: Any) -> nn.Module:
        with warnings.catch_warnings():
            # The package asks for CUDA_DEVICE_MAX_CONNECTIONS=1, but pipelines hang with it.
            warnings.filterwarnings("ignore", message=".*CUDA_DEVICE_MAX_CONNECTIONS.*")
            made: nn.Module = getattr(self.te, layer)(
                *sizes,
                tp_group=self.context.tp.handle,
                tp_size=self.context.tp.size,
                params_dtype=self.context.dtype,
                # As for torch's layers; the caller moves a module afterwards.
                device=_default_device(),
                # It would add gradients to buffers that FSDP2 does not know: FSDP2 takes gradients
                # from autograd.
                fuse_wgrad_accumulation=False,
                **options,
            )
        return made


def te_layers(context: ParallelContext) -> TeLayers:
    """Return the maker of layers for a module.

    Raises: BackendError without a GPU, with a GPU that does not support `fp8`, for a dtype other
    than bf16 and fp16, or when the package cannot be imported.
    """
    if context.device.type != "cuda":
        raise BackendError(
            f"transformer_engine needs a GPU and this rank computes on {context.device}; "
            "use `backend: torch`"
        )
    if context.compute_dtype not in (torch.bfloat16, torch.float16):
        raise BackendError(
            f"transformer_engine computes in 16 bits, not in {context.compute_dtype}; "
            "use `backend: torch`, or `train.precision: bf16`"
        )
    te = load_transformer_engine()
    if context.fp8 is not None:
        try:
            context.fp8.open(te)
        except RuntimeError as error:
            raise BackendError(
                f"`fp8` of `{context.owner}`: {error} Choose another `scaling`, or delete `fp8`"
            ) from error
    stream: Any = torch.cuda.Stream(context.device) if context.cp.size > 1 else None  # type: ignore[no-untyped-call]
    return TeLayers(te, context, stream)


def load_transformer_engine() -> ModuleType:
    """Import the package. Raises: BackendError with the package's message."""
    # The package looks for the system's cuDNN first, and libraries of two cuDNN versions in one
    # process cannot load each other. So it gets torch's cuDNN, unless the user names one.
    if not os.environ.keys() & {"CUDNN_HOME", "CUDNN_PATH"}:
        found = importlib.util.find_spec("nvidia")
        for folder in (found and found.submodule_search_locations) or ():
            if any(Path(folder, "cudnn", "lib").glob("libcudnn.so*")):
                os.environ["CUDNN_HOME"] = str(Path(folder, "cudnn"))
    # Without its fast kernels the package would silently keep all scores in memory.
    os.environ.setdefault("NVTE_UNFUSED_ATTN", "0")
    try:
        # Tensors that the package makes during import do not belong to the model under
        # construction.
        with torch.device("cpu"):
            return importlib.import_module("transformer_engine.pytorch")
    # Not only ImportError: an incomplete installation or a missing library is a RuntimeError, an
    # OSError or an AssertionError.
    except Exception as error:
        raise BackendError(
            f"transformer_engine cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _default_device() -> str:
    # As text, because the package compares it with "meta".
    return torch.get_default_device().type


def _unset(weight: Tensor) -> None:
    """Leave a weight as it is: `initial_weights` fills it."""
