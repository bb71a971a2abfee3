"""The kernels that a stage needs: which, of which sizes, and how often."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.support.kernels import flat
from tests.support.specs import box, hybrid, spec

from mimo_launch.estimate.activations import Activations
from mimo_launch.estimate.cost_model import CostModel
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.forward_times import ForwardTimes
from mimo_launch.estimate.kernel_table import KernelTable
from mimo_launch.estimate.kernel_times import StageKernels
from mimo_launch.kinds.layer import Workload
from mimo_launch.kinds.registry import kind_of
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.load import load_spec
from mimo_launch.spec.spec import Spec

MODEL = {"kind": "decoder", "layers": 2, "hidden": 64, "heads": 4, "head_dim": 16, "mlp": 128}
MODEL |= {"vocab": 256}
BACKENDS = ("torch", "transformer_engine")
VIT = {"kind": "vit", "layers": 2, "hidden": 64, "heads": 4, "patch": 4}


def made(language: dict[str, Any], vision: dict[str, Any] | None = None, **more: Any) -> Spec:
    modules = {"language": language} if vision is None else {"vision": vision, "language": language}
    return spec(modules, seq=256, train={"precision": "bf16"}, **more)


class Watched(KernelTable):
    """A table that remembers what it was asked."""

    __slots__ = ("asked",)

    def seconds(self, kernel: str, amount: float, *sizes: float) -> float:
        if amount:
            self.asked.append((kernel, amount, *sizes))
        return KernelTable.seconds(self, kernel, amount, *sizes)


def kernels_of(of: Spec, module: str = "language") -> StageKernels:
    model: CostModel = Estimator.of(Plan.of(of), Calibration()).model
    own = model.layout[module]
    return StageKernels(
        of, model.layout, own, own.stages[0], model.work[module][0], model.constants
    )


def asked(mine: StageKernels) -> list[tuple[Any, ...]]:
    """Return the kernels of one forward, and of the backward of its layers, with their sizes."""
    table = Watched(device="", source="", grids=flat().grids)
    object.__setattr__(table, "asked", [])
    replace(mine, constants=Calibration(kernels=table)).forward()
    return table.asked


def attention_of(mine: StageKernels) -> set[tuple[Any, ...]]:
    return {
        (name.removesuffix(" attention forward"), *sizes)
        for name, _, *sizes in asked(mine)
        if name.endswith("attention forward")
    }


def test_products_have_the_sizes_of_the_parameters_that_a_rank_holds() -> None:
    found = {tuple(sizes) for name, _, *sizes in asked(kernels_of(made(box(0, model=MODEL, tp=2))))
             if name == "product"}  # fmt: skip
    qkv, out, up, down, head = (64, 96), (32, 64), (64, 128), (64, 64), (64, 128)
    assert found == {(256, *each) for each in (qkv, out, up, down, head)}


def test_a_layer_counts_as_often_as_it_is_there() -> None:
    one, two = (asked(kernels_of(made(box(0, model=MODEL | {"layers": n})))) for n in (1, 2))
    assert [name for name, *_ in one] == [name for name, *_ in two]
    found = (kernels_of(made(box(0, model=MODEL | {"layers": n}))) for n in (1, 2))
    seconds = [each.layers(each.numbers).forward for each in found]
    assert seconds[1] == pytest.approx(2 * seconds[0], rel=0.01)


@pytest.mark.parametrize(
    ("language", "more", "wanted"),
    [
        ({}, {}, {("causal", 256, 16)}),
        ({"model": MODEL | {"sliding_window": {"size": 64}}}, {}, {("documents", 112, 16)}),
        ({"cp": 2}, {}, {("causal", 64, 16), ("whole", 96, 16)}),
        (
            {"cp": 2, "model": MODEL | {"attention_softcap": 5.0}},
            {},
            {("masked", 256, 16)},
        ),
        (
            {"cp": 2, "model": MODEL | {"attention_sinks": True}},
            {},
            {("documents", 256, 16)},
        ),
        (
            {"cp": 2, "model": MODEL | {"head_dim": 256}},
            {},
            {("documents", 256, 256)},
        ),
    ],
)
def test_language_attends_by_the_kernels_of_its_mask(
    language: dict[str, Any], more: dict[str, Any], wanted: set[tuple[Any, ...]]
) -> None:
    of = made(box(0, **{"model": MODEL, **language}), **more)
    assert attention_of(kernels_of(of)) == wanted


def test_the_chunks_of_a_cp_rank_are_merged_and_their_gradients_summed() -> None:
    """Chunks of 64 tokens have 1.5 times as many earlier keys on average, in two sequences."""
    one, two = (kernels_of(made(box(0, model=MODEL, cp=cp), mbs=2)) for cp in (1, 2))
    backward = {each for each in asked(two) if each[0] == "whole attention backward"}
    assert {length for *_, length, _ in backward} == {2 / (1 / 64 + 1 / 96)}
    before, after = (Counter(e for e in asked(of) if e[0] == "pass") for of in (one, two))
    queries, keys = 2 * 128 * 64 * 2, 2 * 256 * 64 * 2
    wanted = {
        # Two outputs are read and one written, for both chunks; then they are joined.
        ("pass", 5 * queries, queries / 2e6): 1,
        # Gradients of queries alike; those of keys and values are filled with zeros, then added to
        # for 5 chunks of 4.
        ("pass", 2 * (1 + 3 * 5 / 4) * keys, keys / 1e6): 1,
    }
    assert after - before >= Counter(wanted)


def packed_in_a_sequence(backend: str, cp: int) -> StageKernels:
    mine = kernels_of(made(box(0, model=MODEL, cp=cp, backend=backend)))
    return replace(mine, work=replace(mine.work, spans=Counter({64: 2, 128: 1})))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cp", [1, 2])
def test_records_packed_in_a_sequence_attend_as_documents(backend: str, cp: int) -> None:
    (found,) = attention_of(packed_in_a_sequence(backend, cp))
    # The length of a sequence in which a token sees as many others.
    assert found == pytest.approx(("documents", (2 * 64**2 + 128**2) / 256, 16))


@pytest.mark.parametrize("backend", BACKENDS)
def test_documents_over_cp_keep_the_keys_of_their_parts(backend: str) -> None:
    """A rank keeps keys and values of its own tokens, and of half a document for each chunk."""
    kept = []
    for spans in ({256: 1}, {64: 2, 128: 1}):
        mine = packed_in_a_sequence(backend, 2)
        place = mine.spec, mine.layout, mine.module, mine.stage
        kept.append(Activations(*place, replace(mine.work, spans=Counter(spans)), 0).kept())
    whole, parts = 2, 1 + 2 * (2 * 64**2 + 128**2) / 256**2
    keys_and_values = 2 * 64 * 2
    assert kept[0] - kept[1] == 2 * 128 * (whole - parts) * keys_and_values


def test_images_of_one_size_attend_without_lists() -> None:
    data = {"kind": "synthetic", "image": [8, 8], "text_only": 0.0}
    of = made(box(0, model=MODEL), box(0, model=VIT), data=data)
    assert attention_of(kernels_of(of, "vision")) == {("whole", 64, 16)}


def test_experts_have_the_rows_of_a_balanced_load() -> None:
    moe = {"experts": 8, "top_k": 2, "width": 32}
    of = made(box(0, model=MODEL | {"moe": moe}, dp=2, experts={"ep": 2}), microbatches=1, mbs=2)
    rows = {
        (rows, flops)
        for name, flops, rows, *_ in asked(kernels_of(of))
        if name == "grouped product forward"
    }
    # 512 tokens with two choices of 8 experts; a rank has 4, and as many tokens as it sends.
    assert {each for each, _ in rows} == {2 * 2 * 256 / 4}
    assert max(flops for _, flops in rows) == 2 * 1024 * 64 * 64


@pytest.mark.parametrize("recompute", [["attention"], "full"])
def test_a_recurrence_runs_again_once_however_its_layer_is_recomputed(recompute: object) -> None:
    def backward(recompute: object) -> float:
        mine = kernels_of(made(box(0, model=hybrid({}, "GG"), recompute=recompute)))
        return mine.repeated() + mine.backward()

    mine = kernels_of(made(box(0, model=hybrid({}, "GG"), recompute=recompute)))
    recurrence = 2 * mine._between(0).forward
    assert recurrence > 0
    assert backward(recompute) - backward("none") == pytest.approx(mine.repeated() - recurrence)


def test_a_convolution_comes_before_each_recurrence_of_a_gated_deltanet() -> None:
    of = made(box(0, model=hybrid({}, "GG")))
    sizes = of.language.model.deltanet
    mine = kernels_of(of)
    channels = sizes.inner + 2 * sizes.shared
    found = [each for each in asked(mine) if each[0].startswith("convolution")]
    # Asked once for both layers; the backward runs it again.
    assert found == [
        ("convolution forward", 256 * channels, 256),
        ("convolution backward", 2 * 256 * channels, 256),
    ]
    slow, fast = flat(convolution=1e3), flat(convolution=1e15)
    seconds = [slow.seconds(*each) for each in found]
    layers, without = (
        replace(mine, constants=Calibration(kernels=table, sustained=1.0)).layers(mine.numbers)
        for table in (slow, fast)
    )
    assert layers.forward - without.forward == pytest.approx(2 * seconds[0], rel=1e-3, abs=0)
    again = 2 * (seconds[0] + seconds[1])
    assert layers.inputs - without.inputs == pytest.approx(again, rel=1e-3, abs=0)


def test_updates_of_maps_add_passes_over_what_the_maps_make() -> None:
    adapter = {"rank": 2, "targets": ["o"]}
    plain, adapted = (
        kernels_of(made(box(0, model=MODEL, **more))) for more in ({}, {"adapter": adapter})
    )
    before, after = (
        [each for each in asked(of) if each[0] == "pass" and each[1]] for of in (plain, adapted)
    )
    rows = 256 * 64 * 2
    assert Counter(after) - Counter(before) >= Counter({("pass", 6 * rows, rows / 1e6): 1})


def test_a_frozen_tower_has_no_backward_and_a_frozen_language_only_that_of_inputs() -> None:
    data = {"kind": "synthetic", "image": [8, 8], "text_only": 0.0}
    of = made(box(0, model=MODEL, frozen=True), box(0, model=VIT, frozen=True), data=data)
    assert kernels_of(of, "vision").backward() == 0
    trains = made(box(0, model=MODEL), box(0, model=VIT), data=data)
    frozen = made(box(0, model=MODEL, frozen=True), box(0, model=VIT), data=data)
    mine = kernels_of(trains)
    gone = mine.layers(mine.numbers).weights + sum(each.weights for each in mine.ends)
    both = kernels_of(trains).backward() - kernels_of(frozen).backward()
    assert both > 0
    assert both == pytest.approx(gone, rel=0.2)


def test_kernels_are_slower_in_a_step_than_alone() -> None:
    mine = kernels_of(made(box(0, model=MODEL)))
    alone, hot = (
        replace(mine, constants=replace(mine.constants, sustained=each)).forward()
        for each in (1.0, 0.5)
    )
    assert hot == pytest.approx(2 * alone)


def test_parts_run_again_in_the_time_of_their_kernels() -> None:
    """Both parts take less than whole layers, which run norms again; norms take least."""

    def again(recompute: object) -> float:
        return kernels_of(made(box(0, model=MODEL, recompute=recompute))).repeated()

    parts = {each: again([each]) for each in ("attention", "mlp", "norms")}
    assert 0 < parts["norms"] < 0.1 * parts["mlp"]
    both = again(["attention", "mlp"])
    assert both == pytest.approx(parts["attention"] + parts["mlp"], rel=0.02)
    assert 0.8 * again("full") < both < again("full")
    assert again("none") == 0


@pytest.mark.parametrize("part", ["_products", "_at_ends", "_made_bytes"])
def test_packed_forwards_of_as_many_tokens_differ_in_attention_only(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Language has eight microbatches of unlike documents, and equal layers."""
    found = load_spec("docs/measured/photographs_qwen3_vl_4b.yaml").spec
    assert found is not None
    timed: list[str] = []
    original = getattr(StageKernels, part)

    def counted(own: StageKernels, *given: Any, **more: Any) -> Any:
        timed.append(own.module.name)
        return original(own, *given, **more)

    monkeypatch.setattr(StageKernels, part, counted)
    model = Estimator.of(Plan.of(found)).model
    assert len({id(each) for each in model.work["language"]}) == 8
    assert model.stages
    assert timed.count("language") == 1


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("vision", {"rows": 4}),
        ("vision", {"held": 64, "spans": Counter({16: 4})}),
        ("vision", {"spans": Counter({4: 8})}),
        ("language", {"spans": Counter({128: 4})}),
    ],
)
def test_what_forwards_share_does_not_change_their_times(
    name: str, other: dict[str, Any], cp: int
) -> None:
    of = made(box(0, model=MODEL, cp=cp), box(0, model=VIT, cp=cp), mbs=2)
    model = Estimator.of(Plan.of(of)).model
    module = model.layout[name]
    spans = Counter({256: 2}) if name == "language" else Counter({16: 2})
    one = Workload(spans=spans, held=512 // cp, rows=8, forwards=2)
    place = of, model.layout, module, module.stages[0], model.constants, model.links
    shared, works = ForwardTimes(*place), (one, replace(one, **other))
    both = [shared.of(each) for each in works]
    assert both == [ForwardTimes(*place).of(each) for each in works]
    assert both[0] != both[1]


def test_each_layer_gathers_the_keys_and_values_of_all_its_cp_ranks_there_and_back() -> None:
    """256 tokens of 2 sequences, of which each of four ranks holds a quarter."""
    of = made(box(0, model=MODEL, cp=4), box(0, model=VIT), mbs=2)
    model = Estimator.of(Plan.of(of)).model
    language = model.layout.language
    place = of, model.layout, language, language.stages[0], model.constants, model.links
    work = Workload(spans=Counter({256: 2}), held=128, rows=0, forwards=2)
    layer, number = kind_of(of.language.model).layer_widths(0), of.train.numbers.computed.bytes
    each = model.links.collective((0, 1, 2, 3), 512 * layer.gathers * number)
    assert each > 0
    found = ForwardTimes(*place).exchanges(work)
    assert found == pytest.approx((2 * of.language.model.layers * each, 0))


def test_a_loss_takes_twice_as_long_forward_as_backward() -> None:
    """The gradient is made in the forward; the backward scales it."""
    mine = kernels_of(made(box(0, model=MODEL)))
    (_, slow, _), (_, fast, _) = (
        replace(mine, constants=Calibration(kernels=table, sustained=1.0)).ends
        for table in (flat(), flat(loss=1e15))
    )
    assert slow.inputs > fast.inputs
    forward, backward = slow.forward - fast.forward, slow.inputs - fast.inputs
    assert forward == pytest.approx(2 * backward, rel=1e-3, abs=0)


def test_an_update_adds_to_its_output_forward_and_to_its_input_backward() -> None:
    """Here the output of the map is twice as wide as its input."""
    adapter = {"rank": 2, "targets": ["up"]}
    plain, adapted = (
        asked(kernels_of(made(box(0, model=MODEL, **more)))) for more in ({}, {"adapter": adapter})
    )
    given, outputs = 256 * 64 * 2, 256 * 128 * 2
    found = Counter(adapted) - Counter(plain)
    sizes = ((6, outputs), (2, outputs), (4, given))
    wanted = Counter(("pass", times * rows, rows / 1e6) for times, rows in sizes)
    assert found >= wanted


def test_layers_alike_are_counted_together_only_if_both_are_frozen_or_neither() -> None:
    """A frozen layer has no adapter, and keeps nothing for gradients of weights."""
    for more in ({}, {"adapter": {"rank": 2, "targets": ["o"]}}):
        model = MODEL | {"layers": 3}
        mine = kernels_of(made(box(0, model=model, frozen={"layers": "0-1"}, **more)))
        bare, trained, every = (mine.layers(each) for each in ((0,), (2,), (0, 1, 2)))
        assert bare.forward < 0.95 * trained.forward
        apart = bare.times(2) + trained
        assert every.forward == pytest.approx(apart.forward, rel=1e-9, abs=0)
        assert every.inputs == pytest.approx(apart.inputs, rel=1e-9, abs=0)


def test_a_projector_has_the_rows_of_a_cp_rank() -> None:
    """Of 64 rows of 64 numbers, which become as wide as 32."""
    data = {"kind": "synthetic", "image": [8, 8], "text_only": 0.0}
    for cp in (1, 2):
        language = box(0, model=MODEL | {"hidden": 32}, cp=cp)
        of = made(language, box(0, model=VIT, cp=cp), data=data)
        *_, last = (each for each in asked(kernels_of(of, "vision")) if each[0] == "product")
        assert last[2:] == (64 / cp, 64, 32)


@pytest.mark.parametrize("recompute", ["none", ["attention"], "full"])
def test_only_keys_that_later_layers_read_stay_and_only_their_layers_gather(
    recompute: object,
) -> None:
    """Layers 2 and 3 attend to keys of layer 1."""
    model = MODEL | {"layers": 4, "shared_keys": {"layers": 2}, "qk_norm": True}
    mine = kernels_of(made(box(0, model=model, recompute=recompute, cp=2)))
    kept = Activations(mine.spec, mine.layout, mine.module, mine.stage, mine.work, 0)
    stays = [any(each.stays for each in kept._of_layer(number)) for number in range(4)]
    assert stays == [False, True, False, False]
    assert [kept.kind.layer_widths(n).gathers > 0 for n in range(4)] == [True, True, False, False]
