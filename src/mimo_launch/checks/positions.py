"""Checks of position embeddings (rotary, sines and cosines, tables) and of windows.

Decides: which widths of models and heads fit the position embedding of a model; which tokens and
layers windows need.
Relies on: `widths` for heads that divide the width.
Leaves: how widths are cut over tp to `widths`.
"""

from mimo_launch.checks.rule import Findings, next_multiple, no_effect, set_keys
from mimo_launch.diag.diagnostic import Diagnostic, Related, YamlPath
from mimo_launch.spec.base import LANGUAGE, Excluded, LayerChoice
from mimo_launch.spec.language_models import CausalModel, DecoderBlocks
from mimo_launch.spec.spec import (
    AudioModel,
    DecoderModel,
    LanguageModel,
    Spec,
    TalkerModel,
    VitModel,
)


def head_size_even(spec: Spec, name: str, model: CausalModel) -> Findings:
    """Rotary positions turn pairs of numbers."""
    if not model.attends or model.rope_theta is None:
        return
    if isinstance(model, DecoderModel) and model.mla is not None:
        return  # `latent_attention_fits` reports it.
    size, turning = model.head_size, model.rotary_size
    if turning % 2 == 0 and turning >= 2:
        yield from _window_heads_even(name, model)
        return
    what, key = f"the head size {size} is odd", "hidden" if model.head_dim is None else "head_dim"
    fits = f"head_dim: {size + 1}"
    if turning != size:
        what, key = f"{turning} of the {size} dimensions of a head rotate", "rotary_factor"
        # Rounded up, as the number of dimensions is rounded down.
        fits = f"rotary_factor: {-(-(turning // 2 * 2 or 2) * 10_000 // size) / 10_000:g}"
    yield Diagnostic(
        code="odd-head-size",
        headline=f"`{name}`: {what}",
        path=("modules", name, "model", key),
        why="rotary positions rotate the dimensions of a head in pairs",
        help=f"write `{fits}`",
    )


def _window_heads_even(name: str, model: CausalModel) -> Findings:
    """Heads of layers with windows turn pairs of numbers as well."""
    window = model.sliding_window if isinstance(model, DecoderModel) else None
    if not isinstance(model, DecoderModel) or window is None or window.head_dim is None:
        return
    turning = model.rotary_part(window.head_dim)
    if turning % 2 == 0 and turning >= 2:
        return
    fits = int(2 / model.rotary_factor)
    while fits <= window.head_dim or model.rotary_part(fits) % 2:
        fits += 1
    yield Diagnostic(
        code="odd-head-size",
        headline=f"`{name}`: {turning} of the {window.head_dim} dimensions of a head rotate in "
        "layers with windows",
        path=("modules", name, "model", "sliding_window", "head_dim"),
        why="rotary positions rotate the dimensions of a head in pairs",
        help=f"write `head_dim: {fits}`",
    )


def mrope_fills_head(spec: Spec, name: str, model: LanguageModel) -> Findings:
    """Every pair of a head that turns is turned by one axis."""
    if model.mrope is None or model.rope_theta is None:
        return
    pairs, given = model.rotary_size // 2, sum(model.mrope)
    if given == pairs:
        yield from _mrope_fills_window_heads(name, model)
        return
    side = max(1, 3 * pairs // 8)  # The shares of Qwen2-VL: 2 to 3 to 3.
    fits = f"mrope: [{pairs - 2 * side}, {side}, {side}]" if pairs > 2 * side else "head_dim: 128"
    whole = model.rotary_size == model.head_size
    yield Diagnostic(
        code="mrope-over-head",
        headline=f"`{name}`: mrope rotates {' + '.join(map(str, model.mrope))} = {given} pairs, "
        f"but a head has {pairs}" + ("" if whole else " that rotate"),
        path=("modules", name, "model", "mrope"),
        why="rotary positions rotate the dimensions of a head in pairs, each pair with one axis",
        help=f"write `{fits}`",
    )


def _mrope_fills_window_heads(name: str, model: LanguageModel) -> Findings:
    """Heads of layers with windows have as many pairs that rotate as those of other layers."""
    window = model.sliding_window if isinstance(model, DecoderModel) else None
    if window is None or window.head_dim is None:
        return
    pairs, given = model.rotary_part(window.head_dim) // 2, model.rotary_size // 2
    if pairs == given:
        return
    path = ("modules", name, "model")
    yield Diagnostic(
        code="mrope-over-head",
        headline=f"`{name}`: mrope rotates {given} pairs, but a head of layers with windows has "
        f"{pairs}",
        path=(*path, "sliding_window", "head_dim"),
        why="`mrope` says how many pairs rotate with each axis, the same for all layers",
        help=f"write `head_dim: {model.head_size}`",
        related=(Related((*path, "mrope"), "the pairs of each axis"),),
    )


def latent_attention_fits(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """A part of each query and key rotates, and every head has its own keys and values."""
    mla, path = model.mla, ("modules", name, "model")
    if mla is None:
        return

    def unfit(what: str, key: tuple[str, ...], why: str, help_: str) -> Diagnostic:
        return Diagnostic(
            code="mla-does-not-fit",
            headline=f"`{name}`: `mla` {what}",
            path=(*path, *key),
            why=why,
            help=help_,
            related=(Related((*path, "heads"), f"{model.heads} heads"),),
        )

    size = model.head_size
    if mla.rope_head_dim % 2 or mla.rope_head_dim >= size:
        yield unfit(
            f"rotates {mla.rope_head_dim} of the {size} numbers of a head",
            ("mla", "rope_head_dim"),
            "numbers rotate in pairs, and keys and values share a narrow width with the others",
            f"write `rope_head_dim: {max(2, size // 6 * 2)}`",
        )
    if model.num_kv_heads != model.heads:
        yield unfit(
            f"has {model.heads} heads, not {model.num_kv_heads} for keys and values",
            ("kv_heads",),
            "every head makes keys and values of its own from the narrow width",
            "delete `kv_heads`",
        )
    for key in ("head_dim", "kv_heads"):
        if model.sliding_window is not None and getattr(model.sliding_window, key) is not None:
            yield unfit(
                f"has the same heads in all layers, so no `sliding_window.{key}`",
                ("sliding_window", key),
                "every head makes keys and values of its own, of the sizes in `mla`",
                f"delete `{key}` in `sliding_window`",
            )
    for key, excluded in set_keys(model, Excluded):
        if excluded.by == "mla":
            yield unfit(
                f"has no `{key}`",
                (key,),
                "its norms stand on the narrow widths, and `rope_head_dim` says what rotates",
                f"delete `{key}`",
            )


def scaling_in_order(spec: Spec, name: str, model: DecoderBlocks) -> Findings:
    """Wavelengths that stay are not above the ones that turn slower."""
    scaling = model.rope_scaling
    if scaling is None or scaling.rope_type in {"linear", "proportional", "longrope"}:
        return
    names, ratio = ("low_freq_factor", "high_freq_factor"), 4
    if scaling.rope_type == "yarn":
        names, ratio = ("beta_slow", "beta_fast"), 32
    low, high = (getattr(scaling, each) for each in names)
    # Equal bounds leave nothing between them, as in Llama 4 Scout and Kimi-K2.
    if low <= high:
        return
    path = ("modules", name, "model", "rope_scaling")
    yield Diagnostic(
        code="rope-scaling-order",
        headline=f"`{name}`: {names[1]} {high:g} is below {names[0]} {low:g}",
        path=(*path, names[1]),
        why=f"wavelengths between original length / {names[1]} and original length / "
        f"{names[0]} are interpolated, so the first bound must not be above the second",
        help=f"write `{names[1]}: {ratio * low:g}`",
        related=(Related((*path, names[0]), f"{low:g}"),),
    )


def scaling_of_each_pair(spec: Spec, name: str, model: DecoderBlocks) -> Findings:
    """LongRoPE has a factor for each pair of every head that rotates."""
    scaling = model.rope_scaling
    if scaling is None or scaling.rope_type != "longrope":
        return
    path: YamlPath = ("modules", name, "model", "rope_scaling")
    sizes, given = [model.rotary_size], len(scaling.short_factor)
    if isinstance(model, DecoderModel) and model.sliding_window is not None:
        window = model.sliding_window
        # Heads in windows rotate by the same factors, unless they have another base.
        own = window.head_dim if window.rope_theta is None else None
        sizes += [] if own is None else [model.rotary_part(own)]
    size = next((each for each in sizes if each // 2 != given), None)
    if size is None:
        return
    pairs = size // 2
    yield Diagnostic(
        code="rope-factors-unlike-pairs",
        headline=f"`{name}`: `short_factor` has {given} numbers for {pairs} pairs",
        path=(*path, "short_factor") if scaling.short_factor else path,
        why=f"{size} numbers of a head rotate, in {pairs} pairs, and `longrope` has a factor for "
        "each pair",
        help=f"write {pairs} numbers: those of `short_factor` in the `config.json` of the model",
    )


def sequences_have_scaling(spec: Spec, name: str, model: DecoderBlocks) -> Findings:
    """Sequences are within the length up to which LongRoPE has its factors."""
    scaling, key = model.rope_scaling, "original_max_position_embeddings"
    if scaling is None or scaling.rope_type != "longrope":
        return
    path: YamlPath = ("modules", name, "model", "rope_scaling")
    longest, seq = scaling.original_max_position_embeddings, spec.batch.seq
    if key not in scaling.model_fields_set:
        yield Diagnostic(
            code="missing-key",
            headline=f"`{name}`: `longrope` lacks `{key}`",
            path=path,
            why="`short_factor` holds for sequences of up to this length, and sets the size of "
            "scores by it",
            help=f"add `{key}`, with its value in the `config.json` of the model",
        )
    elif seq > longest:
        yield Diagnostic(
            code="seq-over-original-length",
            headline=f"`seq: {seq}` is longer than `{name}` has factors of `longrope` for",
            path=("batch", "seq"),
            why=f"`short_factor` holds for sequences of up to {longest:,} tokens; beyond, angles "
            "depend on the longest sequence of a batch, which is not supported",
            help=f"write `seq: {longest}`",
            related=(Related((*path, key), f"{longest}"),),
        )


def hidden_holds_positions(spec: Spec, name: str, model: VitModel) -> Findings:
    """2-D sine and cosine positions take a quarter of the width each."""
    if not model.has_sines or model.hidden % 4 == 0:
        return
    yield Diagnostic(
        code="hidden-not-multiple-of-4",
        headline=f"`{name}`: hidden {model.hidden} is not a multiple of 4",
        path=("modules", name, "model", "hidden"),
        why="patch positions are sines and cosines of row and column, a quarter of `hidden` each",
        help=f"write `hidden: {next_multiple(model.hidden, 4 * model.heads)}`",
    )


def heads_hold_places(spec: Spec, name: str, model: VitModel) -> Findings:
    """2-D rotary positions turn the same number of pairs by row and by column."""
    size = model.hidden // model.heads
    if not model.turns_patches or size % 4 == 0:
        return
    yield Diagnostic(
        code="head-not-multiple-of-4",
        headline=f"`{name}`: the head size {size} is not a multiple of 4",
        path=("modules", name, "model", "hidden"),
        why="`rope2d` rotates half of the pairs of a head by row of a patch, half by column",
        help=f"write `hidden: {model.heads * next_multiple(size, 4)}`",
        related=(Related(("modules", name, "model", "heads"), f"{model.heads} heads"),),
    )


def learned_positions_have_grid(spec: Spec, name: str, model: VitModel) -> Findings:
    """A table of positions has a size."""
    if not model.has_table or model.image is not None:
        return
    # Squares of patches that become rows fill it.
    side = next_multiple(24, model.shuffle)
    yield Diagnostic(
        code="positions-without-grid",
        headline=f"`{name}` has learned positions, but no `image` to size their table",
        path=("modules", name, "model", "positions"),
        why="the table has one row per patch of an image of that size",
        help=f"write `image: [{side}, {side}]`: height and width of the image, in patches",
    )


def read_layer_exists(spec: Spec, name: str, model: TalkerModel) -> Findings:
    """A talker reads states before the last layer of language; after it comes the last norm."""
    layers, reads = spec.language.model.layers, LANGUAGE in spec.sources_of(name)
    if reads and model.reads_layer is not None and model.reads_layer >= layers:
        yield Diagnostic(
            code="full-layer-not-in-model",
            headline=f"`{name}`: states after {model.reads_layer} layers of `{LANGUAGE}`, which "
            f"has {layers}",
            path=("modules", name, "model", "reads_layer"),
            why="states after the last layer pass its last norm, and are read by default",
            help="delete `reads_layer`" + f", or write `reads_layer: {layers - 1}`" * (layers > 1),
            related=(Related(("modules", LANGUAGE, "model"), f"{layers} layers"),),
        )


def chosen_layers_exist(spec: Spec, name: str, model: VitModel | DecoderModel) -> Findings:
    """Every list of layers in a section names layers of the model."""
    for key, section in vars(model).items():
        if not isinstance(section, LayerChoice):
            continue
        beyond = [number for number in section.numbers if number >= model.layers]
        kept = sorted({number for number in section.numbers if number < model.layers})
        path, chosen = ("modules", name, "model", key), section.chosen
        if beyond:
            yield Diagnostic(
                code="full-layer-not-in-model",
                headline=f"`{name}`: layer {beyond[0]} {section.meaning}, but the last layer is "
                f"{model.layers - 1}",
                path=(*path, chosen, section.numbers.index(beyond[0])),
                why="layers are counted from 0",
                help=f"write `{chosen}: {kept}`",
                related=(Related(("modules", name, "model", "layers"), f"{model.layers} layers"),),
            )
        elif chosen == "full" and len(kept) == model.layers:
            do = "do" if key.endswith("s") else "does"
            yield no_effect(
                path, f"`{key}` of `{name}` {do} nothing", "every layer is in `full`", at_key=True
            )


def windows_hold_all_tokens(spec: Spec, name: str, model: VitModel) -> Findings:
    """A learned token is in no window."""
    if model.windows is None or not model.learned_tokens:
        return
    key, what = "registers", "a register"
    if model.class_token:
        key, what = "class_token", "a class token"
    yield Diagnostic(
        code="class-token-without-window",
        headline=f"`{name}`: {what} belongs to no window",
        path=("modules", name, "model", key),
        why="`windows` cut the patches of an image into squares, which attend to themselves only",
        help=f"delete `{key}` or `windows`",
        related=(Related(("modules", name, "model", "windows"), "windows"),),
    )


def hidden_holds_sinusoids(spec: Spec, name: str, model: AudioModel) -> Findings:
    """Half of the width is sines, half is cosines."""
    if model.hidden % 2 == 0:
        return
    yield Diagnostic(
        code="odd-audio-width",
        headline=f"`{name}`: hidden {model.hidden} is an odd number",
        path=("modules", name, "model", "hidden"),
        why="positions in a clip are sines and cosines, half of `hidden` each",
        help=f"write `hidden: {next_multiple(model.hidden, 2 * model.heads)}`",
    )
