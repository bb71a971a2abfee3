"""Checks of heads, widths, words and layers, and of how tp and pp cut them.

Decides: which model sizes a grid can cut.
Relies on: the model types of the spec.
Leaves: positions to `positions`, what data need of a vocabulary to `vocabulary`.
"""

from mimo_launch.checks.rule import Findings, divisors, next_multiple
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import padded_vocab_size
from mimo_launch.layout.encoder_placement import LANGUAGE
from mimo_launch.spec.model import LanguageModel, Spec


def heads_over_tp(spec: Spec, name: str) -> Findings:
    """Attention heads are shared out evenly over tp."""
    heads = kind_of(spec.modules[name].model).num_heads
    if heads is None:
        return
    yield from _over_tp(
        spec, name, "heads", heads, code="heads-over-tp", why="each tp rank computes whole heads"
    )


def kv_heads_over_tp(spec: Spec, name: str, model: LanguageModel) -> Findings:
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
        why="each tp rank holds whole key/value heads, or shares one with equally many ranks",
        help=f"these fit: {_choices('kv_heads', fits)}",
        related=(_tp(name, tp),),
    )


def heads_over_kv_heads(spec: Spec, name: str, model: LanguageModel) -> Findings:
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
        why="a head is hidden / heads wide"
        + (", unless `head_dim` says otherwise" if kind.computes_loss else ""),
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
        headline=f"`{name}`: {size} words, padding included, for tp {tp}",
        path=("modules", name, "model", "vocab_multiple"),
        why="embedding and output layer are cut over tp by words",
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
