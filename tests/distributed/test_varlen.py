"""Attention over lists in float64, with a loop for a kernel, against attention by masks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from tests.support import engine_blocks
from tests.support.engine_blocks import GROUPED, RAGGED, VIT, Case
from tests.support.graphs import flow, talker
from tests.support.lists import (
    EARLY,
    LISTS,
    MASKS,
    UPPER_LEFT,
    aligned_at_the_upper_left,
    by_lists,
    by_stand_ins,
    by_stand_ins_that_start_early,
    calls_of_kernel,
    keys_from_the_first_image_on,
)
from tests.support.planted import piped
from tests.support.planted_hybrid import split_heads
from tests.support.planted_sliding import sliding
from tests.support.planted_windows import windowed
from tests.support.proof import failures, verdicts, verdicts_as_it_is
from tests.support.specs import box, spec

from mimo_launch.diag.installed import ENGINE
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.launcher.run_on_ranks import Ranks
from mimo_launch.layers.attention import Attention
from mimo_launch.layers.image_contexts import two_list_context
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.shrink import shrink

CPU = torch.device("cpu")
MOST = 1e-12

ONE_RANK = {
    name: engine_blocks.ONE_GPU[name]
    for name in (
        "decoder, packed documents",
        "vit, ragged images",
        "vit, ragged images and padding",
        "vit, ragged images, turned",
        "vit, ragged images, recompute",
    )
}
TWO_RANKS = engine_blocks.PACKED_CP2 | {
    name: engine_blocks.TWO_GPUS[name] for name in ("vit, cp2", "vit, cp2, a rank of padding")
}
FOUR_RANKS = {
    "decoder, cp4, packed": Case(GROUPED, documents=engine_blocks.DOCUMENTS, cp=4),
    "decoder, cp4, a document per token": Case(GROUPED, documents=(1,) * 512, cp=4),
    "decoder, cp2 x tp2, packed": Case(
        GROUPED, documents=engine_blocks.DOCUMENTS, cp=2, tp=2, sequence_parallel=True
    ),
    "vit, cp4": Case(VIT, RAGGED, num_tokens=400, cp=4),
}
CASES = [
    (ranks, name)
    for ranks, cases in ((1, ONE_RANK), (2, TWO_RANKS), (4, FOUR_RANKS))
    for name in cases
]


@pytest.fixture(scope="module")
def lasting_ranks() -> Iterator[Callable[[int], Ranks]]:
    """The same ranks for all tests of this file."""
    with ExitStack() as stack:
        made: dict[int, Ranks] = {}

        def get(world_size: int) -> Ranks:
            if world_size not in made:
                made[world_size] = stack.enter_context(Ranks(world_size))
            return made[world_size]

        yield get


def errors_of(ranks: Ranks, name: str, *ways: str) -> dict[str, dict[str, float]]:
    """Return the errors in a block as wide as eight numbers per head."""
    case = (ONE_RANK | TWO_RANKS | FOUR_RANKS)[name]
    shape, width = case.shape, 8 * case.shape.attention.heads
    narrow = replace(
        shape,
        norm=replace(shape.norm, width=width),
        attention=replace(shape.attention, width=width, head_size=8),
        mlp=replace(shape.mlp, width=width, inner=64, out=width),
    )
    case = replace(case, shape=narrow)
    [errors, *_] = ranks.run(engine_blocks.block_errors, case, ways, "cpu", torch.float64)
    return errors


@pytest.mark.parametrize(("world_size", "name"), CASES)
def test_lists_compute_what_masks_compute(
    world_size: int, name: str, lasting_ranks: Callable[[int], Ranks]
) -> None:
    """Output, gradient of the input, and of every canonical tensor."""
    errors = errors_of(lasting_ranks(world_size), name, MASKS, LISTS)
    for way, of_tensors in errors.items():
        assert {name: error for name, error in of_tensors.items() if not error <= MOST} == {}, way


@pytest.mark.parametrize("name", ["decoder, cp2, packed", "decoder, cp2, packed, one sequence"])
def test_a_mask_that_is_aligned_at_the_wrong_corner_is_seen(
    name: str, lasting_ranks: Callable[[int], Ranks]
) -> None:
    errors = errors_of(lasting_ranks(2), name, UPPER_LEFT)[UPPER_LEFT]
    assert errors["output"] > 1e-2
    assert errors["m.0.attention.q.weight"] > 1e-2


@pytest.mark.parametrize(
    ("world_size", "name"),
    [case for case in CASES if case[0] > 1 and case[1].startswith("decoder")],
)
def test_blocks_of_transformer_engine_take_packed_documents_over_cp(
    world_size: int, name: str, lasting_ranks: Callable[[int], Ranks]
) -> None:
    """With stand-ins for its layers: their order, what they gather, and which keys a part needs."""
    errors = errors_of(lasting_ranks(world_size), name, ENGINE)[ENGINE]
    assert {name: error for name, error in errors.items() if not error <= MOST} == {}


@pytest.mark.parametrize("name", engine_blocks.PACKED_CP2)
def test_a_wrong_start_of_a_document_is_seen_in_a_block_of_transformer_engine(
    name: str, lasting_ranks: Callable[[int], Ranks]
) -> None:
    errors = errors_of(lasting_ranks(2), name, EARLY)[EARLY]
    assert errors["output"] > 1e-2
    assert errors["m.0.attention.q.weight"] > 1e-2


@pytest.mark.parametrize("causal", [False, True])
def test_images_in_two_lists_go_over_lists(causal: bool) -> None:
    """Their tokens are put in order first; padding of both lists stays out."""
    torch.manual_seed(0)
    context = ParallelContext(dtype=torch.float64, compute_dtype=torch.float64)
    shape = AttentionShape(width=32, heads=4, kv_heads=2, head_size=8, bias=True, qkv_bias=True)
    attention = Attention(context, shape)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    lengths, extras, held = [3, 7, 1], [2, 1, 4], (13, 8)
    mask = two_list_context(lengths, extras, held, range(1), CPU, alone=True, causal=causal)
    x_ND = torch.randn(sum(held), 32, dtype=torch.float64)
    real = torch.cat([torch.arange(sum(lengths)), held[0] + torch.arange(sum(extras))])
    with calls_of_kernel(CPU) as calls:
        found = attention(x_ND, mask)[real]
    assert calls == [sum(lengths) + sum(extras)]
    torch.testing.assert_close(found, attention(x_ND, mask)[real], rtol=0, atol=1e-12)


def beside_rows() -> Spec:
    """A flow over cp and a talker over tp: rows of language stand beside their tokens."""
    modules = {
        "language": box(0),
        "drawer": box(0, cp=2, **flow()),
        "speech": box(0, tp=2, sequence_parallel=True, **talker(reads_text=True)),
    }
    return spec(modules, microbatches=2, mbs=2, max_images=2, max_patches=9)


def packed_and_ragged() -> Spec:
    """Records of several documents and images of different sizes, over cp 2 each."""
    vision, language = box(0, cp=2), box(0, cp=2, recompute="full")
    return spec(
        {"vision": vision, "language": language},
        microbatches=2, mbs=2, packing=True, max_images=2, max_documents=2, max_patches=9,
    )  # fmt: skip


@pytest.mark.parametrize(
    "made",
    [
        packed_and_ragged(),
        piped(packing=True),
        split_heads(cp=2),
        beside_rows(),
        windowed(cp=2),
        sliding({"packing": True}, cp=2),
    ],
    ids=[
        "packed and ragged over cp",
        "over pp and cp",
        "hybrid over cp",
        "rows beside tokens",
        "windows over cp",
        "sliding windows over cp",
    ],
)
def test_whole_runs_by_lists_are_proved(made: Spec) -> None:
    assert failures(verdicts(made, prepare=by_lists)) == []


def engine_spec() -> Spec:
    """Language with blocks of Transformer Engine, over tp and cp, in float64."""
    vision = box(0, cp=2, dp=2)
    language = box(
        0, tp=2, cp=2, sequence_parallel=True, model={"kv_heads": 2, "qk_norm": True},
    )  # fmt: skip
    made = shrink(
        spec(
            {"vision": vision, "language": language},
            microbatches=2, mbs=2, packing=True, max_images=2, max_documents=2, max_patches=9,
        )
    )  # fmt: skip
    return made.replace(modules={**made.modules, "language": made.language.replace(backend=ENGINE)})


def test_whole_runs_with_blocks_of_transformer_engine_are_proved() -> None:
    assert failures(verdicts_as_it_is(engine_spec(), prepare=by_stand_ins)) == []


def test_the_proof_rejects_wrong_starts_of_documents() -> None:
    assert failures(verdicts_as_it_is(engine_spec(), prepare=by_stand_ins_that_start_early))


@pytest.mark.parametrize("plant", [aligned_at_the_upper_left, keys_from_the_first_image_on])
def test_the_proof_rejects_wrong_lists(plant: Callable[[], None]) -> None:
    found = failures(verdicts(packed_and_ragged(), prepare=plant))
    assert [f for f in found if "too small" not in f and not f.endswith("to the floor")]
