"""Checks of widths, sequence, vocabulary, data, hosts and training settings, at their limits."""

from pathlib import Path

import pytest
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.kinds.decoder import DecoderKind
from mimo_launch.spec import language_models
from mimo_launch.spec.base import Effective, Strict
from mimo_launch.spec.load import load_text
from mimo_launch.spec.spec import DecoderModel, HybridModel, VitModel

VALID = (Path(__file__).parents[1] / "fixtures" / "valid.yaml").read_text(encoding="utf-8")
VISION, LANGUAGE = "modules.vision", "modules.language"


def codes(*overrides: str) -> list[str]:
    loaded = load_text(VALID, overrides=overrides)
    assert loaded.spec is not None, loaded.diagnostics
    return sorted(item.code for item in check(loaded.spec))


EIGHT, LENGTH = f", short_factor: {[1.5] * 8}", "original_max_position_embeddings"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.kv_heads=1"], []),
        (["model.kv_heads=2"], []),
        (["model={kind: decoder, layers: 1, hidden: 60, heads: 6, vocab: digits}"], []),
        (["grid={tp: 4}", "model.heads=2"], ["heads-over-tp"]),
        (["grid={tp: 4}", "model.kv_heads=2"], []),
        (["model.head_dim=7"], ["odd-head-size"]),
        (["model.head_dim=12", "model.rotary_factor=0.5"], []),
        (["model.head_dim=12", "model.rotary_factor=0.1"], ["odd-head-size"]),
        (["model.head_dim=12", "model.rotary_factor=0.26"], ["odd-head-size"]),
        (["model.head_dim=12", "model.rotary_factor=0.5", "model.mrope=[1,1,1]"], []),
        (
            ["model.head_dim=12", "model.rotary_factor=0.5", "model.mrope=[2,2,2]"],
            ["mrope-over-head"],
        ),
        (["model.head_dim=6"], []),
        (["model.hidden=66", "model.heads=4"], ["hidden-over-heads"]),
        (["model.hidden=66", "model.head_dim=8"], []),
        (["model.mlp=100"], []),
        (["model.mla={kv_rank: 8, rope_head_dim: 8}", "model.head_dim=24"], []),
        (["model.mla={kv_rank: 8, rope_head_dim: 24}", "model.head_dim=24"], ["mla-does-not-fit"]),
        (["model.mla={kv_rank: 8, rope_head_dim: 7}", "model.head_dim=24"], ["mla-does-not-fit"]),
        (
            ["model.mla={kv_rank: 8, rope_head_dim: 8}", "model.qk_norm=true"],
            ["mla-does-not-fit"],
        ),
        (["model.sliding_window={size: 4, full: [1]}"], []),
        (["model.sliding_window={size: 4, full: [0, 1]}"], ["setting-without-effect"]),
        (["model.sliding_window={size: 4, chunked: true, full: [2]}"], ["full-layer-not-in-model"]),
        (["model.nope={layers: [0, 1]}"], []),
        (["model.nope={layers: [1, 2]}"], ["full-layer-not-in-model"]),
        (["model.rotated_qk_norm=true", "model.qk_norm=true"], []),
        (["model.rotated_qk_norm=true"], ["setting-without-effect"]),
        (["model.clip_qkv=8.0"], []),
        (
            ["model.mla={kv_rank: 8, rope_head_dim: 8}", "model.clip_qkv=8.0"],
            ["mla-does-not-fit"],
        ),
        (["model.sliding_window={size: 4, full: [1], head_dim: 12, kv_heads: 2}"], []),
        (["model.sliding_window={size: 4, full: [1], head_dim: 7}"], ["odd-head-size"]),
        (["model.sliding_window={size: 4, full: [1], kv_heads: 3}"], ["heads-over-kv-heads"]),
        (
            [
                "model.sliding_window={size: 4, full: [1], head_dim: 12}",
                "model.head_dim=8",
                "model.mrope=[2,1,1]",
            ],
            ["mrope-over-head"],
        ),
        (
            [
                "model.sliding_window={size: 4, full: [1], head_dim: 12}",
                "model.mla={kv_rank: 8, rope_head_dim: 8}",
                "model.head_dim=24",
            ],
            ["mla-does-not-fit"],
        ),
        (["model.shared_keys={layers: 2}", "model.layers=3"], []),
        (
            [
                "model.shared_keys={layers: 2, mlp: 128}",
                "model.layers=3",
                "model.moe={experts: 4, top_k: 2, width: 32}",
            ],
            ["setting-without-effect"],
        ),
        (
            ["model.shared_keys={layers: 2}", "model.layers=4", "grid={pp: 2, dp: 2}"],
            ["shared-keys-over-stages"],
        ),
        (
            [
                "model.shared_keys={layers: 2}",
                "model.layers=4",
                "grid={pp: 2, dp: 2}",
                "stages=[1, 3]",
            ],
            [],
        ),
        (
            ["model.shared_keys={layers: 2, mlp: 66}", "model.layers=4", "grid={tp: 4}"],
            ["mlp-over-tp"],
        ),
        (
            ["model.shared_keys={layers: 2}", "model.layers=2"],
            ["shared-keys-without-source"],
        ),
        (
            ["model.shared_keys={layers: 2}", "model.layers=4", "model.nope={layers: [3]}"],
            ["shared-keys-without-source"],
        ),
        (
            [
                "model.shared_keys={layers: 2}",
                "model.layers=4",
                "model.sliding_window={size: 4, full: [3]}",
            ],
            ["shared-keys-without-source"],
        ),
        (
            [
                "model.shared_keys={layers: 2}",
                "model.layers=4",
                "model.sliding_window={size: 4, full: [1, 3]}",
            ],
            [],
        ),
        (["model.per_layer_embeddings={width: 8}"], []),
        (
            ["model.per_layer_embeddings={width: 8}", "grid={pp: 4}", "model.layers=4"],
            ["per-layer-over-stages"],
        ),
        (
            ["model.per_layer_embeddings={width: 8, padding: 100000}"],
            ["padding-outside-vocab"],
        ),
        (["model.values_from_keys=true"], []),
        (
            ["model.values_from_keys=true", "model.sliding_window={size: 4}"],
            ["setting-without-effect"],
        ),
        (["model.bidirectional_images=in_windows"], ["setting-without-effect"]),
        (
            [
                "model.bidirectional_images=in_windows",
                "model.sliding_window={size: 4, full: [1]}",
            ],
            [],
        ),
        (
            ["model.moe={experts: 4, top_k: 2, width: 16, shared: 16, separate_norms: true}"],
            [],
        ),
        (
            ["model.moe={experts: 4, top_k: 2, width: 16, separate_norms: true}"],
            ["setting-without-effect"],
        ),
        (["model.mlp_bias=true"], []),
        (
            ["model.mlp_bias=true", "model.moe={experts: 4, top_k: 2, width: 16}"],
            ["setting-without-effect"],
        ),
        (["model.bidirectional_images=true"], []),
        (["model.bidirectional_prompts=true"], []),
        (
            ["model.bidirectional_images=true", "model.bidirectional_prompts=true"],
            ["setting-without-effect"],
        ),
        (["model.bidirectional_prompts=true", "model.mtp={depth: 1}"], ["mtp-does-not-fit"]),
        (["model.rope_scaling={rope_type: linear, factor: 2.0}"], []),
        (
            ["model.rope_scaling={rope_type: linear, factor: 2.0, low_freq_factor: 9.0}"],
            ["setting-without-effect"],
        ),
        (["model.rope_scaling={factor: 2.0, beta_fast: 9.0}"], ["setting-without-effect"]),
        (["model.rope_scaling={rope_type: yarn, factor: 2.0, mscale: 1.0}"], []),
        (
            ["model.rope_scaling={rope_type: yarn, factor: 2.0, low_freq_factor: 2.0}"],
            ["setting-without-effect"],
        ),
        (
            ["model.rope_scaling={rope_type: yarn, factor: 2.0, beta_fast: 0.5}"],
            ["rope-scaling-order"],
        ),
        (["model.rope_scaling={rope_type: yarn, factor: 2.0, beta_fast: 1.0}"], []),
        *(
            ([f"model.rope_scaling={{rope_type: longrope, factor: 2.0{rest}}}"], expected)
            for rest, expected in (
                (f"{EIGHT}, {LENGTH}: 64", []),
                (f"{EIGHT}, {LENGTH}: 63", ["seq-over-original-length"]),
                (EIGHT, ["missing-key"]),
                (f", short_factor: [1.5], {LENGTH}: 64", ["rope-factors-unlike-pairs"]),
                (f", {LENGTH}: 64", ["rope-factors-unlike-pairs"]),
                (f"{EIGHT}, {LENGTH}: 64, mscale: 1.0", ["setting-without-effect"]),
            )
        ),
        (["model.mlp=101"], ["mlp-over-tp"]),
    ],
)
def test_widths_of_a_decoder(overrides: list[str], expected: list[str]) -> None:
    assert codes(*(f"{LANGUAGE}.{each}" for each in overrides)) == expected


@pytest.mark.parametrize(
    ("rope_type", "low", "high"),
    [("llama3", "low_freq_factor", "high_freq_factor"), ("yarn", "beta_slow", "beta_fast")],
)
def test_bounds_of_scaled_positions_may_be_equal(rope_type: str, low: str, high: str) -> None:
    key = f"{LANGUAGE}.model.rope_scaling="
    given = f"{key}{{rope_type: {rope_type}, factor: 2.0, {low}: 1.0, {high}: "
    assert codes(given + "1.0}") == []
    assert codes(given + "0.5}") == ["rope-scaling-order"]


def test_sequence_parallel_splits_seq_over_tp() -> None:
    sp = f"{LANGUAGE}.sequence_parallel=true"
    assert codes(sp) == []
    assert codes(sp, "batch.seq=65") == ["seq-over-tp"]
    assert codes("batch.seq=65") == []
    assert codes(f"{VISION}.sequence_parallel=true") == ["setting-without-effect"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([f"{VISION}.balance=linked"], []),
        ([f"{VISION}.balance=all"], []),
        ([f"{LANGUAGE}.balance=linked"], []),
        ([f"{LANGUAGE}.balance=all"], ["setting-without-effect"]),
        ([f"{LANGUAGE}.balance=none"], []),
        ([f"{LANGUAGE}.grid={{dp: 4}}", f"{VISION}.balance=linked"], []),
        ([f"{LANGUAGE}.grid={{dp: 4}}", f"{VISION}.balance=all"], []),
        ([f"{LANGUAGE}.grid={{dp: 4}}", f"{VISION}.balance=none"], []),
        ([f"{VISION}.grid={{tp: 4}}", f"{VISION}.balance=all"], ["setting-without-effect"]),
    ],
)
def test_balance_moves_samples(overrides: list[str], expected: list[str]) -> None:
    """Vision dp 4 in front of language dp 2."""
    assert codes(*overrides) == expected


@pytest.mark.parametrize(("seq", "expected"), [(33, []), (32, ["seq-too-short"])])
def test_seq_holds_the_longest_sample(seq: int, expected: list[str]) -> None:
    """BOS, 24 rows, ASK, 6 digits, EOS."""
    assert codes(f"batch.seq={seq}") == expected


@pytest.mark.parametrize(
    ("data", "vocab", "expected"),
    [
        ("digits", "digits", []),
        ("digits", 25, []),
        ("digits", 24, ["vocab-too-small"]),
        ("synthetic", "digits", []),
        ("synthetic", 3, []),
        ("synthetic", 2, ["vocab-too-small"]),
    ],
)
def test_vocab(data: str, vocab: object, expected: list[str]) -> None:
    assert codes(f"data={{kind: {data}}}", f"{LANGUAGE}.model.vocab={vocab}") == expected


@pytest.mark.parametrize("patch", range(1, 10))
def test_patches_tile_digits(patch: int) -> None:
    expected = [] if patch in (1, 2, 4, 8) else ["patch-over-digit"]
    assert codes(f"{VISION}.model.patch={patch}", "batch.seq=512") == expected
    synthetic = ["data={kind: synthetic}", f"{VISION}.model.channels=3"]
    assert codes(f"{VISION}.model.patch={patch}", *synthetic) == []


@pytest.mark.parametrize(
    ("data", "shuffle", "expected"),
    [
        ("digits", 1, []),
        ("digits", 2, []),
        ("digits", 4, ["shuffle-over-image"]),
        ("synthetic, max_patches: 4", 2, []),
        ("synthetic, max_patches: 3", 2, ["shuffle-over-image"]),
        ("synthetic, image: [4, 6]", 2, []),
        ("synthetic, image: [4, 6]", 4, ["shuffle-over-image"]),
        ("synthetic, image: [4, 6], max_patches: 30", 2, ["setting-without-effect"]),
        ("synthetic, image: [8, 8]", 1, []),
        ("synthetic, image: [8, 8], min_text: 3", 1, ["seq-too-short"]),
        ("synthetic, image: [16, 16], min_text: 3", 2, ["seq-too-short"]),
        ("synthetic, min_patches: 13", 1, ["empty-image-range"]),
        ("synthetic, min_images: 2", 1, ["empty-image-range"]),
        ("synthetic, min_text: 4, max_text: 3", 1, ["empty-image-range"]),
        ("synthetic, min_text: 4, max_text: 4", 1, []),
        ("synthetic, min_images: 2, max_images: 2", 1, []),
    ],
)
def test_images_hold_squares_of_patches(data: str, shuffle: int, expected: list[str]) -> None:
    """Patches of 4 x 4 pixels, seq 66."""
    model = f"{VISION}.model.shuffle={shuffle}"
    assert codes(f"data={{kind: {data}}}", model, "batch.seq=66") == expected


@pytest.mark.parametrize(
    ("gpus", "first", "expected"),
    [(8, 0, []), (2, 0, []), (3, 0, ["group-crosses-nodes"]), (2, 1, ["group-crosses-nodes"])],
)
def test_tp_groups_inside_hosts(gpus: int, first: int, expected: list[str]) -> None:
    ranks = [f"{VISION}.ranks={first}-{first + 3}", f"{LANGUAGE}.ranks={first}-{first + 3}"]
    idle = [f"idle_ranks=0-{first - 1}" if first > 1 else "idle_ranks=0"] if first else []
    assert codes(f"nodes.gpus={gpus}", *ranks, *idle) == expected


@pytest.mark.parametrize(
    ("gpus", "grid", "ranks", "help_"),
    [
        (8, "{tp: 2, cp: 8}", "0-15", "write `grid: {cp: 8, dp: 2}`, or choose sizes whose "
         "product divides 8 (a group of cp lies within tp 2 * cp 8 = 16 ranks)"),
        (4, "{tp: 4}", "2-5", "write `grid: {tp: 2, dp: 2}`, or choose ranks that start at a "
         "multiple of 4"),
        (3, "{tp: 2, dp: 2}", "0-3", "write `grid: {dp: 4}`, or choose sizes whose product "
         "divides 3 (a group of tp lies within tp 2 ranks)"),
    ],
)  # fmt: skip
def test_groups_that_cross_hosts_get_a_grid_whose_groups_do_not(
    gpus: int, grid: str, ranks: str, help_: str
) -> None:
    settings = [f"nodes.gpus={gpus}", f"{LANGUAGE}.grid={grid}", f"{LANGUAGE}.ranks={ranks}"]
    settings += [f"{VISION}.ranks=0-3", "batch={global: 64, seq: 64}"]
    spec = load_text(VALID, overrides=settings).spec
    assert spec is not None
    (found,) = check(spec)
    assert found.code == "group-crosses-nodes"
    assert found.help.startswith(help_)
    offered = help_.partition("grid: ")[2].partition("`")[0]
    assert codes(*settings, f"{LANGUAGE}.grid={offered}") == []


def test_slow_tp_axis_crosses_hosts() -> None:
    """With dp fastest the tp partners are two ranks apart."""
    assert codes("nodes.gpus=2", f"{LANGUAGE}.order=[cp, dp, tp, pp]") == ["group-crosses-nodes"]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("{kind: wsd, warmup: 20, decay: 80}", []),
        ("{kind: wsd, warmup: 21, decay: 80}", ["wsd-longer-than-run"]),
        ("{kind: wsd, warmup: 200, decay: 10}", ["wsd-longer-than-run"]),
        ("{kind: cosine, warmup: 100}", []),
        ("{kind: wsd, warmup: 30%, decay: 70%}", []),
        ("{kind: wsd, warmup: 31%, decay: 70%}", ["wsd-longer-than-run"]),
        ("{kind: linear, warmup: 3%, min_lr: 1e-5}", []),
        ("{kind: inverse_sqrt, warmup: 3%, decay: 3%}", ["setting-without-effect"]),
        ("{kind: cosine, warmup: 101}", ["warmup-beyond-run"]),
        ("{kind: cosine, min_lr: 1e-4}", []),
        ("{kind: cosine, min_lr: 1e-2}", ["setting-without-effect"]),
        ("{kind: constant}", []),
    ],
)
def test_learning_rate_schedules(schedule: str, expected: list[str]) -> None:
    assert codes(f"optimizer.schedule={schedule}") == expected


def test_per_module_warmup() -> None:
    assert codes(f"{VISION}.optimizer.warmup=500") == ["warmup-beyond-run"]


def test_one_trained_module_is_enough() -> None:
    assert codes(f"{VISION}.frozen=true") == []
    assert codes(f"{VISION}.frozen=true", f"{LANGUAGE}.frozen=true") == ["nothing-to-train"]


def test_default_targets_that_no_layer_has_are_replaced_by_maps_of_the_model() -> None:
    model = "{kind: hybrid, pattern: MM, hidden: 64, heads: 4, vocab: digits, mamba: {heads: 8}}"
    overrides = [f"{LANGUAGE}.model={model}", f"{LANGUAGE}.adapter={{rank: 2}}"]
    loaded = load_text(VALID, overrides=overrides)
    assert loaded.spec is not None, loaded.diagnostics
    (found,) = (each for each in check(loaded.spec) if each.code == "adapter-target-unknown")
    assert found.help == "write `targets: [mamba]`"


def test_an_empty_list_is_told_its_least_length() -> None:
    loaded = load_text(VALID, overrides=[f"{LANGUAGE}.adapter={{rank: 2, targets: []}}"])
    (found,) = loaded.diagnostics
    assert "must be a list of 1 or more, each text" in found.headline


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["frozen={layers: 0-1}"], []),
        (["frozen={layers: 1}"], []),
        (["frozen={layers: 1-2}"], ["frozen-layers-unknown"]),
        (["frozen={layers: 0}", "adapter={rank: 4}"], []),
        (["frozen={layers: 0-1}", "adapter={rank: 4}"], ["adapter-frozen"]),
    ],
)
def test_an_adapter_needs_a_layer_that_is_not_frozen(
    overrides: list[str], expected: list[str]
) -> None:
    assert codes(*(f"{LANGUAGE}.{each}" for each in overrides)) == expected
    if "adapter" not in overrides[-1]:
        assert codes(*(f"{VISION}.{each}" for each in overrides)) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["recompute=[norms]"], []),
        (["recompute=[attention, mlp, norms]"], []),
        (["recompute=[attention, mlp]", "backend=transformer_engine"], []),
        (["recompute=[norms]", "backend=transformer_engine"], ["recompute-part-unknown"]),
    ],
)
def test_parts_that_layers_have_are_recomputed(overrides: list[str], expected: list[str]) -> None:
    found = codes("train.precision=bf16", *(f"{LANGUAGE}.{each}" for each in overrides))
    assert [each for each in found if each != "missing-package"] == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["adapter={rank: 4}"], []),
        (["frozen=true"], []),
        ([], ["quantized-base-cannot"]),
        (["frozen={layers: 0}"], ["quantized-base-cannot"]),
        (["adapter={rank: 4}", "quantize_base.block=48"], ["quantized-base-cut"]),
        (["frozen=true", "quantize_base={kind: nf4, block: 32}"], ["quantized-base-cannot"]),
        (["frozen=true", "backend=transformer_engine"], ["quantized-base-cannot"]),
    ],
)
def test_weights_in_few_bits_do_not_train_and_are_cut_between_blocks(
    overrides: list[str], expected: list[str]
) -> None:
    given = ["quantize_base={kind: int8, block: 16}", *overrides]
    found = codes("train.precision=bf16", *(f"{LANGUAGE}.{each}" for each in given))
    assert [each for each in found if each != "missing-package"] == expected


@pytest.mark.parametrize("model", [DecoderModel, HybridModel, VitModel])
def test_a_key_names_keys_of_its_own_model_that_decide_its_effect(model: type[Strict]) -> None:
    marks = [each for field in model.model_fields.values() for each in field.metadata]
    effects = [each for each in marks if isinstance(each, Effective)]
    named = {key for each in effects for key in (each.needs, each.unless) if key}
    assert named
    assert named <= model.model_fields.keys()


@pytest.mark.parametrize(
    ("model", "module", "words"),
    [
        ({"layers": 4}, {"pp": 2}, "write `stages: [1, 3]`"),
        ({"layers": 5, "shared_keys": {"layers": 1}}, {"pp": 3}, "write `stages: [2, 1, 2]`"),
        ({"layers": 4}, {"pp": 4}, "write `pp: 1`"),
        # Layer 4 attends to keys of layer 2, layer 5 to those of layer 3.
        (
            {"layers": 6, "sliding_window": {"size": 4, "full": [1, 3, 5]}},
            {"pp": 2, "stages": [3, 3]},
            "write `stages: [2, 4]`",
        ),
        # Only layer 2 has no window; with two such layers, layers 3 and 4 attend to layer 1.
        (
            {
                "layers": 5,
                "shared_keys": {"layers": 4},
                "sliding_window": {"size": 4, "full": [2]},
            },
            {},
            "layer 2 is to attend to keys of an earlier layer without a window",
        ),
        (
            {
                "layers": 5,
                "shared_keys": {"layers": 4},
                "sliding_window": {"size": 4, "full": [2]},
            },
            {},
            "write `layers: 2`",
        ),
        (
            {"layers": 4, "sliding_window": {"size": 4, "full": [0, 1, 3]}},
            {},
            "layer 2 is to attend to keys of an earlier layer with a window",
        ),
    ],
)
def test_help_about_shared_keys_changes_no_more_than_it_must(
    model: dict[str, object], module: dict[str, object], words: str
) -> None:
    made = spec({"language": box(0, model={"shared_keys": {"layers": 2}} | model, **module)})
    [found] = [each for each in check(made) if each.code.startswith("shared-keys")]
    assert words in f"{found.headline} {found.help}"


def test_sources_of_shared_keys_are_looked_for_once() -> None:
    """A search in each layer for each other one took minutes with some hundreds of layers."""
    full = range(4, 400, 5)
    model = DecoderModel.model_validate({
        "kind": "decoder", "layers": 400, "hidden": 16, "heads": 2, "vocab": 99,
        "sliding_window": {"size": 8, "full": [*full]}, "shared_keys": {"layers": 200},
    })  # fmt: skip
    before = language_models._key_layers.cache_info().misses
    kind = DecoderKind(model)
    assert kind.key_source(399) == 199
    assert kind.key_source(398) == 198
    for layer in range(model.layers):
        kind.block(layer)
    assert language_models._key_layers.cache_info().misses == before + 1
