"""Checks of `quantize_base`: which modules can have it, where weights come from, where tp cuts.

Decides: that a cut over tp lies between blocks of inputs that share a scale, so that every layout
holds the same values.
Relies on: `kinds` for the weights of each layer and how they are cut.
Leaves: the package of NF4 to `packages`.
"""

from math import gcd
from pathlib import Path

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.kinds.module_weights import packed_in_layers
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.weights import Share
from mimo_launch.spec.load import saved_spec
from mimo_launch.spec.spec import ExpertGrid, Spec

# The least block of NF4.
_NF4_BLOCK = 64


def base_has_place(spec: Spec, name: str) -> Findings:
    """Only weights that do not train, in layers of torch, are kept in few bits."""
    module = spec.modules[name]
    base = module.quantize_base
    if base is None:
        return
    path = ("modules", name, "quantize_base")
    reasons: list[tuple[str, str, tuple[Related, ...]]] = []
    if kind_of(module.model).is_custom:
        reasons.append(("layers of your own class cannot be quantized", "delete the line", ()))
    if module.backend != "torch":
        related = Related((*path[:2], "backend"), f"backend: {module.backend}")
        why = "layers of Transformer Engine cannot read such weights"
        reasons.append((why, "write `backend: torch`", (related,)))
    if module.body_trains:
        why = "weights in 4 or 8 bits do not train"
        help_ = "write `adapter: {rank: 16}` beside it, or `frozen: true`"
        reasons.append((why, help_, ()))
    if base.kind == "nf4" and (base.inputs < _NF4_BLOCK or base.inputs & (base.inputs - 1)):
        why = f"`nf4` has no blocks of {base.inputs} inputs"
        reasons.append((why, f"write `block: {_NF4_BLOCK}`", ()))
    for why, help_, others in reasons:
        yield Diagnostic(
            code="quantized-base-cannot",
            headline=f"`{name}` cannot keep its weights in {base.kind}",
            path=path,
            why=why,
            help=help_,
            related=others,
        )
    if module.init_from is not None and saved_spec(Path(module.init_from)) is not None:
        yield Diagnostic(
            code="quantized-base-cannot",
            headline=f"`{name}` cannot take weights for {base.kind} from {module.init_from}",
            path=("modules", name, "init_from"),
            why="they are read only from folders of Hugging Face models",
            help="name a folder that `mimo-launch export` writes",
        )


def cuts_lie_between_blocks(spec: Spec, name: str) -> Findings:
    """No cut over tp separates inputs that share a scale."""
    module = spec.modules[name]
    base = module.quantize_base
    if base is None:
        return
    grid, experts = module.grid, module.experts or ExpertGrid()
    share = Share(grid.tp, 1, experts.ep, experts.tp, 0, 1)
    for weight in packed_in_layers(module):
        cut, part = experts.tp if weight.experts else grid.tp, len(weight.part(share))
        if weight.axis != 1 or cut == 1 or part % base.inputs == 0:
            continue
        block, axis = gcd(part, base.inputs), "`tp` of `experts`" if weight.experts else "`tp`"
        kind = "int8" if base.kind == "nf4" else base.kind
        yield Diagnostic(
            code="quantized-base-cut",
            headline=f"tp {cut} cuts `{weight.name.format(expert=0)}` inside blocks of "
            f"{base.inputs} inputs",
            path=("modules", name, "quantize_base"),
            why=f"each rank has {part:,} of its {weight.shape[1]:,} inputs; a block that "
            "two ranks share would have a different scale on each",
            help=f"write `quantize_base: {{kind: {kind}, block: {block}}}`"
            if block % 2 == 0
            else f"write a smaller {axis}",
        )
        return
