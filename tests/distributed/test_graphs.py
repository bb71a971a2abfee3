"""Any graph of modules equals one rank: every kind of bridge, cut over every axis on both ends."""

from typing import Any

import pytest
from tests.support.graphs import connector, flow, talker
from tests.support.proof import failures, training_verdicts, verdicts
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.diag.diagnostic import Severity
from mimo_launch.spec.spec import Spec

SP: dict[str, Any] = {"sequence_parallel": True}
FULL: dict[str, Any] = {"sharding": "full"}
SCALED: dict[str, Any] = {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}
IMAGES: dict[str, Any] = {"max_images": 2, "text_only": 0.3, "max_patches": 8}


ENCODERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a chain on three ranks": (
        {"vision": box(0), "merger": box(1, **connector("vision")), "language": box(2)},
        {},
    ),
    "queries, colocated, dp 2": (
        {
            "vision": box(0, dp=2),
            "merger": box(0, dp=2, **connector("vision", queries=3)),
            "language": box(0, dp=2),
        },
        {},
    ),
    "tp in front, pp behind": (
        {
            "vision": box(0, tp=2),
            "merger": box(2, pp=2, **connector("vision", queries=3)),
            "language": box(4, tp=2, pp=2),
        },
        {"microbatches": 3},
    ),
    "sequence parallel, cp": (
        {
            "vision": box(0, tp=2, **SP),
            "merger": box(2, tp=2, cp=2, **SP, **connector("vision", queries=3)),
            "language": box(6, cp=2),
        },
        {"max_patches": 8},
    ),
    "two towers by width, cp, uneven dp": (
        {
            "vision": box(0, dp=2),
            "depth": box(2),
            "merger": box(1, cp=2, **connector("vision", "depth", merge="width")),
            "language": box(0, dp=3),
        },
        {"max_patches": 8},
    ),
    "three towers by rows, queries, several images": (
        {
            "vision": box(0, dp=2),
            "audio": box(2, model={"kind": "audio"}),
            "depth": box(3),
            "merger": box(1, tp=2, **connector("vision", "audio", "depth", queries=2)),
            "language": box(4),
        },
        IMAGES,
    ),
    "two readers of one encoder": (
        {
            "vision": box(0, dp=2),
            "merger": box(2, **connector("vision", queries=2)),
            "language": box(3, tp=2, reads=["vision", "merger"]),
        },
        IMAGES,
    ),
    "a chain of three, overlapping": (
        {
            "vision": box(0, dp=2, **FULL),
            "merger": box(1, dp=2, **FULL, **connector("vision", queries=2)),
            "last": box(0, tp=2, **connector("merger")),
            "language": box(0, dp=4, **FULL),
        },
        IMAGES,
    ),
    "unlike groups, evenly cut": (
        {
            "vision": box(0, dp=2, balance="none"),
            "merger": box(2, dp=2, balance="none", **connector("vision")),
            "language": box(0, tp=2, reads=["merger"]),
        },
        {"max_patches": 8},
    ),
    "positions on three axes, of a tower that language does not read": (
        {
            "vision": box(0),
            "depth": box(1),
            "merger": box(0, **connector("vision")),
            "language": box(1, model={"head_dim": 8, "mrope": [1, 2, 1]}),
        },
        {"max_patches": 8},
    ),
    "a frozen tower behind a connector that trains, cp": (
        {
            "vision": box(0, frozen=True),
            # Six queries: the second rank begins with the last one of an image.
            "merger": box(1, cp=3, **connector("vision", queries=3)),
            "language": box(4, frozen=True),
        },
        {},
    ),
    "a frozen connector passes gradients to its tower": (
        {
            "vision": box(0, pp=2),
            "merger": box(2, pp=2, frozen=True, **connector("vision")),
            "language": box(0, dp=2, frozen=True),
        },
        {"encoder_microbatches": 1},
    ),
}


GENERATORS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one rank": ({"language": box(0), "drawer": box(0, **flow())}, {}),
    "behind language": ({"language": box(0), "drawer": box(1, **flow())}, {"microbatches": 3}),
    "tp in front, dp behind": (
        {"vision": box(0), "language": box(1, tp=2), "drawer": box(3, dp=2, **flow())},
        {},
    ),
    "colocated, dp 4 behind tp 2": (
        {"vision": box(0, dp=4), "language": box(0, tp=2, dp=2), "drawer": box(0, dp=4, **flow())},
        {},
    ),
    "colocated, two microbatches at once, sequence parallel, cp": (
        {
            "vision": box(0, tp=2),
            "language": box(0, tp=2, dp=2, **SP),
            "drawer": box(0, tp=2, cp=2, **SP, **flow()),
        },
        {"schedule": {"microbatches": 2, "generator_microbatches": 2}},
    ),
    "pp on both ends, tp behind": (
        {
            "vision": box(0, pp=2),
            "language": box(2, pp=2),
            "drawer": box(4, pp=2, tp=2, **flow()),
        },
        {"microbatches": 4, "mbs": 1},
    ),
    "cp on both ends, two generators with weights": (
        {
            "language": box(0, cp=2, loss_weight=0.5),
            "drawer": box(2, cp=2, **flow()),
            "painter": box(1, dp=2, **flow(loss_weight=0.3)),
        },
        {},
    ),
    "a frozen language model between two that train": (
        {
            "vision": box(0),
            "language": box(1, pp=2, frozen=True),
            "drawer": box(0, dp=2, **flow()),
        },
        {},
    ),
    "nothing trains in front of a generator": (
        {
            "vision": box(0, frozen=True),
            "language": box(
                1,
                dp=2,
                frozen=True,
                experts={"tp": 2},
                model={"moe": {"experts": 4, "top_k": 2, "width": 4}},
            ),
            "drawer": box(0, dp=2, **flow()),
        },
        {},
    ),
    "a frozen generator": (
        {"vision": box(0), "language": box(1), "drawer": box(2, frozen=True, **flow())},
        {},
    ),
    "packed, overlapping, fully sharded": (
        {
            "vision": box(0, dp=2, **FULL),
            "language": box(0, dp=4, **FULL),
            "drawer": box(2, dp=4, **FULL, **flow()),
        },
        {"packing": True},
    ),
    "only language and no loss of its own": (
        {"language": box(0, tp=2, loss_weight=0.0), "drawer": box(0, dp=2, **flow())},
        {},
    ),
    "GPipe, a connector in front and a generator behind": (
        {
            "vision": box(0),
            "merger": box(1, **connector("vision", queries=2)),
            "language": box(2, pp=2),
            "drawer": box(0, dp=2, **flow()),
        },
        {"kind": "gpipe", "microbatches": 4},
    ),
    "interleaved": (
        {"vision": box(0), "language": box(0, pp=2), "drawer": box(2, **flow())},
        {"kind": "interleaved", "virtual_stages": 2, "microbatches": 4},
    ),
    "connectors behind language, cut in other ways than both ends": (
        {
            "language": box(0, dp=2),
            "adapter": box(1, tp=2, cp=2, **SP, **connector("language", queries=3)),
            "last": box(0, dp=2, **connector("adapter")),
            "drawer": box(1, dp=2, **FULL, **flow(reads=["last"])),
        },
        {},
    ),
    "a frozen connector behind language, a talker, and a flow beside it": (
        {
            "vision": box(0),
            "language": box(0, tp=2, pp=2, **SP),
            "adapter": box(1, pp=2, frozen=True, **connector("language")),
            "talker": box(3, **talker(reads=["adapter"])),
            "drawer": box(0, **flow()),
        },
        {"packing": True},
    ),
    "bubble filling": (
        {"vision": box(0, dp=2), "language": box(0, pp=2), "drawer": box(2, **flow())},
        {"kind": "bubble_filling", "microbatches": 4, "encoder_microbatches": 2},
    ),
}


# A shared expert with a gate, as in the talker of Qwen3-Omni.
EXPERTS: dict[str, Any] = {
    "layers": 2, "qk_norm": True,
    "moe": {
        "experts": 4, "top_k": 2, "width": 16, "normalize": False, "shared": 16,
        "shared_gate": True,
    },
}  # fmt: skip
SPARSE: dict[str, Any] = {
    "layers": 4, "moe": {"experts": 4, "top_k": 2, "width": 16, "every": 2}
}  # fmt: skip
# A code predictor, as in Qwen3-Omni, but the code before a first frame is one of the later ones.
FRAMES: dict[str, Any] = {
    "layers": 2, "codebooks": 3, "vocab": 13, "start": 10, "qk_norm": True,
    "predictor": {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 6, "vocab": 11, "mlp": 24},
}  # fmt: skip
# The state that it reads.
INSIDE: dict[str, Any] = {"reads_layer": 1}
TALKERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "colocated, dp 2": (
        {"language": box(0, dp=2), "speech": box(0, dp=2, **talker(reads_text=True))},
        {},
    ),
    "disjoint, sequence parallel, cp": (
        {
            "language": box(0, tp=2, **SP),
            "speech": box(2, tp=2, cp=2, **SP, **talker(reads_text=True, model=SCALED)),
        },
        {},
    ),
    "pp on both ends, text from the last stage, packed": (
        {
            "language": box(0, pp=2, **FULL),
            "speech": box(2, pp=2, **FULL, **talker(reads_text=True, loss_weight=0.5)),
        },
        {"packing": True},
    ),
    "behind a connector, where it reads no text, language in stages": (
        {
            "language": box(0, pp=2),
            "adapter": box(1, **connector("language", queries=2)),
            "speech": box(0, **talker(reads_text=True, reads=["adapter"])),
        },
        {},
    ),
    "tp without sequence parallelism, more ranks than key heads": (
        {
            "language": box(0, tp=2, pp=2, model={"tied": True}),
            "speech": box(1, tp=2, **talker(model={"kv_heads": 1, "qk_norm": True})),
        },
        {},
    ),
    "of experts over ep, disjoint, sequence parallel": (
        {
            "language": box(0),
            "speech": box(
                1, tp=2, dp=2, **SP, **talker(reads_text=True, model=EXPERTS), experts={"ep": 2}
            ),
        },
        {},
    ),
    "of experts in some layers, split over tp, cp and pp, beside language of experts": (
        {
            "language": box(0, dp=2, model={"moe": {"experts": 4, "top_k": 2, "width": 16}}),
            "speech": box(0, tp=2, cp=2, pp=2, **talker(model=SPARSE), experts={"tp": 2, "ep": 2}),
        },
        {"packing": True},
    ),
    "with a code predictor, alone": (
        {"language": box(0), "speech": box(0, **talker(reads_text=True, model=FRAMES))},
        {},
    ),
    "with a code predictor, tp, cp and sequence parallel": (
        {
            "language": box(0, tp=2),
            "speech": box(0, tp=2, cp=2, **SP, **talker(reads_text=True, model=FRAMES)),
        },
        {},
    ),
    "with a code predictor, sequence parallel, replicas without a clip": (
        {"language": box(0), "speech": box(0, tp=2, dp=2, **SP, **talker(model=FRAMES))},
        {"text_only": 0.8},
    ),
    "with a code predictor, pp of both, fully sharded, packed": (
        {
            "language": box(0, pp=2, model={"tied": True}),
            "speech": box(0, pp=2, dp=2, **FULL, **talker(model={**FRAMES, **SPARSE})),
        },
        {"packing": True},
    ),
    "with a code predictor, pp and tp, apart from language of dp 2": (
        {
            "language": box(0, dp=2),
            "speech": box(2, pp=2, tp=2, **talker(reads_text=True, model=FRAMES)),
        },
        {},
    ),
    "states of a layer, text instead, as in Qwen3-Omni": (
        {
            "vision": box(0),
            "language": box(0, model={"layers": 2}),
            "speech": box(1, **talker(reads_text="instead", model={**FRAMES, **INSIDE})),
        },
        {},
    ),
    "states of a layer, text instead, language over pp, tp and sequence parallel": (
        {
            "vision": box(0, dp=2),
            "language": box(0, pp=2, tp=2, **SP, model={"layers": 3}),
            "speech": box(
                4, tp=2, **SP, **talker(reads_text="instead", model={**EXPERTS, **INSIDE})
            ),
        },
        {},
    ),
    "states of a layer, text instead, language over cp and dp, packed": (
        {
            "vision": box(0, dp=2),
            "language": box(0, cp=2, dp=2, **FULL, model={"layers": 2, "tied": True}),
            "speech": box(
                0, tp=2, cp=2, **talker(reads_text="instead", model={**FRAMES, **INSIDE})
            ),
        },
        {"packing": True},
    ),
    "states of a layer in interleaved stages, beside added text": (
        {
            "vision": box(0),
            "language": box(0, pp=2, model={"layers": 4}),
            "speech": box(0, pp=2, **talker(reads_text=True, model={"reads_layer": 2})),
        },
        {"kind": "interleaved", "virtual_stages": 2},
    ),
    "states of a layer, text instead, behind a connector": (
        {
            "language": box(0, pp=2, model={"layers": 2}),
            "adapter": box(1, **connector("language", queries=2)),
            "speech": box(0, **talker(reads_text="instead", model=FRAMES, reads=["adapter"])),
        },
        {},
    ),
    "beside a flow, overlapping, frozen language": (
        {
            "vision": box(0, dp=2),
            "language": box(0, tp=2, frozen=True),
            "speech": box(1, dp=2, **talker(reads_text=True)),
            "drawer": box(0, **flow()),
        },
        {"schedule": {"generator_microbatches": 2}},
    ),
}


def made_of(modules: dict[str, Any], settings: dict[str, Any], **common: Any) -> Spec:
    """Return a spec without errors, of two microbatches of two samples."""
    asked = {"microbatches": 2, "mbs": 2, **common, **settings}
    schedule = asked.pop("schedule", None)
    made = spec(modules, **asked)
    if schedule is not None:
        update = {"schedule": made.schedule.model_copy(update=schedule)}
        made = made.model_copy(update=update)
    assert not [each for each in check(made) if each.severity is Severity.ERROR]
    return made


# Each part of these is in another one, and so are hundreds of random graphs (nox -s sweep).
SELDOM = {
    "a chain on three ranks", "three towers by rows, queries, several images",
    "two readers of one encoder", "interleaved", "only language and no loss of its own",
    "GPipe, a connector in front and a generator behind", "colocated, dp 4 behind tp 2",
    "a frozen connector behind language, a talker, and a flow beside it",
    "connectors behind language, cut in other ways than both ends", "a frozen generator",
    "nothing trains in front of a generator", "beside a flow, overlapping, frozen language",
    "tp without sequence parallelism, more ranks than key heads",
    "of experts in some layers, split over tp, cp and pp, beside language of experts",
}  # fmt: skip


def named(graphs: dict[str, Any]) -> list[Any]:
    """Return parameters of their names."""
    return [pytest.param(n, marks=pytest.mark.sweep if n in SELDOM else ()) for n in graphs]


def test_graphs_that_are_proved_seldom_exist() -> None:
    assert ENCODERS.keys() | GENERATORS.keys() | TALKERS.keys() >= SELDOM


@pytest.mark.parametrize("name", named(ENCODERS))
def test_encoders_behind_encoders(name: str) -> None:
    assert failures(verdicts(made_of(*ENCODERS[name]))) == []


@pytest.mark.parametrize("name", named(GENERATORS))
def test_generators_behind_language(name: str) -> None:
    assert failures(verdicts(made_of(*GENERATORS[name], **IMAGES))) == []


@pytest.mark.parametrize("name", named(TALKERS))
def test_talkers_behind_language(name: str) -> None:
    assert failures(verdicts(made_of(*TALKERS[name], **IMAGES))) == []


def test_a_run_that_reads_and_draws_digits_is_evaluated_as_one_rank_would() -> None:
    """Of the held-out samples, some have an answer and the others ask for several pictures."""
    modules = {
        "vision": box(0, model={"patch": 4}),
        "language": box(0, model={"vocab": "digits"}),
        "adapter": box(1, **connector("language", queries=2)),
        "drawer": box(1, **flow(model={"kind": "flow", "patch": 4}, reads=["adapter"])),
    }
    data = {"kind": "digits", "tasks": ["read", "draw"], "max_digits": 4}
    made = made_of(modules, {"eval": {"samples": 6}}, data=data, seed=1)
    found = training_verdicts(made)
    assert failures(found) == []
    numbers = {(v.what, v.module): v.tensors for v in found}
    # Loss, accuracy, and the share of digits that are recognised.
    assert numbers["evaluation", "all modules"] == 3
    assert numbers["evaluation", "drawer"] == 1
    assert numbers["images and codes", "drawer"] > 3


@pytest.mark.parametrize("inside", [{}, {"predictor": {"layers": 1, "heads": 2, "vocab": 17}}])
def test_a_talker_that_says_digits_is_proved(inside: dict[str, Any]) -> None:
    modules = {
        "language": box(0, model={"vocab": "digits"}),
        "speech": box(1, dp=2, **talker(model={"codebooks": 8, "vocab": 19, **inside})),
    }
    data = {"data": {"kind": "digits", "tasks": ["read", "draw"], "max_digits": 2}}
    assert failures(verdicts(made_of(modules, data))) == []


def test_right_codes_of_held_out_clips_are_counted_as_one_rank_would() -> None:
    """In the frame that ends a clip, all codes of a predictor count as right, and the first may."""
    modules, _ = TALKERS["with a code predictor, alone"]
    found = training_verdicts(made_of(modules, {"eval": {"samples": 3}}))
    assert failures(found) == []
    numbers = {(each.what, each.module): each.tensors for each in found}
    # Loss, and accuracy of codes.
    assert numbers["evaluation", "all modules"] == 2


def test_a_run_with_a_generator_is_skipped_evaluated_and_resumed_as_one_rank_would() -> None:
    modules = {
        "vision": box(0, dp=2),
        "merger": box(0, **connector("vision", queries=2)),
        "language": box(1, tp=2),
        "drawer": box(2, dp=2, **flow(loss_weight=0.7, optimizer={"lr": 0.01})),
        "speech": box(0, tp=2, pp=2, **talker(reads_text=True)),
    }
    optimizer = {"kind": "adamw", "clip": 1.0, "weight_decay": 0.1}
    settings = {"eval": {"samples": 5}, "optimizer": optimizer}
    assert failures(training_verdicts(made_of(modules, settings, **IMAGES))) == []
