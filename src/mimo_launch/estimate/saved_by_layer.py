"""Which of the tables of `kinds.saved_activations` are those of a layer.

Decides: what a layer of each model keeps, compiled or not, recomputed not.
Relies on: `kinds.saved_activations`.
Leaves: bytes to `memory`.
"""

from mimo_launch.estimate.workload import Widths
from mimo_launch.kinds.saved_activations import (
    ATTENTION_LAYER,
    DECODER_BACKWARD,
    DECODER_BLOCK,
    DECODER_EAGER,
    DECODER_EAGER_BF16,
    DECODER_FORWARD,
    GATHERED,
    HYBRID_BACKWARD,
    HYBRID_EAGER,
    HYBRID_EAGER_BF16,
    HYBRID_FORWARD,
    MAMBA_EAGER,
    MAMBA_EAGER_BF16,
    MAMBA_LAYER,
    MAMBA_RETURNED,
    MLP_LAYER,
    QUICK_GELU_EAGER,
    RECOMPUTED,
    ROTATED,
    ROUTED,
    VIT_BACKWARD,
    VIT_BLOCK,
    VIT_EAGER_BF16,
    VIT_FORWARD,
    Kept,
)
from mimo_launch.spec.model import (
    CustomModel,
    DecoderModel,
    HybridModel,
    Model,
    Spec,
    TransformerEncoder,
    VitModel,
)


def layer_tensors(spec: Spec, name: str, size: Widths) -> tuple[Kept, ...]:
    """Return what a layer of a module, of these sizes, keeps for its backward."""
    module = spec.modules[name]
    model, cp = module.model, module.grid.cp
    if isinstance(model, CustomModel):
        return RECOMPUTED  # The inputs of its layers; what they keep is not known.
    if isinstance(model, HybridModel):
        kept = _of_hybrid(model, size)
    else:
        kept = VIT_BLOCK if isinstance(model, TransformerEncoder) else DECODER_BLOCK
    if isinstance(model, VitModel) and model.positions == "rope2d":
        kept += (ROTATED,)
    if not _is_compiled(spec, name):
        kept += _eager(model, size, is_narrow=spec.train.precision == "bf16")
    if size.experts is not None:
        kept += ROUTED
    if cp > 1:
        kept += (MAMBA_RETURNED,) if size.mamba is not None else (GATHERED,) * cp
    return tuple(each for each in kept if module.frozen is False or not each.for_weights)


def forward_tensors(model: Model) -> tuple[Kept, ...]:
    """Return what is alive at once in the forward of a layer that keeps nothing."""
    return _table(model, VIT_FORWARD, DECODER_FORWARD, HYBRID_FORWARD)


def backward_tensors(model: Model) -> tuple[Kept, ...]:
    """Return the gradients that are alive at once in the backward of a layer."""
    return _table(model, VIT_BACKWARD, DECODER_BACKWARD, HYBRID_BACKWARD)


def _table(
    model: Model, encoder: tuple[Kept, ...], decoder: tuple[Kept, ...], hybrid: tuple[Kept, ...]
) -> tuple[Kept, ...]:
    if isinstance(model, HybridModel):
        return hybrid
    return decoder if isinstance(model, DecoderModel) else encoder


def _of_hybrid(model: HybridModel, size: Widths) -> tuple[Kept, ...]:
    if size.mamba is not None:
        return MAMBA_LAYER
    if size.query:
        return ATTENTION_LAYER + (() if model.rope_theta is None else (ROTATED,))
    return MLP_LAYER


def _is_compiled(spec: Spec, name: str) -> bool:
    """Return whether the passes between products are compiled, as on GPUs (`models.build`).

    The kernels of Transformer Engine are taken to keep as little.
    """
    module = spec.modules[name]
    if module.compile == "auto":
        return spec.train.precision != "fp64" or module.backend != "torch"
    return module.compile


def _eager(model: Model, size: Widths, *, is_narrow: bool) -> tuple[Kept, ...]:
    if isinstance(model, HybridModel):
        norm = HYBRID_EAGER_BF16 if is_narrow else HYBRID_EAGER
        if size.mamba is None:
            return (norm,)
        return norm, MAMBA_EAGER_BF16 if is_narrow else MAMBA_EAGER
    if isinstance(model, TransformerEncoder):
        is_quick = isinstance(model, VitModel) and model.activation == "quick_gelu"
        return (VIT_EAGER_BF16 if is_narrow else ()) + (QUICK_GELU_EAGER,) * is_quick
    return DECODER_EAGER_BF16 if is_narrow else DECODER_EAGER
