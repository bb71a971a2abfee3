"""Small specs: a builder for hand-made ones and a strategy for random ones. Imports no torch.

`spec` fills in everything but the grids, with the smallest models that every grid can split.
`layout_specs` draws valid specs without rejecting any: grids and placements are drawn first, and
sizes are then made to fit them; `features` of the module of this name says what one covers.
"""

from collections import Counter
from functools import lru_cache
from itertools import permutations
from math import lcm, prod
from typing import Any, get_args

from hypothesis import strategies as st

from mimo_launch.data.sample_sizes import longest_sample
from mimo_launch.layout.samples import grouped_encoders
from mimo_launch.layout.space import divisors
from mimo_launch.spec.sections import ScheduleKind
from mimo_launch.spec.spec import DecoderModel, Spec, VitModel

AXES = ("tp", "cp", "dp", "pp")
# Every order in which cp varies faster than dp, the default first.
ORDERS = [order for order in permutations(AXES) if order.index("cp") < order.index("dp")]
TP_SIZES, CP_SIZES, PP_SIZES = (1, 2, 3, 4), (1, 2, 3), (1, 2, 3, 4)
ENCODERS = ("vision", "audio", "depth")
# Keys that a tower of Gemma 4 decides.
OF_OTHER_TOWERS = frozenset({
    "positions", "image", "interpolation", "class_token", "registers", "rope_frequencies", "norm",
    "qk_norm", "head_qk_norm", "projector_norm_eps", "projector_norm", "projector_norm_offset",
    "projector_norm_of", "pooling", "activation",
})  # fmt: skip
# Keys that a tower of Ovis2 does not decide.
KEPT_BY_OVIS2 = frozenset({
    "layers", "hidden", "heads", "kv_heads", "mlp", "patch", "channels", "shuffle", "norm",
    "norm_eps", "layer_scale", "qkv_bias", "block_bias", "qk_norm", "head_qk_norm", "patch_bias",
    "patch_norm", "pre_norm", "final_norm",
})  # fmt: skip
# Kinds that hear, which make a list of rows of a clip.
HEARING = ("audio", "aut", "conformer")
# A conformer as in Phi-4 multimodal: some tokens of a clip are further apart than two places.
OF_PHI4 = {
    "kind": "conformer", "gated": True, "causal": True, "distance_bias": 2, "sound": "phi4",
    "scale_input": False,
}  # fmt: skip
KINDS = get_args(ScheduleKind)
INTERPOLATIONS = get_args(VitModel.model_fields["interpolation"].annotation)
POSITIONS = get_args(VitModel.model_fields["positions"].annotation)
ACTIVATIONS = get_args(DecoderModel.model_fields["activation"].annotation)
# Kinds of language models, each drawn as often as it is named; a decoder may have experts.
LANGUAGES = ("decoder", "decoder", "decoder", "hybrid")
SPARSE = ("experts", "hybrid", "hybrid")
NO_TILES = {"mrope": None, "mrope_interleaved": False, "bidirectional_images": False}

# What `layout_specs` did so far: specs drawn, and placements that had no room and became another
# one. It never rejects; a caller that does (say, because `validate` objects) counts that itself.
DRAWS: Counter[str] = Counter()

Box = dict[str, Any]


def box(first: int = 0, *, order: tuple[str, ...] = AXES, **rest: Any) -> Box:
    """One module on consecutive ranks from `first` on.

    `rest` holds sizes of axes (`tp=2`) and further keys of a module (`frozen=True`); its `model` is
    merged into the default one.
    """
    grid = {axis: rest.pop(axis, 1) for axis in AXES}
    return {"ranks": rank_text(first, prod(grid.values())), "grid": grid, "order": order, **rest}


def behind_vision(
    model: dict[str, Any], data: dict[str, Any] | None = None, /, **language: Any
) -> Spec:
    """Language on ranks of its own behind vision; what it has of `model` counts."""
    own = model | language.pop("model", {})
    modules = {"vision": box(0), "language": box(1, model=own, **language)}
    return spec(modules, microbatches=2, mbs=2, **(data or {}))


# Layouts for it that cut a decoder in every way.
BEHIND_VISION: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp 2": {"tp": 2, "sequence_parallel": True},
    "tp 4, heads shared": {"tp": 4},
    "cp 2": {"cp": 2},
    "cp 4, packed": {"cp": 4, "data": {"packing": True}},
    "pp 2, full sharding": {"pp": 2, "sharding": "full"},
    "dp 2, recompute": {"dp": 2, "recompute": "full"},
    "tp 2, cp 2, documents": {"tp": 2, "cp": 2, "data": {"max_documents": 3}},
    "cp 2, pp 2, full sharding": {"cp": 2, "pp": 2, "sharding": "full"},
}


def rank_text(first: int, num: int) -> str:
    """Write `num` ranks from `first` on as a spec does."""
    return str(first) if num == 1 else f"{first}-{first + num - 1}"


def spec(
    modules: dict[str, Box],
    *,
    microbatches: int = 1,
    encoder_microbatches: int | None = None,
    generator_microbatches: int | None = None,
    kind: str = "1f1b",
    virtual_stages: int = 1,
    mbs: int = 1,
    seq: int | None = None,
    max_patches: int = 4,
    max_frames: int = 12,
    max_images: int = 1,
    max_documents: int = 1,
    packing: bool = False,
    text_only: float = 0.0,
    seed: int = 0,
    **sections: Any,
) -> Spec:
    """Return a spec of these modules; `language` and its tiny model are added where missing.

    `seq` left out is the least that holds the longest sample, and what `mtp` predicts, and splits
    over every grid.
    """
    modules = {**modules} if "language" in modules else {**modules, "language": box()}
    encoders = [name for name in modules if name != "language"]
    grids = {name: module["grid"] for name, module in modules.items()}
    width = lcm(8, *(grid["tp"] for grid in grids.values()))
    # So many that each of 2 or 4 tp ranks has words.
    vocab = 13 + len(encoders)
    for name, module in modules.items():
        default = (
            decoder(grids[name], width, vocab, virtual_stages)
            if name == "language"
            else ENCODER_MODELS.get(module.get("model", {}).get("kind", "vit"), own)(grids[name])
        )
        model = {**default, **module.get("model", {})}
        # A pattern says how many layers there are.
        model.pop("layers" if model["kind"] == "hybrid" else "pattern", None)
        modules[name] = {**module, "model": model}
    grid = grids["language"]
    data: dict[str, Any] = {
        "version": 1,
        "name": "t",
        "modules": modules,
        "schedule": {
            "kind": kind,
            "virtual_stages": virtual_stages,
            "microbatches": microbatches,
            "encoder_microbatches": encoder_microbatches,
            "generator_microbatches": generator_microbatches,
        },
        "batch": {"global": grid["dp"] * microbatches * mbs, "seq": seq or 1},
        "data": {
            "kind": "synthetic",
            "text_only": text_only,
            "max_patches": max_patches,
            "max_frames": max_frames,
            "max_images": max_images,
            "max_documents": max_documents,
            "packing": packing,
        },
        "train": {"steps": 1, "seed": seed, "precision": "fp64"},
        **sections,
    }
    made = Spec.model_validate(data)
    if seq is None:
        unit = seq_unit(grid, sequence_parallel=modules["language"].get("sequence_parallel", False))
        further = (modules["language"]["model"].get("mtp") or {"depth": -1})["depth"] + 2
        tokens = max(longest_sample(made) * (1 + packing), further)
        data["batch"]["seq"] = -(-tokens // unit) * unit
        made = Spec.model_validate(data)
    return made


def seq_unit(grid: dict[str, int], *, sequence_parallel: bool) -> int:
    """What `batch.seq` must be a multiple of: zigzag chunks, cut over tp if `sequence_parallel`."""
    chunks = 2 * grid["cp"] if grid["cp"] > 1 else 1
    return chunks * grid["tp"] if sequence_parallel else chunks


def decoder(
    grid: dict[str, int], width: int, vocab: int, virtual_stages: int = 1
) -> dict[str, Any]:
    """Return the smallest decoder that `grid` can split."""
    return {
        "kind": "decoder",
        "layers": grid["pp"] * virtual_stages,
        "hidden": width,
        "heads": grid["tp"],
        "head_dim": 4,
        "mlp": 4 * grid["tp"],
        "vocab": vocab,
        "vocab_multiple": 4 * grid["tp"],
    }


def hybrid(grid: dict[str, int], pattern: str, groups: int = 0) -> dict[str, Any]:
    """Return a hybrid model whose recurrent layers tp and cp of `grid` can split."""
    ranks = grid.get("tp", 1) * grid.get("cp", 1)
    groups = groups or ranks
    sizes = {"heads": 2 * lcm(ranks, groups), "head_dim": 4, "chunk": 8}
    model: dict[str, Any] = {"kind": "hybrid", "pattern": pattern}
    if "G" in pattern:
        model["deltanet"] = {**sizes, "key_dim": 6, "key_heads": groups}
    if "M" in pattern or "G" not in pattern:
        model["mamba"] = {**sizes, "state": 6, "groups": groups}
    return model


def own(grid: dict[str, int]) -> dict[str, Any]:
    """Return what the spec must say of an encoder class of a user's own, less its kind."""
    return {
        "layers": grid["pp"],
        "hidden": 8 * grid["tp"],
        "input": {"kind": "image", "patch": 1},
    }


def vit(grid: dict[str, int]) -> dict[str, Any]:
    """Return the smallest vision transformer that `grid` can split."""
    return {
        "kind": "vit",
        "layers": grid["pp"],
        "hidden": 8 * grid["tp"],
        "heads": grid["tp"],
        "mlp": 4 * grid["tp"],
        "patch": 1,
    }


def ovis2(grid: dict[str, int]) -> dict[str, Any]:
    """Return the smallest tower of an Ovis2 that `grid` can split."""
    return {**vit(grid), "kind": "ovis2_vision", "image": [2, 2], "words": 7}


def audio(grid: dict[str, int]) -> dict[str, Any]:
    """Return the smallest audio encoder that `grid` can split."""
    return {
        "kind": "audio",
        "layers": grid["pp"],
        "hidden": 8 * grid["tp"],
        "heads": grid["tp"],
        "mlp": 4 * grid["tp"],
        "mels": 2,
        "frames": 24,
    }


def aut(grid: dict[str, int]) -> dict[str, Any]:
    """Return the smallest audio encoder of a Qwen3-Omni that `grid` can split."""
    return {**audio(grid), "kind": "aut", "channels": 2}


def conformer(grid: dict[str, int]) -> dict[str, Any]:
    """Return the smallest encoder of Parakeet that `grid` can split."""
    sizes = {"mels": 8, "channels": 2, "kernel": 3}
    return {**audio(grid), "kind": "conformer", "hidden": 4 * grid["tp"], **sizes}


def connector(grid: dict[str, int]) -> dict[str, Any]:
    """Return the smallest connector that `grid` can split."""
    sizes = vit(grid)
    del sizes["patch"]
    return {**sizes, "kind": "connector"}


def flow(grid: dict[str, int]) -> dict[str, Any]:
    """Return the smallest flow generator that `grid` can split."""
    return {**vit(grid), "kind": "flow"}


def talker(grid: dict[str, int]) -> dict[str, Any]:
    """Return the smallest talker that `grid` can split."""
    heads = 2 * grid["tp"]
    sizes = {"layers": grid["pp"], "hidden": 8 * heads, "heads": heads, "mlp": 16 * heads}
    return {"kind": "talker", **sizes, "kv_heads": grid["tp"], "codebooks": 2, "vocab": 13}


ENCODER_MODELS = {
    "vit": vit,
    "dinov3": vit,
    "gemma4_vision": vit,
    "llama4_vision": vit,
    "ovis2_vision": ovis2,
    "audio": audio,
    "aut": aut,
    "conformer": conformer,
    "connector": connector,
    "flow": flow,
    "talker": talker,
}


@lru_cache(maxsize=4096)
def grids_of(
    num_ranks: range, samples: int, *, supported_only: bool
) -> tuple[tuple[int, int, int, int], ...]:
    """Return each (tp, cp, dp, pp) with a product in `num_ranks` whose dp divides `samples`.

    Every dp divides 0.
    """
    cps, pps = ((1,), (1,)) if supported_only else (CP_SIZES, PP_SIZES)
    return tuple(
        (tp, cp, dp, pp)
        for pp in pps
        for cp in cps
        for tp in TP_SIZES
        for dp in range(1, num_ranks.stop)
        if tp * cp * dp * pp in num_ranks and samples % dp == 0
    )


def layout_specs(
    max_ranks: int = 8,
    *,
    supported_only: bool = True,
    kinds: tuple[str, ...] = (),
    languages: tuple[str, ...] = LANGUAGES,
) -> st.SearchStrategy[Spec]:
    """Return a strategy of valid specs with at most `max_ranks` ranks, idle ones included.

    Zero to three encoders that are colocated with language, overlap it in part, or stay away from
    it, in any mix; any order of axes; sequence parallelism, sharding, frozen modules, a gap listed
    as idle ranks, phases of k microbatches, dp sizes that do not divide each other.
    `supported_only` leaves cp and pp at 1 and the schedule at 1F1B; otherwise it is one of `kinds`,
    all of them by default. `languages` is `LANGUAGES`, or `SPARSE` for models all of which are
    hybrid, have experts, or both. Nothing is rejected; `DRAWS` counts.
    """
    kinds = kinds or (() if supported_only else KINDS)
    return _layout_specs(max_ranks, supported_only, kinds, languages)


@st.composite
def _layout_specs(
    draw: st.DrawFn,
    max_ranks: int,
    supported_only: bool,
    kinds: tuple[str, ...],
    languages: tuple[str, ...],
) -> Spec:
    DRAWS["drawn"] += 1
    room = draw(st.sampled_from([*range(1, max_ranks + 1), *[max_ranks] * 2 * max_ranks]))
    mbs = draw(st.integers(1, 3))
    k = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    num_encoders = draw(st.sampled_from([1, 2, 3, 1, 2, 1, 2, 0]))
    # Language: half of the time it leaves room for encoders of their own ranks.
    most = draw(st.sampled_from([room, -(-room // 2)]))
    # Small jobs are few but never absent; most faults need several ranks to show.
    least = draw(st.sampled_from([-(-most // 2), 1, -(-most // 2)]))
    sizes = range(least, most + 1)
    language = draw(one_grid(grids_of(sizes, 0, supported_only=supported_only), (0, 1, 2, 3)))
    size = prod(language)
    first = draw(st.integers(0, room - size))
    intervals, grids = {"language": range(first, first + size)}, {"language": language}
    # Encoders all on ranks of their own take groups, too, if no other runs in phases.
    apart = draw(st.booleans()) and room > size
    if apart:
        k = max(2, k)
    for name in ENCODERS[:num_encoders]:
        share = language[2] * mbs  # samples of one microbatch, over all language replicas
        place = placed(intervals["language"], room, share, k, supported_only, apart=apart)
        ranks, grid = draw(place)
        intervals[name], grids[name] = ranks, grid
    order = draw(st.permutations(list(intervals)))
    intervals, idle = draw(closed(intervals, room))
    modules = {
        name: draw(one_module(name, grids[name], intervals[name].start, languages))
        for name in order
    }
    if all(module.get("frozen") is True for module in modules.values()):
        del modules["language"]["frozen"]
    in_phases = any(
        set(ranks) & set(intervals["language"])
        for name, ranks in intervals.items()
        if name != "language"
    )
    kind, virtual_stages = draw(one_schedule(kinds, language[3])) if kinds else ("1f1b", 1)
    if kind == "interleaved":
        # What is in work together is a multiple of pp; so many layers that every stage has one.
        k *= language[3]
        model = modules["language"]["model"]
        model["layers"] *= virtual_stages
        model["pattern"] = model.get("pattern", "") * virtual_stages
    if kind == "bubble_filling":
        for name in ENCODERS[:num_encoders]:
            modules[name]["sharding"] = "optimizer"
    for name in ENCODERS[:num_encoders]:
        stacked = draw(_deepstack(modules[name]["model"], modules["language"]["model"]))
        modules[name]["model"]["deepstack"] = stacked
        if not stacked:
            del modules[name]["model"]["deepstack"]
        modules[name]["model"] |= draw(_tiles(modules[name]["model"]))
    fit_tiles(modules)
    group_sizes = [k] if groups > 1 else [None, k]
    grouped = k if apart else None
    made = spec(
        modules,
        microbatches=k * groups,
        encoder_microbatches=draw(st.sampled_from(group_sizes)) if in_phases else grouped,
        kind=kind,
        virtual_stages=virtual_stages,
        mbs=mbs,
        # So many that every encoder has an image of a whole row.
        max_patches=draw(st.integers(1, 4)) * max(shuffle_of(m) ** 2 for m in modules.values()),
        max_frames=draw(st.integers(3, 6)) * frames_each(modules),
        max_images=draw(st.sampled_from([1, 1, 2, 3])),
        max_documents=draw(st.sampled_from([1, 1, 2, 4])),
        packing=draw(st.sampled_from([False, True, False])),
        text_only=draw(st.sampled_from([0.1, 0.0, 0.5, 1.0])),
        seed=draw(st.integers(0, 3)),
        **({} if idle is None else {"idle_ranks": idle}),
    )
    if apart and len(grouped_encoders(made)) < num_encoders:
        # Some share ranks and run in phases: the others take one microbatch, which must be larger.
        batch = made.batch.model_copy(update={"global_": made.batch.global_ * k})
        made = made.model_copy(update={"batch": batch})
    if draw(st.booleans()):
        # A longer sequence than needed: padding at the end of every sample.
        unit = seq_unit(
            modules["language"]["grid"],
            sequence_parallel=modules["language"].get("sequence_parallel", False),
        )
        batch = made.batch.model_copy(update={"seq": made.batch.seq + unit})
        made = made.model_copy(update={"batch": batch})
    return made


@st.composite
def one_schedule(draw: st.DrawFn, kinds: tuple[str, ...], pp: int) -> tuple[str, int]:
    """Draw a kind and the number of virtual stages; without a pipeline none can be interleaved."""
    kind = draw(st.sampled_from(kinds))
    if kind == "interleaved" and pp == 1:
        DRAWS["no pipeline to interleave"] += 1
        kind = "1f1b"
    return kind, draw(st.integers(2, 3)) if kind == "interleaved" else 1


@st.composite
def one_grid(
    draw: st.DrawFn, grids: tuple[tuple[int, ...], ...], axes: tuple[int, ...] = (2,)
) -> tuple[int, ...]:
    """Draw a grid; half of the time one of the larger ones that is cut along one of `axes`.

    Fan-in would be rare without those that have dp, pipelines without those that have pp.
    """
    half, axis = max(map(prod, grids)) / 2, draw(st.sampled_from(axes))
    wide = tuple(grid for grid in grids if grid[axis] > 1 and prod(grid) > half)
    return draw(st.sampled_from(draw(st.sampled_from([grids, wide or grids]))))


@st.composite
def placed(
    draw: st.DrawFn,
    language: range,
    room: int,
    share: int,
    k: int,
    supported_only: bool,
    *,
    apart: bool = False,
) -> tuple[range, tuple[int, ...]]:
    """Draw the ranks and the grid of one encoder; its dp divides the samples of one group."""
    kinds = ["disjoint"] if apart else ["colocated", "disjoint", "overlap", "disjoint"]
    kind = draw(st.sampled_from(kinds))
    spaces = [range(language.start), range(language.stop, room)]
    spaces = [space for space in spaces if space]
    if kind == "disjoint" and not spaces:
        DRAWS["no room beside language"] += 1
        kind = "overlap"
    if kind == "disjoint":
        space = draw(st.sampled_from(spaces))
        sizes, samples = range(1, len(space) + 1), share * (k if apart else 1)
    else:
        size = len(language)
        sizes = range(size, size + 1) if kind == "colocated" else range(1, room + 1)
        samples = share * k
    grid = draw(one_grid(grids_of(sizes, samples, supported_only=supported_only)))
    num = prod(grid)
    if kind == "colocated":
        first = language.start
    elif kind == "disjoint":
        first = draw(st.integers(space.start, space.stop - num))
    else:
        low = max(0, language.start - num + 1)
        first = draw(st.integers(low, min(language.stop - 1, room - num)))
    return range(first, first + num), grid


@st.composite
def closed(
    draw: st.DrawFn, intervals: dict[str, range], room: int
) -> tuple[dict[str, range], str | None]:
    """Renumber the ranks so that at most one gap stays, and name that one."""
    used = {rank for ranks in intervals.values() for rank in ranks}
    gaps: list[list[int]] = []
    for rank in range(room):
        if rank in used:
            continue
        if gaps and gaps[-1][-1] == rank - 1:
            gaps[-1].append(rank)
        else:
            gaps.append([rank])
    kept = draw(st.sampled_from([[], *gaps])) if draw(st.integers(0, 3)) == 3 else []
    kept = kept[: draw(st.integers(1, 2))]
    numbers = {rank: number for number, rank in enumerate(sorted(used | set(kept)))}
    closed = {
        name: range(numbers[ranks.start], numbers[ranks.start] + len(ranks))
        for name, ranks in intervals.items()
    }
    return closed, rank_text(numbers[kept[0]], len(kept)) if kept else None


@st.composite
def one_module(
    draw: st.DrawFn, name: str, grid: tuple[int, ...], first: int, languages: tuple[str, ...]
) -> Box:
    tp, cp, dp, pp = grid
    seldom = st.sampled_from([False, False, False, True])
    made, model = draw(common_parts(name, grid, first))
    heads, layers = model["heads"], model["layers"]
    shares = [n for n in range(1, heads + 1) if heads % n == 0 and (n % tp == 0 or tp % n == 0)]
    if name == "language":
        model |= {"kv_heads": draw(st.sampled_from(shares)), "tied": draw(seldom)}
        model |= {"norm_eps": draw(st.sampled_from([1e-5, 1e-6, 1e-2]))}
        kind = draw(st.sampled_from(languages))
        if kind == "hybrid":
            model |= draw(_hybrid(tp * cp, draw(st.integers(max(2, pp), pp + 3))))
            has_experts = "E" in model["pattern"]
        else:
            model |= {"qk_norm": draw(st.booleans()), "qkv_bias": draw(st.booleans())}
            model |= {"wide_qk_norm": model["qk_norm"] and draw(st.booleans())}
            heads_normed = model["qk_norm"] and not model["wide_qk_norm"]
            model |= {"rotated_qk_norm": heads_normed and draw(st.booleans())}
            axes = {"head_dim": 8, "mrope": [1, 2, 1], "mrope_interleaved": draw(st.booleans())}
            model |= draw(st.sampled_from([{}, axes, {}])) | draw(_gates())
            if draw(seldom):
                # Of the wavelengths of short heads some stay, some are stretched.
                model["rope_scaling"] = {
                    "rope_type": draw(st.sampled_from(["llama3", "yarn"])),
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
            if draw(seldom):
                model |= draw(_as_gemma(layers, heads))
                if model.get("mrope") is None and "rotary_factor" not in model:
                    model["sliding_window"]["head_dim"] = draw(st.sampled_from([None, 6]))
            if draw(seldom):
                model |= draw(_as_deepseek(model["heads"]))
                if "sliding_window" in model:
                    model["sliding_window"] |= {"head_dim": None, "kv_heads": None}
            if pp == 1 and layers > 1 and "mla" not in model and draw(seldom):
                model |= draw(_with_shared_keys(model, layers, tp))
            if pp == 1 and draw(seldom):
                model["per_layer_embeddings"] = {
                    "width": draw(st.sampled_from([4, 7])), "padding": draw(st.integers(0, 2)),
                }  # fmt: skip
            if draw(seldom):
                model["query_scaling"] = {"beta": 0.5, "length": draw(st.sampled_from([1, 3, 99]))}
            if draw(seldom) and "shared_keys" not in model:
                model["nope"] = {
                    "layers": [draw(st.integers(0, layers - 1))],
                    "query_scaling": draw(
                        st.sampled_from([None, {"beta": 0.5, "length": 3, "first_position": 1}])
                    ),
                }
            model |= {"attention_sinks": draw(seldom), "output_bias": draw(seldom)}
            has_experts = kind == "experts" or draw(st.sampled_from([False, False, True]))
        if draw(seldom) and not (
            model.get("bidirectional_images") or model.get("bidirectional_prompts")
        ):
            model["mtp"] = {"depth": draw(st.sampled_from([1, 2]))}
        if has_experts:
            made["experts"], model["moe"] = draw(_experts(tp, cp * dp, layers))
        if has_experts or "per_layer_embeddings" in model:
            model = {x: each for x, each in model.items() if (x, each) != ("activation", "xielu")}
    elif draw(st.sampled_from(["vit", "audio", "vit"])) == "audio":
        model |= {
            "kind": "audio",
            "mels": draw(st.integers(1, 3)),
            "projector": draw(st.sampled_from(["mlp", "linear"])),
            "stack": draw(st.sampled_from([1, 2, 3])),
            "projector_bias": draw(st.booleans()),
            "fixed_length": draw(seldom),
            "unpadded": draw(st.booleans()),
            "pooling": draw(st.sampled_from([None, "mean"])),
        }
        # Whole rows, whatever the stack.
        model["chunk"] = draw(st.sampled_from([None, None, 12]))
        subsampled = draw(st.sampled_from(["audio", "audio", "aut", "conformer"]))
        if subsampled != "audio":
            for key in ("stack", "fixed_length", "unpadded", "pooling", "chunk"):
                del model[key]
        if subsampled == "aut":
            size = {"chunk": draw(st.sampled_from([9, 12, 20])), "window": draw(st.integers(1, 2))}
            model |= {"kind": "aut", "channels": 2, **size}
        elif subsampled == "conformer" and cp == 1:
            made.pop("sequence_parallel", None)
            model |= {
                "kind": "conformer",
                "mels": draw(st.sampled_from([8, 16])),
                "channels": draw(st.integers(6, 8)),  # Of fewer, ReLU may zero all.
                "kernel": draw(st.sampled_from([1, 3, 5])),
                **{key: draw(st.booleans()) for key in ("bias", "conv_bias", "scale_input")},
                **{key: draw(st.booleans()) for key in ("gated", "causal")},
                # One stage holds the numbers that all layers share.
                "distance_bias": draw(st.sampled_from([None, 1, 3] if pp == 1 else [None])),
                "sound": draw(st.sampled_from(["parakeet", "phi4"])),
            }
    else:
        model |= {
            "channels": draw(st.integers(1, 2)),
            "projector": draw(st.sampled_from(["mlp", "linear", "merger", "gated", "swiglu"])),
            "shuffle": draw(st.sampled_from([1, 2, 1])),
            "temporal_patch": draw(st.sampled_from([1, 2, 1])),
            "kv_heads": draw(st.sampled_from([None, None, *shares])),
            **draw(_tower()),
        }
        if draw(seldom):
            turning = {"positions": "rope2d", "rope_frequencies": "shared", "windows": None}
            without = {"image": None, "interpolation": "bicubic"}
            model |= {"kind": "dinov3", "rope_theta": 30.0, **turning, **without}
        elif draw(seldom):
            model = {key: each for key, each in model.items() if key not in OF_OTHER_TOWERS}
            model |= {
                "kind": "gemma4_vision",
                "places": 64,
                "rope_theta": 30.0,
                "standardize": draw(st.booleans()),
                "clipped_linears": draw(st.booleans()),
                "projector": draw(st.sampled_from(["linear", "mlp", "swiglu"])),
            }
        elif draw(seldom):
            model |= {
                "kind": "llama4_vision",
                "positions": "learned+rope2d",
                "image": [2, draw(st.integers(1, 3))],
                "rope_frequencies": "shared",
                "rope_theta": 30.0,
                "windows": None,
            }
            if model["projector"] in ("mlp", "swiglu"):
                model["projector_out"] = draw(st.sampled_from([None, 6]))
        elif draw(seldom):
            side = model["shuffle"]
            grids = draw(st.sampled_from([[[1, 1]], [[1, 1], [1, 2]], [[2, 2]], [[2, 1]]]))
            model = {
                **{key: model[key] for key in KEPT_BY_OVIS2 if key in model},
                "kind": "ovis2_vision",
                "image": [2 * side, side],
                "words": draw(st.integers(2, 9)),
                "tiles": {"grids": grids},
            }
    if name != "language":
        # Of three encoders each has its own.
        made["placeholder"] = draw(st.sampled_from([None, 1 + ENCODERS.index(name)]))
        made["balance"] = draw(st.sampled_from(["linked", "all", "none", "linked"]))
    made |= draw(_beside(name, model, is_frozen=made.get("frozen") is True))
    return {**made, "model": model}


@st.composite
def _beside(
    draw: st.DrawFn, name: str, model: dict[str, Any], *, is_frozen: bool
) -> dict[str, Any]:
    """Draw what steps drop, and an adapter."""
    if model.get("kind") == "conformer":
        return {}  # It has no place for either.
    found: dict[str, Any] = {"dropout": draw(st.sampled_from([0.0, 0.0, 0.0, 0.2]))}
    if name == "language":
        found["attention_dropout"] = draw(st.sampled_from([0.0, 0.0, 0.0, 0.2]))
    targets = ["attention"] if "*" in model.get("pattern", "*") else []
    if "moe" in model and draw(st.booleans()):
        targets.append("experts")
    if targets and not is_frozen and draw(st.sampled_from([False, False, True])):
        rates = [0.0] if "experts" in targets else [0.0, 0.3]
        found["adapter"] = {
            "rank": draw(st.sampled_from([1, 2, 3])),
            "alpha": 3.0,
            "rslora": draw(st.booleans()),
            "dropout": draw(st.sampled_from(rates)),
            "targets": targets,
        }
    return found


@st.composite
def _gates(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what attention has in Qwen3.5: gates, and heads of which a part rotates."""
    fast = {"head_dim": 8, "rotary_factor": 0.25, "mrope": None, "mrope_interleaved": False}
    turned = {"head_dim": 8, "rotary_factor": 0.75, "mrope": [1, 1, 1]}
    part = draw(st.sampled_from([{}, {}, fast, turned]))
    gates = {
        "gated_attention": draw(st.booleans()),
        "rotary_interleaved": draw(st.sampled_from([False, False, True])),
    }
    return {**part, **gates} if part else gates


@st.composite
def _as_deepseek(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    """Draw latent attention, and what it does not go with."""
    size = draw(st.sampled_from([6, 8]))
    mla = {
        "kv_rank": draw(st.integers(3, 9)),
        "q_rank": draw(st.sampled_from([None, 5])),
        "rope_head_dim": draw(st.sampled_from([2, 4])),
        "v_head_dim": draw(st.sampled_from([3, size])),
        "interleaved": draw(st.booleans()),
    }
    off = {
        "qk_norm": False, "wide_qk_norm": False, "rotated_qk_norm": False, "l2_qk_norm": False,
        "qkv_bias": False, "clip_qkv": None, "value_norm": False, "values_from_keys": False,
        "gated_attention": False,
        "mrope": None,
        "rotary_interleaved": False,
    }  # fmt: skip
    return {
        **off, "mrope_interleaved": False, "rotary_factor": 1.0, "kv_heads": heads,
        "head_dim": size, "mla": mla,
    }  # fmt: skip


# Norms before layers, on both sides, and after them.
_NORMS = ({}, {"post_norms": True}, {"pre_norms": False, "post_norms": True})


@st.composite
def _with_shared_keys(
    draw: st.DrawFn, model: dict[str, Any], layers: int, tp: int
) -> dict[str, Any]:
    """Draw how many last layers attend to keys of earlier ones; windows alternate then."""
    found: dict[str, Any] = {}
    number = draw(st.integers(1, layers - 1))
    if (window := model.get("sliding_window")) is not None:
        number = draw(st.integers(1, max(1, layers - 2)))
        full = range(1 if layers > 2 else 0, layers, 2) if layers > 2 else ()
        found["sliding_window"] = {**window, "full": list(full)}
    mlp = draw(st.sampled_from([None, 8 * tp]))
    return {**found, "shared_keys": {"layers": number, "mlp": mlp}}


@st.composite
def _as_gemma(draw: st.DrawFn, layers: int, heads: int) -> dict[str, Any]:
    """Draw windows of a decoder, and the parts of a block that come with them in Gemma 2 to 4."""
    window = {
        "size": draw(st.integers(2, 9)),
        "full": [number for number in range(layers) if draw(st.booleans())][: layers - 1],
        "rope_theta": draw(st.sampled_from([None, 20.0])),
        "chunked": draw(st.booleans()),
        "kv_heads": draw(st.sampled_from([None, None, heads])),
    }
    return {
        "sliding_window": window,
        "activation": draw(st.sampled_from(ACTIVATIONS)),
        "mlp_bias": draw(st.booleans()),
        **draw(st.sampled_from(_NORMS)),
        "l2_qk_norm": draw(st.sampled_from([False, False, True])),
        "norm": draw(st.sampled_from(["rms", "rms", "layer", "layer_without_bias"])),
        "parallel": draw(st.sampled_from([False, False, True])),
        "clip_qkv": draw(st.sampled_from([None, None, 0.5])),
        "value_norm": draw(st.booleans()),
        "values_from_keys": draw(st.booleans()) and len(window["full"]) > 0,
        "layer_scalar": draw(st.sampled_from([None, None, 0.5])),
        "residual_scale": draw(st.sampled_from([None, 0.5])),
        "logit_scale": draw(st.sampled_from([None, 0.25])),
        "norm_offset": draw(st.booleans()),
        "embedding_scale": draw(st.sampled_from([None, 3.0])),
        "query_pre_attn_scalar": draw(st.sampled_from([None, 20.0])),
        "bidirectional_images": draw(st.sampled_from([False, True, "in_windows"])),
        "bidirectional_prompts": draw(st.sampled_from([False, False, True])),
        "attention_softcap": draw(st.sampled_from([None, 50.0])),
        "logit_softcap": draw(st.sampled_from([None, 30.0])),
    }


@st.composite
def common_parts(
    draw: st.DrawFn, name: str, grid: tuple[int, ...], first: int
) -> tuple[Box, dict[str, Any]]:
    """Draw what modules of every kind have, and the part of its model that is cut over a grid."""
    tp, cp, dp, pp = grid
    seldom = st.sampled_from([False, False, False, True])
    made = box(
        first,
        tp=tp,
        cp=cp,
        dp=dp,
        pp=pp,
        order=draw(st.sampled_from(ORDERS)) if draw(st.booleans()) else AXES,
        sharding=draw(st.sampled_from(["optimizer", "full"])),
        shard_over=draw(st.sampled_from([None, None, *divisors(grid[2])[:-1]])),
    )
    if tp > 1 and draw(st.booleans()):
        made["sequence_parallel"] = True
    if draw(seldom):
        made["frozen"] = True
    elif name != "language" and draw(seldom):
        made["frozen"] = "except_projector"
    if draw(seldom):
        made["recompute"] = draw(st.sampled_from(["full", "full", ["norms"], ["attention", "mlp"]]))
    if draw(seldom):
        made["offload"] = ["activations"]
    # One or two layers a stage, or a cut that is not even.
    heads, layers = tp * draw(st.integers(1, 2)), draw(st.integers(pp, 2 * pp + (pp > 1)))
    return made, {"heads": heads, "layers": layers}


@st.composite
def _experts(
    draw: st.DrawFn, tp: int, others: int, layers: int
) -> tuple[dict[str, int], dict[str, Any]]:
    """Draw a grid of experts over tp * others ranks of a stage, and experts that it can split."""
    ranks = tp * others
    split = draw(st.sampled_from([n for n in (1, 2, 1, 3) if ranks % n == 0]))
    left = ranks // split
    ep = draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0]))
    experts = ep * draw(st.integers(1 if ep > 1 else 2, 3))
    top_k = draw(st.integers(1, min(3, experts)))
    moe = {
        "experts": experts,
        "top_k": top_k,
        "width": 4 * split,
        "score": draw(st.sampled_from(["softmax", "sigmoid"])),
        "normalize": top_k > 1 and draw(st.booleans()),
        "scale": draw(st.sampled_from([1.0, 2.5])),
        "shared": (shared := draw(st.sampled_from([0, 4 * tp]))),
        "shared_gate": shared > 0 and draw(st.booleans()),
        "separate_norms": shared > 0 and draw(st.booleans()),
        "learned_scale": draw(st.sampled_from([False, False, True])),
        "scale_inputs": draw(st.sampled_from([False, False, True])),
        "bias": draw(st.booleans()),
        "groups": draw(st.sampled_from([1, 1 + (experts % 2 == 0 and top_k <= experts // 2)])),
        "aux_loss": draw(st.sampled_from([0.5, 0.01, 0.0])),
        "bias_update_rate": draw(st.sampled_from([None, 0.01, None])),
        "every": (every := draw(st.integers(1, min(2, layers)))),
        # The last layer that `every` names has experts in any case.
        "first_dense": draw(st.integers(0, min(2, layers - layers % every - 1))),
    }
    return {"ep": ep, "tp": split}, moe


@st.composite
def _hybrid(draw: st.DrawFn, ranks: int, layers: int) -> dict[str, Any]:
    """Draw a pattern, and recurrent layers that tp * cp ranks can split: groups shared or own."""
    pattern = "".join(draw(st.permutations("MEGC*-E")) * 2)[:layers]
    if not set(pattern) & set("MGC*"):
        # No row would reach a label: gradients of encoders would be zero but for rounding.
        pattern = "*" + pattern[1:]
    groups = draw(st.sampled_from([1, ranks, 2 * ranks]))
    heads = lcm(ranks, groups) * draw(st.integers(1, 2))
    return {
        "kind": "hybrid",
        "pattern": pattern,
        "rope_theta": draw(st.sampled_from([None, 100.0])),
        "qk_norm": draw(st.booleans()),
        "norm_offset": draw(st.booleans()),
        "activation": draw(st.sampled_from(["squared_relu", "silu", "gelu_tanh"])),
        **draw(_gates()),
        "mamba": {
            "heads": heads,
            "groups": groups,
            "head_dim": draw(st.integers(2, 4)),
            "state": draw(st.integers(3, 6)),
            "conv": draw(st.integers(1, 4)),
            "chunk": draw(st.sampled_from([1, 4, 8])),
            "min_step": draw(st.sampled_from([0.0, 0.05])),
        },
        "deltanet": {
            "heads": heads,
            "key_heads": groups,
            "head_dim": draw(st.integers(2, 4)),
            "key_dim": draw(st.integers(3, 6)),
            "conv": draw(st.integers(1, 4)),
            "chunk": draw(st.sampled_from([1, 4, 8])),
        },
    }


@st.composite
def _tower(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what stands before, inside and behind the blocks of a vision transformer."""
    positions = draw(st.sampled_from(POSITIONS))
    is_learned, turns = "learned" in positions, "rope2d" in positions
    seldom, activations = st.sampled_from([False, False, True]), ["gelu", "gelu_tanh", "quick_gelu"]
    has_class_token = draw(st.booleans())
    windows = None
    registers = draw(st.sampled_from([0, 0, 1, 3]))
    if not has_class_token and not registers and draw(seldom):
        windows = {"side": draw(st.integers(1, 2)), "full": draw(st.sampled_from([[], [0]]))}
    return {
        "positions": positions,
        "image": [2, draw(st.integers(1, 3))] if is_learned else None,
        "interpolation": draw(st.sampled_from(INTERPOLATIONS)) if is_learned else "bicubic",
        "class_token": has_class_token,
        "registers": registers,
        "windows": windows,
        "rope_frequencies": draw(st.sampled_from(["shared", "in_turn", "alternating"]))
        if turns
        else "shared",
        "qkv_bias": not draw(seldom),
        "block_bias": not draw(seldom),
        **draw(
            st.sampled_from([{}, {}, {"qk_norm": True}, {"qk_norm": True, "head_qk_norm": True}])
        ),
        "layer_scale": draw(st.sampled_from([None, None, 0.5])),
        "projector_bias": not draw(seldom),
        "projector_norm_eps": draw(st.sampled_from([None, None, 1e-3])),
        "projector_norm": draw(st.sampled_from(["layer", "rms"])),
        "projector_norm_offset": draw(st.booleans()),
        "projector_norm_of": draw(st.sampled_from(["row", "patch"])),
        "pooling": draw(st.sampled_from([None, None, "mean", "linear"])),
        "norm": draw(st.sampled_from(["layer", "rms", "layer"])),
        "patch_bias": draw(st.booleans()),
        "patch_norm": draw(seldom),
        "pre_norm": draw(seldom),
        "final_norm": not draw(seldom),
        "norm_eps": draw(st.sampled_from([1e-5, 1e-2])),
        "activation": draw(st.sampled_from([*activations, "swiglu"])),
        "projector_activation": draw(st.sampled_from([*activations, "squared_relu"])),
    }


@st.composite
def _deepstack(draw: st.DrawFn, model: dict[str, Any], language: dict[str, Any]) -> list[int]:
    """Draw layers of a vision transformer whose rows a decoder adds behind its first layers.

    Later layers of a decoder attend to them; those of a hybrid may not.
    """
    most = min(2, model["layers"], language["layers"] - 1)
    alone = (*HEARING, "ovis2_vision")
    if "pattern" in language or model.get("kind") in alone or most < 1:
        return []
    return draw(st.sampled_from([[], list(range(most)), [model["layers"] - 1]]))


@st.composite
def _tiles(draw: st.DrawFn, model: dict[str, Any]) -> dict[str, Any]:
    """Draw tiles of the grid of learned positions, and what they do not go with."""
    if model.get("positions") != "learned" or "deepstack" in model:
        return {}
    grids = draw(st.sampled_from([[[1, 2]], None, [[1, 2], [2, 2]], [[3, 1], [1, 2]]]))
    if grids is None:
        return {}
    if draw(st.booleans()):
        # An image of whole squares.
        side = model.get("shuffle", 1)
        last = {"grids": grids, "each": True, "whole": "last"}
        return {"tiles": last, "image": [2 * side, 3 * side], "windows": None}
    tiles = {"grids": grids, "most": draw(st.sampled_from([None, 1, 2]))}
    return {"tiles": tiles, "shuffle": 1, "windows": None}


def frames_each(modules: dict[str, Box]) -> int:
    """Return of how many frames three are a stack of three tokens, or of several large tokens.

    A token that is alone in its clip would attend to itself alone.
    """
    kinds = {module["model"].get("kind") for module in modules.values()}
    return 4 if kinds & {"aut", "conformer"} else 2


def fit_tiles(modules: dict[str, Box]) -> None:
    """Take from language what it does not do with tiles, if any module makes them."""
    if any("tiles" in module["model"] for module in modules.values()):
        model = modules["language"]["model"]
        model |= {key: value for key, value in NO_TILES.items() if key in model}


def shuffle_of(module: Box) -> int:
    """Side of the square of patches that becomes one row of an encoder."""
    side: int = module["model"].get("shuffle", 1)
    return side


def brief(made: Spec) -> str:
    """Return a spec in a few lines, for the report of a failure."""
    lines = [
        f"{made.schedule.microbatches} microbatches, k {made.schedule.encoder_microbatches}, "
        f"global {made.batch.global_}, seq {made.batch.seq}, idle {made.idle_ranks}, "
        f"{made.schedule.kind}, virtual stages {made.schedule.virtual_stages}"
    ]
    for name, module in made.modules.items():
        sizes = " ".join(f"{axis}{getattr(module.grid, axis)}" for axis in module.order)
        flags = ["sequence_parallel"] * module.sequence_parallel
        flags += [f"frozen {module.frozen}"] * (module.frozen is not False)
        adapter = "" if module.adapter is None else f"adapter: {module.adapter}"
        lines.append(" ".join([f"{name}: ranks {module.ranks}", sizes, *flags, adapter]).rstrip())
    return "\n".join(lines)
