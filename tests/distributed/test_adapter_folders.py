"""Adapters leave as folders that peft loads, arrive from such folders, and train as with peft."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tests.support.exports import exported, trained, with_sections
from tests.support.families import FAMILIES
from tests.support.whole_models import (
    deviation,
    found_logits,
    labels_of,
    moved_by_torch,
    with_optimizer,
)

from mimo_launch.checkpoint.index import open_checkpoint
from mimo_launch.checks.all_checks import check
from mimo_launch.export.adapter_folder import adapter_plan, write_adapter
from mimo_launch.export.export_plan import CannotExport, Exporter
from mimo_launch.spec.spec import Spec

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

LORA = {"rank": 2, "alpha": 12.0, "targets": ["attention", "mlp"]}
NAMES = ("llama", "exaone", "qwen3", "gemma2", "llava of siglip and qwen2", "qwen2_vl", "qwen3_vl")
LEARN = {"steps": 2, "precision": "fp32"}


def adapted(asked: Spec, **adapter: Any) -> Spec:
    """Return a spec in which every module has an adapter."""
    made = with_sections(asked, train=LEARN | {"seed": asked.train.seed}, optimizer={"lr": 1e-2})
    data = made.model_dump(mode="json", by_alias=True)
    for module in data["modules"].values():
        module["adapter"] = LORA | adapter
    return Spec.model_validate(data)


def layout_of(name: str) -> str:
    """Return a layout of several ranks, if a family has one."""
    return next((each for each in FAMILIES[name].layouts if each != "one rank"), "one rank")


def written(run: Path, folder: Path) -> Path:
    """Write the adapters of a run."""
    found = open_checkpoint(run, None)
    plan = adapter_plan(found.spec, Exporter(found, in_memory=True).folders(()))
    write_adapter(found, plan, folder, force=False)
    return folder


def beside(model: Any, folder: Path) -> Any:
    """Return a model of transformers with an adapter, of which peft misses nothing."""
    from peft import PeftModel  # Four seconds, which other workers need not spend.

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return PeftModel.from_pretrained(model, str(folder))


def tuned_by_peft(model: Any, targets: Any, folder: Path) -> Any:
    """Return a model of transformers with a new adapter of peft, which is saved to a folder."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, lora_alpha=6, target_modules=targets, init_lora_weights=False)
    tuned = get_peft_model(model, config)
    tuned.save_pretrained(str(folder))
    return tuned


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.sweep if n in ("qwen3", "qwen2_vl") else ()) for n in NAMES],
)
def test_peft_loads_a_trained_adapter_and_it_comes_back(name: str, tmp_path: Path) -> None:
    family, layout = FAMILIES[name], layout_of(name)
    model, asked = family.start(layout, tmp_path, **family.layouts[layout])
    run = trained(adapted(asked), tmp_path / "run")
    folder = written(run, tmp_path / "adapter")
    ours = found_logits(adapted(asked), run)
    assert deviation(ours, family.wanted(beside(model, folder), adapted(asked))) < 1e-5
    again = adapted(asked, init_from=str(folder), alpha=3.0)
    start = tmp_path / "again"
    torch.testing.assert_close(found_logits(again, start), ours, rtol=1e-5, atol=1e-5)


def test_an_adapter_of_some_layers_leaves_and_comes_back(tmp_path: Path) -> None:
    """In a folder of peft, the numbers of layers tell those without an update."""
    family, layout = FAMILIES["llama"], layout_of("llama")
    model, asked = family.start(layout, tmp_path, **family.layouts[layout])

    def upper(**adapter: Any) -> Spec:
        data = adapted(asked, **adapter).model_dump(mode="json", by_alias=True)
        data["modules"]["language"]["frozen"] = {"layers": "0"}
        return Spec.model_validate(data)

    run = trained(upper(), tmp_path / "run")
    folder = written(run, tmp_path / "adapter")
    ours = found_logits(upper(), run)
    assert deviation(ours, family.wanted(beside(model, folder), upper())) < 1e-5
    again = found_logits(upper(init_from=str(folder)), tmp_path / "again")
    torch.testing.assert_close(again, ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2_vl"])
def test_an_adapter_of_peft_is_read(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model, asked = family.start("one rank", tmp_path, **family.layouts.get("one rank", {}))
    tuned = tuned_by_peft(model, ["q_proj", "down_proj"], tmp_path / "adapter")
    data = adapted(asked, targets=["q", "down"]).model_dump(mode="json", by_alias=True)
    data["modules"]["language"]["adapter"]["init_from"] = str(tmp_path / "adapter")
    if "vision" in data["modules"]:
        data["modules"]["vision"]["adapter"] = None
    found = found_logits(Spec.model_validate(data), tmp_path / "new")
    assert deviation(found, family.wanted(tuned, Spec.model_validate(data))) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_that_of_peft(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter of peft is read, takes a step of AdamW here, and leaves; peft takes the same."""
    family = FAMILIES[name]
    model, asked = family.start("one rank", tmp_path, "fp64", **family.step_settings)
    words = r".*model\.(language_model\.)?layers.*_proj"
    tuned = tuned_by_peft(model, words, tmp_path / "adapter")
    data = with_optimizer(asked, "adamw").model_dump(mode="json", by_alias=True)
    for module in data["modules"].values():
        module["frozen"] = True
    start = {"rank": 2, "alpha": 6.0, "init_from": str(tmp_path / "adapter")}
    data["modules"]["language"] |= {"frozen": False, "adapter": start}
    made = Spec.model_validate(data)
    folder = written(trained(made, tmp_path / "run"), tmp_path / "written")
    with monkeypatch.context() as patched:
        family.widen(tuned.get_base_model(), patched)
        logits, labels = family.logits_of(tuned, made), labels_of(made)
        F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    moved_by_torch(tuned, "adamw")
    tuned.save_pretrained(str(tmp_path / "wanted"))
    found, wanted = (
        load_file(each / "adapter_model.safetensors") for each in (folder, tmp_path / "wanted")
    )
    before = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert float((found[key].double() - tensor).abs().max()) < 1e-6, key
        assert not torch.equal(found[key], before[key]), key


def of_experts(asked: Spec, **adapter: Any) -> Spec:
    """Return a spec in which attention and the experts of language have an adapter."""
    made = adapted(asked, targets=["attention", "experts"], **adapter)
    data = made.model_dump(mode="json", by_alias=True)
    for name, module in data["modules"].items():
        module["adapter"] = module["adapter"] if name == "language" else None
    return Spec.model_validate(data)


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_updates_of_experts_are_merged_wherever_files_have_them(name: str, tmp_path: Path) -> None:
    """An expert has tensors of its own in a file, or entries of a stack, transposed and in turn."""
    family, layout = FAMILIES[name], "tp2"
    model, asked = family.start(layout, tmp_path, **family.layouts[layout])
    made = of_experts(asked)
    run = trained(made, tmp_path / "run")
    exported(run, tmp_path / "merged")
    merged = type(model).from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    ours = found_logits(made, run)
    assert deviation(ours, family.wanted(merged, made)) < 1e-5
    assert deviation(ours, family.wanted(model, made)) > 1e-2


MIXTURES = (
    "mixtral", "gpt_oss", "granitemoe",
    *(
        pytest.param(name, marks=pytest.mark.sweep)
        for name in (
            "qwen3_moe", "deepseek_v3", "olmoe", "qwen2_moe", "glm4_moe", "exaone_moe",
            "minimax_m2",
        )
    ),
)  # fmt: skip


@pytest.mark.parametrize("name", MIXTURES)
def test_peft_loads_updates_of_experts_and_they_come_back(name: str, tmp_path: Path) -> None:
    """peft has one A and one B for all experts of a stack, in which gate and up are one map."""
    family, layout = FAMILIES[name], layout_of(name)
    model, asked = family.start(layout, tmp_path, **family.layouts[layout])
    run = trained(of_experts(asked), tmp_path / "run")
    folder = written(run, tmp_path / "adapter")
    ours = found_logits(of_experts(asked), run)
    assert deviation(ours, family.wanted(model, of_experts(asked))) > 1e-2
    assert deviation(ours, family.wanted(beside(model, folder), of_experts(asked))) < 1e-5
    again = of_experts(asked, init_from=str(folder), alpha=3.0)
    assert not [each for each in check(again) if each.is_error]
    found = found_logits(again, tmp_path / "again")
    torch.testing.assert_close(found, ours, rtol=1e-5, atol=1e-5)


def test_what_an_adapter_cannot_hold_is_said(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    _, asked = family.start("one rank", tmp_path)
    run = trained(with_sections(asked, train=LEARN), tmp_path / "run")
    with pytest.raises(CannotExport, match="no module has an adapter") as refused:
        written(run, tmp_path / "adapter")
    # No part of it has an adapter either: another `--module` would not help.
    assert refused.value.instead == "leave out --adapter to write the whole model"
