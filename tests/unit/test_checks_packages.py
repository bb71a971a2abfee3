"""A spec that needs a package is refused where the package is missing."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.checks.load_and_check import check_text, load_and_check
from mimo_launch.cli.report import REQUIREMENT
from mimo_launch.diag import installed

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "tests" / "fixtures" / "tiny_train.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("log", "key"),
    [
        ("{tensorboard: true}", "tensorboard"),
        ("{wandb: {project: p}}", "wandb"),
        ("{mlflow: {experiment: e}}", "mlflow"),
    ],
)
def test_a_missing_package_is_found_before_the_run(
    log: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT + f"log: {log}\n"
    assert check_text(text).diagnostics == ()
    monkeypatch.setitem(sys.modules, key, None)
    (found,) = check_text(text).diagnostics
    assert found.code == "missing-package"
    assert found.path == ("log", key)


def test_a_missing_backend_is_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only then: `plan` and `validate` are for machines without GPUs, too."""
    file = tmp_path / "spec.yaml"
    text = TEXT.replace("train: {", "train: {precision: bf16, ")
    assert text != TEXT
    file.write_text(text, encoding="utf-8")
    settings = ["modules.language.backend=transformer_engine"]
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    assert load_and_check(file, settings).diagnostics == ()
    assert load_and_check(file, runs_here=True).diagnostics == ()
    checked = load_and_check(file, settings, runs_here=True)
    assert checked.spec is None
    (found,) = checked.diagnostics
    assert found.code == "missing-package"
    assert found.path == ("modules", "language", "backend")
    assert (found.help or "").endswith(" with --set modules.language.backend=torch")
    wide = ["modules.language.model={kind: decoder, layers: 2, hidden: 64, heads: 4, vocab: 128}"]
    checked = load_and_check(file, [*settings, *wide, "modules.language.fp8={}"], runs_here=True)
    (found,) = checked.diagnostics
    assert (found.help or "").endswith(".backend=torch --set modules.language.fp8=null")


def test_nf4_needs_its_library_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(TEXT, encoding="utf-8")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    few = ["modules.language.adapter={rank: 2}", "modules.language.quantize_base={kind: nf4}"]
    assert load_and_check(file, few).diagnostics == ()
    (found,) = load_and_check(file, few, runs_here=True).diagnostics
    assert (found.code, found.path) == (
        "missing-package",
        ("modules", "language", "quantize_base"),
    )
    kind = (found.help or "").rpartition("--set ")[2]
    assert load_and_check(file, [*few, kind], runs_here=True).diagnostics == ()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["train.precision=fp32"], "compute in fp32"),
        (["train.precision=fp64"], "compute in fp64"),
        (["modules.language.model.head_dim=12"], "heads of size 12"),
        (["modules.language.model.head_dim=264"], "heads of size 264"),
        (["modules.language.model.head_dim=256"], None),
        (["modules.language.model.head_dim=8"], None),
        (["modules.language.model.sliding_window={size: 4}"], "`sliding_window`"),
        (["modules.language.model.nope={layers: [0]}"], "`nope`"),
        (["modules.language.model.activation=gelu_tanh"], "`activation`"),
        (["modules.language.model.bidirectional_images=true"], "`bidirectional_images`"),
        (["modules.language.model.bidirectional_prompts=true"], "`bidirectional_prompts`"),
        (["modules.language.model.post_norms=true"], "`post_norms`"),
        (["modules.language.model.norm_offset=true"], "`norm_offset`"),
        (["modules.language.model.attention_sinks=true"], "`attention_sinks`"),
        (["modules.language.model.output_bias=true"], "`output_bias`"),
        (["modules.language.model.mlp_bias=true"], "`mlp_bias`"),
        (
            ["modules.language.model.qk_norm=true", "modules.language.model.rotated_qk_norm=true"],
            "`rotated_qk_norm`",
        ),
        (
            [
                "modules.language.model.mla={kv_rank: 8, rope_head_dim: 8}",
                "modules.language.model.head_dim=16",
            ],
            "`mla`",
        ),
        (["modules.language.model.query_pre_attn_scalar=20.0"], "`query_pre_attn_scalar`"),
        (["modules.language.model.attention_softcap=50.0"], "`attention_softcap`"),
        (
            ["modules.language.model.query_scaling={beta: 0.1, length: 8}"],
            "`query_scaling`",
        ),
        (["modules.language.model.logit_softcap=30.0"], None),
        (["modules.language.model.gated_attention=true"], "`gated_attention`"),
        (["modules.language.model.rotary_factor=0.5"], "`rotary_factor`"),
        (["modules.language.model.rotary_interleaved=true"], "`rotary_interleaved`"),
        (["modules.language.model.embedding_scale=8.0"], None),
    ],
)
def test_what_a_backend_cannot_do_is_found(settings: list[str], words: str | None) -> None:
    engine = ["train.precision=bf16", "modules.language.backend=transformer_engine"]
    assert check_text(TEXT, overrides=["train.precision=bf16", *settings]).diagnostics == ()
    found = check_text(TEXT, overrides=[*engine, *settings]).diagnostics
    assert [item.code for item in found] == ["backend-cannot"] * (words is not None)
    assert words is None or words in found[0].headline


@pytest.mark.parametrize("backend", ["torch", "transformer_engine"])
@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("data", [{}, {"max_documents": 3}, {"packing": True}])
def test_every_backend_takes_packed_documents_with_any_cp(
    backend: str, cp: int, data: dict[str, Any]
) -> None:
    made = spec(
        {"language": box(0, cp=cp, backend=backend, model={"head_dim": 8})},
        train={"precision": "bf16"},
        **data,
    )
    assert "backend-cannot" not in [item.code for item in check(made)]


def test_a_folder_of_a_package_s_name_is_not_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wandb` leaves a folder `wandb/` behind, which Python takes for a package without files."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    text = TEXT + "log: {wandb: {project: p}}\n"
    assert [found.code for found in check_text(text).diagnostics] == ["missing-package"]


def test_the_packages_asked_for_are_those_of_the_extras() -> None:
    import tomllib

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert extras["tensorboard"] == [installed.TENSORBOARD]
    assert extras["wandb"] == [installed.WANDB]
    assert extras["mlflow"] == [installed.MLFLOW]
    assert extras["qlora"] == [installed.BITSANDBYTES]
    assert extras["processors"] == [installed.TRANSFORMERS]
    assert extras["data"] == list(installed.SHARD_PACKAGES.values())
    assert extras["tables"] == [installed.PYARROW]
    assert extras["audio"] == list(installed.AUDIO_PACKAGES.values())
    assert extras["report"] == [REQUIREMENT]
    assert installed.TRANSFORMER_ENGINE in extras["gpu"]
