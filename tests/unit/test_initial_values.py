"""Initial values follow from seed, name and place; which weights decay follows from their kind."""

import ast
import math
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.support.specs import OF_PHI4, box, spec
from torch import nn

from mimo_launch.comm.process_groups import Group
from mimo_launch.kinds import weights
from mimo_launch.kinds.kind import layer_shape
from mimo_launch.kinds.registry import layer_of
from mimo_launch.kinds.weights import LayerShape, Weight
from mimo_launch.layers import initial_weights
from mimo_launch.layers.initial_weights import TILE, init_parameters, initial_values
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import (
    Segment,
    SegmentedModule,
    declared_parameters,
    local_segments,
    replicated,
    weight_segments,
)
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.build import build_network


def sharded(name: str, shape: tuple[int, ...], axis: int, part: range, **more: Any) -> Segment:
    """Return a part of a tensor that tp cuts."""
    weight = Weight(name=name, shape=shape, axis=axis, **more)
    return Segment(weight, part.start, part.stop, "sharded", counted=True)


def whole(rows: int, columns: int) -> Segment:
    return replicated("weight", (rows, columns), "complete", counted=True, std=0.5)


def test_values_follow_from_seed_and_name() -> None:
    """Others for another seed or name; the same for the same."""
    segment = whole(300, 200)
    values = initial_values("m.weight", segment, 7)
    assert values.equal(initial_values("m.weight", segment, 7))
    for other in (initial_values("m.weight", segment, 8), initial_values("n.weight", segment, 7)):
        together = torch.corrcoef(torch.stack([values.flatten(), other.flatten()]))
        assert abs(together[0, 1]) < 0.02


def test_tiles_of_a_tensor_are_independent() -> None:
    """Each has a stream of its own, below and beside."""
    values = initial_values("m.weight", whole(256, 256), 0)
    tiles = torch.stack([t.flatten() for half in values.split(128) for t in half.split(128, 1)])
    assert (torch.corrcoef(tiles) - torch.eye(4)).abs().max() < 0.05


def test_any_cut_of_a_tensor_has_the_values_of_that_place() -> None:
    """Rows, columns, and some rows of a share of them."""
    values = initial_values("m.weight", whole(300, 200), 3)
    for axis, part in ((0, range(100, 290)), (1, range(50, 150))):
        cut = sharded("weight", (300, 200), axis, part, std=0.5)
        assert initial_values("m.weight", cut, 3).equal(values.narrow(axis, part.start, len(part)))
    rows = sharded("weight", (300, 200), 0, range(100, 290), std=0.5)
    assert initial_values("m.weight", rows, 3, rows=range(20, 60)).equal(values[120:160])


def test_parts_that_are_drawn_quickly_differ_and_copies_of_one_do_not() -> None:
    """As do other seeds and other names."""

    def drawn(part: range, *, name: str = "m", seed: int = 3) -> torch.Tensor:
        layer = SegmentedModule()
        cut = sharded("weight", (64, 8), 0, part, std=0.5)
        layer.declare("weight", cut, dtype=torch.float64)
        init_parameters(weight_segments(name, layer), seed, quick=True)
        return layer.weight.detach()

    one, half = drawn(range(32)), range(32, 64)
    assert one.equal(drawn(range(32)))
    others = (drawn(half), drawn(range(32), name="n"), drawn(range(32), seed=4))
    assert not any(map(one.equal, others))


def test_biases_start_as_zeros() -> None:
    made = spec({"vision": box(0), "language": box(1, model={"qkv_bias": True})})
    biases = [
        placed
        for module in build_layout(made).modules
        for stage in module.stages
        for declared in declared_parameters("", build_network(made, stage, ParallelContext()))
        for placed in declared.placed
        if placed.name.endswith(".bias")
    ]
    assert {placed.name.split(".")[-2] for placed in biases} >= {"q", "k", "v", "o"}
    assert {placed.segment.weight.init for placed in biases} == {"zeros"}


@pytest.mark.parametrize("layout", [{}, {"tp": 3}, {"pp": 2}])
def test_blocks_of_rows_fill_all_parameters_with_the_same_values(
    layout: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks bound memory; here they are of one tile's rows, in parts that start within a tile."""
    made = spec({"language": box(0, model={"vocab": 1000}, **layout)})

    def filled() -> list[torch.Tensor]:
        found = []
        for stage in build_layout(made)["language"].stages:
            for rank in range(layout.get("tp", 1)):
                tp = Group(tuple(range(layout.get("tp", 1))), rank, None)
                network = build_network(made, stage, ParallelContext(tp))
                for parameter in network.parameters():
                    parameter.data.fill_(torch.nan)
                init_parameters(weight_segments("language", network), 5)
                found += [parameter.detach() for parameter in network.parameters()]
        return found

    whole = filled()
    assert max(parameter.shape[0] for parameter in whole) > 3 * TILE // 2
    monkeypatch.setattr(initial_weights, "BLOCK", 1)
    assert all(map(torch.equal, whole, filled()))


def test_blocks_of_a_cut_tensor_share_no_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile that two blocks hold parts of would be drawn twice."""
    drawn: list[bytes] = []
    digest = initial_weights.blake2b
    monkeypatch.setattr(
        initial_weights, "blake2b", lambda of, **size: drawn.append(of) or digest(of, **size)
    )
    monkeypatch.setattr(initial_weights, "BLOCK", 1)
    layer = SegmentedModule()
    cut = sharded("weight", (1000, 200), 0, range(100, 700))
    layer.declare("weight", cut, dtype=torch.float64)
    init_parameters(weight_segments("m", layer), 0)
    assert layer.weight.equal(initial_values("m.weight", cut, 0))
    assert len(drawn) == 2 * len(set(drawn)) == 2 * 6 * 2  # Here, and for the comparison.


def test_threads_draw_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of tiles, of which the last is smaller."""
    segment = replicated("weight", (700, 1500), "complete", counted=True, std=0.5)
    layer = SegmentedModule()
    layer.declare("weight", segment, dtype=torch.float64)
    layer.weight.data.fill_(torch.nan)
    monkeypatch.setattr(initial_weights, "_threads", lambda: 3)
    init_parameters(weight_segments("m", layer), 0)
    assert layer.weight.equal(initial_values("m.weight", segment, 0))


@pytest.mark.parametrize("first", [0, 1, 127, 128, 300])
@pytest.mark.parametrize("start", [0, 100, 128])
@pytest.mark.parametrize("width", [1, 200, 50_000])
def test_blocks_hold_each_row_once_and_end_with_tiles(first: int, start: int, width: int) -> None:
    """FSDP gives a rank rows from `first` on of what tp gives its group."""
    cut = sharded("weight", (2000, width), 0, range(start, 2000))
    blocks = list(initial_weights._blocks(cut, first, 1000))
    assert [row for block in blocks for row in block] == list(range(first, first + 1000))
    assert all((start + block.start) % TILE == 0 for block in blocks[1:])
    assert all(len(block) * width <= max(initial_weights.BLOCK, TILE * width) for block in blocks)


def test_a_host_is_shared_by_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_weights.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(initial_weights.os, "sched_getaffinity", lambda _: range(6))
    for workers, threads in ((1, 6), (16, 4), (128, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(workers))
        assert initial_weights._threads() == threads


WIDTH, HALF, FACTOR, VECTOR = 64, {"hidden": 64, "layers": 2}, 0.25, 24
TILES = {"grids": [[1, 2], [2, 2]], "most": 2}
EXPERTS = {"experts": 2, "top_k": 1, "width": 48, "bias": True, "shared": 2}
# Models; their modules are `vision`, `audio` or, of other kinds, `language` or `more`.
KINDS: dict[str, dict[str, Any]] = {
    "vision": {**HALF, "heads": 2, "positions": "learned", "image": [16, 16], "class_token": True},
    "audio": {"kind": "audio", **HALF},
    "aut": {"kind": "aut", **HALF, "heads": 2, "mels": 16, "channels": 24},
    "conformer": {"kind": "conformer", **HALF, "heads": 2, "mels": 16, "channels": 24},
    "conformer of Phi-4": {**OF_PHI4, **HALF, "heads": 2, "mels": 16, "channels": 24},
    "dinov3": {"kind": "dinov3", **HALF, "heads": 2, "layer_scale": FACTOR},
    "gemma4_vision": {
        "kind": "gemma4_vision",
        **HALF,
        "heads": 2,
        "places": 90,
        "standardize": True,
        "clipped_linears": True,
    },
    "rows of three layers": {**HALF, "kind": "vit", "heads": 2, "shuffle": 2, "deepstack": [0, 1]},
    "joined patches": {
        **HALF,
        "kind": "llama4_vision",
        "heads": 2,
        "image": [4, 4],
        "shuffle": 2,
        "projector_mlp": 96,
        "projector_out": 80,
    },
    "visual words": {
        **HALF,
        "kind": "ovis2_vision",
        "heads": 2,
        "image": [4, 4],
        "words": 90,
    },
    "tiles": {**HALF, "kind": "vit", "heads": 2, "image": [4, 4], "tiles": TILES},
    "connector": {"kind": "connector", **HALF, "heads": 2, "queries": 9},
    "flow": {"kind": "flow", **HALF, "heads": 2},
    "talker": {"kind": "talker", **HALF, "heads": 2, "vocab": 90},
    "predictor": {
        "kind": "talker",
        **HALF,
        "heads": 2,
        "vocab": 90,
        "codebooks": 3,
        "reads_text": "instead",
        "predictor": {"layers": 3, "heads": 2, "vocab": 80},
    },
    "decoder": {**HALF, "qkv_bias": True, "qk_norm": True, "moe": EXPERTS, "mtp": {"depth": 1}},
    "separate norms": {
        **HALF,
        "moe": {**EXPERTS, "bias": False, "separate_norms": True, "learned_scale": True},
    },
    "tied": {**HALF, "tied": True, "mlp": 256, "layer_scalar": FACTOR},
    "per-layer embeddings": {**HALF, "per_layer_embeddings": {"width": VECTOR}},
    "latent": {
        **HALF,
        "mla": {"kv_rank": 40, "q_rank": 24, "rope_head_dim": 4, "v_head_dim": 16},
        "moe": {**EXPERTS, "bias": False, "shared_gate": True, "bias_update_rate": 0.1},
    },
    "wide norms": {
        **HALF,
        "qk_norm": True,
        "wide_qk_norm": True,
        "attention_sinks": True,
        "norm_offset": True,
        "activation": "xielu",
    },
    "adapters": {**HALF, "moe": {**EXPERTS, "bias": False}},
    "hybrid": {
        "kind": "hybrid",
        "hidden": WIDTH,
        "pattern": "MGC*E-*",
        "mamba": {"heads": 8, "head_dim": 16, "state": 16, "groups": 2},
        "deltanet": {"key_heads": 2, "heads": 4, "head_dim": 16},
        "moe": {**EXPERTS, "bias": False},
        "mtp": {"depth": 1},
    },
}
# What else a module of a kind says.
BESIDE: dict[str, dict[str, Any]] = {
    "adapters": {"adapter": {"rank": 16, "targets": ["attention", "mlp", "experts"]}},
    "connector": {"reads": ["vision"]},
    "flow": {"reads": ["language"]},
    "talker": {"reads": ["language"]},
    "predictor": {"reads": ["language"]},
}


def expected_std(name: str, shape: tuple[int, ...], kind: str) -> float:
    """Return the deviation that a matrix should start with; by name, as the models are drawn.

    Outputs keep their size where inputs of a map are independent. What each layer adds to the
    stream is smaller, so that the sum of all has size one: two additions a block, one in a hybrid.
    Blocks for further tokens add twice, as one of half as many blocks, rounded up.
    """
    layer = name.removesuffix(".weight").split(".")[-1]
    inputs = math.prod(shape[1:])
    if name.endswith("lora_a.weight"):
        # Uniform of Linear, with the same deviation, as in peft.
        return (3 * inputs) ** -0.5
    if ".bias_" in name or (layer == "distances" and kind == "conformer of Phi-4"):
        return 0.02  # As in transformers.
    if name.endswith("lora_b.weight") or ".shift." in name:
        return 0.0
    if name == "per_layer.table.weight":
        # Vectors of layers are multiplied by the root of their width.
        return VECTOR**-0.5
    if name in ("embedding.weight", "codes.weight") or name.startswith("later."):
        return WIDTH**-0.5 if kind == "tied" else 0.5
    if layer == "router" and kind == "separate norms":
        # Its input is over the root of the width.
        return 1.0
    if ".conv." in name and kind == "hybrid":
        # Uniform of Conv1d, with the same deviation.
        return (3 * inputs) ** -0.5
    if layer in ("class_token", "newline"):
        return shape[-1] ** -0.5
    added = layer in ("o", "down") or (
        layer == "out" and kind in ("hybrid", "conformer", "conformer of Phi-4")
    )
    if added and not name.startswith(("project", "time.")):
        own = 3 if name.startswith("predictor.") else 2
        additions = 2 * own
        if kind == "hybrid":
            additions = 8 if name.startswith("mtp.") else 7
        return additions**-0.5 * inputs**-0.5
    return inputs**-0.5


def expected_number(name: str, kind: str) -> float:
    """Return what all numbers of a vector start with; a norm multiplies by 1."""
    if name.endswith("_scale.weight") or "scalar" in name:
        return FACTOR
    if name.endswith("router.scale"):
        return 1.0
    if name.endswith(("put_min", "put_max")):
        return -math.inf if name.endswith("min") else math.inf
    if ".activation." in name:
        # As in transformers: the positive numbers are 0.8 and 0.3.
        numbers = {"alpha_p": math.log(math.expm1(0.8)), "alpha_n": math.log(math.expm1(0.3))}
        found = (numbers | {"beta": 0.5, "eps": -1e-6})[name.rpartition(".")[2]]
        return torch.tensor(found, dtype=torch.float32).item()
    own = kind == "wide norms"  # Their offset is 1.
    return float(
        name.endswith(("norm.weight", "norm.variance", "over_deviation", ".D")) and not own
    )


def network_of(kind: str, tp: int = 1, **model: Any) -> tuple[str, nn.Module]:
    """Return the name of a module and what its first rank of `tp` computes."""
    other = KINDS[kind].get("kind", "decoder") not in ("decoder", "hybrid")
    name = kind if kind in ("vision", "audio") else "more" if other else "language"
    modules = {name: box(0, tp=tp, model=KINDS[kind] | model, **BESIDE.get(kind, {}))}
    modules |= {"vision": box(0)} if kind == "connector" else {}
    made = spec(modules | ({} if name == "language" else {"language": box(tp)}))
    [stage] = build_layout(made)[name].stages
    context = ParallelContext(Group(tuple(range(tp)), 0, None)) if tp > 1 else ParallelContext()
    return name, build_network(made, stage, context)


# The last one has ranks that share key/value heads.
LAYOUTS = pytest.mark.parametrize(
    ("kind", "more"), [*((kind, {}) for kind in KINDS), ("decoder", {"tp": 2, "kv_heads": 1})]
)


@LAYOUTS
def test_matrices_decay_and_biases_norms_and_numbers_of_heads_do_not(
    kind: str, more: dict[str, int]
) -> None:
    """Nor do tables of embeddings, unless the spec says so."""
    for item in declared_parameters("", network_of(kind, **more)[1]):
        for name, segment in ((placed.name, placed.segment) for placed in item.placed):
            is_table = segment.weight.role == "embedding"
            # Biases of a head, or of a distance, or in a column.
            is_vector = len(segment.shape) == 1 or ".bias_" in name
            is_vector = is_vector or ".shift." in name or name == "distances.weight"
            is_matrix = not is_vector and segment.trains and not is_table
            assert segment.weight.decay == is_matrix, name


@LAYOUTS
@pytest.mark.parametrize("quick", [False, True])
def test_every_kind_of_weight_has_its_distribution(
    kind: str, more: dict[str, int], quick: bool
) -> None:
    """Measured on what a parameter is filled with, not on what is declared."""
    name, network = network_of(kind, **more)
    init_parameters(weight_segments(name, network), 11, quick=quick)
    seen = set()
    for item in local_segments(declared_parameters("", network), torch.Tensor.detach):
        values, inner = item.local.double(), item.name
        seen.add(".".join(part for part in inner.split(".") if not part.isdigit()))
        if inner.endswith(("A_log", "dt_bias")) or (kind == "audio" and "positions" in inner):
            continue  # They have tests of their own.
        if values.dim() > 1 or inner.endswith(("class_token.weight", "newline.weight")):
            std = expected_std(inner, item.segment.shape, kind)
            noise = 5 * (2 * values.numel()) ** -0.5
            assert values.std().item() == pytest.approx(std, rel=noise), inner
            assert abs(values.mean().item()) <= 5 * std * values.numel() ** -0.5, inner
        else:
            assert values.unique().tolist() == [expected_number(inner, kind)], inner
    assert len(seen) > 10


def test_no_kind_of_weight_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kinds here run every line of `kinds` that makes a weight, but for that of users."""
    made = set()

    class Noting(Weight):
        def __init__(self, **facts: Any) -> None:
            frame = sys._getframe(1)
            made.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
            super().__init__(**facts)

    there = set()
    for path in sorted(Path(weights.__file__).parent.glob("*.py")):
        if path.name in ("weights.py", "custom.py"):
            continue
        module = import_module(f"mimo_launch.kinds.{path.stem}")
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Weight":
                there.add((path.name, call.lineno))
                monkeypatch.setattr(module, "Weight", Noting)
    for kind in KINDS:
        network_of(kind)
    assert there <= made


def test_no_layer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kinds here make every class of `kinds` that gives layers their first values."""
    made, there = set[type](), set[type]()
    for path in sorted(Path(weights.__file__).parent.glob("*.py")):
        if path.name not in ("weights.py", "custom.py"):
            found = vars(import_module(f"mimo_launch.kinds.{path.stem}")).values()
            there |= {each for each in found if isinstance(each, type)}
    there = {each for each in there if issubclass(each, LayerShape) and each is not LayerShape}

    def noting(shape: type[LayerShape]) -> None:
        correct = shape.__init__

        def noted(self: Any, *given: Any, **more: Any) -> None:
            made.add(shape)
            correct(self, *given, **more)

        monkeypatch.setattr(shape, "__init__", noted)

    for shape in there:
        noting(shape)
    for cached in (layer_of, layer_shape):
        cached.cache_clear()
    for kind in KINDS:
        network_of(kind)
    assert there == made


def test_positions_of_clips_have_the_wavelengths_of_whisper() -> None:
    """From 2 pi in the first column to 10000 * 2 pi in the last; sines, then cosines."""
    name, network = network_of("audio")
    init_parameters(weight_segments(name, network), 11)
    declared = local_segments(declared_parameters("", network), torch.Tensor.detach)
    [found] = [item.local.double() for item in declared if "positions" in item.name]
    places = torch.arange(len(found), dtype=torch.float64)
    angles = places[:, None] / torch.logspace(0, 4, WIDTH // 2, dtype=torch.float64)
    torch.testing.assert_close(
        found, torch.cat([angles.sin(), angles.cos()], dim=1), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("init", "inverse", "least", "most"),
    [
        # A is uniform between -16 and -1, as in Mamba-2.
        ("log_decay", torch.exp, 1.0, 16.0),
        # Softplus of it is log-uniform between 0.001 and 0.1, as in Mamba.
        ("time_step", lambda x: F.softplus(x).log(), math.log(0.001), math.log(0.1)),
    ],
)
def test_decays_and_time_steps_are_spread_as_in_mamba(
    init: str, inverse: Callable[[torch.Tensor], torch.Tensor], least: float, most: float
) -> None:
    segment = sharded("x", (20_000,), 0, range(20_000), init=init)
    found = inverse(initial_values("m.x", segment, 3))
    uniform = torch.linspace(least, most, 20_000, dtype=torch.float64)
    # Kolmogorov and Smirnov: 1.63 / sqrt(n) is exceeded once in a hundred draws.
    assert (found.sort().values - uniform).abs().max() < 1.63 * 20_000**-0.5 * (most - least)
    # That bound is a hundredth of the range. Exactly, each is as far along it as its normal draw.
    normal = initial_values("m.x", sharded("x", (20_000,), 0, range(20_000), std=1.0), 3)
    share = torch.special.ndtr(normal)
    torch.testing.assert_close(found, least + share * (most - least), rtol=1e-12, atol=1e-12)


def test_mamba_and_deltanet_start_with_decays_and_time_steps() -> None:
    made = spec({"language": box(0, model=KINDS["hybrid"])})
    [stage] = build_layout(made)["language"].stages
    declared = declared_parameters("", build_network(made, stage, ParallelContext()))
    inits = {placed.name: placed.segment.weight.init for each in declared for placed in each.placed}
    for layer in ("layers.0.mamba", "layers.1.deltanet"):
        assert inits[f"{layer}.A_log"] == "log_decay"
        assert inits[f"{layer}.dt_bias"] == "time_step"
