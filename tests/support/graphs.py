"""Specs of any graph: connectors, several readers, generators. Imports no torch.

`graph_specs` draws valid specs without rejecting any, like `specs.layout_specs`, whose parts it
uses; `graph_features` says what one covers.
"""

from math import prod
from typing import Any

from hypothesis import strategies as st
from tests.support.partly_trained import parts_trained
from tests.support.specs import (
    AXES,
    DRAWS,
    ENCODERS,
    HEARING,
    KINDS,
    LANGUAGES,
    Box,
    closed,
    common_parts,
    fit_tiles,
    frames_each,
    grids_of,
    one_grid,
    one_module,
    one_schedule,
    placed,
    shuffle_of,
    spec,
)

from mimo_launch.layout.layout import build_layout
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.spec.spec import Spec

CONNECTORS, GENERATORS = ("merger", "joiner"), ("drawer", "painter")
# Connectors between language and each of the generators.
ADAPTERS = {"drawer": "adapter", "painter": "bender"}
# How many encoders of arrays, connectors and generators there are; none is a star.
SHAPES = [(1, 1, 0), (1, 1, 1), (2, 1, 0), (2, 1, 1), (2, 2, 0), (1, 2, 1), (1, 0, 1), (2, 0, 2),
          (3, 2, 1), (3, 1, 2), (1, 2, 2), (0, 0, 2), (0, 0, 1)]  # fmt: skip
Reads = dict[str, list[str]]


def graph_specs(max_ranks: int = 8, *, languages: tuple[str, ...] = LANGUAGES) -> Any:
    """Return a strategy of valid specs, none of a star, with at most `max_ranks` ranks.

    Connectors read encoders and other connectors, in any number; language may read what a connector
    reads, too; generators read language. Grids, placement and settings are as in `layout_specs`.
    """
    return _graph_specs(max_ranks, languages)


def flow(**settings: Any) -> Box:
    """Return what `box` takes for a generator behind language."""
    return {"model": {"kind": "flow"}, "reads": ["language"], **settings}


def talker(**settings: Any) -> Box:
    """Return what `box` takes for a talker behind language; `reads_text` is one of its model."""
    text = {"reads_text": read} if (read := settings.pop("reads_text", False)) else {}
    model = {"kind": "talker", **text, **settings.pop("model", {})}
    return {"model": model, "reads": ["language"], **settings}


def connector(*reads: str, queries: int | None = None, merge: str = "rows") -> Box:
    """Return what `box` takes for a connector of these modules."""
    model = {"kind": "connector", "merge": merge, **({"queries": queries} if queries else {})}
    return {"model": model, "reads": reads}


@st.composite
def _graph_specs(draw: st.DrawFn, max_ranks: int, languages: tuple[str, ...]) -> Spec:
    DRAWS["drawn"] += 1
    room = draw(st.sampled_from([*range(1, max_ranks + 1), *[max_ranks] * 2 * max_ranks]))
    mbs, k, groups = (draw(st.integers(1, 3)) for _ in range(3))
    encoders, connectors, generators = (
        names[:number]
        for names, number in zip(
            (ENCODERS, CONNECTORS, GENERATORS), draw(st.sampled_from(SHAPES)), strict=True
        )
    )
    adapters = {name: ADAPTERS[name] for name in generators if draw(st.sampled_from([0, 1, 0]))}
    together = draw(st.sampled_from([n for n in range(1, k * groups + 1) if k * groups % n == 0]))
    most = draw(st.sampled_from([room, -(-room // 2)]))
    least = draw(st.sampled_from([-(-most // 2), 1]))
    sizes = range(least, most + 1)
    language = draw(one_grid(grids_of(sizes, 0, supported_only=False), (0, 1, 2, 3)))
    first = draw(st.integers(0, room - prod(language)))
    intervals = {"language": range(first, first + prod(language))}
    grids = {"language": language}
    for name in (*encoders, *connectors, *generators, *adapters.values()):
        behind = name in generators or name in adapters.values()
        share, at_once = language[2] * mbs, together if behind else k
        place = placed(intervals["language"], room, share, at_once, supported_only=False)
        intervals[name], grids[name] = draw(place)
    order = draw(st.permutations(list(intervals)))
    intervals, idle = draw(closed(intervals, room))
    modules = {}
    for name in order:
        made = one_module if name in (*ENCODERS, "language") else _reader
        modules[name] = draw(made(name, grids[name], intervals[name].start, languages))
    kind, virtual_stages = draw(one_schedule(KINDS, language[3]))
    modules["language"]["model"] |= _repeated(modules["language"]["model"], virtual_stages)
    _connect(modules, draw(_reads(encoders, connectors, modules)))
    for generator, adapter in adapters.items():
        modules[adapter]["reads"], modules[generator]["reads"] = ["language"], [adapter]
        modules[adapter].pop("placeholder", None)
    fit_tiles(modules)
    if all(module.get("frozen") is True for module in modules.values()):
        del modules["language"]["frozen"]
    if generators and draw(st.sampled_from([False, False, True])):
        modules["language"]["loss_weight"] = draw(st.sampled_from([0.5, 2.0]))
    made = spec(
        modules,
        microbatches=k * groups,
        encoder_microbatches=draw(st.sampled_from([k] if groups > 1 else [None, k])),
        kind=kind,
        virtual_stages=virtual_stages,
        mbs=mbs,
        max_patches=draw(st.integers(1, 4)) * max(shuffle_of(m) ** 2 for m in modules.values()),
        max_frames=draw(st.integers(3, 6)) * frames_each(modules),
        max_images=draw(st.sampled_from([1, 2])),
        packing=draw(st.sampled_from([False, True, False])),
        text_only=draw(st.sampled_from([0.1, 0.0, 0.5])),
        seed=draw(st.integers(0, 3)),
        **({} if idle is None else {"idle_ranks": idle}),
    )
    schedule = made.schedule.model_copy(update={"generator_microbatches": together})
    return made.model_copy(update={"schedule": schedule})


def _repeated(model: dict[str, Any], virtual_stages: int) -> dict[str, Any]:
    """Return so many layers that every virtual stage has one."""
    found = {"layers": model["layers"] * virtual_stages}
    return found | ({"pattern": model["pattern"] * virtual_stages} if "pattern" in model else {})


@st.composite
def _reader(draw: st.DrawFn, name: str, grid: tuple[int, ...], first: int, _: Any) -> Box:
    """Draw a connector or a generator; `_reads` says what a connector reads."""
    made, model = draw(common_parts(name, grid, first))
    if name in GENERATORS:
        if made.get("frozen") == "except_projector":
            del made["frozen"]  # It has none.
        weight = draw(st.sampled_from([1.0, 0.3]))
        if draw(st.booleans()):
            model |= {"kind": "flow", "channels": draw(st.integers(1, 2))}
        else:
            books, text = draw(st.integers(1, 3)), draw(st.sampled_from([True, False, "instead"]))
            model |= {"kind": "talker", "codebooks": books, "reads_text": text}
            if books > 1 and draw(st.booleans()):
                model["predictor"] = {
                    "layers": 1, "heads": model["heads"], "mlp": 2 * model["heads"], "vocab": 9
                }  # fmt: skip
        return {**made, "model": model, "reads": ["language"], "loss_weight": weight}
    made["balance"] = draw(st.sampled_from(["linked", "all", "none", "linked"]))
    model |= {
        "kind": "connector",
        "queries": draw(st.sampled_from([None, 1, 2, 3])),
        "projector": draw(st.sampled_from(["mlp", "linear", "merger"])),
        "projector_bias": draw(st.booleans()),
    }
    return {**made, "model": model}


@st.composite
def _reads(
    draw: st.DrawFn, encoders: tuple[str, ...], connectors: tuple[str, ...], modules: dict[str, Box]
) -> Reads:
    """Draw what connectors and language read, so that every encoder has a reader."""
    reads: Reads = {}
    for place, name in enumerate(connectors):
        before = [*encoders, *connectors[:place]]
        wanted = draw(st.permutations(before))
        reads[name] = wanted[: draw(st.integers(1, min(3, len(before))))]
    taken = {each for sources in reads.values() for each in sources}
    left = [name for name in (*encoders, *connectors) if name not in taken]
    again = [name for name in (*encoders, *connectors) if name in taken and draw(st.booleans())]
    if again and draw(st.booleans()):
        reads["language"] = draw(st.permutations([*left, *again]))
    if draw(st.booleans()):
        # Towers that make equally many rows, which may be added to each other.
        for name in encoders:
            modules[name]["model"] |= {"shuffle": 1} if _is_vit(modules[name]) else {}
    sizes: dict[str, Any] = {name: _size(modules[name]) for name in encoders}
    for name in connectors:
        found, model = [sizes[each] for each in reads[name]], modules[name]["model"]
        if found == [("queries", 1)] and model["queries"] is None:
            # Attention over one row has no gradients of its queries and keys.
            model["queries"] = 2
        if len(found) > 1 and all(each == found[0] for each in found) and draw(st.booleans()):
            model["merge"] = "width"
        alone = found[0] if len(found) == 1 or "merge" in model else ("rows of", *found)
        sizes[name] = alone if model["queries"] is None else ("queries", model["queries"])
    return reads


def _connect(modules: dict[str, Box], reads: Reads) -> None:
    """Give modules what they read; a placeholder is only of what language reads itself."""
    for name, sources in reads.items():
        modules[name]["reads"] = list(sources)
    between = {each for name, sources in reads.items() if name != "language" for each in sources}
    for name, module in modules.items():
        of_language = name in reads.get("language", ()) if "language" in reads else True
        if name in between and not ("language" in reads and of_language):
            module.pop("placeholder", None)


def _is_vit(module: Box) -> bool:
    return module["model"].get("kind") not in HEARING


def _size(module: Box) -> Any:
    """Return what decides how many rows an encoder makes of an image or a clip."""
    model = module["model"]
    if _is_vit(module):
        return "image", *(model.get(key) for key in ("shuffle", "tiles", "pooling"))
    keys = "kind", "stack", "fixed_length", "chunk"
    return "clip", *(model.get(key) for key in keys)


def graph_features(made: Spec) -> set[str]:
    """Name what a graph covers."""
    layout = build_layout(made)
    found = {made.schedule.kind, *(["packed records"] if made.data.packing else [])}
    found |= {f"{axis} > 1" for m in layout.modules for axis in AXES if m.grid.size(axis) > 1}
    found |= parts_trained(made) | {
        f"generators {len(layout.losses) - 1}",
        f"encoders {len(made.encoders)}",
    }
    found |= (
        {"connector behind language"} if made.modules.keys() & set(ADAPTERS.values()) else set()
    )
    for bridge in layout.bridges.values():
        source, target = layout[bridge.source], layout[bridge.target]
        mine, theirs = set(source.grid.ranks), set(target.grid.ranks)
        where = "colocated" if mine == theirs else "overlap" if mine & theirs else "disjoint"
        num, dp = source.grid.size("dp"), target.grid.size("dp")
        found |= {f"bridge {where}", "fan-in" if num > dp else "fan-out" if num < dp else "1 to 1"}
        found |= {"uneven dp"} if num % dp and dp % num else set()
        found |= {"transfers of several"} if bridge.group_size > 1 else set()
        frozen_between = source.frozen and needs_backward(layout, source)
        found |= {"frozen, passes gradients"} if frozen_between else set()
    for module in layout.modules:
        readers = layout.bridges_from(module.name)
        found |= {"several readers"} if len(readers) > 1 else set()
        found |= (
            {"language reads what is read"}
            if len(readers) > 1 and any(bridge.target == "language" for bridge in readers)
            else set()
        )
        found |= {"sequence parallel"} if module.sequence_parallel else set()
        found |= {"full sharding"} if module.sharding.every_backward else set()
        if made.modules[module.name].model.kind == "connector":
            reads_connector = any(each in CONNECTORS for each in module.reads)
            found |= {"queries" if module.reads_beside else "no queries"}
            found |= {"chain of connectors"} if reads_connector else set()
            found |= {"several towers"} if len(module.reads) > 1 else set()
            found |= {"merge by width"} if not module.reads_in_turn else set()
    return found
