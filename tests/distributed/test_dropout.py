"""Dropout: every layout drops the same numbers as one rank, and no evaluation drops any."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.distributed.test_hybrid import hybrid
from tests.support.planted_experts import mixture
from tests.support.proof import failures, training_verdicts, verdicts
from tests.support.specs import box, spec

from mimo_launch.checks.adapters import targets_of
from mimo_launch.checks.all_checks import check
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers import dropout
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models import token_numbers
from mimo_launch.spec.spec import Spec

LORA = {"rank": 3, "alpha": 5.0, "dropout": 0.3}
DROPS = {"dropout": 0.2, "attention_dropout": 0.25}


def made(
    vision: dict[str, Any] | None = None, language: dict[str, Any] | None = None, **rest: Any
) -> Spec:
    """Vision and language that drop what they add; language also drops weights of attention."""
    modules = {
        "vision": box(**({"dropout": 0.2} | (vision or {}))),
        "language": box(**(DROPS | (language or {}))),
    }
    return spec(modules, **({"microbatches": 2, "mbs": 2} | rest))


# Models with every map that an adapter may update; whole ones between regions, too.
UPDATED: dict[str, dict[str, Any]] = {
    "per-layer embeddings": {"kind": "decoder", "per_layer_embeddings": {"width": 4, "padding": 0}},
    "latent attention": {
        "kind": "decoder", "mla": {"q_rank": 6, "kv_rank": 6, "rope_head_dim": 2},
    },
    "clipped maps": {"kind": "gemma4_vision", "clipped_linears": True, "shuffle": 1},
    "aut": {"kind": "aut"},
    "hybrid": hybrid({"tp": 2}, "M*G-"),
}  # fmt: skip


def updated(model: dict[str, Any]) -> Spec:
    """A module of which adapters update every map, each after dropout, over tp."""
    name = "language" if model["kind"] in {"decoder", "hybrid"} else "encoder"
    small = spec({"language": box(0), name: box(0, tp=2, model=model)})
    kind = kind_of(small.modules[name].model)
    targets = sorted({*targets_of(kind, small.modules[name].model.layers)})
    own = box(0, tp=2, model=model, adapter={**LORA, "targets": targets})
    return spec({"language": box(0), name: own}, microbatches=2, mbs=2, max_frames=16, max_images=2)


@pytest.mark.parametrize("name", UPDATED)
def test_updates_of_every_map_drop_what_they_read(name: str) -> None:
    made = updated(UPDATED[name])
    assert not [finding for finding in check(made) if finding.is_error]
    assert failures(verdicts(made)) == []


LAYOUTS: dict[str, Callable[[], Spec]] = {
    "one rank, another seed": lambda: made(seed=5),
    "adapters, tp 2": lambda: made({"tp": 2, "adapter": LORA}, {"tp": 2, "adapter": LORA}),
    "sequence parallel, heads shared": lambda: made(
        {"tp": 2, "dp": 2, "sequence_parallel": True, "adapter": LORA},
        {"tp": 4, "sequence_parallel": True, "model": {"kv_heads": 2}, "adapter": LORA},
    ),
    "dp 2, fully sharded": lambda: made(
        {"dp": 2, "sharding": "full"}, {"dp": 2, "sharding": "full"}
    ),
    "pp 2, tied, parts recomputed": lambda: made(
        {"dp": 2, "recompute": ["mlp"]},
        {
            "pp": 2,
            "model": {"tied": True},
            "adapter": LORA,
            "recompute": ["attention", "norms"],
        },
    ),
    "cp 2, recomputed": lambda: made(
        {"cp": 2, "recompute": "full", "adapter": LORA},
        {"cp": 2, "tp": 2, "first": 0, "recompute": "full", "adapter": LORA},
    ),
    "cp 2, sequence parallel, packed": lambda: made(
        {"dp": 2}, {"cp": 2, "tp": 2, "sequence_parallel": True}, packing=True
    ),
    "experts": lambda: made(
        {"dp": 4},
        {"tp": 2, "dp": 2, "experts": {"ep": 2}, "model": mixture(width=8, shared=1)},
    ),
    "hybrid": lambda: made(
        {"dp": 2}, {"cp": 2, "tp": 2, "model": hybrid({"tp": 2, "cp": 2}, "M*-M"), "adapter": LORA}
    ),
    "windows, class tokens": lambda: made(
        {"cp": 2, "model": {"class_token": True, "registers": 2, "layers": 2}},
        {"model": {"sliding_window": {"size": 6}}},
    ),
    "frozen vision, interleaved": lambda: made(
        {"dp": 2, "frozen": True},
        {"pp": 2, "model": {"layers": 4}},
        kind="interleaved",
        virtual_stages=2,
    ),
    "uneven microbatches": lambda: made({"dp": 2}, {"dp": 2}, microbatches=3, mbs=1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_drops_what_one_rank_drops(layout: str) -> None:
    found = verdicts(LAYOUTS[layout]())
    assert not failures(found)


def test_each_step_drops_other_numbers_and_an_evaluation_none() -> None:
    evaluated = made({"dp": 2}, {"tp": 2}, eval={"every": 1, "samples": 2})
    assert not failures(training_verdicts(evaluated))


def drawn_by_rank() -> None:
    """Each rank draws its own numbers."""
    correct = token_numbers.states

    def states(seed: int, *rest: Any) -> torch.Tensor:
        return correct(seed + torch.distributed.get_rank(), *rest)

    token_numbers.states = states


def other_when_recomputed() -> None:
    """A mask follows a state that every draw moves, as a generator's."""
    correct, calls = dropout.Dropout.forward, [0]

    def forward(self: Any, x: Any, tokens: Any, first: int = 0) -> Any:
        calls[0] += 1
        return correct(self, x, tokens + calls[0], first)

    dropout.Dropout.forward = forward  # type: ignore[method-assign]


def scale_missing() -> None:
    """What stays is not divided by the share that stays."""
    correct = dropout.Dropout.__init__

    def made_plain(self: Any, *args: Any) -> None:
        correct(self, *args)
        self._scale = 1.0

    dropout.Dropout.__init__ = made_plain  # type: ignore[method-assign]


def features_from_zero() -> None:
    """A rank numbers the features that it has from 0 on."""
    correct = dropout.Dropout.forward

    def forward(self: Any, x: Any, tokens: Any, first: int = 0) -> Any:
        return correct(self, x, tokens)

    dropout.Dropout.forward = forward  # type: ignore[method-assign]


BUGS: dict[str, tuple[Callable[[], None], str]] = {
    "by rank": (drawn_by_rank, "dp 2, fully sharded"),
    "recomputed": (other_when_recomputed, "cp 2, recomputed"),
    "scale": (scale_missing, "one rank, another seed"),
    "features": (features_from_zero, "adapters, tp 2"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_rejected(name: str) -> None:
    plant, layout = BUGS[name]
    assert failures(verdicts(LAYOUTS[layout](), prepare=plant)), f"{name} passes"


# The import of inductor warns about its own use of torch.jit.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize(
    # The default one starts a compiler of C++ for a quarter of a minute.
    "backend",
    ["aot_eager", pytest.param("inductor", marks=pytest.mark.sweep)],
)
def test_a_compiled_pass_drops_the_same(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    context = ParallelContext(compiled=True, owner=f"dropout_{backend}")
    layers = [dropout.Dropout(0.3, fused) for fused in (context.fused, lambda f, *args: f(*args))]
    tokens = dropout.states(1, 2, torch.arange(300), torch.arange(300))
    x = torch.randn(300, 96)
    compiled, plain = (layer(x, tokens, 5) for layer in layers)
    torch.testing.assert_close(compiled, plain)
    assert torch.equal(compiled == 0, plain == 0)


def test_numbers_are_dropped_at_their_rate() -> None:
    layer = dropout.Dropout(0.3, lambda function, *args: function(*args))
    tokens = dropout.states(1, 2, torch.arange(1000), torch.arange(1000))
    x = torch.ones(1000, 256, dtype=torch.float64, requires_grad=True)
    out = layer(x, tokens)
    assert abs(float((out == 0).double().mean()) - 0.3) < 0.003
    assert out[out != 0].unique().tolist() == [1 / 0.7]
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())
    layer.name("language.layers.0.drop_mlp")
    assert 0.3 < float(((layer(x, tokens) == 0) == (out == 0)).double().mean()) < 0.7
