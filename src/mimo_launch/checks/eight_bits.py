"""Checks of products in 8 bits: the library, the GPUs, and the sizes that a scaling needs.

Decides: which sizes are those of a product; what to write instead.
Relies on: `spec.fp8` for what each scaling needs.
Leaves: what Transformer Engine cannot do in any precision to `backends`, the GPUs of this host to
`launcher.gpus`, whether 8 bits pay to `slow_fp8`.
"""

from collections.abc import Iterator
from math import gcd

from mimo_launch.checks.rule import Findings, chosen_keys
from mimo_launch.diag.diagnostic import Diagnostic, Related, YamlPath
from mimo_launch.diag.installed import ENGINE
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.fp8 import Fp8Spec, scaling_for
from mimo_launch.spec.spec import ModuleSpec, Spec
from mimo_launch.spec.values import GPUS


def fp8_can(spec: Spec, name: str) -> Findings:
    """The backend multiplies in 8 bits, and the sizes of all products allow it."""
    module = spec.modules[name]
    if module.fp8 is None:
        return
    path = ("modules", name, "fp8")
    if module.backend != ENGINE:
        yield _cannot_in_8_bits(
            name,
            "the backend `torch` multiplies in 16 bits or more",
            f"write `backend: {ENGINE}` beside it, or delete `fp8`",
            Related(("modules", name, "backend"), "torch's layers")
            if "backend" in module.model_fields_set
            else Related(path, "needs another backend"),
        )
        return
    fp8, step = module.fp8, module.fp8.rule.step
    if not fp8.rule.keeps_history and "amax_history" in chosen_keys(fp8):
        yield _cannot_in_8_bits(
            name,
            f"`scaling: {fp8.scaling}` keeps no history",
            "delete `amax_history`, or write `scaling: delayed`",
            Related((*path, "amax_history"), "would have no effect"),
        )
    yield from _on_these_gpus(spec, name, fp8)
    widths = [*_product_widths(module, name)]
    tokens = _tokens_of_rank(spec, module) if name == LANGUAGE else 0
    instead = _instead(gcd(tokens, *(size for _, size, _ in widths)))
    for what, size, where in widths:
        if size % step:
            yield _cannot_in_8_bits(
                name,
                f"{what} on a tp rank are {size} wide, and matrix products with `scaling: "
                f"{fp8.scaling}` need widths that are multiples of {step}",
                f"choose sizes that leave each tp rank such a multiple, {instead}",
                Related(where, f"{size} on each tp rank"),
            )
    if tokens % step:
        yield _cannot_in_8_bits(
            name,
            f"a rank holds {tokens} tokens of a microbatch, and matrix products with `scaling: "
            f"{fp8.scaling}` need a multiple of {step}",
            "choose `batch.seq` such that microbatch size x seq / cp"
            + (" / tp" if module.sequence_parallel else "")
            + f" is a multiple of {step}, {instead}",
            Related(("batch", "seq"), f"{tokens} tokens"),
        )


def _on_these_gpus(spec: Spec, name: str, fp8: Fp8Spec) -> Findings:
    """Check that the GPUs of `nodes` can scale so."""
    if spec.nodes is None or spec.nodes.gpu is None:
        return
    gpu = GPUS[spec.nodes.gpu]
    if gpu.capability < fp8.rule.capability:
        first, own = (".".join(map(str, each)) for each in (fp8.rule.capability, gpu.capability))
        yield _cannot_in_8_bits(
            name,
            f"`scaling: {fp8.scaling}` needs GPUs of compute capability {first} or later "
            f"({fp8.rule.gpus}), and an {gpu.name} has {own}",
            "delete `fp8`, or name other GPUs under `nodes`",
            Related(("nodes", "gpu"), f"compute capability {own}"),
        )


def _instead(divisor: int) -> str:
    """Return what else to write where products have sizes with this greatest common divisor."""
    other = scaling_for(divisor)
    return "or delete `fp8`" if other is None else f"or write `scaling: {other}`"


def _product_widths(module: ModuleSpec, name: str) -> Iterator[tuple[str, int, YamlPath]]:
    """Yield the sizes of a block's products, each with its name and its key in the spec."""
    model, tp, kind = module.model, module.grid.tp, kind_of(module.model)
    if kind.torch_only is None:
        return
    path: YamlPath = ("modules", name, "model")
    widths = kind.layer_widths(0)
    size, heads = widths.unit, widths.heads // tp
    kv_heads = widths.key // size
    yield "tokens", model.hidden, (*path, "hidden")
    yield "heads", heads * size, (*path, "heads")
    yield "heads, keys and values", (heads + 2 * max(1, kv_heads // tp)) * size, (*path, "heads")
    mlp: YamlPath = (*path, "mlp" if "mlp" in model.model_fields_set else "hidden")
    if (inner := kind.cuts.mlp_width) is not None:
        yield "inner MLPs", inner // tp, mlp


def _tokens_of_rank(spec: Spec, module: ModuleSpec) -> int:
    """Return the number of tokens in a product on a rank of language.

    Encoders pad their lists of patches to a number that fits.
    """
    grid = module.grid
    held = spec.batch.global_ // (grid.dp * spec.schedule.microbatches) * spec.batch.seq // grid.cp
    return held // grid.tp if module.sequence_parallel else held


def _cannot_in_8_bits(name: str, why: str, help_: str, related: Related) -> Diagnostic:
    return Diagnostic(
        code="fp8-cannot",
        headline=f"`{name}` cannot multiply in 8 bits",
        path=("modules", name, "fp8"),
        why=why,
        help=help_,
        related=(related,),
    )
