"""Connectors and generators leave a run as folders, and start another run bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.exports import exported, save_on_rank, trained, with_sections
from tests.support.graphs import connector, flow
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.diag.diagnostic import Severity
from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.spec.spec import Spec

EXPORTED = ("merger", "drawer", "talker")
# Without these, a box's model would follow its grid.
SIZES = {"layers": 2, "hidden": 16, "heads": 2, "mlp": 24}


def graph(start: Path | None = None, **grids: dict[str, Any]) -> Spec:
    """A spec of a resampler, a flow and a talker, which start from folders of their names."""
    moe = {"experts": 2, "top_k": 1, "width": 8, "normalize": False, "every": 2}
    talker = {"kind": "talker", "codebooks": 2, "vocab": 13, **SIZES, "moe": moe}
    modules: dict[str, Any] = {
        "vision": box(0),
        "merger": box(**grids.get("merger", {}), **connector("vision", queries=3)),
        "language": box(0),
        "drawer": box(**grids.get("drawer", {}), **flow()),
        "talker": box(**flow(model=talker)),
    }
    for name in ("merger", "drawer"):
        modules[name]["model"] |= SIZES
    for name in EXPORTED if start is not None else ():
        modules[name]["init_from"] = str(start / name)
    made = with_sections(spec(modules, mbs=2), train={"steps": 2, "precision": "fp32"})
    assert not [each for each in check(made) if each.severity is Severity.ERROR]
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run on several ranks exports."""
    at = tmp_path_factory.mktemp("graph")
    grids = {"merger": {"first": 1, "tp": 2}, "drawer": {"first": 0, "pp": 2}}
    run = trained(graph(**grids), at / "run")
    exported(run, at / "out", EXPORTED)
    return at / "out"


def test_weights_come_back_bit_for_bit_on_another_layout(folder: Path, tmp_path: Path) -> None:
    """Parallelism: saved with merger tp 2 and drawer pp 2, loaded with drawer tp 2."""
    again = graph(folder, drawer={"first": 0, "tp": 2})
    run_ranks(save_on_rank, again, tmp_path / "run", world_size=2)
    exported(tmp_path / "run", tmp_path / "out", EXPORTED)
    for name in EXPORTED:
        first, second = (
            (each / name / "model.safetensors").read_bytes() for each in (folder, tmp_path / "out")
        )
        assert first == second
        assert len(first) > 5000


def test_a_folder_says_what_is_in_it(folder: Path) -> None:
    config = json.loads((folder / "merger" / "config.json").read_text())
    assert config["model_type"] == "mimo_launch_connector"
    assert (config["queries"], config["row_width"]) == (3, graph().language.model.hidden)
    for name, kind in zip(EXPORTED, ("connector", "flow", "talker"), strict=True):
        (found,) = read_contents(folder / name).modules
        assert (found.kind, found.not_computed) == (kind, ())
        assert found.tensors > 10
        assert found.reads == (("vision",) if kind == "connector" else ("language",))


def test_another_model_is_refused_with_the_value_to_write(folder: Path) -> None:
    made = graph(folder)
    model = made.modules["drawer"].model.model_copy(update={"patch": 2})
    drawer = made.modules["drawer"].model_copy(update={"model": model})
    found = check(made.model_copy(update={"modules": {**made.modules, "drawer": drawer}}))
    [item] = [each for each in found if each.severity is Severity.ERROR]
    assert (item.code, item.help) == ("init-from-unlike-model", "write `patch: 1` in `model`")
