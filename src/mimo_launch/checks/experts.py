"""Checks of mixtures of experts, of their grid, and of multi-token prediction.

Decides: which sizes of experts a grid can cut; which sequences are too short for further tokens,
and where a token would see what it must predict.
Relies on: a grid that fills the ranks of its module; `kinds` for what tokens attend to.
Leaves: what a backend lacks to `backends`.
"""

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.space import divisors
from mimo_launch.spec.language_models import CausalModel
from mimo_launch.spec.spec import DecoderModel, ExpertGrid, LanguageModel, Spec


def experts_have_model(spec: Spec, name: str) -> Findings:
    """A module with a grid of experts has a model with experts."""
    if spec.modules[name].experts is not None and kind_of(spec.modules[name].model).moe is None:
        yield Diagnostic(
            code="experts-without-moe",
            headline=f"`{name}` has a grid of experts, but its model has no experts",
            path=("modules", name, "experts"),
            at_key=True,
            why="`experts` says which ranks hold the experts of `model.moe`",
            help="delete `experts`, or describe them in `model` as `moe`",
        )


def activation_is_of_one_mlp(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """The learned numbers of an xIELU are those of the one MLP of a layer."""
    others = [key for key in ("moe", "per_layer_embeddings") if getattr(model, key) is not None]
    if model.activation != "xielu" or not others:
        return
    path, words = ("modules", name, "model"), " and ".join(f"`{key}`" for key in others)
    yield Diagnostic(
        code="xielu-beside-experts",
        headline=f"`{name}`: `activation: xielu` beside {words}",
        path=(*path, "activation"),
        why="an xIELU has learned numbers for the MLP of each layer; experts and gates of "
        "per-layer embeddings have none",
        help=f"delete {words}, or write `activation: gelu_tanh_without_gate`",
        related=tuple(Related((*path, key), "has the same activation") for key in others),
    )


def grid_of_experts_fits(spec: Spec, name: str) -> Findings:
    """Experts are divided evenly over the ranks of each stage."""
    module, moe = spec.modules[name], kind_of(spec.modules[name].model).moe
    if moe is None:
        return
    sizes, grid = module.experts or ExpertGrid(), module.grid
    ranks = grid.tp * grid.cp * grid.dp
    if ranks % (sizes.ep * sizes.tp):
        key, other = ("ep", sizes.tp) if ranks % sizes.tp == 0 else ("tp", sizes.ep)
        fits = [each for each in divisors(ranks) if ranks % (each * other) == 0]
        help_ = f"write `{key}` as one of {', '.join(map(str, fits or divisors(ranks)))}"
        yield Diagnostic(
            code="expert-grid-over-stage",
            headline=f"`{name}`: ep {sizes.ep} * tp {sizes.tp} of the experts = "
            f"{sizes.ep * sizes.tp} does not divide the {ranks} ranks of a stage",
            path=("modules", name, "experts"),
            at_key=True,
            why="the ranks of a pipeline stage, tp * cp * dp, hold whole replicas of its experts",
            help=help_,
            related=(Related(("modules", name, "grid"), f"{ranks} ranks a stage"),),
        )
    if moe.experts % sizes.ep:
        yield _uneven(
            code="experts-over-ep",
            headline=f"`{name}`: {moe.experts} experts do not split over ep {sizes.ep}",
            model=(name, "experts", moe.experts),
            cut=("experts", "ep", sizes.ep),
            fits=[n for n in divisors(moe.experts) if ranks % (n * sizes.tp) == 0],
            why="each ep rank holds the same number of whole experts",
        )
    if moe.width % sizes.tp:
        yield _uneven(
            code="expert-width-over-tp",
            headline=f"`{name}`: the width of an expert, {moe.width}, does not split over tp "
            f"{sizes.tp} of the experts",
            model=(name, "width", moe.width),
            cut=("experts", "tp", sizes.tp),
            fits=[n for n in divisors(moe.width) if ranks % (n * sizes.ep) == 0],
            why="each of those ranks holds an equal part of the width of an expert",
        )
    if moe.shared % grid.tp:
        yield _uneven(
            code="shared-expert-over-tp",
            headline=f"`{name}`: the width of the shared expert, {moe.shared}, does not split over "
            f"tp {grid.tp}",
            model=(name, "shared", moe.shared),
            cut=("grid", "tp", grid.tp),
            fits=divisors(moe.shared),
            why="the shared expert is cut over the tp of the module, like any MLP",
        )


def choices_of_experts(spec: Spec, name: str) -> Findings:
    """A token chooses at most as many experts as there are, and the router can learn which."""
    moe = kind_of(spec.modules[name].model).moe
    if moe is None:
        return
    path = ("modules", name, "model", "moe")
    if moe.top_k > moe.experts:
        yield Diagnostic(
            code="top-k-over-experts",
            headline=f"`{name}`: top_k {moe.top_k} of {moe.experts} experts",
            path=(*path, "top_k"),
            why="each token goes to `top_k` different experts",
            help=f"write `top_k: {moe.experts}` or less",
            related=(Related((*path, "experts"), f"{moe.experts} experts"),),
        )
    per_group = moe.experts // moe.groups
    if moe.groups > 1 and (moe.experts % moe.groups or moe.top_k > per_group * moe.top_groups):
        fits = [n for n in divisors(moe.experts) if moe.top_k <= moe.experts // n * moe.top_groups]
        yield Diagnostic(
            code="groups-over-experts",
            headline=f"`{name}`: {moe.experts} experts in {moe.groups} groups, {moe.top_groups} of "
            f"which hold {moe.top_k} choices of a token",
            path=(*path, "groups"),
            why="groups are equally large, and the groups of a token hold all that it chooses",
            help=f"these fit: {', '.join(f'`groups: {n}`' for n in fits) or '`groups: 1`'}",
            related=(Related((*path, "experts"), f"{moe.experts} experts"),),
        )
    if moe.experts == 1 and (moe.score == "softmax" or (moe.top_k == 1 and moe.normalize)):
        yield Diagnostic(
            code="router-without-gradient",
            headline=f"`{name}`: the score of a single expert is always 1",
            path=(*path, "experts"),
            why="no gradient of the loss reaches the router, which has nothing to choose",
            help="write `experts: 2` or more, or an MLP of this width in their place",
        )
    elif moe.top_k == 1 and moe.normalize:
        yield Diagnostic(
            code="router-without-gradient",
            headline=f"`{name}`: with `top_k: 1` normalized scores are always 1",
            path=(*path, "top_k"),
            why="no gradient of the loss reaches the router, so it would not learn which is best",
            help="write `normalize: false`, or a larger `top_k`",
        )


def layers_have_experts(spec: Spec, name: str, model: CausalModel) -> Findings:
    """Experts are described exactly where some layer has them."""
    path, layers = ("modules", name, "model"), spec.modules[name].model.layers
    if any(model.has_experts(layer) for layer in range(layers)) == (model.moe is not None):
        return
    if model.moe is None:
        yield Diagnostic(
            code="pattern-without-moe",
            headline=f"`{name}` has layers with experts, but no `moe` that describes them",
            path=(*path, "pattern"),
            why="`E` in the pattern is a mixture of experts; `moe` sets their number and sizes",
            help="write `moe: {experts: 8, top_k: 2, width: 256}` in `model`",
        )
        return
    key, rule = "moe", "a layer has experts if its letter in `pattern` is `E`"
    if "pattern" not in type(model).model_fields:
        key = "moe" if model.moe.every == 1 else "every"
        rule = (
            "layer i, counted from 0, has experts if i + 1 is a multiple of `every` and i >= "
            "`first_dense`"
        )
    yield Diagnostic(
        code="no-layer-has-experts",
        headline=f"`{name}`: none of its {layers} layers has experts",
        path=(*path, "moe") if key == "moe" else (*path, "moe", key),
        at_key=key == "moe",
        why=rule,
        help=f"delete `{key}`",
    )


def further_tokens_fit(spec: Spec, name: str, model: LanguageModel) -> Findings:
    """Every depth has a label, and no token sees what it predicts."""
    if model.mtp is None:
        return
    path = ("modules", name, "model")
    if model.mtp.depth >= spec.batch.seq - 1:
        yield Diagnostic(
            code="mtp-does-not-fit",
            headline=f"`{name}`: `mtp` predicts {model.mtp.depth} further tokens, but sequences "
            f"have {spec.batch.seq}",
            path=(*path, "mtp", "depth"),
            why="depth k learns the token k + 1 behind each, as far as there is one",
            help=f"write `depth: {max(1, min(4, spec.batch.seq - 2))}`, or a longer `batch.seq`",
            related=(Related(("batch", "seq"), f"seq {spec.batch.seq}"),),
        )
    attending = kind_of(model).attending
    if attending.whole_images or attending.whole_prompts:
        key = "bidirectional_images" if attending.whole_images else "bidirectional_prompts"
        what = "an image" if attending.whole_images else "a prompt"
        yield Diagnostic(
            code="mtp-does-not-fit",
            headline=f"`{name}`: `mtp` cannot learn where tokens of {what} see later ones",
            path=(*path, "mtp"),
            at_key=True,
            why=f"a depth reads the token ahead of each: tokens of {what} that see its end would "
            "read the text that they are to predict",
            help=f"delete `mtp`, or `{key}`",
            related=(Related((*path, key), "they see later ones"),),
        )


def _uneven(
    *,
    code: str,
    headline: str,
    model: tuple[str, str, int],
    cut: tuple[str, str, int],
    fits: list[int],
    why: str,
) -> Diagnostic:
    """Return the finding that a size of experts does not split over an axis of a grid.

    `model` is (module, key, size), `cut` (section, axis, ranks), `fits` what the axis may be.
    """
    (name, key, _), (section, axis, ranks) = model, cut
    smaller = max((each for each in fits if each <= ranks), default=1)
    return Diagnostic(
        code=code,
        headline=headline,
        path=("modules", name, "model", "moe", key),
        why=why,
        help=f"write `{axis}: {smaller}` in `{section}`",
        related=(Related(("modules", name, section, axis), f"{axis} {ranks}"),),
    )
