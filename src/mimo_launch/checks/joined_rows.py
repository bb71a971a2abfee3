"""Checks of rows that are added to others, in a connector or after layers of language.

Decides: which images and clips of the data the rows of a connector may come from; which layers of
an encoder send rows, and how many layers language needs for them.
Relies on: `data.sample_sizes` for rows per image, `graph` for the readers of an encoder.
Leaves: which modules may read which to `graph`, adding the rows to `models`.
"""

from collections.abc import Iterator

from mimo_launch.checks.graph import module_list
from mimo_launch.checks.rule import Findings, no_effect
from mimo_launch.data.sample_sizes import sizes_drawn, usual_sizes
from mimo_launch.data.shared_images import size_made
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec, UserData, VitModel


def widths_merge(spec: Spec) -> Findings:
    """Modules make the same number of rows of an image if these are added to each other."""
    for name, module in spec.encoders.items():
        sources, path = spec.sources_of(name), ("modules", name, "model", "merge")
        if kind_of(module.model).reading.in_turn:
            continue
        if len(sources) == 1:
            yield no_effect(
                path,
                f"`merge: width` of `{name}` does nothing",
                f"it reads only `{sources[0]}`, so there is nothing to merge",
            )
        unequal = ((sizes, each) for sizes in _sizes(spec, sources) for each in sources[1:])
        for sizes, other in unequal:
            first, rows, others = sources[0], sizes[sources[0]], sizes[other]
            if rows == others:
                continue
            yield Diagnostic(
                code="merged-rows-differ",
                headline=f"`{name}` merges by width, but of one image `{first}` can make {rows} "
                f"row{'s' * (rows != 1)} and `{other}` {others}",
                path=path,
                why="rows are added to each other one by one, so there must be equally many",
                help="write `merge: rows`: the rows of one image then follow each other",
                related=tuple(
                    Related(("modules", each, "model"), f"{n} row{'s' * (n != 1)}")
                    for each, n in ((first, rows), (other, others))
                ),
            )
            break


def _sizes(spec: Spec, sources: tuple[str, ...]) -> Iterator[dict[str, int]]:
    """Yield the rows that each of `sources` makes of the same image, for several images.

    For drawn images, these are the widest and the narrowest of each height: rows are linear in the
    width between them, so modules that agree on both always agree. For shards, they are some usual
    sizes; the index sees all.
    """
    if isinstance(spec.data, UserData):
        for usual in usual_sizes(spec):
            yield {name: size_made(spec, name, usual.__getitem__).rows for name in sources}
        return
    drawn = {
        name: sizes_drawn(spec, name)
        for name, module in spec.encoders.items()
        if kind_of(module.model).input is not None
    }
    for height in range(max(map(len, drawn.values()), default=0)):
        for end in (1, 0):
            sizes = {name: found[min(height, len(found) - 1)][end] for name, found in drawn.items()}
            yield {name: size_made(spec, name, sizes.__getitem__).rows for name in sources}


def shards_show_graph(spec: Spec, data: UserData) -> Findings:
    """A connector over shards sees images or clips, not both: no clip belongs to an image."""
    for name in spec.encoders:
        sources = spec.sources_of(name)
        of_clips = [each for each in sources if _sees_clips(spec, each)]
        of_images = [each for each in sources if each not in of_clips]
        if of_clips and of_images:
            yield Diagnostic(
                code="not-supported-yet",
                headline=f"`{name}` reads `{of_images[0]}` and `{of_clips[0]}`, one of images and "
                "one of clips, which `kind: webdataset` cannot join yet",
                path=("modules", name, "reads"),
                why="the samples of shards do not say which clip belongs to which image",
                help=f"write `reads: {module_list(of_images)}` in `{name}`, and a second connector "
                f"with `reads: {module_list(of_clips)}`",
                related=(Related(("data", "kind"), "these data"),),
            )


def _sees_clips(spec: Spec, name: str) -> bool:
    """Return whether a module's rows are made of clips, by the first module that it reads."""
    kind, sources = kind_of(spec.modules[name].model), spec.sources_of(name)
    return _sees_clips(spec, sources[0]) if kind.input is None and sources else bool(kind.clips)


def deepstack_in_order(spec: Spec, name: str, model: VitModel) -> Findings:
    """The layers of an encoder exist, and come in their order."""
    found = [number for number in sorted(set(model.deepstack)) if number < model.layers]
    if list(model.deepstack) == found:
        return
    yield Diagnostic(
        code="deepstack-not-in-order",
        headline=f"`{name}`: layers {', '.join(map(str, model.deepstack))} are not some of its "
        f"{model.layers} layers, in order",
        path=("modules", name, "model", "deepstack"),
        why="the rows of the first one are added behind layer 0 of language, those of the next one "
        "behind layer 1; layers are counted from 0",
        help=f"write `deepstack: {found}`",
        related=(Related(("modules", name, "model", "layers"), f"{model.layers} layers"),),
    )


def features_are_layers(spec: Spec, name: str, model: VitModel) -> Findings:
    """Layers with states side by side exist, each once, and the last one is among them."""
    path = ("modules", name, "model", "features")
    if model.features and model.deepstack:
        yield Diagnostic(
            code="features-with-deepstack",
            headline=f"`{name}` has both `features` and `deepstack`",
            path=path,
            why="rows of further layers are those of one state each",
            help="delete `features` or `deepstack`",
        )
    last, chosen = model.layers - 1, sorted({*model.features})
    if not chosen or (chosen[-1] == last and len(chosen) == len(model.features)):
        return
    fits = [each for each in dict.fromkeys(model.features) if each < last]
    yield Diagnostic(
        code="features-not-layers",
        headline=f"`{name}`: layers {', '.join(map(str, model.features))} are not some of its "
        f"{model.layers} layers, each once, with layer {last} among them",
        path=path,
        why="layers are counted from 0, and nothing reads the layers after the last that is named",
        help=f"write `features: {[last, *fits]}`",
        related=(Related(("modules", name, "model", "layers"), f"{model.layers} layers"),),
    )


def deepstack_is_added(spec: Spec, name: str, model: VitModel) -> Findings:
    """Only language adds rows after layers; after its last layer no loss would see them."""
    number, layers = model.deep_rows, spec.language.model.layers
    if not number:
        return
    path = ("modules", name, "model", "deepstack")
    others = [each for each in spec.modules if each != LANGUAGE and name in spec.sources_of(each)]
    if others:
        yield Diagnostic(
            code="deepstack-not-added",
            headline=f"`{others[0]}` reads `{name}`, which sends rows of {number + 1} layers",
            path=path,
            why="only `language` adds rows behind its layers",
            help="delete `deepstack`",
            related=(Related(("modules", others[0]), "reads it"),),
        )
    elif number >= layers:
        fits = f"`deepstack: {list(model.deepstack[: layers - 1])}`"
        yield Diagnostic(
            code="deepstack-not-added",
            headline=f"`{name}` sends rows for {number} layers of language, which has {layers}",
            path=path,
            why="rows are added after the first layers, and what is added after the last one "
            "reaches no loss: it is at the places of images",
            help=f"write {fits if layers > 1 else 'nothing: delete `deepstack`'}, or "
            f"`layers: {number + 1}` in `language`",
            related=(Related(("modules", LANGUAGE, "model", "layers"), f"{layers} layers"),),
        )
