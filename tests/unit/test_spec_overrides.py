"""`--set path=value`."""

import re
from pathlib import Path

import pytest

from mimo_launch.checks.load_and_check import Checked, check_text
from mimo_launch.spec.load import load_text

VALID = (Path(__file__).parents[1] / "fixtures" / "valid.yaml").read_text(encoding="utf-8")


def places(checked: Checked) -> list[tuple[str, str | None]]:
    """Return (code, `--set` text) of each diagnostic."""
    return [(item.code, checked.source.place_of(item).override) for item in checked.diagnostics]


def test_values_follow_the_rules_of_the_file() -> None:
    overrides = ["optimizer.lr=3e-4", "name=no", "modules.vision.ranks=0-3", "train.steps= 7"]
    overrides += ["optimizer.betas.1=0.99", "optimizer.betas=[0.8, 0.9]", "eval={every: 5}"]
    text = VALID + "optimizer: {betas: [0.9, 0.95]}\n"
    spec = load_text(text, overrides=overrides).spec
    assert spec is not None
    assert (spec.optimizer.lr, spec.name, spec.train.steps) == (3e-4, "no", 7)
    assert spec.optimizer.betas == (0.8, 0.9)
    assert spec.eval is not None
    assert spec.eval.every == 5


def test_sections_that_the_file_leaves_out_can_be_set() -> None:
    spec = load_text(VALID, overrides=["optimizer.schedule.kind=cosine"]).spec
    assert spec is not None
    assert spec.optimizer.schedule.kind == "cosine"


def test_a_section_can_be_removed() -> None:
    spec = load_text(VALID + "eval: {every: 5}\n", overrides=["eval=null"]).spec
    assert spec is not None
    assert spec.eval is None


def test_a_section_that_the_file_turns_off_can_be_set() -> None:
    text = VALID + "checkpoint: none\n"
    spec = load_text(text, overrides=["checkpoint.every=50"]).spec
    assert spec is not None
    assert spec.saving is not None
    assert spec.saving.every == 50
    checked = check_text(text, overrides=["checkpoint.ever=50"])
    assert places(checked) == [("unknown-key", "checkpoint.ever=50")]


def test_a_whole_module_can_be_replaced() -> None:
    text = VALID.replace("  vision:", "  unused:")
    module = (
        "{model: {kind: vit, layers: 1, hidden: 8, heads: 2, patch: 4}, ranks: 0-3, grid: {dp: 4}}"
    )
    loaded = load_text(text, overrides=[f"modules.unused={module}"])
    assert loaded.spec is not None
    assert loaded.spec.modules["unused"].model.hidden == 8


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.steps", "has no `=`"),
        ("=3", "empty"),
        ("train..steps=3", "empty"),
        ("train.steps=[1", "not YAML"),
        ("modules.visoin.grid.tp=3", "no module `visoin`"),
        ("version.x=3", "single value"),
        ("modules.vision.order.9=tp", "not one of its items"),
        ("modules.vision.order.x=tp", "not one of its items"),
    ],
)
def test_overrides_that_lead_nowhere(override: str, words: str) -> None:
    text = VALID.replace("ranks: 0-3", "ranks: 0-3\n    order: [tp, cp, dp, pp]")
    checked = check_text(text, overrides=[override])
    assert places(checked) == [("bad-override", override)]
    assert words in checked.diagnostics[0].headline


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("modules.vision.grid.tp=x", "wrong-type"),
        ("modules.vision.grid.tpp=2", "unknown-key"),
        ("batch.global=30", "batch-not-divisible"),
        ("data.kind=digit", "unknown-kind"),
        ("nodes={}", "missing-key"),
        ("nodes.gpos=8", "unknown-key"),
        ("train=null", "wrong-type"),
        ("modules.vision.ranks=3-0", "bad-value"),
        ("optimizer.schedule.decay=3", "setting-without-effect"),
    ],
)
def test_faults_of_values_are_reported_as_the_override(override: str, code: str) -> None:
    assert places(check_text(VALID, overrides=[override])) == [(code, override)]


def test_the_last_one_wins_and_is_named() -> None:
    checked = check_text(VALID, overrides=["batch.global=31", "batch.global=30"])
    assert places(checked) == [("batch-not-divisible", "batch.global=30")]


def test_a_place_inside_a_replaced_section_is_the_override() -> None:
    checked = check_text(VALID, overrides=["batch={global: 30, seq: 64}"])
    assert places(checked) == [("batch-not-divisible", "batch={global: 30, seq: 64}")]


@pytest.mark.parametrize("override", ["name=other", "data.samples=5", "data.template.kind=chat"])
@pytest.mark.parametrize("wrong", ["${DATA}", "!own {kind: digits}", "{kind: !own digits}"])
def test_an_override_adds_no_finding_about_what_cannot_be_read(override: str, wrong: str) -> None:
    text = re.sub(r"(?m)^data: .*$", lambda _: f"data: {wrong}", VALID)
    alone = [item for item in check_text(text).diagnostics if item.is_error]
    assert len(alone) == 1
    found = check_text(text, overrides=[override]).diagnostics
    assert [(item.code, item.headline) for item in found if item.is_error] == [
        (alone[0].code, alone[0].headline)
    ]


@pytest.mark.parametrize(
    ("override", "help_"),
    [
        (
            "optimizer.betas.2=0.9",
            "write the whole list, as `optimizer.betas=[0.9, 0.95]`, or one of",
        ),
        ("train.steps.x=3", "write the value itself, as `train.steps=100`"),
        ("=3", "write a path and a value, such as `modules.vision.grid.tp=2`"),
    ],
)
def test_a_path_that_leads_nowhere_is_no_reason_to_set_something_else(
    override: str, help_: str
) -> None:
    loaded = load_text(VALID + "optimizer: {betas: [0.9, 0.95]}\n", overrides=[override])
    (found,) = loaded.diagnostics
    assert found.help.startswith(help_)
    # Wrong command lines are mended with what stands behind `--set`.
    assert "--set" not in found.help


@pytest.mark.parametrize("written", ["modules:", "modules: {}"])
def test_a_spec_without_modules_has_none_that_is_frozen(written: str) -> None:
    text = f"version: 1\nname: a\n{written}\nbatch: {{global: 1, seq: 8}}\ndata: {{kind: digits}}\n"
    assert "nothing-to-train" not in {item.code for item in check_text(text).diagnostics}
    found = check_text(text, overrides=["modules.vision.ranks=0"]).diagnostics
    assert (found[0].code, found[0].help) == (
        "bad-override",
        "the spec has no modules yet: write them into the file",
    )
    assert "nothing-to-train" not in {item.code for item in found}
