"""Multi-token prediction over every layout: the gradients of one rank, and those of a few lines."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.support.planted_mtp import EXPERTS, MTP, further
from tests.support.proof import failures, verdicts
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order, records_of, steps_of
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.launcher.run_on_ranks import Ranks, run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.models.transformer_block import MtpDepth
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.oracle import Oracle
from mimo_launch.verify.proof import rank_outcomes

# Attention as in Qwen3.5.
HYBRID: dict[str, Any] = {
    "kind": "hybrid", "pattern": "*-*-", "activation": "silu", "head_dim": 12, "qk_norm": True,
    "norm_offset": True, "gated_attention": True, "rotary_factor": 0.5, "rope_theta": 100.0,
}  # fmt: skip
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp 2": {"tp": 2},
    "tp 4, heads shared": {"tp": 4},
    "tp 2, cp 2, sequence parallel, documents": {
        "tp": 2, "cp": 2, "sequence_parallel": True, "data": {"max_documents": 3},
    },
    "cp 4, packed": {"cp": 4, "data": {"packing": True}},
    "pp 2, full sharding, tied": {"pp": 2, "sharding": "full", "model": {"tied": True}},
    "pp 2, dp 2, tp 2": {"pp": 2, "dp": 2, "tp": 2},
    "dp 2, recompute": {"dp": 2, "recompute": "full"},
    "interleaved": {
        "pp": 2, "model": {"layers": 4}, "data": {"kind": "interleaved", "virtual_stages": 2},
    },
    "bubbles": {"pp": 2, "data": {"kind": "bubble_filling"}},
    "windows, three axes, cp 2": {
        "cp": 2,
        "model": {
            "head_dim": 8, "mrope": [1, 2, 1],
            "sliding_window": {"size": 5, "full": [0], "rope_theta": 20.0},
        },
    },
    "pp 2, windows in the last layer": {
        "pp": 2, "model": {"sliding_window": {"size": 3, "full": [0]}},
    },
    "windows in all layers but the last, scaled embeddings": {
        "model": {"sliding_window": {"size": 3, "full": [1]}, "embedding_scale": 4.0},
    },
    "no positions in the last layer, norms of rotated heads": {
        "model": {"nope": {"layers": [1]}, "l2_qk_norm": True},
    },
    "as Gemma": {
        "model": {
            "tied": True, "post_norms": True, "norm_offset": True, "embedding_scale": 4.0,
            "logit_softcap": 2.0,
        },
    },
    "experts over ep, documents": {
        "dp": 2, "experts": {"ep": 2}, "model": EXPERTS, "data": {"max_documents": 3},
    },
    "experts, tp 2, pp 2, packed, recompute": {
        "tp": 2, "pp": 2, "sequence_parallel": True, "recompute": "full", "model": EXPERTS,
        "data": {"packing": True},
    },
    "dense last layer": {"model": {"moe": {**EXPERTS["moe"], "every": 2}, "layers": 3}},
    "frozen": {"frozen": True, "pp": 2},
    "hybrid, tp 2, cp 2, documents": {
        "tp": 2, "cp": 2, "model": HYBRID, "data": {"max_documents": 3},
    },
    "hybrid, pp 2, three axes": {"pp": 2, "model": {**HYBRID, "mrope": [1, 1, 1]}},
    "hybrid, experts over ep, packed": {
        "dp": 2, "experts": {"ep": 2}, "model": {**HYBRID, **EXPERTS, "pattern": "*E*-"},
        "data": {"packing": True},
    },
    "hybrid without positions, squared ReLU": {
        "tp": 2, "recompute": "full", "model": {"kind": "hybrid", "pattern": "-*-"},
    },
}  # fmt: skip
OFTEN = {
    "dense last layer",
    "dp 2, recompute",
    "pp 2, windows in the last layer",
    "windows in all layers but the last, scaled embeddings",
    "no positions in the last layer, norms of rotated heads",
    "hybrid, tp 2, cp 2, documents",
    "hybrid, experts over ep, packed",
    "tp 2, cp 2, sequence parallel, documents",
    "experts, tp 2, pp 2, packed, recompute",
}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_of_further_tokens_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(further(**LAYOUTS[layout]))) == []


def by_hand(weights: dict[str, Tensor], tokens: Tensor, labels: Tensor, documents: Tensor) -> list:
    """Return the summed losses of two layers and two depths, and the numbers of their labels."""
    seq, heads = len(tokens), 2
    place = torch.arange(seq)
    size = weights["language.layers.0.attention.q.weight"].shape[0] // heads
    slower = 1e4 ** -(torch.arange(0, size, 2).double() / size)
    turn = torch.exp(1j * torch.outer(place.double(), slower))
    seen = (place[:, None] >= place) & (documents[:, None] == documents)

    def norm(x: Tensor, name: str) -> Tensor:
        scaled = x / (x.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
        return scaled * weights[f"language.{name}.weight"]

    def turned(x: Tensor) -> Tensor:
        first, second = x.view(seq, heads, size).chunk(2, dim=2)
        both = torch.complex(first, second) * turn[:, None]
        return torch.cat([both.real, both.imag], dim=2)

    def block(x: Tensor, name: str) -> Tensor:
        def product(y: Tensor, part: str) -> Tensor:
            return y @ weights[f"language.{name}.{part}.weight"].T

        y = norm(x, f"{name}.attention_norm")
        q, k = (turned(product(y, f"attention.{part}")) for part in "qk")
        v = product(y, "attention.v").view(seq, heads, size)
        scores = torch.einsum("qhk,shk->hqs", q, k) / size**0.5
        share = scores.masked_fill(~seen, -torch.inf).softmax(dim=2)
        x = x + product(torch.einsum("hqs,shk->qhk", share, v).flatten(1), "attention.o")
        y = norm(x, f"{name}.mlp_norm")
        return x + product(F.silu(product(y, "mlp.gate")) * product(y, "mlp.up"), "mlp.down")

    table, head = (weights[f"language.{name}.weight"] for name in ("embedding", "head"))
    x, found = table[tokens], []
    for layer in range(2):
        x = block(x, f"layers.{layer}")
    x = norm(x, "norm")
    for k in range(3):
        if k:
            token = norm(table[tokens.roll(-k)], f"mtp.{k - 1}.token_norm")
            x = torch.cat([token, norm(x, f"mtp.{k - 1}.hidden_norm")], dim=1)
            x = x @ weights[f"language.mtp.{k - 1}.project.weight"].T
            x = norm(block(x, f"mtp.{k - 1}.block"), f"mtp.{k - 1}.norm")
        learned = [
            (i, labels[i + k])
            for i in range(seq - k)
            if labels[i + k] != IGNORE_LABEL and documents[i + k] == documents[i]
        ]
        chances = (x @ head.T)[:, :NUM_WORDS].log_softmax(dim=1)
        found.append((-sum(chances[i, label] for i, label in learned), len(learned)))
    return found


NUM_WORDS = 24
FEW_LINES: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp 2, cp 2": {"tp": 2, "cp": 2},
    "pp 2, dp 2": {"pp": 2, "dp": 2},
}


@pytest.mark.parametrize("layout", FEW_LINES)
def test_losses_and_gradients_are_those_of_a_few_lines(layout: str) -> None:
    """One step of text, with several documents in a sequence."""
    model = {**MTP, "layers": 2, "hidden": 16, "heads": 2, "vocab": NUM_WORDS}
    language = box(0, model=model, **FEW_LINES[layout])
    made = spec({"language": language}, microbatches=2, mbs=4, seq=24, max_documents=3)
    with Ranks(world_size(made)) as ranks:
        outcomes = [each[0] for each in ranks.run(rank_outcomes, made, None, timeout_s=120)]
    losses, gradients = right_losses(made)
    outcome = outcomes[-1]
    assert outcome.losses == pytest.approx(losses, rel=1e-10)
    weighted = losses["language"] + 0.35 * (losses["language.mtp"] + losses["language.mtp2"])
    assert outcome.loss == pytest.approx(weighted, rel=1e-10)
    seen = set()
    for piece in (piece for each in outcomes for piece in each.gradients):
        shape = zip(piece.offsets, piece.values.shape, strict=True)
        want = gradients[piece.name][tuple(slice(first, first + size) for first, size in shape)]
        assert float((piece.values - want).norm()) <= 1e-10 * float(want.norm())
        seen.add(piece.name)
    assert {f"language.mtp.{k}.project.weight" for k in (0, 1)} <= seen


def right_losses(made: Spec) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return losses and gradients of the first step by hand, with weights drawn as in runs."""
    oracle = Oracle(made, randomise=True)
    weights = {name: each.requires_grad_() for name, each in oracle.weights.items()}
    sums, terms = [torch.zeros((), dtype=torch.float64)] * 3, [0] * 3
    [ids] = steps_of(global_order(made, oracle.dataset), 1)
    for index in (record for sample in ids for record in records_of(sample)):
        tokens, labels = (torch.from_numpy(x) for x in oracle.dataset.text("train", index))
        documents = torch.from_numpy(oracle.dataset.documents("train", index))
        for k, (loss, number) in enumerate(by_hand(weights, tokens, labels, documents)):
            sums[k], terms[k] = sums[k] + loss, terms[k] + number
    means = [each / number for each, number in zip(sums, terms, strict=True)]
    grads = torch.autograd.grad(means[0] + 0.35 * (means[1] + means[2]), list(weights.values()))
    names = ("language", "language.mtp", "language.mtp2")
    found = {name: float(mean.detach()) for name, mean in zip(names, means, strict=True)}
    return found, dict(zip(weights, grads, strict=True))


def depths_of_an_evaluation(made: Spec) -> tuple[int, list[str]]:
    """Return how often a depth runs in an evaluation, and the losses that are not 0."""
    forward, calls = MtpDepth.forward, 0

    def counted(self: MtpDepth, *args: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return forward(self, *args)

    MtpDepth.forward = counted  # type: ignore[method-assign]
    inputs = step_inputs(build_dataset(made), "heldout", tuple(range(made.batch.global_)), 0)
    with RankSession(Plan.of(made), randomise=True) as session:
        step = session.executor.run_forward(session.mine.evaluation, inputs)
    return calls, [name for name, loss in step.losses.items() if loss]


def test_an_evaluation_runs_no_depth() -> None:
    made = spec({"language": box(0, model={**MTP, "layers": 2})}, mbs=2, seq=24)
    assert run_ranks(depths_of_an_evaluation, made, world_size=1) == [(0, ["language"])]
