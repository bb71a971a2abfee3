"""What `validate` says of `reads` and connectors: every fault, and every sound graph."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_graphs import ENCODERS, GENERATORS, made_of
from tests.support.graphs import connector, flow, talker
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.checks.load_and_check import check_text
from mimo_launch.data.sample_sizes import longest_sample, sizes_drawn
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.spec import Spec

Modules = dict[str, dict[str, Any]]
VISION: Modules = {"vision": box()}


def made(modules: Modules, **settings: Any) -> Spec:
    return spec({**modules, "language": modules.get("language", box())}, seq=64, **settings)


def findings(modules: Modules, **settings: Any) -> list[Diagnostic]:
    # The builder always writes `max_frames`.
    return [item for item in check(made(modules, **settings)) if item.path[-1] != "max_frames"]


def own(kind: str, **keys: Any) -> dict[str, Any]:
    return box(model={"kind": kind, **keys})


# Modules, the codes of what is found and the key under `modules` of the first, and its help.
FAULTS: dict[str, tuple[Modules, str, str]] = {
    "a misspelt name": (
        {**VISION, "merger": box(**connector("vison"))},
        "reads-unknown-module merger.reads.0",
        "write `reads: [vision]`",
    ),
    "a name of nothing": (
        {**VISION, "merger": box(**connector("vision", "thermal"))},
        "reads-unknown-module merger.reads.1",
        "write `reads: [vision]`, or add a module called `thermal`",
    ),
    "language reads nothing that there is": (
        {**VISION, "language": box(reads=["thermal"])},
        "reads-unknown-module language.reads.0",
        "delete `reads`, or add a module called `thermal`",
    ),
    "the same name again": (
        {**VISION, "merger": box(**connector("vision", "vision", "vision"))},
        "reads-module-twice merger.reads.1",
        "write `reads: [vision]`",
    ),
    "itself": (
        {**VISION, "merger": box(**connector("vision", "merger"))},
        "reads-in-circle merger.reads",
        "write `reads: [vision]` in `merger`",
    ),
    "language reads itself": (
        {**VISION, "language": box(reads=["vision", "language"])},
        "reads-in-circle language.reads",
        "write `reads: [vision]` in `language`",
    ),
    "a circle of three": (
        {
            **VISION,
            "a": box(**connector("c")),
            "b": box(**connector("a")),
            "c": box(**connector("b")),
        },
        "reads-in-circle a.reads",
        "write `reads: [vision]` in `a`",
    ),
    "two circles": (
        {
            **VISION,
            "a": box(**connector("b")),
            "b": box(**connector("a")),
            "c": box(**connector("d", "vision")),
            "d": box(**connector("c")),
        },
        "reads-in-circle reads-in-circle a.reads",
        "write `reads: [vision]` in `a`",
    ),
    "a circle through language": (
        {
            **VISION,
            "a": box(**connector("vision", "language")),
            "b": box(**connector("a")),
            "language": box(reads=["b"]),
        },
        "reads-in-circle a.reads",
        "write `reads: [vision]` in `a`",
    ),
    "an encoder of images reads rows": (
        {**VISION, "depth": box(reads=["vision"])},
        "reads-unlike-kind depth.reads",
        "delete `reads`, or write `kind: connector`",
    ),
    "a class of one's own reads rows": (
        {**VISION, "own": {**own("tests.support.custom_encoders:Mixer"), "reads": ["vision"]}},
        "reads-unlike-kind own.reads",
        "delete `reads`, or write `kind: connector`",
    ),
    "an encoder of images reads language": (
        {"vision": box(reads=["language"])},
        "reads-unlike-kind vision.reads",
        "delete `reads`",
    ),
    "a connector reads nothing": (
        {**VISION, "audio": own("audio"), "merger": own("connector")},
        "reads-unlike-kind merger",
        "write `reads: [vision, audio]` in `merger`",
    ),
    "a connector without any encoder": (
        {"merger": box(**connector())},
        "reads-unlike-kind merger.reads",
        "add an encoder of images or clips, and name it in `reads`",
    ),
    "an encoder is left out": (
        {**VISION, "depth": box(), "language": box(reads=["vision"])},
        "module-without-reader depth",
        "write `reads: [vision, depth]` in `language`, or delete `depth`",
    ),
    "the end of a chain is left out": (
        {**VISION, "a": box(**connector("vision")), "language": box(reads=["vision"])},
        "module-without-reader a",
        "write `reads: [vision, a]` in `language`, or delete `a`",
    ),
    "encoders behind language": (
        {**VISION, "a": box(**connector("vision", "language")), "b": box(**connector("a"))},
        "wrong-kind-for-role a.reads",
        "write `reads: [vision]` in `a`",
    ),
    "a generator in front of language": (
        {**VISION, "g": {**flow(), "reads": ["vision"], **box()}},
        "reads-unlike-kind g.reads",
        "write `reads: [language]` in `g`",
    ),
    "a generator that reads nothing": (
        {**VISION, "g": own("flow")},
        "wrong-kind-for-role g.model.kind",
        "write `reads: [language]` in `g`",
    ),
    "a generator that reads an encoder, too": (
        {**VISION, "g": {**box(), **flow(), "reads": ["language", "vision"]}},
        "reads-unlike-kind g.reads",
        "write `reads: [language]` in `g`",
    ),
    "a reader of a generator": (
        {**VISION, "g": box(**flow()), "m": box(**connector("vision", "g"))},
        "reads-unlike-kind m.reads",
        "write `reads: [vision]` in `m`",
    ),
    "language reads a generator": (
        {"g": box(**flow()), "language": box(reads=["g"])},
        "reads-in-circle language.reads",
        "delete `reads` of `language`",
    ),
    "a connector behind a generator": (
        {**VISION, "g": box(**flow()), "m": box(**connector("language"))},
        "wrong-kind-for-role m.reads",
        "write `reads: [vision]` in `m`",
    ),
    "a connector behind language that nobody reads": (
        {
            "m": box(**connector("language")),
            "g": box(**flow(reads=["m"])),
            "n": box(**connector("m")),
        },
        "module-without-reader n",
        "write `reads: [n]` in a generator, or delete `n`",
    ),
    "a connector in front of two generators": (
        {
            "m": box(**connector("language")),
            "g": box(**flow(reads=["m"])),
            "h": box(**flow(reads=["m"])),
        },
        "wrong-kind-for-role m",
        "add a connector for `h`, or write `reads: [language]` in it",
    ),
    "a connector behind language that sees an image": (
        {
            **VISION,
            "m": box(**connector("language", "vision")),
            "g": box(**flow(reads=["m"])),
            "language": box(reads=["vision"]),
        },
        "wrong-kind-for-role m.reads",
        "write `reads: [language]` in `m`",
    ),
    "a generator that reads a connector and language": (
        {"m": box(**connector("language")), "g": box(**flow(reads=["language", "m"]))},
        "reads-unlike-kind g.reads",
        "write `reads: [m]` in `g`",
    ),
    "the projector of a generator": (
        {**VISION, "g": box(**flow(frozen="except_projector"))},
        "frozen-without-projector g.frozen",
        "write `frozen: true`, or `frozen: false`",
    ),
    "no loss counts": (
        {**VISION, "g": box(**flow(loss_weight=0.0)), "language": box(loss_weight=0.0)},
        "nothing-to-train language.loss_weight",
        "delete `loss_weight`",
    ),
    "the loss of an encoder": (
        {"vision": box(loss_weight=0.5)},
        "setting-without-effect vision.loss_weight",
        "delete `loss_weight`",
    ),
    "unequal patches by width": (
        {
            **VISION,
            "coarse": own("vit", shuffle=2),
            "m": box(**connector("vision", "coarse", merge="width")),
        },
        "merged-rows-differ m.model.merge",
        "write `merge: rows`: the rows of one image then follow each other",
    ),
    "one module by width": (
        {**VISION, "m": box(**connector("vision", merge="width"))},
        "setting-without-effect m.model.merge",
        "delete `merge`",
    ),
    "a placeholder of what language does not read": (
        {"vision": box(placeholder=3), "m": box(**connector("vision"), placeholder=3)},
        "setting-without-effect vision.placeholder",
        "delete `placeholder`",
    ),
    "dp sizes at a bridge between encoders": (
        {"vision": box(dp=2), "m": box(dp=3, **connector("vision")), "language": box(dp=6)},
        "unrelated-dp-sizes vision.grid.dp",
        "a dp that divides 3, or a multiple of it, gives fewer messages",
    ),
    "queries with another backend": (
        {**VISION, "m": box(**connector("vision", queries=2), backend="transformer_engine")},
        "backend-cannot m.backend",
        "keep the layers of torch for this module, or `backend: torch`",
    ),
    "heads and tp of a connector": (
        {**VISION, "m": box(tp=2, **connector("vision")), "language": box(dp=2)},
        "heads-over-tp m.model.heads",
        "write `grid: {dp: 2}`",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_graph_has_one_finding_with_a_line_to_paste(name: str) -> None:
    modules, told, help_ = FAULTS[name]
    if name == "heads and tp of a connector":
        modules["m"]["model"]["heads"] = 3
        modules["m"]["model"]["hidden"] = 24
    settings: dict[str, Any] = {"train": {"steps": 1, "precision": "bf16"}}
    if name == "queries with another backend":
        modules["m"]["model"] |= {"hidden": 16, "heads": 2}
    found = findings(modules, microbatches=1, mbs=6, **settings)
    found.sort(key=lambda item: [*map(str, item.path)])
    at = ".".join(map(str, found[0].path)).removeprefix("modules.")
    assert (" ".join([*(item.code for item in found), at]), found[0].help) == (told, help_)
    assert found[0].why


def test_a_circle_is_named_whole_with_each_of_its_reads() -> None:
    modules, *_ = FAULTS["a circle of three"]
    [item] = findings(modules)
    assert item.headline == "rows go in a circle: `a` -> `b` -> `c` -> `a`"
    assert [each.label for each in item.related] == ["`b` reads `a`", "`c` reads `b`"]


@pytest.mark.parametrize("name", [*ENCODERS, *GENERATORS])
def test_graphs_that_train_have_no_errors(name: str) -> None:
    found = check(made_of(*{**ENCODERS, **GENERATORS}[name]))
    assert {item.code for item in found} <= {"setting-without-effect", "unrelated-dp-sizes"}


def equal(vision: dict[str, Any], other: dict[str, Any], **settings: Any) -> bool:
    modules = {
        "vision": box(model=vision),
        "other": box(model=other),
        "m": box(**connector("vision", "other", merge="width")),
        "language": box(model={"vocab": 32}),
    }
    codes = {item.code for item in findings(modules, **settings)}
    assert codes <= {"merged-rows-differ"}
    return not codes


DIGITS: dict[str, Any] = {"kind": "digits", "max_digits": 2}
STILL: dict[str, Any] = {"kind": "synthetic", "image": [2, 4]}


@pytest.mark.parametrize(
    ("vision", "other", "settings", "expected"),
    [
        ({"patch": 1}, {"patch": 2}, {}, True),  # Synthetic sizes are in patches.
        ({}, {"shuffle": 2}, {"max_patches": 8}, False),
        ({"shuffle": 2}, {"shuffle": 2}, {"max_patches": 8}, True),
        ({}, {"shuffle": 2}, {"data": STILL}, False),
        ({"shuffle": 2}, {"shuffle": 2}, {"data": STILL}, True),
        ({"patch": 4}, {"patch": 4}, {"data": DIGITS}, True),
        ({"patch": 4}, {"patch": 2}, {"data": DIGITS}, False),
        ({"patch": 4}, {"patch": 2, "shuffle": 2}, {"data": DIGITS}, True),
        ({"kind": "audio"}, {"kind": "audio"}, {}, True),
        ({"kind": "audio"}, {"kind": "audio", "stack": 2}, {}, False),
        ({"kind": "audio"}, {"kind": "audio", "fixed_length": True}, {"max_frames": 12}, False),
        ({}, {"kind": "audio"}, {}, False),
    ],
)
def test_rows_that_are_added_are_equally_many_in_every_image(
    vision: dict[str, Any], other: dict[str, Any], settings: dict[str, Any], expected: bool
) -> None:
    assert equal(vision, other, **settings) is expected


@pytest.mark.parametrize("merge", ["rows", "width"])
def test_rows_of_connectors_are_counted_as_they_are_made(merge: str) -> None:
    """Queries are equally many of any image; rows that follow each other are a sum."""
    modules = {
        **VISION,
        "depth": box(),
        "both": box(**connector("vision", "depth", merge=merge)),
        "queries": box(**connector("vision", queries=3)),
        "other": box(**connector("both", queries=3)),
        "m": box(**connector("queries", "other", merge="width")),
        "n": box(**connector("both", "vision", merge="width")),
    }
    found = [item.path[1] for item in findings(modules)]
    assert found == (["n"] if merge == "rows" else [])


def test_what_two_encoders_draw_alike_has_equal_sizes() -> None:
    """The narrowest and the widest image of each height: all that synthetic data can draw."""
    drawn = sizes_drawn(made(VISION, max_patches=7), "vision")
    assert [[(size.height, size.width) for size in ends] for ends in drawn] == [
        [(1, 1), (1, 7)],
        [(2, 1), (2, 3)],
        [(3, 1), (3, 2)],
    ]


@pytest.mark.parametrize("kind", ["interleaved", "bubble_filling"])
def test_one_order_of_all_work_needs_no_even_groups(kind: str) -> None:
    """Microbatches that no pipeline divides; weights gathered in the idle time of a pipeline."""
    grid = {"vision": box(dp=2, sharding="full"), "language": box(pp=2)}
    settings = {"kind": kind, "virtual_stages": 1 + (kind == "interleaved"), "microbatches": 3}
    code = "full-sharding-in-bubbles"
    if kind == "interleaved":
        code = "interleaved-microbatches-uneven"
    assert [item.code for item in findings(grid, **settings, mbs=2)] == [code]
    graph = {**grid, "m": box(**connector("vision"))}
    assert findings(graph, **settings, mbs=2) == []
    assert Plan.of(made(graph, **settings, mbs=2)).layout.is_star is False


@pytest.mark.parametrize(
    ("first", "schedule", "codes", "help_"),
    [
        (0, {}, ["encoder-share-uneven"], "write `generator_microbatches: 2` in `schedule`, or"),
        (0, {"generator_microbatches": 2}, [], ""),
        (
            0,
            {"generator_microbatches": 3},
            ["encoder-microbatches-uneven"],
            "write `generator_microbatches: 2`",
        ),
        (2, {"generator_microbatches": 2}, ["encoder-share-uneven", "setting-without-effect"], ""),
    ],
)
def test_generators_on_ranks_of_language_take_whole_groups(
    first: int, schedule: dict[str, int], codes: list[str], help_: str
) -> None:
    modules = {"language": box(dp=2), "g": box(first, dp=4, **flow())}
    found = findings(modules, microbatches=4, schedule={"microbatches": 4, **schedule})
    assert [item.code for item in found] == codes
    assert not help_ or found[0].help.startswith(help_)


def test_weights_of_connectors_do_not_come_from_models_of_transformers(tmp_path: Path) -> None:
    """None of them holds one, whether it is named here or for all modules."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    modules = {**VISION, "m": box(**connector("vision", queries=2), init_from=str(tmp_path))}
    [item] = findings(modules)
    assert (item.code, item.path) == ("init-from-not-supported", ("modules", "m", "init_from"))
    assert "with `model_type: llama`" in item.headline
    assert item.why.endswith("it reads the model types mimo_launch_connector")
    found = findings({**VISION, "m": box(**connector("vision"))}, init_from=str(tmp_path))
    assert {item.path[1] for item in found} == {"vision", "m", "language"}


@pytest.mark.parametrize("lacks", ["layers", "heads", "vocab"])
def test_a_code_predictor_that_lacks_a_key_is_one_finding(lacks: str) -> None:
    """Rules that need the predictor leave it out."""
    predictor = {key: n for key, n in PREDICTOR.items() if key != lacks}
    model = {"codebooks": 2, "predictor": predictor}
    given: dict[str, Any] = dump_spec(made({"t": box(**talker())}))
    given["modules"]["t"]["model"] |= model
    [found] = [each for each in check_text(json.dumps(given)).diagnostics if each.is_error]
    assert found.code == "missing-key"
    assert found.headline == f"`modules.t.model.predictor` lacks `{lacks}`"


def test_a_talker_behind_a_connector_reads_no_text() -> None:
    modules = {"m": box(**connector("language")), "t": box(**talker(reads=["m"], reads_text=True))}
    [item] = findings(modules)
    assert (item.code, item.path[-1]) == ("setting-without-effect", "reads_text")
    assert findings({"t": box(**talker(reads_text=True))}) == []


LATE = {"reads_layer": 1}
PREDICTOR = {"layers": 1, "heads": 2, "vocab": 9}


@pytest.mark.parametrize(
    ("inside", "codes", "code", "key"),
    [
        ({"heads": 3}, {}, "hidden-over-heads", "hidden"),
        ({"heads": 1, "head_dim": 4}, {}, "heads-over-tp", "heads"),
        ({"heads": 4, "kv_heads": 3}, {}, "heads-over-kv-heads", "kv_heads"),
        ({"mlp": 33}, {}, "mlp-over-tp", "mlp"),
        ({"vocab": 1}, {}, "codes-outside-vocab", "vocab"),
        ({}, {"codebooks": 1}, "setting-without-effect", "predictor"),
    ],
)
def test_a_code_predictor_fits_its_talker(
    inside: dict[str, Any], codes: dict[str, Any], code: str, key: str
) -> None:
    predictor = PREDICTOR | inside
    model = {"codebooks": 2, **codes, "predictor": predictor}
    found = findings({"t": box(0, tp=2, **talker(model=model))})
    assert code in {each.code for each in found}
    item = next(each for each in found if each.code == code)
    assert item.path[-1] == key
    assert ("predictor" in item.path) == (key != "hidden")
    assert "`t`" in item.headline
    assert (
        findings(
            {
                "t": box(
                    0,
                    tp=2,
                    **talker(
                        model={
                            **model,
                            "codebooks": 2,
                            "predictor": {"layers": 1, "heads": 2, "vocab": 9},
                        }
                    ),
                )
            }
        )
        == []
    )


def test_a_talker_reads_states_before_the_last_layer() -> None:
    layers = made({}).language.model.layers
    [item] = findings({"t": box(**talker(model={"reads_layer": layers}))})
    assert (item.code, item.path[-1]) == ("full-layer-not-in-model", "reads_layer")
    assert item.help.startswith("delete `reads_layer`")
    modules = {"m": box(**connector("language")), "t": box(**talker(reads=["m"], model=LATE))}
    [item] = findings(modules)
    assert (item.code, item.path[-1]) == ("setting-without-effect", "reads_layer")


def test_many_modules_that_read_all_before_them_take_no_time() -> None:
    """The ways through the graph are 2 to the 40th."""
    names = [f"m{number}" for number in range(40)]
    modules = {**VISION}
    for number, name in enumerate(names):
        modules[name] = box(**connector("vision", *names[:number], queries=1))
    assert longest_sample(made(modules)) <= 64
    assert findings(modules) == []


def test_a_module_without_content_hides_no_circle() -> None:
    """Other checks count on it: the sizes of rows in a circle have no end."""
    text = """
version: 1
name: circle
modules:
  vision:
  language:
    model: {kind: decoder, layers: 2, hidden: 96, heads: 4, vocab: digits}
    ranks: 0
    reads: [language]
batch: {global: 64, seq: 32}
data: {kind: digits, max_digits: 4}
train: {steps: 900}
"""
    found = check_text(text).diagnostics
    assert {"wrong-type", "reads-in-circle"} <= {each.code for each in found}
