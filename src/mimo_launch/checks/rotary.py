"""Checks of rotary position embeddings.

Decides: that heads hold what turns, and that scaled wavelengths are in order.
Relies on: `rule`.
Leaves: other sizes to `widths`.
"""

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.spec.model import DecoderModel, LanguageModel, Spec


def head_size_even(spec: Spec, name: str) -> Findings:
    """Rotary positions turn pairs of numbers."""
    model = spec.modules[name].model
    if not isinstance(model, LanguageModel) or not model.attends or model.head_size % 2 == 0:
        return
    if model.rope_theta is None:
        return
    given = model.head_dim is not None
    fits = f"head_dim: {model.head_size + 1}"
    yield Diagnostic(
        code="odd-head-size",
        headline=f"`{name}`: a head is {model.head_size} wide, an odd number",
        path=("modules", name, "model", "head_dim" if given else "hidden"),
        why="rotary positions turn the numbers of a head in pairs",
        help=f"write `{fits}`",
    )


def mrope_fills_head(spec: Spec, name: str) -> Findings:
    """Every pair of a head turns with one axis."""
    model = spec.modules[name].model
    if not isinstance(model, DecoderModel) or model.mrope is None:
        return
    pairs, given = model.head_size // 2, sum(model.mrope)
    if given == pairs:
        return
    # The shares of Qwen2-VL: 2 to 3 to 3.
    side = max(1, 3 * pairs // 8)
    fits = f"mrope: [{pairs - 2 * side}, {side}, {side}]" if pairs > 2 * side else "head_dim: 128"
    yield Diagnostic(
        code="mrope-over-head",
        headline=f"`{name}`: mrope turns {' + '.join(map(str, model.mrope))} = {given} pairs, "
        f"a head has {pairs}",
        path=("modules", name, "model", "mrope"),
        why="rotary positions turn the numbers of a head in pairs, each with one axis",
        help=f"write `{fits}`",
    )


def scaling_in_order(spec: Spec, name: str) -> Findings:
    """There are wavelengths between those that stay and those that turn slower."""
    model = spec.modules[name].model
    if not isinstance(model, DecoderModel) or model.rope_scaling is None:
        return
    low, high = model.rope_scaling.low_freq_factor, model.rope_scaling.high_freq_factor
    if low < high:
        return
    path = ("modules", name, "model", "rope_scaling")
    yield Diagnostic(
        code="rope-scaling-order",
        headline=f"`{name}`: high_freq_factor {high:g} is not above low_freq_factor {low:g}",
        path=(*path, "high_freq_factor"),
        why="wavelengths between original length / high_freq_factor and original length / "
        "low_freq_factor turn at a mixture of both speeds",
        help=f"write `high_freq_factor: {4 * low:g}`",
        related=(Related(path=(*path, "low_freq_factor"), label=f"{low:g}"),),
    )
