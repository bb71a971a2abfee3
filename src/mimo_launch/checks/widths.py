"""Checks of heads, widths, words and layers, and of how tp, cp and pp cut them.

Decides: which model sizes a grid can cut, including Mamba-2 heads and groups of hybrid models.
Relies on: the model types of the spec.
Leaves: positions to `positions`, the vocabulary that data need to `vocabulary`.
"""

from math import lcm

from mimo_launch.checks.rule import Findings, divisors, next_multiple
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import padded_vocab_size
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.language_models import MAMBA, CausalModel, MambaSizes
from mimo_launch.spec.spec import HybridModel, Spec


def heads_over_tp(spec: Spec, name: str) -> Findings:
    """Attention heads are shared out evenly over tp."""
    heads = kind_of(spec.modules[name].model).num_heads
    if heads is None:
        return
    yield from _over_tp(
        spec, name, "heads", heads, code="heads-over-tp", why="each tp rank computes whole heads"
    )


def kv_heads_over_tp(spec: Spec, name: str, model: CausalModel) -> Findings:
    """Key/value heads are shared out over tp, or repeated evenly."""
    kv, tp = model.kv_heads, spec.modules[name].grid.tp
    if kv is None or not model.attends:
        return
    if kv % tp == 0 or tp % kv == 0:
        return
    fits = [size for size in divisors(model.heads) if size % tp == 0 or tp % size == 0]
    yield Diagnostic(
        code="kv-heads-over-tp",
        headline=f"`{name}`: kv_heads {kv} and tp {tp} do not divide each other",
        path=("modules", name, "model", "kv_heads"),
        why="each tp rank holds whole key/value heads, or each head is shared by the same number "
        "of ranks",
        help=f"these fit: {_choices('kv_heads', fits)}",
        related=(_tp(name, tp),),
    )


def heads_over_kv_heads(spec: Spec, name: str, model: CausalModel) -> Findings:
    """Each key/value head serves equally many query heads."""
    if not model.attends or model.heads % model.num_kv_heads == 0:
        return
    yield Diagnostic(
        code="heads-over-kv-heads",
        headline=f"`{name}`: kv_heads {model.num_kv_heads} does not divide heads {model.heads}",
        path=("modules", name, "model", "kv_heads"),
        why="each key/value head serves the same number of query heads",
        help=f"these fit: {_choices('kv_heads', divisors(model.heads))}",
        related=(Related(path=("modules", name, "model", "heads"), label=f"{model.heads} heads"),),
    )


def hidden_over_heads(spec: Spec, name: str) -> Findings:
    """The width is a whole number of heads, unless `head_dim` is given."""
    model = spec.modules[name].model
    kind = kind_of(model)
    if not kind.has_heads_of_hidden or model.heads is None or model.hidden % model.heads == 0:
        return
    fits = next_multiple(model.hidden, model.heads)
    yield Diagnostic(
        code="hidden-over-heads",
        headline=f"`{name}`: hidden {model.hidden} does not split into {model.heads} heads",
        path=("modules", name, "model", "hidden"),
        why="the head size is hidden / heads"
        + (", unless `head_dim` sets it" if kind.reads_tokens else ""),
        help=f"write `hidden: {fits}`, or heads that divide {model.hidden}",
        related=(Related(path=("modules", name, "model", "heads"), label=f"{model.heads} heads"),),
    )


def mlp_over_tp(spec: Spec, name: str) -> Findings:
    """The MLP's inner width is cut evenly over tp."""
    width = kind_of(spec.modules[name].model).mlp_width
    if width is None:
        return
    why = "each tp rank holds an equal part of the width inside the MLP"
    yield from _over_tp(spec, name, "mlp", width, code="mlp-over-tp", why=why)


def vocab_over_tp(spec: Spec, name: str) -> Findings:
    """Every tp rank of language holds at least one word."""
    tp, size = spec.modules[name].grid.tp, padded_vocab_size(spec) if name == LANGUAGE else 0
    if name != LANGUAGE or size >= tp:
        return
    yield Diagnostic(
        code="vocab-over-tp",
        headline=f"`{name}`: {size} tokens in the vocabulary, padding included, for tp {tp}",
        path=("modules", name, "model", "vocab_multiple"),
        why="embedding and output layer are cut over tp along the vocabulary",
        help=f"write `vocab_multiple: {tp}`",
        related=(_tp(name, tp),),
    )


def layers_over_stages(spec: Spec, name: str) -> Findings:
    """Every pipeline stage has at least one layer."""
    module, virtual = spec.modules[name], 1
    if name == LANGUAGE:
        virtual = spec.schedule.virtual_stages
    layers, stages = module.model.layers, module.grid.pp * virtual
    if layers >= stages:
        return
    key, remedy = "layers", f"`layers: {stages}`"
    if "pattern" in type(module.model).model_fields:
        key, remedy = "pattern", f"a pattern of {stages} letters"
    product = f"pp {module.grid.pp}" + (f" * {virtual} virtual stages" if virtual > 1 else "")
    yield Diagnostic(
        code="layers-over-pp",
        headline=f"`{name}`: {layers} layers for {product} = {stages} stages",
        path=("modules", name, "model", key),
        why="a stage without a layer would only pass activations on",
        help=f"write {remedy}, or a smaller pp",
        related=(Related(path=("modules", name, "grid", "pp"), label=f"{stages} stages"),),
    )


def _over_tp(spec: Spec, name: str, key: str, size: int, *, code: str, why: str) -> Findings:
    tp = spec.modules[name].grid.tp
    if size % tp == 0:
        return
    fits = ", ".join(str(each) for each in divisors(size) if each <= tp)
    yield Diagnostic(
        code=code,
        headline=f"`{name}`: {key} {size} does not split over tp {tp}",
        path=("modules", name, "model", key),
        why=why,
        help=f"write `{key}: {next_multiple(size, tp)}`, or a smaller tp: {fits}",
        related=(_tp(name, tp),),
    )


def _tp(name: str, tp: int) -> Related:
    return Related(path=("modules", name, "grid", "tp"), label=f"tp {tp}")


def _choices(key: str, values: list[int]) -> str:
    return ", ".join(f"`{key}: {value}`" for value in values)


DEFAULTS = MambaSizes(heads=1)


def mamba_has_sizes(spec: Spec, name: str, model: HybridModel) -> Findings:
    """Sizes of Mamba layers are given where there are such layers, and only there."""
    path = ("modules", name, "model")
    related = (Related(path=(*path, "pattern"), label=model.pattern),)
    if MAMBA in model.pattern and model.mamba is None:
        # About twice as wide as the stream.
        grid, groups = spec.modules[name].grid, DEFAULTS.groups
        ranks = grid.tp * grid.cp
        heads = next_multiple(max(1, 2 * model.hidden // DEFAULTS.head_dim), lcm(ranks, groups))
        given = "" if splits(groups, grid.tp, grid.cp) else f", groups: {ranks}"
        yield Diagnostic(
            code="mamba-without-sizes",
            headline=f"`{name}` has Mamba layers, but no `mamba` with their sizes",
            path=(*path, "pattern"),
            why="the number of Mamba heads does not follow from the width of the model",
            help=f"write `mamba: {{heads: {heads}{given}}}` in `model`",
        )
    if MAMBA not in model.pattern and model.mamba is not None:
        yield Diagnostic(
            code="setting-without-effect",
            severity=Severity.WARNING,
            headline=f"`mamba` of `{name}` does nothing: no layer is `{MAMBA}`",
            path=(*path, "mamba"),
            at_key=True,
            why="it sets the sizes of Mamba layers",
            help="delete `mamba`",
            related=related,
        )


def mamba_heads_over_groups(spec: Spec, name: str, model: HybridModel) -> Findings:
    """Each group serves equally many heads."""
    sizes = _sizes(model)
    if sizes is None or sizes.heads % sizes.groups == 0:
        return
    fits = ", ".join(f"`groups: {each}`" for each in divisors(sizes.heads))
    yield Diagnostic(
        code="mamba-heads-over-groups",
        headline=f"`{name}`: groups {sizes.groups} does not divide {sizes.heads} Mamba heads",
        path=("modules", name, "model", "mamba", "heads"),
        why="the heads of a group share its B and C, and every group has the same number of heads",
        help=f"these fit: {fits}",
    )


def mamba_over_grid(spec: Spec, name: str, model: HybridModel) -> Findings:
    """Ranks of tp and cp compute whole heads, and whole groups or equal parts of one."""
    sizes, grid = _sizes(model), spec.modules[name].grid
    if sizes is None:
        return
    ranks = grid.tp * grid.cp
    path = ("modules", name, "model", "mamba", "heads")
    related = tuple(
        Related(path=("modules", name, "grid", axis), label=f"{axis} {size}")
        for axis, size in (("tp", grid.tp), ("cp", grid.cp))
        if size > 1
    )
    if sizes.heads % ranks:
        yield Diagnostic(
            code="mamba-heads-over-grid",
            headline=f"`{name}`: {sizes.heads} Mamba heads do not split over tp {grid.tp} * cp "
            f"{grid.cp} = {ranks} ranks",
            path=path,
            why="tp cuts the heads, and in a Mamba layer cp cuts them further",
            help=f"write `heads: {next_multiple(sizes.heads, ranks)}`",
            related=related,
        )
    elif not splits(sizes.groups, grid.tp, grid.cp):
        fits = [n for n in divisors(sizes.heads) if splits(n, grid.tp, grid.cp)]
        yield Diagnostic(
            code="mamba-groups-over-grid",
            headline=f"`{name}`: {sizes.groups} Mamba groups do not split over tp {grid.tp} and "
            f"cp {grid.cp}",
            path=path,
            why="each rank holds whole groups, or each group is shared by the same number of ranks",
            help=f"these fit: {', '.join(f'`groups: {each}`' for each in fits)}",
            related=related,
        )


def splits(groups: int, tp: int, cp: int) -> bool:
    """Return whether groups are shared out over tp, and those of a tp rank over cp."""
    if groups % tp and tp % groups:
        return False
    mine = max(1, groups // tp)
    return mine % cp == 0 or cp % mine == 0


def _sizes(model: HybridModel) -> MambaSizes | None:
    """Return the sizes of the Mamba layers of a model, if it has any."""
    return model.mamba if MAMBA in model.pattern else None
