"""Checks of heads, widths, words and layers, and of how tp, cp and pp cut them.

Decides: which model sizes a grid can cut, including heads and groups of recurrent layers.
Relies on: the model types of the spec.
Leaves: positions to `positions`, the vocabulary that data need to `vocabulary`.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import lcm

from mimo_launch.checks.rule import Findings, chosen_keys, next_multiple, no_effect
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity, YamlPath
from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import padded_vocab_size
from mimo_launch.layout.space import divisors
from mimo_launch.layout.stages import even_stages, num_stages, virtual_stages
from mimo_launch.spec.base import LANGUAGE, Axis
from mimo_launch.spec.encoders import CodePredictor
from mimo_launch.spec.hybrid import (
    CONVOLUTION,
    RECURRENT,
    DeltaNetSizes,
    MambaSizes,
    RecurrentSizes,
)
from mimo_launch.spec.language_models import CausalModel
from mimo_launch.spec.spec import DecoderModel, HybridModel, Spec, TalkerModel, VitModel


def heads_over_tp(spec: Spec, name: str) -> Findings:
    """Attention heads are shared out evenly over tp."""
    heads = kind_of(spec.modules[name].model).cuts.heads
    if heads is None:
        return
    yield from _over_tp(
        spec, name, "heads", heads, code="heads-over-tp", why="each tp rank computes whole heads"
    )


def kv_heads_over_tp(spec: Spec, name: str, model: CausalModel | VitModel) -> Findings:
    """Key/value heads are shared out over tp, or repeated evenly."""
    tp = spec.modules[name].grid.tp
    for key, kv in kind_of(model).cuts.kv_heads.items():
        if kv == model.heads or kv % tp == 0 or tp % kv == 0:
            continue  # As many as query heads are judged with them.
        fits = [size for size in divisors(model.heads) if kv % size == 0 or size % kv == 0]
        yield Diagnostic(
            code="kv-heads-over-tp",
            headline=f"`{name}`: {'.'.join(key)} {kv} and tp {tp} do not divide each other",
            path=("modules", name, "model", *key),
            why="each tp rank holds whole key/value heads, or each head is shared by the same "
            "number of ranks",
            help=_smaller(Axis.TP, fits),
            related=(_tp(name, tp),),
        )


def heads_over_kv_heads(spec: Spec, name: str, model: CausalModel | VitModel) -> Findings:
    """Each key/value head serves the same number of query heads."""
    for key, kv in kind_of(model).cuts.kv_heads.items():
        if model.heads % kv == 0:
            continue
        yield Diagnostic(
            code="heads-over-kv-heads",
            headline=f"`{name}`: {'.'.join(key)} {kv} does not divide heads {model.heads}",
            path=("modules", name, "model", *key),
            why="each key/value head serves the same number of query heads",
            help="these fit: " + ", ".join(f"`kv_heads: {each}`" for each in divisors(model.heads)),
            related=(Related(("modules", name, "model", "heads"), f"{model.heads} heads"),),
        )


def hidden_over_heads(spec: Spec, name: str) -> Findings:
    """The width is a whole number of heads, unless `head_dim` is given."""
    model = spec.modules[name].model
    kind = kind_of(model)
    if not kind.cuts.heads_of_hidden or model.heads is None or model.hidden % model.heads == 0:
        return
    fits = next_multiple(model.hidden, model.heads)
    yield Diagnostic(
        code="hidden-over-heads",
        headline=f"`{name}`: hidden {model.hidden} does not split into {model.heads} heads",
        path=("modules", name, "model", "hidden"),
        why="the head size is hidden / heads"
        + (", unless `head_dim` sets it" if kind.reads_tokens else ""),
        help=f"write `hidden: {fits}`, or heads that divide {model.hidden}",
        related=(Related(("modules", name, "model", "heads"), f"{model.heads} heads"),),
    )


def mlp_over_tp(spec: Spec, name: str) -> Findings:
    """The MLP's inner width is cut evenly over tp."""
    width = kind_of(spec.modules[name].model).cuts.mlp_width
    if width is None:
        return
    why = "each tp rank holds an equal part of the width inside the MLP"
    yield from _over_tp(spec, name, "mlp", width, code="mlp-over-tp", why=why)
    model = spec.modules[name].model
    shared = model.shared_keys if isinstance(model, DecoderModel) else None
    if shared is not None and shared.mlp is not None:
        key = "shared_keys.mlp"
        yield from _over_tp(spec, name, key, shared.mlp, code="mlp-over-tp", why=why)


def predictor_over_tp(spec: Spec, name: str, model: TalkerModel) -> Findings:
    """The blocks of a code predictor are cut like those of its talker."""
    if (inside := model.inside_frames) is None:
        return
    module = spec.modules[name].replace(model=inside)
    alone = spec.replace(modules={**spec.modules, name: module})
    found = [*heads_over_tp(alone, name), *hidden_over_heads(alone, name)]
    found += kv_heads_over_tp(alone, name, inside)
    found += heads_over_kv_heads(alone, name, inside)
    found += mlp_over_tp(alone, name)
    above = ("modules", name, "model")
    keys = CodePredictor.model_fields

    def inner(path: YamlPath) -> YamlPath:
        is_own = path[:3] == above and path[-1] in keys
        return (*above, "predictor", *path[3:]) if is_own else path

    for each in found:
        related = tuple(replace(it, path=inner(it.path)) for it in each.related)
        yield replace(each, path=inner(each.path), related=related)


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
    module, virtual = spec.modules[name], virtual_stages(spec, name)
    layers, stages = module.model.layers, num_stages(spec, name)
    if layers >= stages:
        return
    key = "pattern" if "pattern" in type(module.model).model_fields else "layers"
    yield Diagnostic(
        code="layers-over-pp",
        headline=f"`{name}`: {layers} layers for {_product(spec, name)} = {stages} stages",
        path=("modules", name, "model", key),
        why="a stage without a layer would only pass activations on",
        help=_smaller(Axis.PP, [each for each in divisors(stages) if each * virtual <= layers]),
        related=(Related(("modules", name, "grid", Axis.PP), f"{stages} stages"),),
    )


def stages_are_those_of_grid(spec: Spec, name: str) -> Findings:
    """Stages of chosen sizes are as many as the grid has, and hold all layers."""
    module, number = spec.modules[name], num_stages(spec, name)
    layers, sizes = module.model.layers, module.stages
    if sizes is None or layers < number:
        return
    held = sum(sizes)
    if (len(sizes), held) == (number, layers):
        return
    is_short = len(sizes) != number
    product = _product(spec, name)
    if number > module.grid.pp:
        product += f" = {number}"
    even = ", ".join(map(str, even_stages(layers, number)))
    yield Diagnostic(
        code="stages-not-of-grid",
        headline=f"`{name}`: "
        + (
            f"{len(sizes)} stage{'s' * (len(sizes) > 1)} for {product}"
            if is_short
            else f"stages of {held} layers in all, for a model of {layers}"
        ),
        path=("modules", name, "stages"),
        why="each layer is on one stage, and each stage of a rank has its number of layers",
        help=f"write `stages: [{even}]`, or other numbers of that sum; or delete `stages`",
        related=(
            Related(("modules", name, "grid", Axis.PP), f"{number} stages")
            if is_short
            else Related(("modules", name, "model"), f"{layers} layers"),
        ),
    )


def _product(spec: Spec, name: str) -> str:
    """Return the number of stages of a module as a product."""
    virtual = virtual_stages(spec, name)
    more = f" * {virtual} virtual stages" if virtual > 1 else ""
    return f"pp {spec.modules[name].grid.pp}{more}"


def _over_tp(spec: Spec, name: str, key: str, size: int, *, code: str, why: str) -> Findings:
    tp = spec.modules[name].grid.tp
    if size % tp == 0:
        return
    yield Diagnostic(
        code=code,
        headline=f"`{name}`: {key} {size} does not split over tp {tp}",
        path=("modules", name, "model", *key.split(".")),
        why=why,
        help=_smaller(Axis.TP, [each for each in divisors(size) if each <= tp]),
        related=(_tp(name, tp),),
    )


def _smaller(axis: str, fits: list[int]) -> str:
    """Return help for a size that no grid on the same ranks can cut."""
    return f"choose another {axis}: {', '.join(map(str, fits))}".removesuffix(": ")


def _tp(name: str, tp: int) -> Related:
    return Related(("modules", name, "grid", Axis.TP), f"tp {tp}")


@frozen(slots=False)
class _Words:
    """What findings say of one kind of recurrent layers: its name, its groups, what these share."""

    name: str
    groups: str
    key: str
    shared: str
    defaults: RecurrentSizes
    sizes_code: str
    groups_code: str
    heads_over_grid_code: str
    groups_over_grid_code: str


# By the key of their sizes.
_WORDS = {
    "mamba": _Words(
        "Mamba",
        "groups",
        "groups",
        "B and C",
        MambaSizes.model_construct(heads=1),
        sizes_code="mamba-without-sizes",
        groups_code="mamba-heads-over-groups",
        heads_over_grid_code="mamba-heads-over-grid",
        groups_over_grid_code="mamba-groups-over-grid",
    ),
    "deltanet": _Words(
        "DeltaNet",
        "key heads",
        "key_heads",
        "query and key",
        DeltaNetSizes.model_construct(heads=1),
        sizes_code="deltanet-without-sizes",
        groups_code="deltanet-heads-over-groups",
        heads_over_grid_code="deltanet-heads-over-grid",
        groups_over_grid_code="deltanet-groups-over-grid",
    ),
}


def recurrent_layers_have_sizes(spec: Spec, name: str, model: HybridModel) -> Findings:
    """Sizes of recurrent layers are given where there are such layers, and only there."""
    path = ("modules", name, "model")
    related = (Related((*path, "pattern"), model.pattern),)
    if CONVOLUTION not in model.pattern and "short_conv" in chosen_keys(model):
        yield no_effect(
            (*path, "short_conv"),
            f"`short_conv` of `{name}` does nothing: no layer is `{CONVOLUTION}`",
            "it says how many tokens a short convolution sees",
            at_key=True,
        )
    for letter, key in RECURRENT.items():
        words, sizes = _WORDS[key], model.sizes_of(letter)
        if letter in model.pattern and sizes is None:
            # About twice as wide as the stream.
            grid, preset = spec.modules[name].grid, words.defaults
            ranks, groups = grid.tp * grid.cp, 1 if key == "deltanet" else preset.groups
            heads = next_multiple(max(1, 2 * model.hidden // preset.head_dim), lcm(ranks, groups))
            fits = splits(heads if key == "deltanet" else groups, grid.tp, grid.cp)
            given = "" if fits else f", {words.key}: {ranks}"
            yield Diagnostic(
                code=words.sizes_code,
                headline=f"`{name}` has {words.name} layers, but no `{key}` with their sizes",
                path=(*path, "pattern"),
                why=f"the number of {words.name} heads does not follow from the width of the model",
                help=f"write `{key}: {{heads: {heads}{given}}}` in `model`",
            )
        if letter not in model.pattern and sizes is not None:
            yield Diagnostic(
                code="setting-without-effect",
                severity=Severity.WARNING,
                headline=f"`{key}` of `{name}` does nothing: no layer is `{letter}`",
                path=(*path, key),
                at_key=True,
                why=f"it sets the sizes of {words.name} layers",
                help=f"delete `{key}`",
                related=related,
            )


def recurrent_heads_over_groups(spec: Spec, name: str, model: HybridModel) -> Findings:
    """Each group serves the same number of heads."""
    for key, sizes in _recurrent(model):
        words = _WORDS[key]
        if sizes.heads % sizes.groups == 0:
            continue
        fits = ", ".join(f"`{words.key}: {each}`" for each in divisors(sizes.heads))
        yield Diagnostic(
            code=words.groups_code,
            headline=f"`{name}`: {words.key} {sizes.groups} does not divide {sizes.heads} "
            f"{words.name} heads",
            path=("modules", name, "model", key, "heads"),
            why=f"the heads of a group share its {words.shared}, and every group has the same "
            "number of heads",
            help=f"these fit: {fits}",
        )


def recurrent_over_grid(spec: Spec, name: str, model: HybridModel) -> Findings:
    """Ranks of tp and cp compute whole heads, and whole groups or equal parts of one."""
    grid = spec.modules[name].grid
    ranks = grid.tp * grid.cp
    related = tuple(
        Related(("modules", name, "grid", axis), f"{axis} {size}")
        for axis, size in ((Axis.TP, grid.tp), (Axis.CP, grid.cp))
        if size > 1
    )
    for key, sizes in _recurrent(model):
        words, path = _WORDS[key], ("modules", name, "model", key, "heads")
        if sizes.heads % sizes.groups:
            continue
        if sizes.heads % ranks:
            yield Diagnostic(
                code=words.heads_over_grid_code,
                headline=f"`{name}`: {sizes.heads} {words.name} heads do not split over tp "
                f"{grid.tp} * cp {grid.cp} = {ranks} ranks",
                path=path,
                why=f"tp cuts the heads, and in a {words.name} layer cp cuts them further",
                help=_smaller("tp * cp", divisors(sizes.heads)),
                related=related,
            )
        elif not splits(sizes.groups, grid.tp, grid.cp):
            fits = [n for n in divisors(sizes.heads) if splits(sizes.groups, n, 1)]
            yield Diagnostic(
                code=words.groups_over_grid_code,
                headline=f"`{name}`: {sizes.groups} {words.name} {words.groups} do not split over "
                f"tp {grid.tp} and cp {grid.cp}",
                path=path,
                why="each rank holds whole groups, or each group is shared by the same number of "
                "ranks",
                help=_smaller(Axis.TP, fits),
                related=related,
            )


def splits(groups: int, tp: int, cp: int) -> bool:
    """Return whether groups are shared out over tp, and the groups of a tp rank over cp."""
    if groups % tp and tp % groups:
        return False
    mine = max(1, groups // tp)
    return mine % cp == 0 or cp % mine == 0


def _recurrent(model: HybridModel) -> Iterator[tuple[str, RecurrentSizes]]:
    """Yield key and sizes of each kind of recurrent layers that a model has."""
    for letter, key in RECURRENT.items():
        sizes = model.sizes_of(letter)
        if letter in model.pattern and sizes is not None:
            yield key, sizes
