"""FLOPs that the estimates count are those that torch runs, matmul by matmul."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import pytest
import torch
from tests.support.row_readers import nominal_input
from tests.support.specs import box, hybrid, spec
from tests.support.works import nominal_work
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.estimate.workload import (
    backward_flops,
    encoder_workload,
    forward_flops,
)
from mimo_launch.kinds.layer import Flops, Workload
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.tiles import Tiling
from mimo_launch.layers.image_contexts import image_context, two_list_context, window_context
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.layout.step_data import ImageSpan, SampleData, StepData
from mimo_launch.models.audio_encoder import ClipsInput
from mimo_launch.models.build import build_network
from mimo_launch.models.language_input import LanguageInput, TextAhead
from mimo_launch.models.patches import Patches
from mimo_launch.models.stage_interface import StageLosses
from mimo_launch.models.tiled_rows import row_sources
from mimo_launch.models.vision_encoder import ImagesInput
from mimo_launch.spec.spec import Spec

DECODER = {"kind": "decoder", "layers": 3, "hidden": 48, "heads": 12, "kv_heads": 4, "vocab": 300}
CPU = torch.device("cpu")
VIT = {"kind": "vit", "layers": 3, "hidden": 48, "heads": 4, "patch": 2, "channels": 3}


def nominal(made: Spec) -> SampleData:
    return nominal_step_data(made).samples[0]


def counted(run: Callable[[], Any]) -> tuple[Counter[str], Counter[str]]:
    """Return what torch counts in a forward and in its backward, by operator."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as ahead:
        out = run()
    with FlopCounterMode(display=False) as back:
        sum(loss.sum() for loss in StageLosses.of(out).losses).backward()
    first, second = (
        Counter({str(op).split(".")[-1]: n for op, n in mode.get_flop_counts()["Global"].items()})
        for mode in (ahead, back)
    )
    return first, second


def matmuls(flops: Flops) -> float:
    """Return the operations of all products with weights."""
    return flops.total - flops.attention


class Costs(NamedTuple):
    """What torch counts in both passes of one stage, by operator; and what is estimated."""

    ahead: Counter[str]
    back: Counter[str]
    forward: Flops
    backward: Flops


def costs(made: Spec, name: str, batch: object, work: Workload | None = None) -> Costs:
    layout = build_layout(made)
    module = layout[name]
    (stage,) = module.stages
    network = build_network(made, stage, ParallelContext())
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    ahead, back = counted(lambda: network(None, batch))
    work = work or nominal_work(layout, module, made)
    forward = forward_flops(made, stage, work)
    return Costs(ahead, back, forward, backward_flops(made, layout, module, stage, work))


def work_of(made: Spec, name: str) -> Workload:
    layout = build_layout(made)
    return nominal_work(layout, layout[name], made)


def patches(number: int, size: int, places: torch.Tensor | None = None) -> Patches:
    zeros = torch.zeros(number, 2, dtype=torch.long)
    return Patches(torch.randn(number, size), zeros if places is None else places)


def whole(places: torch.Tensor) -> torch.Tensor:
    """Return the positions of tokens that lack no frames."""
    return torch.stack([places, torch.zeros_like(places)], dim=1)


def of_language(model: dict) -> tuple[Spec, Costs]:
    """Return the costs of two sequences of 32 tokens; products with weights are as estimated."""
    made = spec({"language": box(0, model=model)}, mbs=2, seq=32)
    tokens = torch.randint(0, 300, (2, 32))
    batch = LanguageInput(
        num_sequences=2,
        tokens=tokens,
        positions=torch.arange(32),
        documents=None,
        labels=tokens,
        rows={},
        row_places={},
        looked_up=tokens,
        ahead=(TextAhead(tokens, tokens, None),) * kind_of(made.language.model).depths,
    )
    found = costs(made, "language", batch)
    assert work_of(made, "language").tokens == 64
    assert found.ahead["mm"] == matmuls(found.forward)
    assert found.back["mm"] == matmuls(found.backward)
    return made, found


SMALL = {**DECODER, "head_dim": 6}
ATTENTION_ONLY = {"kind": "hybrid", "pattern": "*-*", "activation": "silu", "rope_theta": 100.0}
LANGUAGES = {
    "a decoder": SMALL,
    "a decoder that predicts further tokens": {**SMALL, "mtp": {"depth": 2}},
    "a decoder with per-layer embeddings": {**SMALL, "per_layer_embeddings": {"width": 8}},
    "a hybrid that predicts further tokens": {**SMALL, "mtp": {"depth": 2}, **ATTENTION_ONLY},
    "gates of attention and of MLPs": hybrid({}, "*-")
    | {"gated_attention": True, "activation": "silu", "vocab": 300},
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_language_costs_what_torch_counts(name: str) -> None:
    """The reference kernel computes the whole square, of which causal attention needs half."""
    _, (ahead, back, forward, backward) = of_language(LANGUAGES[name])
    assert ahead["bmm"] == 2 * forward.attention
    assert back["bmm"] == 2 * backward.attention


def test_experts_cost_what_torch_counts() -> None:
    """On one rank, half of the layers with experts, of which one is shared."""
    moe = {"experts": 4, "top_k": 2, "width": 24, "shared": 8, "every": 2}
    _, found = of_language({**DECODER, "layers": 2, "moe": moe})
    assert found.back["mm"] == 2 * found.ahead["mm"]


def test_sequences_that_are_alike_are_counted_once() -> None:
    """Else a plan of a million samples takes seconds for each layout that it tries."""
    works = []
    for size in (1, 1_000_000):
        made = spec({"vision": box(0), "language": box(0, model=DECODER)}, mbs=size, seq=32)
        layout = build_layout(made)
        works.append([nominal_work(layout, module, made) for module in layout.modules])
    for one, many in zip(*works, strict=True):
        assert many.tokens == 1_000_000 * one.tokens
        assert len(many.spans) == len(one.spans) == 1


def test_sliding_windows_are_counted_by_the_pairs_that_attend() -> None:
    """Two sequences of 32 tokens; layers with a window of 8, or longer than a sequence."""
    found = []
    for size, full in ((8, [1]), (8, []), (40, []), (2, [])):
        model = {**DECODER, "sliding_window": {"size": size, "full": full}}
        made = spec({"language": box(0, model=model)}, mbs=2, seq=32)
        layout = build_layout(made)
        (stage,) = layout.language.stages
        work = nominal_work(layout, layout.language, made)
        found.append(forward_flops(made, stage, work).attention / (4 * 48 * 2))
    whole, cut = 32**2 / 2, 8**2 / 2 + 24 * 8
    assert found == [2 * cut + whole, 3 * cut, 3 * whole, 3 * 62]


@pytest.mark.parametrize("full", [[2], [0, 1]])
def test_a_depth_attends_to_as_many_tokens_as_the_last_layer(full: list[int]) -> None:
    """In a window only if the last layer has one; layers before it may differ."""
    window, found = {"sliding_window": {"size": 8, "full": full}}, []
    for more in ({"layers": 2}, {}, {"mtp": {"depth": 2}}):
        made = spec({"language": box(0, model={**DECODER, **window, **more})}, mbs=2, seq=32)
        layout = build_layout(made)
        (stage,) = layout.language.stages
        work = nominal_work(layout, layout.language, made)
        found.append(forward_flops(made, stage, work).attention)
    without_last, without_depths, whole = found
    assert whole - without_depths == 2 * (without_depths - without_last) > 0


def test_chunks_are_counted_by_the_pairs_that_attend() -> None:
    """Two sequences of 32 tokens; of chunks of 12 the last one is shorter, and 40 is the whole."""
    found = []
    for size, full in ((12, [1]), (16, []), (40, [])):
        window = {"size": size, "full": full, "chunked": True}
        made = spec(
            {"language": box(0, model={**DECODER, "sliding_window": window})}, mbs=2, seq=32
        )
        layout = build_layout(made)
        (stage,) = layout.language.stages
        work = nominal_work(layout, layout.language, made)
        found.append(forward_flops(made, stage, work).attention / (4 * 48 * 2))
    whole = 32**2 / 2
    assert found == [2 * (2 * 12**2 + 8**2) / 2 + whole, 3 * 16**2, 3 * whole]


def test_images_that_see_each_other_add_the_pairs_behind_a_token() -> None:
    """Two sequences of 32 tokens with one image of 12 rows each."""
    found = []
    for sees in (True, False):
        model = {**DECODER, "bidirectional_images": sees}
        modules = {"vision": box(0), "language": box(0, model=model)}
        made = spec(modules, mbs=2, seq=32, data={"kind": "synthetic", "image": [3, 4]})
        layout = build_layout(made)
        (stage,) = layout.language.stages
        work = nominal_work(layout, layout.language, made)
        found.append(forward_flops(made, stage, work).attention / (4 * 48 * 2 * 3))
    assert found == [32**2 / 2 + 12**2 / 2, 32**2 / 2]


def test_prompts_add_the_pairs_behind_a_token() -> None:
    """What is learnt counts as the end of a sequence."""
    modules = {"language": box(0, model={**DECODER, "bidirectional_prompts": True})}
    made = spec(modules, mbs=2, seq=32)
    layout = build_layout(made)
    (stage,) = layout.language.stages
    work = nominal_work(layout, layout.language, made)
    found = forward_flops(made, stage, work).attention / (4 * 48 * 3)
    records = [each for sample in nominal_step_data(made).samples for each in sample.records]
    assert all(0 < each.num_labels < each.num_tokens for each in records)
    prompts = sum((each.num_tokens - each.num_labels) ** 2 for each in records)
    assert found == 2 * 32**2 / 2 + prompts / 2


def test_delta_rules_cost_what_torch_counts() -> None:
    """But for half of the products inside a chunk; and what chunks do to a state is one matrix.

    The backward computes the recurrence again.
    """
    made, (ahead, _, forward, _) = of_language(hybrid({}, "GG-", groups=2) | {"vocab": 300})
    sizes = made.language.model.deltanet
    per_token = 2 * 64 * sizes.chunk
    systems = per_token * sizes.heads * (sizes.head_dim + sizes.key_dim)
    states = 2 * 64 * 6.0 * sizes.inner * sizes.state
    within = forward.attention - systems - states
    assert within == per_token * (2 * sizes.shared + sizes.inner)
    passed = 2 * 64 * 2 * sizes.heads * sizes.key_dim**2
    assert ahead["bmm"] == 2 * within + 2 * systems + states + passed


def test_a_hybrid_model_costs_what_torch_counts() -> None:
    """But for products inside a chunk, of which causality needs half, as in attention."""
    model = hybrid({}, "MM*-", groups=2) | {"heads": 2, "head_dim": 8, "vocab": 300}
    made, (ahead, back, forward, backward) = of_language(model)
    sizes = made.language.model.mamba
    states = 2 * 64 * 4.0 * sizes.inner * sizes.state
    assert ahead["bmm"] == 2 * (forward.attention - states) + states
    assert back["bmm"] == 2 * (backward.attention - 2 * states) + 2 * states


@pytest.mark.parametrize("projector", ["mlp", "linear", "merger", "gated", "swiglu"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temporal_patch": 2},
        {"deepstack": [0, 1]},
        {"pooling": "linear"},
        {"deepstack": [0], "pooling": "linear"},
        {"features": [2, 0], "pooling": "linear"},
        {"projector_out": 20},
    ],
)
def test_vision_costs_what_torch_counts(projector: str, more: dict[str, Any]) -> None:
    model = {**VIT, "shuffle": 2, "projector": projector, **more}
    data = {"kind": "synthetic", "image": [4, 6], "text_only": 0.0}
    made = spec({"vision": box(0, model=model), "language": box(1)}, mbs=2, seq=64, data=data)
    work = work_of(made, "vision")
    assert (work.spans, work.rows) == ({24: 2}, 12)
    mask = image_context([24, 24], range(48), CPU, alone=True)
    batch = ImagesInput(mask=mask, sizes=(12,), patches=patches(48, 12))
    ahead, back, forward, backward = costs(made, "vision", batch)
    assert ahead["addmm"] + ahead["mm"] == matmuls(forward)
    # Pixels need no gradient, but by the rule a backward is twice its forward.
    assert back["mm"] == backward.linear + backward.patch / 2 + backward.projector
    assert ahead["bmm"] == forward.attention
    assert back["bmm"] == backward.attention


def test_tiles_cost_what_torch_counts() -> None:
    """Every patch goes through the projector, whether it becomes a row or not."""
    model = {**VIT, "positions": "learned", "image": [3, 4],
             "tiles": {"grids": [[1, 2]], "most": 1}}  # fmt: skip
    made = spec({"vision": box(0, model=model), "language": box(1)}, mbs=1, seq=64)
    module = build_layout(made)["vision"]
    span = ImageSpan(0, 1, 12 + 2 * 6, shown=Tiling(1, 2, 3, 8))
    sample = SampleData(0, 40, 1, {"vision": (span,)})
    view = EncoderView(module, StepData(0, [sample]), 0, (0,))
    work = encoder_workload(view, forwards=1)
    assert (work.spans, work.rows, work.held) == ({12: 3}, span.rows, 36)
    assert module.tiles is not None
    assert module.tiles.num_rows(span.shown) == span.rows
    mask = image_context([12] * 3, range(36), CPU, alone=True)
    places = torch.tensor([[y, x, 3, 4] for _ in range(3) for y in range(3) for x in range(4)])
    given = ImagesInput(
        mask=mask,
        sizes=(span.rows,),
        patches=patches(36, 12, places),
        row_sources=row_sources(view, ParallelContext()),
    )
    ahead, back, forward, backward = costs(made, "vision", given, work)
    assert ahead["addmm"] == matmuls(forward)
    assert back["mm"] == backward.linear + backward.patch / 2 + backward.projector
    assert (ahead["bmm"], back["bmm"]) == (forward.attention, backward.attention)


def test_visual_words_cost_what_torch_counts() -> None:
    """Each square of patches of each tile is mapped to all words, and these to language."""
    model = {**VIT, "kind": "ovis2_vision", "image": [4, 2], "shuffle": 2, "words": 9,
             "activation": "swiglu", "tiles": {"grids": [[1, 2]]}}  # fmt: skip
    made = spec({"vision": box(0, model=model), "language": box(1)}, mbs=1, seq=64)
    module = build_layout(made)["vision"]
    span = ImageSpan(0, 1, 2 * 3 + 4, shown=Tiling(1, 2, 2, 2))
    sample = SampleData(0, 40, 1, {"vision": (span,)})
    view = EncoderView(module, StepData(0, [sample]), 0, (0,))
    work = encoder_workload(view, forwards=1)
    assert (work.spans, work.rows, work.held) == ({8: 3}, span.rows, 24)
    mask = image_context([8] * 3, range(24), CPU, alone=True)
    places = torch.tensor([[y, x, 4, 2] for _ in range(3) for y in range(4) for x in range(2)])
    given = ImagesInput(
        mask=mask,
        sizes=(span.rows,),
        patches=patches(24, 12, places),
        row_sources=row_sources(view, ParallelContext()),
    )
    ahead, back, forward, backward = costs(made, "vision", given, work)
    assert ahead["addmm"] + ahead["mm"] == matmuls(forward)
    assert back["mm"] == backward.linear + backward.patch / 2 + backward.projector
    assert (ahead["bmm"], back["bmm"]) == (forward.attention, backward.attention)


def test_the_whole_image_last_costs_what_torch_counts() -> None:
    """Learned rows go through the projector, too."""
    tiles = {"grids": [[1, 2]], "each": True, "whole": "last"}
    model = {**VIT, "positions": "learned", "image": [4, 6], "shuffle": 2, "pooling": "mean",
             "tiles": tiles}  # fmt: skip
    made = spec({"vision": box(0, model=model), "language": box(1)}, mbs=1, seq=64)
    module = build_layout(made)["vision"]
    # Of three tiles of 2 x 3 rows.
    span = ImageSpan(0, 1, 2 * 7 + 1 + 2 * 4, shown=Tiling(1, 2, 2, 6))
    view = EncoderView(module, StepData(0, [SampleData(0, 40, 1, {"vision": (span,)})]), 0, (0,))
    work = encoder_workload(view, forwards=1)
    assert (work.spans, work.rows, work.held) == ({24: 3}, span.rows, 72)
    assert module.tiles is not None
    assert module.tiles.num_rows(span.shown) == span.rows
    places = torch.tensor([[y, x, 4, 6] for _ in range(3) for y in range(4) for x in range(6)])
    given = ImagesInput(
        mask=image_context([24] * 3, range(72), CPU, alone=True),
        sizes=(span.rows,),
        patches=patches(72, 12, places),
        row_sources=row_sources(view, ParallelContext()),
    )
    ahead, back, forward, backward = costs(made, "vision", given, work)
    assert ahead["addmm"] == matmuls(forward)
    assert back["mm"] == backward.linear + backward.patch / 2 + backward.projector
    assert (ahead["bmm"], back["bmm"]) == (forward.attention, backward.attention)


def test_learned_tokens_cost_what_torch_counts() -> None:
    """Two images of 60 patches in a DINOv3, each with a class token and three registers."""
    model = {**VIT, "kind": "dinov3", "registers": 3, "activation": "swiglu", "shuffle": 2}
    data = {"kind": "synthetic", "image": [10, 6], "text_only": 0.0}
    made = spec({"vision": box(0, model=model), "language": box(1)}, mbs=2, seq=64, data=data)
    assert work_of(made, "vision").spans == {64: 2}
    batch = ImagesInput(
        mask=two_list_context([60, 60], [4, 4], (120, 8), range(1), CPU, alone=True),
        sizes=(30,),
        patches=patches(120, 12),
        places=torch.zeros(128, 2),
        extra_tokens=8,
    )
    ahead, back, forward, backward = costs(made, "vision", batch)
    assert ahead["addmm"] + ahead["mm"] == matmuls(forward)
    assert back["mm"] == backward.linear + backward.patch / 2 + backward.projector
    assert (ahead["bmm"], back["bmm"]) == (forward.attention, backward.attention)


def test_a_tower_of_gemma_4_costs_what_torch_counts() -> None:
    """Two images of 60 patches; a row is the mean of four."""
    model = {**VIT, "kind": "gemma4_vision", "shuffle": 2, "standardize": True, "kv_heads": 1}
    data = {"kind": "synthetic", "image": [10, 6], "text_only": 0.0}
    made = spec({"vision": box(0, model=model), "language": box(1)}, mbs=2, seq=64, data=data)
    batch = ImagesInput(
        mask=image_context([60, 60], range(120), CPU, alone=True),
        sizes=(30,),
        patches=patches(120, 12),
        places=torch.zeros(120, 2),
    )
    ahead, back, forward, backward = costs(made, "vision", batch)
    assert ahead["addmm"] + ahead["mm"] == matmuls(forward)
    assert back["mm"] == backward.linear + backward.patch / 2 + backward.projector
    assert (ahead["bmm"], back["bmm"]) == (forward.attention, backward.attention)


def test_windows_cost_what_torch_counts() -> None:
    """Two images of 5 x 3 rows of four patches; windows at their ends are smaller."""
    model = {**VIT, "shuffle": 2, "projector": "merger", "positions": "rope2d", "norm": "rms",
             "activation": "swiglu", "windows": {"side": 2, "full": [1]}}  # fmt: skip
    data = {"kind": "synthetic", "image": [10, 6], "text_only": 0.0}
    made = spec({"vision": box(0, model=model), "language": box(1)}, mbs=2, seq=64, data=data)
    work = work_of(made, "vision")
    assert (work.spans, work.windows) == ({60: 2}, {16: 4, 8: 6, 4: 2})
    held = range(120)
    batch = ImagesInput(
        mask=image_context([60, 60], held, CPU, alone=True),
        sizes=(30,),
        patches=patches(120, 12),
        places=torch.zeros(120, 2, dtype=torch.long),
        windows=window_context([(5, 3)] * 2, 2, 4, held, CPU, alone=True),
    )
    ahead, back, forward, backward = costs(made, "vision", batch)
    assert ahead["addmm"] + ahead["mm"] == matmuls(forward)
    assert back["mm"] == backward.linear + backward.patch / 2 + backward.projector
    # Without lists each window is padded to the largest.
    padded = sum(max(work.windows) ** 2 - length**2 for length in work.windows.elements())
    assert ahead["bmm"] == forward.attention + 2 * 4 * padded * 48


def test_audio_costs_what_torch_counts() -> None:
    model = {"kind": "audio", "mels": 5, "stack": 2, "fixed_length": True, "frames": 24}
    made = spec({"audio": box(0, model=model), "language": box(1)}, mbs=2, seq=64)
    work = work_of(made, "audio")
    assert (work.spans, work.rows) == ({12: 2}, 12)
    mask = image_context([12, 12], range(24), CPU, alone=True)
    frames = patches(24, 5 * 5, whole(torch.arange(24) % 12))
    given = ClipsInput(mask=mask, sizes=(12,), patches=frames, loose=None)
    ahead, back, forward, backward = costs(made, "audio", given)
    assert ahead["addmm"] == matmuls(forward)
    # Frames need no gradient, but by the rule a backward is twice its forward.
    first = 2 * 24 * 3 * (3 * 5) * 8
    assert back["mm"] == backward.linear + backward.patch - first + backward.projector
    assert ahead["bmm"] == forward.attention
    assert back["bmm"] == backward.attention


def test_clips_without_silence_cost_what_torch_counts() -> None:
    """Two clips, one of which has a token behind those of its rows."""
    model = {"kind": "audio", "mels": 5, "stack": 2, "unpadded": True, "pooling": "mean"}
    made = spec({"audio": box(0, model=model), "language": box(1)}, mbs=2, seq=64)
    module = build_layout(made)["audio"]
    spans = ImageSpan(0, 1, 6), ImageSpan(6, 1, 5, loose=1)
    sample = SampleData(0, 20, 1, {"audio": spans})
    view = EncoderView(module, StepData(0, [sample]), 0, (0,))
    work = encoder_workload(view, forwards=1)
    assert (work.spans, work.rows, work.extra_tokens) == ({12: 1, 11: 1}, 11, 1)
    mask = two_list_context([12, 10], [0, 1], (22, 1), range(1), CPU, alone=True)
    frames, loose = (patches(n, 25, whole(torch.arange(n) % 12)) for n in (22, 1))
    given = ClipsInput(mask=mask, sizes=(11,), patches=frames, extra_tokens=1, loose=loose)
    ahead, back, forward, backward = costs(made, "audio", given, work)
    assert ahead["addmm"] == matmuls(forward)
    first = 2 * 23 * 3 * (3 * 5) * 8
    assert back["mm"] == backward.linear + backward.patch - first + backward.projector
    # Without lists each clip is padded to the longest.
    padded = 4 * (12**2 - 11**2) * 8
    assert (ahead["bmm"], back["bmm"]) == (
        forward.attention + padded,
        backward.attention + 2 * padded,
    )


ROWS = {"kind": "connector", "layers": 2, "hidden": 24, "heads": 2}
QUERIES = {**ROWS, "queries": 3, "projector": "linear"}
FLOW = {"kind": "flow", "layers": 2, "hidden": 24, "heads": 2, "patch": 2, "channels": 3}


@pytest.mark.parametrize(
    ("name", "model"), [("merger", ROWS), ("merger", QUERIES), ("drawer", FLOW)]
)
def test_modules_that_read_rows_cost_what_torch_counts(name: str, model: dict) -> None:
    """Two images of 4 x 6 patches, for a connector of two towers and for a generator."""
    data = {"kind": "synthetic", "image": [4, 6], "text_only": 0.0}
    made = spec(
        {
            "vision": box(0, model={"hidden": 16}),
            "depth": box(1),
            "merger": box(2, model=model if name == "merger" else ROWS, reads=["vision", "depth"]),
            "language": box(3, model={"hidden": 40}),
            "drawer": box(4, model=FLOW, reads=["language"]),
        },
        mbs=2,
        seq=128,
        data=data,
    )
    work = work_of(made, name)
    reads, own = {"merger": ((48, 48), 96), "drawer": ((2,), 48)}[name]
    own = 6 if model is QUERIES else own
    assert (work.reads, work.rows) == (reads, own)
    ahead, back, forward, backward = costs(made, name, nominal_input(made, name))
    products = matmuls(forward)
    assert ahead["addmm"] + ahead["mm"] == products
    # Patches and times need no gradient, but by the rule a backward is twice its forward.
    inputs = 2 * own * 24 * (12 + 24) if name == "drawer" else 0
    assert back["mm"] == 2 * products - inputs == backward.total - backward.attention - inputs
    assert ahead["bmm"] == forward.attention
    assert back["bmm"] == backward.attention


@pytest.mark.parametrize(
    "inside",
    [{}, {"predictor": {"layers": 2, "heads": 4, "vocab": 24}}, {"reads_text": "instead"}],
)
def test_a_talker_costs_what_torch_counts(inside: dict[str, Any]) -> None:
    """Two clips of 24 frames and an end, behind one row each; half of attention is not counted."""
    data = {"kind": "synthetic", "image": [4, 6], "text_only": 0.0}
    model = {**DECODER, "kind": "talker", "codebooks": 2, "vocab": 40, **inside}
    modules = {
        "language": box(0, model={"hidden": 40}),
        "speech": box(1, model=model, reads=["language"]),
    }
    made = spec(modules, mbs=2, seq=128, data=data)
    work = work_of(made, "speech")
    assert (work.reads, work.rows, work.spans) == ((2,), 50, {26: 2})
    ahead, back, forward, backward = costs(made, "speech", nominal_input(made, "speech"))
    products = matmuls(forward)
    assert ahead["addmm"] + ahead["mm"] == products
    assert back["mm"] == 2 * products == backward.total - backward.attention
    assert ahead["bmm"] == 2 * forward.attention
    assert back["bmm"] == 2 * backward.attention


def r1() -> tuple[Spec, Layout]:
    """ViT-H with 4,096 patches a sample in front of 16 layers of Llama-3-8B shape."""
    vision = {"layers": 32, "hidden": 1280, "heads": 16, "mlp": 5120, "patch": 16}
    language = {"layers": 16, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128}
    made = spec(
        {
            "vision": box(0, model={**VIT, **vision, "shuffle": 2, "projector": "linear"}),
            "language": box(1, model={**DECODER, **language, "mlp": 14336, "vocab": 131_072}),
        },
        seq=4096,
        data={"kind": "synthetic", "image": [64, 64], "text_only": 0.0},
    )
    return made, build_layout(made)


def test_reference_sample_costs_106_and_24_tflop() -> None:
    made, layout = r1()
    totals = []
    for module in layout.modules:
        (stage,) = module.stages
        work = nominal_work(layout, module, made)
        forward = forward_flops(made, stage, work)
        backward = backward_flops(made, layout, module, stage, work)
        totals.append((forward.total + backward.total) / 1e12)
    assert totals == pytest.approx([24, 106], rel=0.01)


def test_what_is_frozen_costs_less_backward() -> None:
    def back(name: str, **frozen: object) -> dict[str, float]:
        """Return the work of a backward of a module of three layers, by that of its forward."""
        models: dict[str, dict[str, Any]] = {"language": {}, "vision": {}}
        if "merger" in frozen:
            models["merger"] = {"model": {"kind": "connector"}, "reads": ["vision"]}
        for each in models.values():
            each["model"] = {**each.get("model", {}), "layers": 3}
        made = spec(
            {
                each: box(place, frozen=frozen.get(each, False), **models[each])
                for place, each in enumerate(models)
            }
        )
        layout = build_layout(made)
        module = layout[name]
        (stage,), work = module.stages, nominal_work(layout, module, made)
        ahead = asdict(forward_flops(made, stage, work))
        behind = asdict(backward_flops(made, layout, module, stage, work))
        return {part: behind[part] / flops for part, flops in ahead.items() if flops}

    whole = {"linear": 2, "attention": 2}
    assert back("language") == {**whole, "head": 2}
    # Gradients of inputs only; attention has no weights.
    passed = {"linear": 1, "attention": 2}
    nothing = {"linear": 0, "attention": 0}
    assert back("language", language=True) == {**passed, "head": 1}
    assert back("vision", vision=True) == {**nothing, "patch": 0, "projector": 0}
    assert back("vision", vision="except_projector") == {**nothing, "patch": 0, "projector": 2}
    assert back("language", language=True, vision=True) == {**nothing, "head": 0}
    # A connector passes gradients to its tower if that trains.
    assert back("merger", merger=True) == {**passed, "patch": 1, "projector": 1}
    assert back("merger", merger="except_projector") == {**passed, "patch": 1, "projector": 2}
    for how, projector in (("except_projector", 2), (True, 0)):
        found = back("merger", merger=how, vision=True)
        assert found == {**nothing, "patch": 0, "projector": projector}
    # Two frozen layers of three: below the third if nothing trains before, else passed through.
    lowest, middle = {"layers": "0-1"}, {"layers": "1"}
    third = pytest.approx({"linear": 2 / 3, "attention": 2 / 3, "head": 2})
    assert back("language", language=lowest, vision=True) == third
    passed_twice = {"linear": 4 / 3, "attention": 2, "head": 2}
    assert back("language", language=lowest) == pytest.approx(passed_twice)
    assert back("language", language=middle, vision=True)["linear"] == pytest.approx(5 / 3)
    found = back("vision", vision=lowest)
    assert (found["patch"], found["projector"]) == (0, 2)
    assert back("vision", vision=middle)["patch"] == 2


def test_stages_share_the_work() -> None:
    whole = spec({"vision": box(0), "language": box(1)}, microbatches=4, mbs=2)
    cut = spec({"vision": box(0, pp=2, model={"layers": 4}), "language": box(2, pp=2)})
    for made in (whole, cut):
        layout = build_layout(made)
        for module in layout.modules:
            work: Workload = nominal_work(layout, module, made)
            parts = [forward_flops(made, stage, work) for stage in module.stages]
            layers = sum(stage.num_layers for stage in module.stages)
            assert sum(p.linear for p in parts) == pytest.approx(
                layers * parts[0].linear / module.stages[0].num_layers
            )
            assert [p.patch > 0 for p in parts] == [
                s.is_first and not module.is_language for s in module.stages
            ]
            assert [p.head > 0 for p in parts] == [
                s.is_last and module.is_language for s in module.stages
            ]
