"""Checks of matrix products in 8 bits.

Decides: which widths and numbers of tokens they take, and that a backend has them.
Relies on: cuBLASLt, whose 8-bit products want every size in steps of 16.
Leaves: whether the GPUs of a host can to `launcher.gpus`.
"""

from collections.abc import Iterator

from mimo_launch.checks.backends import ENGINE
from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related, YamlPath
from mimo_launch.layout.encoder_placement import LANGUAGE
from mimo_launch.layout.row_owners import FP8_STEP
from mimo_launch.spec.model import CustomModel, HybridModel, LanguageModel, ModuleSpec, Spec


def fp8_can(spec: Spec, name: str) -> Findings:
    """The backend multiplies in 8 bits, and all products have sizes that this takes."""
    module = spec.modules[name]
    if module.fp8 is None:
        return
    path = ("modules", name, "fp8")
    if module.backend != ENGINE:
        yield _cannot(
            name,
            "the backend `torch` multiplies in 16 bits or more",
            f"write `backend: {ENGINE}` beside it, or delete `fp8`",
            Related(path=("modules", name, "backend"), label="torch's layers")
            if "backend" in module.model_fields_set
            else Related(path=path, label="needs another backend"),
        )
        return
    if module.fp8.scaling == "current" and "amax_history" in module.fp8.model_fields_set:
        yield _cannot(
            name,
            "current scaling keeps no history",
            "delete `amax_history`, or write `scaling: delayed`",
            Related(path=(*path, "amax_history"), label="would have no effect"),
        )
    for what, size, where in _widths(module, name):
        if size % FP8_STEP:
            yield _cannot(
                name,
                f"{what} of a tp rank are {size} numbers wide, and products in 8 bits take widths "
                f"in steps of {FP8_STEP}",
                "choose sizes that leave each tp rank such a multiple, or delete `fp8`",
                Related(path=where, label=f"{size} for each tp rank"),
            )
    if name == LANGUAGE:
        yield from _tokens(spec, module)


def _widths(module: ModuleSpec, name: str) -> Iterator[tuple[str, int, YamlPath]]:
    """Yield in words the sizes of a block's products along which they are cut or summed."""
    model, tp = module.model, module.grid.tp
    if isinstance(model, CustomModel | HybridModel):
        return
    path: YamlPath = ("modules", name, "model")
    size, kv_heads = model.hidden // model.heads, model.heads
    if isinstance(model, LanguageModel):
        size, kv_heads = model.head_size, model.num_kv_heads
    heads = model.heads // tp
    yield "tokens", model.hidden, (*path, "hidden")
    yield "heads", heads * size, (*path, "heads")
    yield "heads, keys and values", (heads + 2 * max(1, kv_heads // tp)) * size, (*path, "heads")
    mlp: YamlPath = (*path, "mlp" if "mlp" in model.model_fields_set else "hidden")
    yield "inner MLPs", model.mlp_width // tp, mlp


def _tokens(spec: Spec, module: ModuleSpec) -> Findings:
    """Yield what is wrong with the number of tokens that a rank of language multiplies at once.

    Lists of patches are padded instead.
    """
    grid = module.grid
    held = spec.batch.global_ // (grid.dp * spec.schedule.microbatches) * spec.batch.seq // grid.cp
    if module.sequence_parallel:
        held //= grid.tp
    if held % FP8_STEP:
        yield _cannot(
            LANGUAGE,
            f"a rank holds {held} tokens of a microbatch, and products in 8 bits take them in "
            f"steps of {FP8_STEP}",
            "choose `batch.seq` such that microbatch size x seq / cp"
            + (" / tp" if module.sequence_parallel else "")
            + f" is a multiple of {FP8_STEP}",
            Related(path=("batch", "seq"), label=f"{held} tokens"),
        )


def _cannot(name: str, why: str, help_: str, related: Related) -> Diagnostic:
    return Diagnostic(
        code="fp8-cannot",
        headline=f"`{name}` cannot multiply in 8 bits",
        path=("modules", name, "fp8"),
        why=why,
        help=help_,
        related=(related,),
    )
