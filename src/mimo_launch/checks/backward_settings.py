"""Checks of `recompute` and `offload`: settings of what waits for a backward or an update.

Decides: which of them are reported as having no effect (warnings).
Relies on: `kinds.module_weights` for the modules that a backward reaches.
Leaves: combinations that cannot run to `training_settings`.
"""

from mimo_launch.checks.rule import Findings, no_effect
from mimo_launch.diag.diagnostic import YamlPath
from mimo_launch.kinds.module_weights import has_backward
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.wording import flow, listing

_NO_BACKWARD = "nothing trains in them or before them, so no backward runs through them"


def recompute_used(spec: Spec, name: str) -> Findings:
    """`recompute` needs a backward through the layers."""
    if spec.modules[name].recompute != "none" and not has_backward(spec, name):
        yield no_effect(
            ("modules", name, "recompute"),
            f"`recompute` of `{name}` does nothing: its layers keep no activations",
            _NO_BACKWARD,
        )


def offload_used(spec: Spec, name: str) -> Findings:
    """`offload` of a module needs a backward through its layers, or moments that may move."""
    asked, path = spec.modules[name].offload, ("modules", name, "offload")
    idle = {}
    if "activations" in asked and not has_backward(spec, name):
        idle["activations"] = ("its layers keep none", _NO_BACKWARD)
    if "optimizer" in asked and (why := _without_moments(spec, name)):
        idle["optimizer"] = ("no moments can move", why)
    left = [part for part in asked if part not in idle]
    for part, (said, why) in idle.items():
        # `offload` as a whole does nothing only if no part of it does anything.
        at: YamlPath = (*path, asked.index(part)) if left else path
        yield no_effect(
            at,
            f"`{part}` in `offload` of `{name}` does nothing: {said}",
            why,
            f"write `offload: {flow(left)}`" if left else "delete `offload`",
        )


def common_offload_used(spec: Spec) -> Findings:
    """`offload` of `optimizer` needs a module with moments that may move."""
    if not spec.optimizer.offload:
        return
    reasons = {name: _without_moments(spec, name) for name in spec.modules}
    if not all(reasons.values()):
        return
    yield no_effect(
        ("optimizer", "offload"),
        "`offload` of `optimizer` does nothing: no moments can move",
        "; ".join(f"`{name}`: {why}" for name, why in reasons.items()),
    )


def _without_moments(spec: Spec, name: str) -> str:
    """Return why a module has no moments that may lie on the host; nothing if it has some."""
    module = spec.modules[name]
    if module.frozen is True:
        return "a frozen module is never updated"
    rules = spec.optimizer.rules(module.optimizer)
    if any(rule.may_offload for rule in rules):
        return ""
    titles = listing([rule.title for rule in rules])
    if any(rule.state for rule in rules):
        return f"what {titles} keeps stays on GPUs"
    return f"{titles} keeps nothing between steps"
