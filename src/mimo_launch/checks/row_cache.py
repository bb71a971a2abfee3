"""Check of `cache`: rows may be kept only if nothing but the picture decides them.

Decides: which modules and settings make other rows of the same picture, or rows that are not those
of a picture.
Relies on: `kinds` for what a module reads.
Leaves: a changed weight, size or picture to `train.row_caches` and `models.kept_rows`: it has
another name on disk.
"""

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.spec import Spec


def rows_can_be_kept(spec: Spec, name: str) -> Findings:
    """Kept rows are those of a frozen encoder of pictures or clips without chance."""
    module = spec.modules[name]
    if module.row_cache is None:
        return
    kind, at, help_ = kind_of(module.model), "cache", "delete `cache`"
    if kind.input is None or kind.computes_loss or spec.sources_of(name):
        why = "only encoders that read nothing but pictures or clips have rows that come again"
    elif kind.is_custom:
        why = "a class of your own may make other rows of the same picture"
    elif module.frozen is not True:
        at, why = "frozen", "weights that train make other rows of the same picture in every step"
        help_ = "write `frozen: true`, or delete `cache`"
        if module.frozen == "except_projector":
            why = "rows are kept as they leave the projector, and it trains"
    elif module.drops:
        at, why = "dropout", "every step drops others of the numbers that make a row"
        help_ = "delete `dropout`"
    elif module.quantize_base is not None:
        at, why = "quantize_base", "the name of kept rows does not tell these weights apart"
        help_ = "delete `quantize_base`: a frozen encoder has no gradients, and is small"
    elif module.fp8 is not None:
        at, why = "fp8", "the name of kept rows does not tell how products are scaled"
        help_ = "delete `fp8`"
    else:
        return
    yield Diagnostic(
        code="cache-cannot",
        headline=f"the rows of `{name}` cannot be kept",
        path=("modules", name, at),
        why=why,
        help=help_,
    )
