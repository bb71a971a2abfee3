"""Blocks, steps and checkpoints with Transformer Engine against those with torch's layers.

The bar is the error of torch's layers in bf16 against float64: Transformer Engine may have 1.5
times it. With -s the errors of both are printed.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support import engine_blocks, engine_steps
from tests.support.gpu_ranks import engine_ranks
from tests.support.lists import EARLY

from mimo_launch.diag.installed import ENGINE
from mimo_launch.launcher.run_on_ranks import Ranks
from mimo_launch.spec.module import Recompute

pytestmark = pytest.mark.gpu

KEY_BIAS = ".attention.k.bias"  # Without positions its gradient is exactly zero.


@pytest.fixture(scope="module")
def lasting_ranks() -> Iterator[Callable[[int], Ranks]]:
    """The same ranks for all tests of blocks."""
    with ExitStack() as stack:
        made: dict[int, Ranks] = {}

        def get(gpus: int) -> Ranks:
            if gpus not in made:
                made[gpus] = stack.enter_context(engine_ranks(gpus))
            return made[gpus]

        yield get


@pytest.mark.parametrize(
    ("gpus", "name"),
    [
        *((1, name) for name in engine_blocks.ONE_GPU),
        *((2, name) for name in engine_blocks.TWO_GPUS),
    ],
)
def test_a_block_is_as_exact_as_with_torch(
    gpus: int, name: str, lasting_ranks: Callable[[int], Ranks]
) -> None:
    """Output, gradient of the input, and of every canonical tensor."""
    case = (engine_blocks.ONE_GPU | engine_blocks.TWO_GPUS)[name]
    backends = engine_steps.BACKENDS
    ranks = lasting_ranks(gpus)
    [errors, *_] = ranks.run(engine_blocks.block_errors, case, backends, "cuda", timeout_s=200)
    over = engine_blocks.above_bar(errors, "torch", ENGINE)
    assert [tensor for tensor in over if not tensor.endswith(KEY_BIAS)] == []
    assert all(errors[ENGINE][tensor] < 1e-2 for tensor in over)


@pytest.mark.parametrize("name", engine_blocks.PACKED_CP2)
def test_a_wrong_start_of_a_document_over_cp_is_seen(
    name: str, lasting_ranks: Callable[[int], Ranks]
) -> None:
    """In every tensor that attention has to do with."""
    case, ways = engine_blocks.PACKED_CP2[name], ("torch", EARLY)
    [errors, *_] = lasting_ranks(2).run(
        engine_blocks.block_errors, case, ways, "cuda", timeout_s=200
    )
    over = engine_blocks.above_bar(errors, "torch", EARLY)
    weights = {f"m.0.attention.{each}.weight" for each in "qkvo"}
    assert {"output", "input", *weights} <= set(over)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("recompute", ["none", "full", ("mlp",)])
def test_no_token_goes_forward_and_backward(
    recompute: Recompute, turned: bool, lasting_ranks: Callable[[int], Ranks]
) -> None:
    case = engine_blocks.Case(engine_blocks.VIT, recompute=recompute, turned=turned)
    found = lasting_ranks(1).run(engine_blocks.zero_tokens, case, ENGINE, "cuda", timeout_s=120)
    assert found == [((0, 320), [])]


@pytest.mark.parametrize(
    ("gpus", "name"),
    [
        *((1, name) for name in engine_steps.ONE_GPU),
        *((2, name) for name in engine_steps.TWO_GPUS),
    ],
)
def test_a_step_is_as_exact_as_with_torch(gpus: int, name: str) -> None:
    """Loss and gradients of each module, after all reductions, with FSDP2 and microbatches."""
    layouts = engine_steps.ONE_GPU | engine_steps.TWO_GPUS
    with engine_ranks(gpus) as ranks:
        errors = engine_steps.step_errors(ranks, layouts[name])
    # The loss is one number: its error is a matter of luck below what bf16 resolves.
    assert engine_blocks.above_bar(errors, "torch", ENGINE) == []
    assert all(error < 0.1 for errors in errors.values() for error in errors.values())


def test_a_checkpoint_of_one_backend_is_one_of_the_other(tmp_path: Path) -> None:
    """Initial weights and what is read are equal bit by bit, by the same names."""
    with engine_ranks(1) as ranks:
        runs = engine_steps.runs_in_turn(ranks, tmp_path / "run", (ENGINE, "torch", ENGINE))
        [other] = engine_steps.runs_in_turn(ranks, tmp_path / "other", ("torch",))
    assert [run.first_step for run in runs] == [0, 2, 4]
    pairs = [(other.before, runs[0].before)]
    pairs += [(run.after, following.before) for run, following in pairwise(runs)]
    for written, read in pairs:
        assert written.keys() == read.keys()
        assert [name for name, tensor in written.items() if not tensor.equal(read[name])] == []
    for run in runs:
        assert any(not tensor.equal(run.before[name]) for name, tensor in run.after.items())
