"""Classes of a user's own: found without being run, built without memory, refused with a reason."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.reports import build_report
from tests.support.specs import box, spec
from torch import nn

from mimo_launch.checks.all_checks import check
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.diag.users_code import CustomClassError
from mimo_launch.estimate.parameters import stage_weights
from mimo_launch.launcher import forking
from mimo_launch.launcher.forking import custom_class_fault
from mimo_launch.layers.image_contexts import image_context
from mimo_launch.layers.initial_weights import init_parameters
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import (
    adopt_parameters,
    declared_parameters,
    weight_segments,
)
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.custom_encoder import EncoderInput
from mimo_launch.models.custom_stages import (
    build_custom_stage,
    check_custom_classes,
    plain_values,
    whole_stage,
)
from mimo_launch.models.patches import Patches, reader
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec

MIXER, WIDE = "tests.support.custom_encoders:Mixer", "tests.support.custom_encoders:Wide"
HEAD = """
import torch
from torch import nn
from mimo_launch.custom import EncoderStage
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, for modules that no other test sees."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("mine"):
            del sys.modules[name]


def of(kind: str, *, model: dict | None = None, **module) -> Spec:
    made = box(0, model={"kind": kind, **(model or {})}, **module)
    return spec({"vision": made, "language": box(8)}, mbs=8)


def found(kind: str) -> list[str]:
    return [item.headline for item in check(of(kind)) if item.code == "class-not-found"]


def test_a_class_is_found_without_running_its_package(package: Path) -> None:
    (package / "mine").mkdir()
    (package / "mine" / "__init__.py").write_text("raise SystemExit('was run')")
    (package / "mine" / "deep.py").write_text("if True:\n    class Here: pass\nraise SystemExit")
    assert found("mine.deep:Here") == []
    assert found("mine.deep:There") == ["`vision`: `mine.deep` defines no `There`"]
    assert found("mine.deeper:Here") == ["`vision`: there is no module `mine.deeper`"]
    assert found("mine.deep.er:Here") == ["`vision`: there is no module `mine.deep.er`"]
    assert found("mined:Here") == ["`vision`: there is no module `mined`"]
    assert not any(name.startswith("mine") for name in sys.modules)


def test_the_name_of_a_class_is_offered_with_its_module(package: Path) -> None:
    (package / "mine.py").write_text("class Mixer: pass")
    [gone] = [each for each in check(of("mine:Mixr")) if each.code == "class-not-found"]
    assert gone.help == "did you mean `mine:Mixer`?"


def test_a_generator_says_that_it_has_a_loss(package: Path) -> None:
    (package / "mine.py").write_text("class Here: pass")
    drawer = box(0, model={"kind": "mine:Here"}, reads=["language"])
    [unlike, *_] = check(spec({"language": box(0), "drawer": drawer}))
    assert unlike.code == "reads-unlike-kind"
    assert "`loss: true` in the model of `drawer`" in unlike.help
    alone = box(0, model={"kind": "mine:Here", "loss": True})
    [apart, *_] = check(spec({"language": box(0), "drawer": alone}))
    assert (apart.code, apart.help) == (
        "wrong-kind-for-role",
        "write `reads: [language]` in `drawer`",
    )


def test_only_flows_are_drawn(package: Path) -> None:
    """A class of one's own says what it learns, but not how to make an image of it."""
    drawer = box(0, model={"kind": "mine:Here", "loss": True}, reads=["language"])
    painter = box(0, model={"kind": "flow"}, reads=["language"])
    modules = {"language": box(0), "drawer": drawer, "painter": painter}
    plan = Plan.of(spec(modules, eval={"samples": 1}))
    plan.prove()
    assert {action.module for slot in plan.drawing[0] for action in slot} == {"painter"}


@pytest.mark.parametrize(
    "source",
    ["from json import *", "def __getattr__(name): ...", "globals()['Here'] = 1", "class Here(",
     "Here = None", "import json as Here", "try:\n    from a import Here\nexcept ImportError: ..."],
)  # fmt: skip
def test_names_that_only_running_it_would_tell_are_left_to_the_import(
    package: Path, source: str
) -> None:
    (package / "mine.py").write_text(source)
    assert found("mine:Here") == []


def test_folders_without_init_and_builtin_modules_are_found(package: Path) -> None:
    (package / "mine" / "inner").mkdir(parents=True)
    (package / "mine" / "inner" / "enc.py").write_text("class Here: pass")
    assert found("mine.inner.enc:Here") == []
    assert found("sys:anything") == []


@pytest.mark.parametrize(
    ("source", "module", "words"),
    [
        ("import no_such_package", {}, "line 5: ModuleNotFoundError: No module named"),
        ("class Enc:\n  def __init__(self): ...", {}, "it is called with (context, model, stage"),
        ("Enc = 3", {}, "`mine` has no class or function `Enc`"),
        ("def Enc(*a, **k): return 3", {}, "it built no torch.nn.Module, but int"),
        ("def Enc(*a, **k): return nn.Linear(2, 2)", {}, "`layers` must be a ModuleDict"),
        ("class Enc(EncoderStage):\n  def make_layer(self, n): return 1 / 0", {},
         "building stage 0 failed in"),
        ("class Enc(EncoderStage):\n  def make_layer(self, n):\n    made = nn.Linear(8, 8)\n"
         "    made.places = nn.Parameter(torch.arange(8), requires_grad=False)\n    return made",
         {}, "weights are floating-point numbers, and these are not: `layers.0.places`; register"),
        ("class Enc(EncoderStage):\n  def make_layer(self, n): return nn.BatchNorm1d(8)", {},
         "saved buffers: `layers.0.num_batches_tracked`, `layers.0.running_mean`"),
        ("class Enc(EncoderStage):\n  def make_layer(self, n): return nn.BatchNorm1d(8)", {},
         "`torch.nn.GroupNorm` and `LayerNorm` keep none"),
        ("class Enc(EncoderStage):\n  def make_layer(self, n): return nn.Linear(8, 8)", {"cp": 2},
         "it cannot be cut over cp"),
        ("class Enc(EncoderStage):\n  cuts = {'tp'}\n"
         "  def make_layer(self, n): return nn.Linear(8, 8)", {"tp": 2},
         "these are not: `layers.0.bias`, `layers.0.weight`"),
        ("class Enc(nn.Module):\n  def __init__(self, *a, **k):\n    super().__init__()\n"
         "    self.layers = nn.ModuleDict({'0': nn.Linear(8, 8)})", {"frozen": "except_projector"},
         "it has no `projector`"),
        ("class Enc(EncoderStage):\n  def make_layer(self, n):\n    layer = nn.Linear(8, 8)\n"
         "    layer.s = nn.Parameter(torch.ones(()))\n    return layer", {},
         "parameter `layers.0.s` has no dimension"),
        ("class Enc(EncoderStage):\n  def make_layer(self, n):\n    layer = nn.Bilinear(8, 8, 8)\n"
         "    layer.again = layer.weight\n    return layer", {},
         "`layers.0.again` is tied to `layers.0.weight`"),
        ("class Enc(EncoderStage):\n  def make_layer(self, n): return nn.Identity()", {},
         "nothing of its first stage trains"),
        ("class Enc(EncoderStage):\n  def make_layer(self, n):\n"
         "    return nn.Linear(8, 8).requires_grad_(n == 1)", {"pp": 2},
         "nothing of its first stage trains"),
        ("class Enc(EncoderStage):\n  def make_layer(self, n): return nn.Linear(8, 8)",
         {"frozen": "except_projector"}, "nothing of its `projector` trains"),
    ],
)  # fmt: skip
def test_what_a_class_does_wrong_is_said(
    package: Path, source: str, module: dict, words: str
) -> None:
    (package / "mine.py").write_text(HEAD.strip() + "\n\n" + source)
    with pytest.raises(
        CustomClassError, match=r"modules\.vision\.model\.kind, `mine:Enc`: "
    ) as caught:
        check_custom_classes(of("mine:Enc", **module))
    assert words in str(caught.value)


def test_the_look_before_a_run_leaves_nothing_here(package: Path) -> None:
    (package / "mine.py").write_text("import os\nos._exit(7)")
    assert "ended the process (exit code 7)" in custom_class_fault(of("mine:Enc"))
    assert custom_class_fault(of(MIXER)) == ""
    assert custom_class_fault(of("vit")) == ""
    assert "mine" not in sys.modules


def test_a_class_whose_import_never_ends_is_said_with_its_place(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "mine.py").write_text(
        "import time\ndef fetch():\n    while True:\n        time.sleep(0.01)\nfetch()"
    )
    monkeypatch.setattr(forking, "ANSWER_SECONDS", 2.0)
    assert custom_class_fault(of("mine:Enc")) == (
        "importing the classes did not end within 2 s; it is at fetch (mine.py:4), "
        "<module> (mine.py:5)"
    )


def values(made: Spec, context: ParallelContext) -> dict[str, torch.Tensor]:
    """Return the initial values of all stages."""
    values = {}
    for stage in build_layout(made)["vision"].stages:
        network = build_custom_stage(made, stage, context)
        given = plain_values(made, "vision", network)
        assert all(parameter.is_meta for parameter in network.parameters())
        network.to_empty(device="cpu")
        init_parameters(weight_segments("vision", network), made.train.seed, given=given)
        for declared in declared_parameters("vision", network):
            values[declared.placed[0].name] = declared.parameter.detach().clone()
    return values


def test_plain_parameters_start_as_their_constructor_says_on_any_layout() -> None:
    one = values(of(MIXER, model={"layers": 2}), ParallelContext())
    two = values(of(MIXER, model={"layers": 2}, pp=2), ParallelContext())
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(one["vision.layers.1.scale"], torch.full((8,), 0.5))
    assert not torch.equal(
        one["vision.layers.0.channels.weight"], one["vision.layers.1.channels.weight"]
    )
    bound = 8**-0.5  # That of nn.Linear.
    assert 0.8 * bound < one["vision.layers.0.channels.weight"].abs().max() <= bound
    asked = of(MIXER, model={"layers": 2})
    train = asked.train.model_copy(update={"seed": 1})
    other = values(asked.model_copy(update={"train": train}), ParallelContext())
    name = "vision.layers.0.channels.weight"
    assert not torch.equal(one[name], other[name])
    state = torch.get_rng_state()
    values(of(MIXER), ParallelContext())
    assert torch.equal(state, torch.get_rng_state())


def test_plain_parameters_decay_by_their_dimensions_and_frozen_ones_stay_so() -> None:
    network = nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4))
    network[1].bias.requires_grad_(False)
    assert adopt_parameters(network) == ["0.weight", "1.weight", "1.bias"]
    found = {d.placed[0].name: d for d in declared_parameters("m", network)}
    assert [d.trains for d in found.values()] == [True, True, False]
    assert [d.decays(embeddings=False) for d in found.values()] == [True, False, False]


def test_a_plan_counts_what_it_is_told_and_says_what_it_does_not() -> None:
    unknown = of(WIDE, tp=2, model={"options": {"inner": 8}, "heads": 2, "layers": 3})
    assert nominal_step_data(unknown).samples[0].rows("vision") > 0
    assert build_report(Plan.of(unknown)).estimates.not_counted == {
        "vision": ("weights", "work", "activations")
    }
    told = of(WIDE, tp=2, model={"options": {"inner": 8}, "layers": 3, "parameters": 600})
    estimates = build_report(Plan.of(told)).estimates
    assert estimates.not_counted == {"vision": ("activations",)}
    (stage,) = build_layout(told)["vision"].stages
    assert [stage_weights(told, stage, tp).numel for tp in (0, 1)] == [300, 300]
    assert build_report(Plan.of(unknown)).estimates.tflop < estimates.tflop


def test_layers_of_ours_that_a_class_freezes_stay_so() -> None:
    made = of("tests.support.custom_encoders:Fixed", model={"options": {"inner": 8}})
    network = build_custom_stage(made, whole_stage(made, "vision"), ParallelContext())
    trains = {each.name: d.trains for d in declared_parameters("", network) for each in d.placed}
    assert [name for name in trains if not trains[name]] == ["layers.0.scale.weight"]


@pytest.mark.parametrize(
    ("made", "words"),
    [("[7, 8]", r"stage 0 made rows \[7, 8\] of 6 tokens, not \[6, 8\]"),
     ("[6, 9]", r"stage 0 made rows \[6, 9\] of 6 tokens, not \[6, 8\]")],
)  # fmt: skip
def test_rows_that_language_would_misplace_are_refused(
    package: Path, made: str, words: str
) -> None:
    (package / "mine.py").write_text(
        f"{HEAD.strip()}\n\nclass Layer(nn.Linear):\n"
        "  def forward(self, x, packed): return x\n\n"
        "class Enc(EncoderStage):\n"
        "  def make_layer(self, n): return Layer(8, 8)\n"
        f"  def finish(self, x): return x.new_zeros({made})\n"
    )
    enc = of("mine:Enc", model={"hidden": 8})
    network = build_custom_stage(enc, whole_stage(enc, "vision"), ParallelContext())
    how = reader(enc.encoders["vision"].model)
    patches = Patches(torch.zeros(6, how.width), torch.zeros(6, how.axes, dtype=torch.int64))
    mask = image_context([6], range(6), torch.device("cpu"), alone=True)
    with pytest.raises(CustomClassError, match=words):
        network(None, EncoderInput(mask=mask, sizes=(6,), patches=patches, images=((2, 3),)))
