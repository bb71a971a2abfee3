"""`delta_rule`, computed by the Triton kernels of flash-linear-attention.

Decides: when the kernels are used: on a GPU, in 16 bits, if they are installed and correct.
Relies on: fla-core 0.6 or later, imported at the first use; `varlen_attention` for document bounds
that no layer waits for.
Leaves: the definition of the results to `delta_rule`, which runs everywhere else and is the
reference in tests.

Legend: as in `delta_rule`.
"""

from functools import cache, lru_cache

import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.diag.installed import missing_for_delta_rule
from mimo_launch.layers import delta_rule as plain
from mimo_launch.layers.delta_rule import DeltaInputs
from mimo_launch.layers.pointwise import Fused, called
from mimo_launch.layers.sequence_contexts import Documents
from mimo_launch.layers.varlen_attention import packed

# The largest key size that the kernels take, and the number of tokens in their chunks.
LARGEST_KEY, CHUNK = 256, 64


@cache
def are_usable(device: torch.device) -> bool:
    """Return whether the package and all that its kernels need on this GPU are installed."""
    return not missing_for_delta_rule(torch.cuda.get_device_capability(device))


def _can(v: Tensor, key_size: int) -> bool:
    # In fp32 the kernels round factors to TF32; torch does so only on request.
    in_16_bits = v.dtype in (torch.bfloat16, torch.float16)
    fits = v.numel() > 0 and key_size <= LARGEST_KEY
    return v.is_cuda and in_16_bits and fits and are_usable(v.device)


def delta_rule(
    given: DeltaInputs,
    *,
    chunk: int,
    documents: Documents | None = None,
    fused: Fused = called,
) -> Tensor:
    """Return the result of `delta_rule.delta_rule`; the kernels ignore `chunk`."""
    v_BSHP, inputs = given.v_BSHP, tuple[Tensor, ...](given)
    if not _can(v_BSHP, given.k_BSGK.shape[3]):
        numbers = None if documents is None else documents.numbers
        return plain.delta_rule(given, chunk=chunk, documents_BS=numbers, fused=fused)
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    bounds = chunks = None
    if documents is not None:
        inputs = tuple(t.flatten(0, 1).unsqueeze(0) for t in given)
        bounds = packed(documents.lengths, v_BSHP.device).bounds
        chunks = _chunks(documents.lengths, v_BSHP.device)
    y, _ = chunk_gated_delta_rule(
        *inputs,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=bounds,
        chunk_indices=chunks,
        chunk_size=CHUNK,
    )
    out: Tensor = y.view(v_BSHP.shape)
    return out


@lru_cache(maxsize=256)
def _chunks(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the document of each chunk and its number there, [c, 2].

    The package would read them from the device, and the host would wait. Cached like the bounds.
    """
    numbers = [
        (document, chunk)
        for document, length in enumerate(lengths)
        for chunk in range(-(-length // CHUNK))
    ]
    return to_device(torch.tensor(numbers, dtype=torch.int32), device)
