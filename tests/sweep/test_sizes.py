"""Random sizes of hybrid and expert models, whether they fit their grid or not (nox -s sweep).

The other sweep draws sizes that fit, and a proof makes them small. Here nothing is made to fit or
made small: what `validate` accepts is computed as it stands, and must be right.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.proof import failures
from tests.support.specs import box, spec
from tests.support.sweeps import of_this_run

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.proof import verify_spec
from mimo_launch.verify.shrink import shrink

NUM_SPECS = 500
GRIDS = [
    dict(zip(("tp", "cp", "pp", "dp"), sizes, strict=True))
    for sizes in [
        (1, 1, 1, 1), (2, 1, 1, 1), (4, 1, 1, 1), (3, 1, 1, 1), (1, 2, 1, 1), (1, 3, 1, 1),
        (2, 2, 1, 1), (1, 1, 2, 1), (1, 1, 3, 1), (2, 1, 2, 1), (1, 2, 2, 1), (1, 1, 1, 2),
        (1, 1, 1, 4), (2, 1, 1, 2), (1, 2, 1, 2), (1, 1, 2, 2),
    ]
]  # fmt: skip
FOUND: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def findings_table():
    """Print how many specs were accepted, and why the others were not."""
    yield
    print(f"\nsizes, fitting or not: {dict(FOUND.most_common())}")


@st.composite
def sized_specs(draw: st.DrawFn) -> Spec:
    """Draw text in a model of four layers at most whose sizes may or may not split over a grid."""

    def one(*choices: Any) -> Any:
        return draw(st.sampled_from(choices))

    grid = one(*GRIDS)
    ranks = grid["tp"] * grid["cp"] * grid["dp"]
    is_hybrid = one(True, False)
    model = {
        "hidden": one(24, 12, 16), "heads": one(12, 4, 12, 3), "kv_heads": one(None, 1, 2),
        "head_dim": one(4, None, 6, 4, 3), "mlp": one(12, 24, 6), "tied": one(False, True),
    }  # fmt: skip
    if is_hybrid:
        pattern = "".join(draw(st.permutations("MEM*-E")))[: one(4, 2, 3, 1)]
        model |= {"kind": "hybrid", "pattern": pattern, "rope_theta": one(None, 100.0)}
        model["mamba"] = {
            "heads": one(12, 8, 24), "groups": one(1, 2, 4, 12), "head_dim": one(3, 2, 4),
            "state": one(3, 1, 4), "conv": one(4, 1, 2, 3, 7, 40), "chunk": one(8, 1, 5, 128),
        }  # fmt: skip
    else:
        model |= {"layers": one(2, 3, 1), "qk_norm": one(False, True)}
    if not is_hybrid or "E" in pattern:
        experts = one(4, 12, 3, 2)
        model["moe"] = {
            "experts": experts, "top_k": one(2, 1, 3, experts), "width": one(4, 2, 3),
            "score": one("softmax", "sigmoid"), "normalize": one(False, True),
            "shared": one(0, 12, 6), "aux_loss": one(0.3, 0.0), "bias_update_rate": one(None, 0.05),
            "every": one(1, 1, 2), "first_dense": one(0, 0, 1),
        }  # fmt: skip
    module = box(
        0,
        **grid,
        model=model,
        experts={"ep": one(1, ranks, 2), "tp": one(1, 1, 2)} if "moe" in model else None,
        sequence_parallel=grid["tp"] > 1 and one(False, True),
        sharding=one("optimizer", "full"),
        recompute=one("none", "full", ("norms",), ("attention", "mlp")),
    )
    made = spec(
        {"language": module}, kind=one("1f1b", "gpipe"), microbatches=one(2, 1, 3),
        mbs=one(2, 1, 3), seq=one(24, 16, 32, 12), text_only=1.0, max_documents=one(1, 3),
        packing=one(False, True), seed=one(0, 1),
    )  # fmt: skip
    # Of a document of a token or two, queries and keys have no gradient.
    return made.model_copy(update={"data": made.data.model_copy(update={"min_text": 12})})


@pytest.mark.sweep
@of_this_run(NUM_SPECS)
@given(made=sized_specs())
def test_what_validate_accepts_computes_the_one_rank_gradients(made: Spec) -> None:
    codes = {item.code for item in check(made) if item.is_error}
    FOUND.update(codes or {"accepted"})
    if not codes:
        # A step that is clipped and large, as in every proof; the sizes stay.
        like = shrink(made)
        made = made.model_copy(update={"optimizer": like.optimizer, "train": like.train})
        assert failures(verify_spec(made, timeout_s=60)) == [], made
