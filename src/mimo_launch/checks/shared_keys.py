"""Checks of layers that attend to keys and values of earlier layers.

Decides: that there is such an earlier layer, that both are on one stage, that a width acts.
Relies on: `layout.stages` for the cut into stages.
Leaves: latent attention to `positions`.
"""

from mimo_launch.checks.rule import Findings, idle_key
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.layout.stages import num_stages, stage_sizes
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import DecoderModel, Spec


def shared_keys_have_sources(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """Each layer without keys of its own has an earlier one that sees the same tokens."""
    shared, path = model.shared_keys, ("modules", name, "model", "shared_keys")
    if shared is None:
        return
    if model.nope is not None:
        yield Diagnostic(
            code="shared-keys-without-source",
            headline=f"`{name}`: `shared_keys` beside `nope`",
            path=path,
            why="keys of a layer that rotates them do not fit one that does not",
            help="delete `shared_keys`, or delete `nope`",
            related=(Related((*path[:-1], "nope"), "layers that do not rotate keys"),),
        )
        return
    alone = [layer for layer, source in model.key_layers.items() if source is None]
    if not alone:
        return
    fits = next((n for n in range(shared.layers - 1, 0, -1) if _fits(model, n)), None)
    window = model.sliding_window
    where = ""
    if window is not None:
        where = " without a window" if alone[0] in window.full else " with a window"
    yield Diagnostic(
        code="shared-keys-without-source",
        headline=f"`{name}`: layer {alone[0]} is to attend to keys of an earlier layer{where}, but "
        f"the {max(0, model.layers - shared.layers)} layers with keys of their own have none",
        path=(*path, "layers"),
        why="a layer attends to keys of the last earlier layer that sees the same tokens",
        help="delete `shared_keys`" if fits is None else f"write `layers: {fits}`",
        related=(Related((*path[:-1], "layers"), f"{model.layers} layers"),),
    )


def wider_mlps_act(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """Some layer without keys of its own has an MLP, if a width is given for it."""
    shared = model.shared_keys
    if shared is None or shared.mlp is None:
        return
    if all(model.has_experts(layer) for layer in model.key_layers):
        yield idle_key(name, "mlp", "layers that share keys all have experts", "shared_keys")


def _fits(model: DecoderModel, number: int) -> bool:
    """Return whether the last `number` layers find keys in earlier ones."""
    shared = model.shared_keys
    if shared is None:
        return True
    small = model.replace(shared_keys=shared.replace(layers=number))
    return None not in small.key_layers.values()


def shared_keys_in_one_stage(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """Layers that share keys are on one pipeline stage, because keys do not cross its edges."""
    found, module = model.key_layers, spec.modules[name]
    sources = [source for source in found.values() if source is not None]
    number, sizes = num_stages(spec, name), stage_sizes(spec, name)
    if not sources or number == 1:
        return
    first, last = min(sources), model.layers - sizes[-1]
    if first >= last:
        return
    before = number - 1
    fits = "write `pp: 1`"
    if before <= first:
        share, extra = divmod(first, before)
        kept = [share + (index < extra) for index in range(before)]
        fits = f"write `stages: {[*kept, model.layers - first]}`"
    yield Diagnostic(
        code="shared-keys-over-stages",
        headline=f"`{name}`: layers share keys of layer {first}, but the last stage begins with "
        f"layer {last}",
        path=("modules", name, "stages") if module.stages else ("modules", name, "grid", Axis.PP),
        why="keys and values stay on the stage that makes them",
        help=fits,
        related=(
            Related(
                ("modules", name, "model", "shared_keys"),
                f"layers {min(found)} to {model.layers - 1} have no keys of their own",
            ),
        ),
    )
