"""A proof runs on a small spec with the layout of the large one."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.support.graphs import connector, graph_specs, talker
from tests.support.reduced import silent_losses
from tests.support.specs import box, brief, hybrid, layout_specs, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order, records_of
from mimo_launch.data.sample_sizes import sizes_drawn
from mimo_launch.kinds.tiles import Frame, Tiling
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.ovis2_vision import Ovis2VisionModel
from mimo_launch.spec.spec import Grid, HybridModel, Spec, SyntheticData, TalkerModel
from mimo_launch.verify.coverage import (
    consequences,
    fan,
    group_sharing,
    kv_sharing,
    not_proved,
    relations,
)
from mimo_launch.verify.shrink import shrink


@settings(max_examples=30, deadline=None)
@given(layout_specs(8, supported_only=False))
def test_a_shrunk_spec_is_valid_and_keeps_its_layout(made: Spec) -> None:
    small = shrink(made)
    assert not [finding for finding in check(small) if finding.is_error]
    for name, module in made.modules.items():
        kept = ("ranks", "grid", "order", "sequence_parallel", "sharding", "frozen")
        assert [getattr(small.modules[name], k) for k in kept] == [getattr(module, k) for k in kept]
    assert small.schedule == made.schedule
    for name, module in made.modules.items():
        stages = module.grid.pp
        if name == "language":
            stages *= made.schedule.virtual_stages
        before, after = module.model.layers, small.modules[name].model.layers
        assert after >= stages
        assert (after % stages > 0) == (before % stages > 0)
        assert (after // stages > 1) == (before // stages > 1)
    assert small.train.precision == "fp64"
    assert small.optimizer.kind == "sgd"


def test_shards_are_proved_on_samples_that_are_made_up() -> None:
    """Which keep what the shards may have: several images, text alone, any number of rows."""
    shards = {"kind": "webdataset", "shards": "x.tar", "tokenizer": "x", "template": "chat"}
    made = spec({"vision": box(dp=2), "language": box(2, tp=2)}, data=shards, seq=512, mbs=2)
    small = shrink(made)
    assert isinstance(small.data, SyntheticData)
    assert small.data.max_images > 1
    assert 0 < small.data.text_only < 1
    assert small.batch.seq < 512
    assert not [finding for finding in check(small) if finding.is_error]


def test_shards_that_are_packed_are_proved_in_packs_of_several_images() -> None:
    shards = {
        "kind": "webdataset", "shards": "x.tar", "tokenizer": "x", "template": "chat",
        "packing": True,
    }  # fmt: skip
    made = spec({"vision": box(dp=2), "language": box(2, tp=2)}, data=shards, seq=512, mbs=2)
    small = shrink(made)
    assert small.data.packing
    order = global_order(small, build_dataset(small))
    assert max(len(records_of(sample)) for sample in order.take(0)) > 1
    assert not [finding for finding in check(small) if finding.is_error]


def test_images_are_mixtures_of_several_words() -> None:
    """The norm of two numbers is 1 and -1: the gradients of what makes them are rounding alone."""
    model = {"kind": "ovis2_vision", "image": [2, 2], "words": 2, "tiles": {}}
    small = shrink(spec({"vision": box(0, model=model), "language": box(1)}))
    shrunk = small.modules["vision"].model
    assert isinstance(shrunk, Ovis2VisionModel)
    assert shrunk.words > 2


TIMES: dict[str, dict[str, Any]] = {
    "patches": {"time": "patches"},
    "seconds": {"time": "seconds", "per_second": 2.5},
    "nominal_seconds": {"time": "nominal_seconds", "per_second": 25},
    "exact_seconds": {"time": "exact_seconds", "per_second": 13},
    "text": {"time": "text"},
    "none": {"time": "none"},
}


HELD = {"nominal_seconds", "exact_seconds"}


@pytest.mark.parametrize("time", TIMES)
def test_an_encoder_of_videos_gets_some(time: str) -> None:
    """Images as well; each temporal patch at the time that language counts."""
    vision = {"channels": 3, "temporal_patch": 2, "shuffle": 2, "video": TIMES[time]}
    language = {"mrope": [1, 2, 1], "head_dim": 8}
    made = spec({"vision": box(0, model=vision), "language": box(1, model=language)})
    small = shrink(made)
    assert not [finding for finding in check(small) if finding.is_error]
    data, numbers = build_dataset(small), set[int]()
    later = {
        "patches": (1, 2), "seconds": (3, 5), "nominal_seconds": (25, 50), "exact_seconds": (13, 26)
    }.get(time)  # fmt: skip
    for sample in range(20):
        spans = data.describe("train", sample).spans["vision"]
        numbers.add(len(spans))
        assert [each.later for each in spans] == [None, *(later or [None] * 2)][: len(spans)]
        assert all(each.holds_text == (time in HELD) for each in spans)
        for one, other in pairwise(spans):
            assert other.position == one.position + one.rows
            assert (other.height, other.width) == (one.height, one.width)
    assert numbers == {1, 2, 3}


def test_frames_of_tiles_are_no_tiles() -> None:
    """The learned row stands behind the last frame; an image is cut into tiles all the same."""
    tiles = {"grids": [[1, 2], [2, 2]], "most": 3}
    vision = {"video": {"time": "none"}, "tiles": tiles, "image": [2, 2], "positions": "learned"}
    small = shrink(spec({"vision": box(0, model=vision), "language": box(1)}))
    assert not [finding for finding in check(small) if finding.is_error]
    data = build_dataset(small)
    spans = [data.describe("train", sample).spans["vision"] for sample in range(20)]
    frames = [[Frame(is_last=False)] * (n - 1) + [Frame(is_last=True)] for n in (2, 3)]
    assert all([each.shown for each in one] in frames for one in spans if len(one) > 1)
    alone = {type(one[0].shown) for one in spans if len(one) == 1}
    assert Tiling in alone
    assert Frame not in alone


def test_a_rank_keeps_several_heads_of_either_kind() -> None:
    model = {"heads": 32, "kv_heads": 8, "hidden": 256, "head_dim": None}
    small = shrink(spec({"language": box(0, tp=2, model=model)}))
    assert (small.language.model.heads, small.language.model.num_kv_heads) == (8, 4)
    full = shrink(spec({"language": box(0, tp=2, model={**model, "kv_heads": 32})}))
    assert (full.language.model.heads, full.language.model.num_kv_heads) == (4, 4)
    single = shrink(spec({"language": box(0, tp=2, model={**model, "kv_heads": 2})}))
    assert single.language.model.num_kv_heads == 2


def test_a_connector_without_queries_has_two_rows_to_attend_to() -> None:
    """Of one row, queries and keys have no gradient."""
    stack = {"kind": "audio", "stack": 3}
    modules = {"audio": box(0, model=stack), "vision": box(0, model={"shuffle": 2})}
    for queries, least in ((None, 2), (1, 1)):
        merger = box(0, **connector("audio", "vision", queries=queries))
        small = shrink(spec({**modules, "merger": merger}, max_frames=6, max_patches=4))
        assert {sizes_drawn(small, each)[0][0].rows for each in modules} == {least}


def test_windows_caps_and_growth_are_small_enough_to_be_seen() -> None:
    """Windows end within documents, caps cut small scores; what is small enough stays."""
    caps = {"attention_softcap": 50.0, "logit_softcap": 30.0}
    growth = {"query_scaling": {"beta": 0.1, "length": 8192}}
    more = {"layers": 8, "nope": {"layers": [3, 7], **growth}}
    made = spec(
        {"language": box(0, model={"sliding_window": {"size": 4096}, **caps, **growth, **more})}
    )
    small = shrink(made).language.model
    assert small.sliding_window.size == 5
    assert (small.attention_softcap, small.logit_softcap) == (2.0, 2.0)
    for found in (small.query_scaling, small.nope.query_scaling):
        assert (found.beta, found.length) == (0.5, 3)
    assert small.nope.layers == (small.layers - 1,)
    again = shrink(spec({"language": box(0, model={
        "sliding_window": {"size": 2}, "attention_softcap": 1.5, "logit_softcap": 1.0,
        "query_scaling": {"beta": 0.75, "length": 2},
    })})).language.model  # fmt: skip
    assert (again.sliding_window.size, again.attention_softcap, again.logit_softcap) == (2, 1.5, 1)
    assert (again.query_scaling.beta, again.query_scaling.length) == (0.75, 2)


def test_recurrences_take_several_chunks_and_experts_have_losses_to_be_seen() -> None:
    sizes = {"heads": 18, "groups": 6, "state": 128, "conv": 5, "chunk": 128, "min_step": 0.002}
    moe = {"experts": 64, "top_k": 8, "width": 96, "aux_loss": 0.001, "bias_update_rate": 0.001}
    model = {"kind": "hybrid", "pattern": "ME*", "mamba": sizes, "moe": moe | {"shared": 96}}
    small = shrink(spec({"language": box(0, tp=3, model=model)})).language.model
    assert (small.mamba.chunk, small.mamba.conv, small.mamba.state) == (8, 4, 6)
    assert small.mamba.min_step == 0.002
    assert (small.moe.aux_loss, small.moe.bias_update_rate) == (0.1, 0.1)
    assert small.moe.shared == 3 * 16


@pytest.mark.parametrize(
    ("layers", "full", "small_full"),
    [(6, [5], (1,)), (6, [2, 4], (0,)), (6, [], ()), (3, [0, 1, 2], (0, 1)), (1, [0], (0,))],
)
def test_a_last_layer_in_windows_stays_in_windows(
    layers: int, full: list[int], small_full: tuple[int, ...]
) -> None:
    """Blocks for further tokens are like it."""
    window = {"size": 4, "full": full}
    made = spec({"language": box(0, model={"layers": layers, "sliding_window": window})})
    assert shrink(made).language.model.sliding_window.full == small_full


@pytest.mark.parametrize(
    ("pp", "layers", "every", "first_dense", "sparse"),
    [
        (1, 7, 2, 0, [1]), (1, 6, 2, 0, [1]), (1, 4, 1, 3, [1]), (1, 9, 3, 1, [1]),
        (1, 2, 1, 0, [0, 1]), (2, 3, 3, 0, [2]), (2, 4, 3, 0, [2]),
    ],
)  # fmt: skip
def test_a_last_layer_keeps_its_experts_or_its_mlp(
    pp: int, layers: int, every: int, first_dense: int, sparse: list[int]
) -> None:
    """Blocks for further tokens are like it, too; on two stages it may be the third or fourth."""
    moe = {"experts": 8, "top_k": 2, "width": 16, "every": every, "first_dense": first_dense}
    model = {"layers": layers, "moe": moe, "mtp": {}}
    asked = spec({"language": box(0, pp=pp, model=model)}, microbatches=2)
    small = shrink(asked).language.model
    found = [each for each in range(small.layers) if small.has_experts(each)]
    assert found == sparse
    assert small.has_experts(small.layers - 1) == asked.language.model.has_experts(layers - 1)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_every_depth_of_further_tokens_has_labels_in_short_documents(depth: int) -> None:
    """Where none has, its weights have no gradient, and nothing of them is proved."""
    made = spec({"language": box(0, model={"mtp": {"depth": depth}})}, seq=8, max_documents=8)
    small = shrink(made)
    data = build_dataset(small)
    learnt = 0
    for index in range(small.batch.global_):
        _, labels = data.text("train", index)
        documents = data.documents("train", index)
        same = documents[depth:] == documents[:-depth]
        learnt += int((same & (labels[depth:] >= 0)).sum())
    assert learnt > 0
    assert small.data.max_documents == 2


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
def test_several_depths_of_further_tokens_stay_several(depth: int) -> None:
    """Each reads the one before: a proof of the first alone says nothing of the others."""
    small = shrink(spec({"language": box(0, model={"mtp": {"depth": depth}})})).language.model
    assert small.mtp is not None
    assert (small.mtp.depth > 1) == (depth > 1)
    assert small.mtp.depth <= min(depth, 3)


def test_an_adapter_starts_from_no_folder() -> None:
    """Its names are those of the weights of `init_from`, which a proof does not read either."""
    own = {"rank": 2, "init_from": "tuned"}
    small = shrink(spec({"language": box(0, init_from="folder", adapter=own)}))
    assert small.language.adapter is not None
    assert (small.language.adapter.rank, small.language.adapter.init_from) == (2, None)
    assert not [finding.headline for finding in check(small) if finding.is_error]


@pytest.mark.parametrize(
    ("pattern", "frozen"), [("EG-E", "2"), ("GE-E", "1-2"), ("-EG-", "0-1"), ("GE--E", "2-3")]
)
def test_an_adapter_keeps_its_maps_outside_of_frozen_layers(pattern: str, frozen: str) -> None:
    """Layers that are left out move others."""
    own = {"kind": "lora", "rank": 2, "targets": ["deltanet"]}
    model = {**hybrid({}, pattern), "moe": {"experts": 3, "top_k": 2, "width": 8}}
    made = spec({"language": box(0, model=model, adapter=own, frozen={"layers": frozen})})
    assert not [each for each in check(made) if each.is_error]
    assert not [each for each in check(shrink(made)) if each.is_error]


def test_a_choice_of_many_experts_stays_one_of_three() -> None:
    moe = {"experts": 64, "top_k": 8, "width": 16}
    for ep in (1, 2, 4):
        made = spec({"language": box(0, dp=4, model={"moe": moe}, experts={"ep": ep})}, mbs=2)
        small = shrink(made).language.model.moe
        assert small.top_k == 3
        assert small.experts > 3


def test_groups_of_experts_are_kept_and_shared_out_evenly() -> None:
    moe = {"experts": 48, "top_k": 8, "width": 16, "groups": 8, "top_groups": 4}
    made = spec({"language": box(0, dp=3, model={"moe": moe}, experts={"ep": 3})}, mbs=2)
    small = shrink(made)
    found = small.language.model.moe
    assert (found.groups, found.top_groups, found.experts) == (4, 2, 24)
    assert not [finding for finding in check(small) if finding.is_error]


LARGE = {
    "4,096 ranks, disjoint": spec(
        {"vision": box(0, dp=2048), "language": box(2048, tp=8, dp=256)},
        microbatches=4,
        mbs=8,
    ),
    "512 ranks, colocated": spec(
        {"vision": box(0, tp=4, dp=128), "language": box(0, tp=8, dp=64)},
        microbatches=4,
        encoder_microbatches=2,
        mbs=2,
    ),
    "48 ranks, interleaved, shared key/value heads": spec(
        {
            "vision": box(0, dp=8),
            "language": box(8, tp=8, pp=5, model={"layers": 10, "kv_heads": 4}),
        },
        microbatches=10,
        kind="interleaved",
        virtual_stages=2,
        mbs=8,
    ),
    "64 ranks, a tower with shared key/value heads": spec(
        {
            "vision": box(0, tp=16, dp=4, model={"heads": 16, "kv_heads": 2}),
            "language": box(0, tp=3, dp=4),
        },
        mbs=8,
    ),
    "64 ranks, key/value heads shared in windows alone": spec(
        {
            "vision": box(0, tp=3, dp=4),
            "language": box(
                0,
                tp=16,
                dp=4,
                model={"heads": 16, "sliding_window": {"size": 4, "full": [1], "kv_heads": 2}},
            ),
        },
        mbs=8,
    ),
    "96 ranks, Mamba groups shared over cp": spec(
        {"language": box(0, tp=4, cp=6, dp=4, model=hybrid({"tp": 4, "cp": 6}, "M*", groups=12))}
    ),
    "72 ranks, Mamba groups shared over an odd cp": spec(
        {"language": box(0, tp=4, cp=3, dp=6, model=hybrid({"tp": 4, "cp": 3}, "M*", groups=4))}
    ),
    "64 ranks, several Mamba groups for each": spec(
        {"language": box(0, tp=8, cp=4, dp=2, model=hybrid({"tp": 8, "cp": 4}, "M*", groups=96))}
    ),
    "64 ranks, Mamba groups shared over tp": spec(
        {"language": box(0, tp=8, cp=4, dp=2, model=hybrid({"tp": 8, "cp": 4}, "M*", groups=2))}
    ),
    "40 ranks, two encoders share out the ranks of language": spec(
        {"vision": box(0, dp=20), "audio": box(20, dp=20), "language": box(0, tp=2, pp=2, dp=10)},
        microbatches=2,
        mbs=2,
    ),
    "48 ranks, an encoder without replicas in the bubbles": spec(
        {
            "vision": box(0, tp=4, sharding="full"),
            "audio": box(0, tp=2, dp=2),
            "language": box(0, pp=4, tp=4, dp=3),
        },
        microbatches=4,
        kind="bubble_filling",
        mbs=4,
    ),
    "96 ranks, an idle one between, uneven stages and replicas": spec(
        {
            "vision": box(0, dp=24, pp=2, model={"layers": 5}),
            "language": box(50, dp=16, pp=4, model={"layers": 9}),
        },
        microbatches=2,
        mbs=3,
        idle_ranks="48-49",
    ),
    "128 ranks, as many ep ranks as a stage has": spec(
        {
            "language": box(
                0,
                tp=2,
                dp=64,
                experts={"ep": 128},
                model={"moe": {"experts": 128, "top_k": 2, "width": 16}},
            )
        }
    ),
    "59 ranks, which take tens of thousands of trials": spec(
        {
            "depth": box(17, tp=3, cp=3, dp=3),
            "vision": box(0, tp=3, dp=18),
            "audio": box(5, tp=3, dp=18),
            "language": box(17, cp=3, dp=9),
        },
        microbatches=6,
        encoder_microbatches=2,
    ),
    "64 ranks, a graph that shares them, in groups": spec(
        {
            "vision": box(0, dp=32),
            "merger": box(0, tp=2, dp=16, model={"kind": "connector"}, reads=["vision"]),
            "language": box(0, tp=2, dp=32),
            "drawer": box(0, dp=64, model={"kind": "flow"}, reads=["language"]),
        },
        microbatches=8,
        encoder_microbatches=4,
        generator_microbatches=4,
        mbs=2,
    ),
    "48 ranks, interleaved in front of a generator that shares them": spec(
        {
            "vision": box(0, dp=8),
            "language": box(8, tp=8, pp=5, model={"layers": 10}),
            "drawer": box(8, dp=8, model={"kind": "flow"}, reads=["language"]),
        },
        microbatches=10,
        kind="interleaved",
        virtual_stages=2,
        generator_microbatches=10,
        mbs=8,
    ),
    "96 ranks, odd sizes, partial overlap": spec(
        {"vision": box(0, tp=1, dp=9), "language": box(6, tp=5, dp=18)}, microbatches=2, mbs=1
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_grids_are_reduced_and_keep_their_relations(name: str) -> None:
    made = LARGE[name]
    small = shrink(made)
    assert world_size(small) <= 20
    assert silent_losses(made, small) == []
    # Several samples in a microbatch: their losses and rows are put together.
    assert small.batch.global_ > small.language.grid.dp * small.schedule.microbatches
    for module in made.modules:
        before, after = made.modules[module], small.modules[module]
        assert after.order == before.order
        assert (after.grid.pp > 2) == (before.grid.pp > 2)
    if isinstance(made.language.model, HybridModel):
        assert _sharing(small) == _sharing(made)


@pytest.mark.parametrize("sharding", ["optimizer", "full"])
@pytest.mark.parametrize(
    ("shard_over", "small"), [(1, (2, 1)), (2, (4, 2)), (16, (4, 2)), (32, (4, 2)), (64, (2, None))]
)
def test_several_copies_of_weights_stay_several_and_so_do_their_shards(
    sharding: str, shard_over: int, small: tuple[int, int | None]
) -> None:
    made = spec({"language": box(0, dp=64, sharding=sharding, shard_over=shard_over)})
    found = shrink(made).language
    assert (found.grid.dp, found.shard_over) == small


FEW = settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@FEW
@given(made=graph_specs(64).filter(lambda made: world_size(made) > 32))
def test_random_large_graphs_lose_nothing_without_saying_so(made: Spec) -> None:
    assert not silent_losses(made, shrink(made)), brief(made)


@FEW
@given(made=layout_specs(64, supported_only=False).filter(lambda made: world_size(made) > 32))
def test_random_large_specs_lose_nothing_without_saying_so(made: Spec) -> None:
    small = shrink(made)
    assert world_size(small) <= 64
    assert not silent_losses(made, small), brief(made)


def test_what_a_smaller_proof_leaves_out_is_said() -> None:
    modules = {"vision": box(0, dp=64), "language": box(64, tp=2, dp=2)}
    made = spec(modules, microbatches=4, mbs=32)
    said = {remark.key: (remark.asked, remark.proved) for remark in not_proved(made, shrink(made))}
    assert said["dp"] == (64, 4)
    assert said["fan of `vision`"] == ("fan-in, 32 to 1", "fan-in, 2 to 1")
    few = spec({"vision": box(0, dp=2), "language": box(2, tp=2)}, mbs=2)
    assert "layout" not in {remark.section for remark in not_proved(few, shrink(few))}


def test_every_bridge_of_a_graph_has_a_fan_that_a_proof_may_lose() -> None:
    made = LARGE["64 ranks, a graph that shares them, in groups"]
    fans = {key: fan for key, fan in consequences(made).items() if key.startswith("fan of")}
    assert fans == {
        "fan of `vision>merger`": "fan-in, 2 to 1",
        "fan of `merger`": "fan-out, 1 to 2",
        "fan of `language>drawer`": "fan-out, 1 to 2",
    }
    assert relations(made)["schedule of `drawer`"] == "several groups of microbatches"


def test_a_small_spec_of_another_placement_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {"vision": box(0, dp=24), "language": box(24, dp=24)}
    beside = spec(modules, mbs=1)
    shared = spec({**modules, "language": box(12, dp=24)}, mbs=1)
    monkeypatch.setattr("mimo_launch.verify.shrink.regrid", lambda _: beside)
    with pytest.raises(ValueError, match="ranks of `vision` and `language` would change"):
        shrink(shared)


def test_modules_that_need_more_ranks_than_a_proof_has_are_refused() -> None:
    encoders = {f"e{at}": box(at) for at in range(63)}
    made = spec(encoders | {"language": box(63)}, idle_ranks="64")
    with pytest.raises(ValueError, match="more than 64 ranks"):
        shrink(made)


def _sharing(made: Spec) -> tuple[bool, bool, bool]:
    """Say if tp ranks share a group, if cp ranks do, and if a rank has several of its own."""
    assert isinstance(made.language.model, HybridModel)
    assert made.language.model.mamba is not None
    groups, grid = made.language.model.mamba.groups, made.language.grid
    local = max(1, groups // grid.tp)
    return groups < grid.tp, local < grid.cp, local > grid.cp


def test_a_proof_is_computed_by_torch_s_layers() -> None:
    """The others do not compute in float64."""
    engine = {"backend": "transformer_engine", "model": {"head_dim": 8}}
    small = shrink(spec({"language": box(0, tp=2, **engine)}, train={"precision": "bf16"}))
    assert small.modules["language"].backend == "torch"
    assert not [finding for finding in check(small) if finding.is_error]


def test_a_proof_of_mamba_layers_is_no_matter_of_rounding() -> None:
    """Of every head some time steps are cut, not all; no group norm is over a single number."""
    mamba = {"heads": 8, "groups": 8, "head_dim": 1, "state": 4, "min_step": 0.05}
    model = {"kind": "hybrid", "pattern": "MM*", "mamba": mamba}
    small = shrink(spec({"language": box(0, tp=2, cp=2, model=model)})).language.model
    assert isinstance(small, HybridModel)
    assert small.mamba is not None
    assert 0.001 < small.mamba.min_step <= 0.005
    assert small.mamba.inner // small.mamba.groups == 4


@pytest.mark.parametrize("start", [10, 11, None])
def test_a_first_code_is_a_later_one_in_both_specs(start: int | None) -> None:
    model = {
        "codebooks": 2, "vocab": 13, "start": start,
        "predictor": {"layers": 1, "heads": 2, "vocab": 11},
    }  # fmt: skip
    made = spec({"language": box(0), "speech": box(0, **talker(model=model))})
    for each in (made, shrink(made)):
        speech = each.modules["speech"].model
        assert isinstance(speech, TalkerModel)
        assert speech.predictor is not None
        assert (speech.start_code < speech.predictor.vocab) == (start == 10)


def test_heads_are_whole_on_a_rank_from_one_each_on() -> None:
    said = [kv_sharing(heads, 4).partition(" ")[0] for heads in (1, 2, 4, 8)]
    assert said == ["one", "several,", "whole", "whole"]


def test_groups_are_one_on_a_rank_where_tp_and_cp_share_them_out() -> None:
    grid = Grid(tp=2, cp=2)
    said = [group_sharing(groups, grid) for groups in (1, 2, 4, 8)]
    of_several = ["shared by tp ranks", "shared by cp ranks"]
    assert said == [*of_several, "one on each rank", "several on each rank"]


def test_fans_have_the_direction_in_which_replicas_become_fewer_or_more() -> None:
    said = {fan(*sizes) for sizes in ((2, 2), (3, 3))}, fan(4, 2), fan(2, 4), fan(3, 2), fan(2, 3)
    assert said == ({"one-to-one"}, "fan-in", "fan-out", "uneven fan-in", "uneven fan-out")
