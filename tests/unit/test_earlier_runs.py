"""A run that starts from another one makes images as that one did."""

import json
from pathlib import Path
from typing import Any

from mimo_launch.processors.recipes import processor_folder, recipe_of
from mimo_launch.spec.spec import Spec


def saved(folder: Path, **of_spec: Any) -> str:
    """Make what there is to see of a run that has saved; return its folder."""
    step = folder / "checkpoints" / "step-00000004"
    step.mkdir(parents=True)
    (step / "checkpoint.json").write_text(json.dumps({"spec": of_spec}))
    return str(folder)


def starting(start: str) -> Spec:
    model = {"layers": 1, "hidden": 16, "heads": 2, "patch": 4, "channels": 3}
    language = {"layers": 1, "hidden": 16, "heads": 2, "vocab": 40}
    made = {
        "version": 1,
        "name": "second",
        "modules": {
            "vision": {"model": {"kind": "vit", **model}, "ranks": "0", "init_from": start},
            "language": {"model": {"kind": "decoder", **language}, "ranks": "0"},
        },
        "batch": {"global": 2, "seq": 64},
        "data": {"kind": "webdataset", "shards": "a.tar", "tokenizer": "x", "template": "chat"},
    }
    return Spec.model_validate(made)


def clip(folder: Path) -> str:
    folder.mkdir()
    (folder / "preprocessor_config.json").write_text(
        '{"image_processor_type": "CLIPImageProcessor", "crop_size": 32, "size": 32}'
    )
    return str(folder)


def test_through_runs_that_started_from_runs(tmp_path: Path) -> None:
    tower = clip(tmp_path / "clip")
    first = saved(tmp_path / "first", modules={"vision": {"init_from": tower}})
    second = saved(tmp_path / "second", modules={"vision": {"init_from": first}})
    for start in (tower, first, second, f"{second}/checkpoints/step-00000004"):
        made = starting(start)
        assert processor_folder(made, "vision") == Path(tower)
        assert recipe_of(made, "vision").mean[0] == 0.48145466


def test_what_the_data_of_the_earlier_run_named_comes_first(tmp_path: Path) -> None:
    other, tower = clip(tmp_path / "other"), clip(tmp_path / "clip")
    data = {"kind": "webdataset", "processors": {"vision": other}}
    start = saved(tmp_path / "run", modules={"vision": {"init_from": tower}}, data=data)
    assert processor_folder(starting(start), "vision") == Path(other)


def test_runs_that_lead_nowhere(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for modules in (
        {"vision": {"init_from": None}},
        {"vision": {"init_from": str(run)}},
        {"vision": {"init_from": str(tmp_path / "gone")}},
        {"other": {}},
        None,
    ):
        step = run / "checkpoints" / "step-00000004"
        step.mkdir(parents=True, exist_ok=True)
        (step / "checkpoint.json").write_text(json.dumps({"spec": {"modules": modules}}))
        assert processor_folder(starting(str(run)), "vision") is None
    (step / "checkpoint.json").write_text('{"spec": 1}')
    assert processor_folder(starting(str(run)), "vision") is None
