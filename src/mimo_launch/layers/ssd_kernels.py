"""`ssd`, computed by the Triton and CUDA kernels of mamba-ssm and causal-conv1d.

Decides: when the kernels are used: on a GPU, below fp64, if both packages are installed.
Relies on: mamba-ssm 2.2 or later and causal-conv1d 1.4 or later, imported at the first use.
Leaves: the definition of the results to `ssd`, which runs everywhere else and is the reference in
tests.

Legend: as in `ssd`.
"""

import os
from functools import cache

import torch
from torch import Tensor

from mimo_launch.diag.installed import missing_for_mamba
from mimo_launch.layers import ssd as plain
from mimo_launch.layers.pointwise import Fused, called
from mimo_launch.layers.ssd import SsdInputs

# The convolution kernel's step of channels, and its widths (from `causal_conv1d.cpp`).
CHANNEL_STEP, WIDTHS = 8, range(2, 5)


@cache
def _are_installed() -> bool:
    return not missing_for_mamba()


def _can(x: Tensor) -> bool:
    return x.is_cuda and x.numel() > 0 and x.dtype != torch.float64 and _are_installed()


def ssd(
    given: SsdInputs,
    *,
    chunk: int,
    documents_BS: Tensor | None = None,
    initial_BHPK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the result of `ssd.ssd`."""
    x_BSHP, dt_BSH, a_H, b_BSGK, c_BSGK, d_H = given
    if not _can(x_BSHP):
        return plain.ssd(given, chunk=chunk, documents_BS=documents_BS, initial_BHPK=initial_BHPK)
    if x_BSHP.dtype == torch.float32:
        # Triton would round factors to TF32; torch does so only on request. Three TF32 products in
        # place of one are as precise as fp32; without tensor cores ("ieee") the kernels take
        # minutes to compile.
        os.environ.setdefault("TRITON_F32_DEFAULT", "tf32x3")
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    y, last = mamba_chunk_scan_combined(
        x_BSHP,
        dt_BSH,
        a_H.float(),
        b_BSGK,
        c_BSGK,
        chunk_size=chunk,
        D=d_H,
        seq_idx=_numbers(documents_BS),
        initial_states=initial_BHPK,
        return_final_states=True,
    )
    return y, last


def causal_conv(
    x_BSF: Tensor,
    weight_FW: Tensor,
    bias_F: Tensor | None,
    *,
    documents_BS: Tensor | None = None,
    fused: Fused = called,
    activates: bool = True,
) -> Tensor:
    """Return the result of `ssd.causal_conv`; `fused` calls it with few passes over memory."""
    width, channels = weight_FW.shape[1], x_BSF.shape[2]
    if not _can(x_BSF) or width not in WIDTHS or channels % CHANNEL_STEP:
        out: Tensor = fused(plain.causal_conv, x_BSF, weight_FW, bias_F, documents_BS, activates)
        return out
    from causal_conv1d import causal_conv1d_fn

    # Channels last, as the kernel for documents needs.
    x_BFS = x_BSF.contiguous().transpose(1, 2)
    activation, numbers = "silu" if activates else None, _numbers(documents_BS)
    made: Tensor = causal_conv1d_fn(
        x_BFS, weight_FW, bias_F, seq_idx=numbers, activation=activation
    )
    return made.transpose(1, 2)


def _numbers(documents_BS: Tensor | None) -> Tensor | None:
    return None if documents_BS is None else documents_BS.to(torch.int32).contiguous()
