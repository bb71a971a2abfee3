"""The names of the tensors of a Nemotron-H.

Decides: the places of our segments; the projections of a Mamba layer are fused in files, and so are
its convolutions.
Relies on: `decoder` for the names of embedding and head, so that a vocabulary can grow in the same
way.
Leaves: the configuration to `nemotron_h`.
"""

from mimo_launch.hugging_face import decoder
from mimo_launch.hugging_face.family import Place
from mimo_launch.hugging_face.names import Names, fused, in_layers
from mimo_launch.spec.hybrid import HybridModel, MambaSizes


def _mamba(model: HybridModel) -> MambaSizes:
    if model.mamba is None:
        raise KeyError("mamba")
    return model.mamba


def _convolved(model: HybridModel) -> list[int]:
    """Return the widths of x, B and C. Raises: KeyError."""
    sizes = _mamba(model)
    return [sizes.inner, sizes.shared, sizes.shared]


_CONVOLVED = [f"mamba.conv.{x}" for x in "xBC"]
NAMES = Names(decoder.ENDS | {"norm.weight": "model.norm_f.weight"}) | in_layers(
    decoder.LAYERS,
    {
        "norm": "norm",
        **{f"attention.{x}": f"mixer.{x}_proj" for x in "qkvo"},
        **{f"mlp.{x}": f"mixer.{x}_proj" for x in ("up", "down")},
        **{f"mamba.{x}": f"mixer.{x}" for x in ("A_log", "dt_bias", "D", "norm")},
        "mamba.out": "mixer.out_proj",
        **fused(
            "mixer.in_proj",
            [f"mamba.{x}" for x in ("z", "x", "B", "C", "dt")],
            lambda model: [_mamba(model).inner, *_convolved(model), _mamba(model).heads],
        ),
        **fused("mixer.conv1d", _CONVOLVED, _convolved),
        **fused(
            "mixer.conv1d.weight",
            [f"{x}.weight" for x in _CONVOLVED],
            _convolved,
            lambda model: (sum(_convolved(model)), 1, _mamba(model).conv),
        ),
        "moe.router": "mixer.gate",
        "moe.router.expert_bias": lambda *_: Place(
            "mixer.gate.e_score_correction_bias", at_least_fp32=True
        ),
        **{f"moe.shared.{x}": f"mixer.shared_experts.{x}_proj" for x in ("up", "down")},
        **{f"moe.experts.*.{x}": f"mixer.experts.*.{x}_proj" for x in ("up", "down")},
    },
)


def is_ignored(name: str, model: HybridModel) -> bool:
    """Return whether a tensor of a file follows from others, or is left out by rule."""
    # transformers leaves out the layers for multi-token prediction as well.
    return name.startswith("mtp.") or (model.tied and name == decoder.HEAD)
