"""What `validate` says of the checkpoint that weights are to come from."""

import json
from pathlib import Path
from typing import Any

import pytest

from mimo_launch.checks.load_and_check import Checked, check_text
from mimo_launch.diag.diagnostic import Diagnostic, Severity
from mimo_launch.spec.load import dump_spec, spec_from_data
from mimo_launch.verify.shrink import shrink

TEXT = """version: 1
name: t
init_from: {top}
modules:
  vision:
    model: {{kind: vit, layers: 1, hidden: 24, heads: 2, patch: 4}}
    ranks: 0
    init_from: {vision}
  language:
    model: {{kind: decoder, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: digits}}
    ranks: 0
batch: {{global: 2, seq: 33}}
data: {{kind: digits}}
train: {{steps: 1}}
"""


def checked(*settings: str, top: Path | str = "null", vision: Path | str = "null") -> Checked:
    return check_text(TEXT.format(top=top, vision=vision), overrides=settings)


def stage(folder: Path, *, without: str = "", **language: Any) -> Path:
    """Write the marker of a checkpoint of the same run, or of one with another language model."""
    found = checked().spec
    assert found is not None
    spec = dump_spec(found)
    spec["modules"]["language"]["model"].update(language)
    spec["modules"].pop(without, None)
    (folder / "checkpoints/step-00000004").mkdir(parents=True)
    marker = folder / "checkpoints/step-00000004/checkpoint.json"
    marker.write_text(json.dumps({"spec": spec}))
    return folder


def test_one_line_is_that_of_every_module_without_its_own(tmp_path: Path) -> None:
    first, other = stage(tmp_path / "first"), stage(tmp_path / "other")
    found = checked(top=first, vision=other)
    assert found.diagnostics == ()
    assert found.spec is not None
    assert found.spec.modules["vision"].init_from == str(other)
    assert found.spec.modules["language"].init_from == str(first)
    # Read back from what a checkpoint keeps, it is the same spec.
    assert spec_from_data(dump_spec(found.spec)) == found.spec
    small = spec_from_data(dump_spec(shrink(found.spec)))
    assert [module.init_from for module in small.modules.values()] == [None, None]


def test_no_checkpoint_is_said_at_the_line_that_names_it(tmp_path: Path) -> None:
    found = checked(top=tmp_path / "none")
    assert {(item.code, item.path) for item in found.diagnostics} == {
        ("init-from-not-checkpoint", ("init_from",))
    }
    own = checked(vision=tmp_path / "none").diagnostics
    assert [item.path for item in own] == [("modules", "vision", "init_from")]


@pytest.mark.parametrize("at_top", [True, False])
def test_a_checkpoint_without_the_module(at_top: bool, tmp_path: Path) -> None:
    run = stage(tmp_path / "run", without="vision")
    [item] = checked(top=run).diagnostics if at_top else checked(vision=run).diagnostics
    assert item.code == "init-from-lacks-module"
    assert item.path == (("init_from",) if at_top else ("modules", "vision", "init_from"))
    assert item.why == "its run had the modules `language`"


def unlike(run: Path, *settings: str) -> tuple[Diagnostic, ...]:
    return checked(*settings, top=run).diagnostics


def test_another_model_is_named_by_its_keys(tmp_path: Path) -> None:
    run = stage(tmp_path / "run", hidden=64, head_dim=8, mlp=128, norm_eps=1e-6)
    # What 32 / 4 and 8/3 of 32 are by default: the same model, said in another way.
    items = unlike(run)
    assert {item.code for item in items} == {"init-from-unlike-model"}
    found = {item.path[-1]: item.headline for item in items}
    assert found == {
        "hidden": f"`hidden` of `language` is 32, but in {run} 64",
        "norm_eps": f"`norm_eps` of `language` is 1e-05, but in {run} 1e-06",
    }
    items = unlike(run, "modules.language.init_partial=true")
    assert [item.severity for item in items] == [Severity.WARNING] * 2


def test_a_marker_that_cannot_be_read_is_left_to_the_run(tmp_path: Path) -> None:
    run = stage(tmp_path / "run")
    (run / "checkpoints/step-00000004/checkpoint.json").write_text("{")
    assert checked(top=run).diagnostics == ()
