"""Checkpoints without frozen weights: whoever reads one reads them in `init_from` again."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.test_adapters import LORA, first_loss
from tests.distributed.test_checkpoints import LANGUAGE, make_spec, numbers, run, run_anew
from tests.support.exports import exported, trained, with_sections
from tests.support.families import FAMILIES
from tests.support.running_ranks import run_on_running_ranks

from mimo_launch.checkpoint.boxes import weight_boxes
from mimo_launch.checkpoint.index import NoBase, open_checkpoint, read_index
from mimo_launch.checkpoint.loading import load_all_weights
from mimo_launch.checkpoint.whole import check_bases
from mimo_launch.checks.all_checks import check
from mimo_launch.estimate.memory import checkpoint_bytes
from mimo_launch.export.adapter_folder import adapter_plan
from mimo_launch.export.export_plan import Exporter
from mimo_launch.launcher.run_on_ranks import RankError
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.rank_session import RankSession

LEFT_OUT = {"every": 3, "frozen_weights": False}


def adapted(
    layout: str, steps: int, base: Path, *, whole: bool = False, frozen: Any = "except_projector"
) -> Spec:
    """A run that trains an adapter of language on a frozen encoder, from a trained base."""
    modules = {(name, "init_from"): str(base) for name in ("vision", "language")}
    modules |= {("language", "adapter"): LORA, ("vision", "frozen"): frozen}
    saves = {**LEFT_OUT, "frozen_weights": whole}
    return make_spec(layout, steps, modules=modules, checkpoint=saves)


def sums(spec: Spec, folder: Path) -> dict[str, float]:
    """Return the sum of each weight that commands read from a run, on one rank."""
    with RankSession(Plan.of(spec), draw=False) as session:
        load_all_weights(session, folder, lambda event: None)
        boxes = [box for each in session.modules.values() for box in weight_boxes(each)]
        return {box.name: float(box.tensor.sum()) for box in boxes}


def test_a_run_resumes_without_its_base_on_another_layout(tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "run"
    run(make_spec("one rank", 3), base)
    alone = numbers(run(adapted("one rank", 5, base, whole=True), tmp_path / "alone"))
    run(adapted("colocated dp4, tp2 dp2", 3, base), folder)
    saved = read_index(folder / "checkpoints" / "step-00000003").keys()
    assert {name.split("/")[1].split(".")[0] for name in saved} == {"vision", "language"}
    assert all("lora_" in name or ".projector." in name for name in saved)
    went_on = numbers(run_anew(adapted("pp2", 5, base), folder))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(alone[step], rel=1e-9)
    # The next run starts from one that leaves out what a third one holds.
    after = adapted("disjoint dp2, tp2", 1, folder)
    whole = adapted("one rank", 1, tmp_path / "alone")
    loss = first_loss(whole, tmp_path / "from whole")
    assert first_loss(after, tmp_path / "from left out") == pytest.approx(loss, rel=1e-9)
    # It leaves out the same weights itself, those that it read through the other run included.
    assert read_index(tmp_path / "from left out" / "checkpoints" / "step-00000001").keys() == saved
    assert sorted(open_checkpoint(folder, None).shapes.items()) == sorted(
        (name, shape) for name, shape in open_checkpoint(tmp_path / "alone", None).shapes.items()
    )
    left, kept = (
        run_on_running_ranks(sums, adapted("one rank", 5, base), each, world_size=1)[0]
        for each in (folder, tmp_path / "alone")
    )
    assert left == pytest.approx(kept, rel=1e-9)
    # An export looks at the third run, too.
    third = open_checkpoint(tmp_path / "from left out", None)
    check_bases(third)
    run_anew(make_spec("one rank", 6), base)
    with pytest.raises(NoBase, match=f"leaves out weights, and {base} has changed since"):
        check_bases(third)
    with pytest.raises(RankError, match=r"leaves out weights of `\w+`.*has changed since"):
        run_anew(adapted("one rank", 6, base), folder)


def test_a_run_starts_from_one_that_saved_nothing_of_a_module(tmp_path: Path) -> None:
    base, left, whole = (tmp_path / name for name in ("base", "left", "whole"))
    run(make_spec("one rank", 1), base)
    losses = []
    for folder, saves_all in ((left, False), (whole, True)):
        run(adapted("one rank", 1, base, whole=saves_all, frozen=True), folder)
        after = adapted("one rank", 1, folder, frozen=True)
        losses.append(first_loss(after, tmp_path / f"from {folder.name}"))
    saved = read_index(left / "checkpoints" / "step-00000001")
    assert not any("/vision." in name for name in saved)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_what_has_trained_or_moves_is_saved_although_it_is_frozen(tmp_path: Path) -> None:
    """Layer 1 trains in the first run and is frozen in the second; biases of experts move.

    Layer 3 never trains, but no folder holds it.
    """
    base, folder = tmp_path / "base", tmp_path / "run"
    experts = {"experts": 4, "top_k": 2, "width": 8, "score": "sigmoid", "bias_update_rate": 0.1}

    def made(steps: int, layers: int, **language: Any) -> Spec:
        language["model"] = LANGUAGE | {"layers": layers, "moe": experts}
        modules = {("language", key): each for key, each in language.items()}
        return make_spec("one rank", steps, modules=modules, checkpoint=LEFT_OUT)

    run(made(1, 3), base)
    start = {"init_from": str(base), "init_partial": True}
    for steps, layers in ((1, "2-3"), (2, "1-3")):
        run(made(steps, 4, **start, frozen={"layers": layers}), folder)
    saved = read_index(folder / "checkpoints" / "step-00000002")
    weights = {name.removeprefix("weights/language.layers.") for name in saved}
    assert [n for n in range(4) if f"{n}.attention.q.weight" in weights] == [0, 1, 3]
    assert {f"{number}.mlp.router.expert_bias" for number in range(4)} <= weights


def test_a_base_that_is_gone_from_the_spec_is_missed(tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "run"
    run(make_spec("one rank", 3), base)
    run(adapted("one rank", 3, base), folder)
    modules = {("language", "adapter"): LORA, ("vision", "frozen"): "except_projector"}
    with pytest.raises(RankError, match=r"leaves out .* `vision`; write `init_from: .*base"):
        run_anew(make_spec("one rank", 5, modules=modules), folder)


def test_an_export_reads_the_base_again(tmp_path: Path) -> None:
    family = FAMILIES["qwen2_vl"]
    _, asked = family.start("one rank", tmp_path, **family.layouts.get("one rank", {}))
    data = with_sections(asked, train={"steps": 2, "precision": "fp32"}).model_dump(
        mode="json", by_alias=True
    )
    for module in data["modules"].values():
        module["adapter"] = {"rank": 2}
    left: dict[str, Any] = data | {"checkpoint": {"every": 1, "frozen_weights": False}}
    runs = [
        trained(Spec.model_validate(each), tmp_path / name)
        for name, each in (("whole", data), ("left", left))
    ]
    whole, made = (exported(each, each / "exported") for each in runs)
    assert whole.keys() == made.keys()
    assert all(torch.equal(whole[name], made[name]) for name in whole)
    base = Path(data["modules"]["language"]["init_from"])
    found = open_checkpoint(runs[1], None)
    plan = adapter_plan(found.spec, Exporter(found, in_memory=True).folders(()))
    assert plan.config["base_model_name_or_path"] == str(base.resolve())
    file = base / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(NoBase, match=r"leaves out .*changed.*model\.safetensors") as changed:
        exported(runs[1], tmp_path / "again")
    assert changed.value.help.startswith("put the folder back as it was")
    shutil.rmtree(base)
    with pytest.raises(NoBase, match=r"leaves out weights, and .* is not a folder"):
        exported(runs[1], tmp_path / "gone")


def test_nothing_to_leave_out_is_said_and_the_rest_is_counted(tmp_path: Path) -> None:
    asked = make_spec("one rank", 3, checkpoint=LEFT_OUT)
    (found,) = check(asked)
    assert (found.code, found.path) == ("setting-without-effect", ("checkpoint", "frozen_weights"))
    whole, left = (adapted("one rank", 3, tmp_path, whole=each) for each in (True, False))
    weights = checkpoint_bytes(make_spec("one rank", 3, optimizer={"kind": "sgd", "lr": 0.1}))
    assert checkpoint_bytes(left) < checkpoint_bytes(whole) - weights / 2
