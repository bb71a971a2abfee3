"""The recipe of CONTRIBUTING for an encoder kind, followed on a copy of the sources."""

import filecmp
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.files_page import ROOT, SOURCES

# A ViT whose tokens are scaled by a learned vector in front of its layers.
KEYS = """
from typing import Literal

from mimo_launch.spec.vit import VitModel


class ScaledVitModel(VitModel):
    \"\"\"A vision transformer whose tokens are scaled before the first layer.\"\"\"

    kind: Literal["scaled_vit"]
"""
KIND = """
from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.block_shapes import scale_shape
from mimo_launch.kinds.vision import VisionKind
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.scaled_vit import ScaledVitModel


@frozen
class ScaledPatchesShape(LayerShape):
    patches: LayerShape
    scale: LayerShape

    def parts(self):
        return {**self.patches.parts(), "scale": self.scale}


@frozen
class ScaledVitKind(VisionKind):
    model: ScaledVitModel

    @property
    def stage(self):
        return "mimo_launch.models.scaled_vit:ScaledVisionStage"

    def before(self, ends):
        scale = scale_shape(self.model.hidden, 0.5)
        return ScaledPatchesShape(VisionKind.before(self, ends), scale)
"""
STAGE = """
from mimo_launch.models.vision_encoder import VisionStage


class ScaledVisionStage(VisionStage):
    def embed(self, packed):
        return self.scale(super().embed(packed))
"""
SPEC = """
version: 1
name: scaled
modules:
  vision:
    model: {kind: scaled_vit, layers: 2, hidden: 32, heads: 4, patch: 4}
    ranks: 0-3
    grid: {tp: 2, pp: 2}
  language:
    model: {kind: decoder, layers: 2, hidden: 32, heads: 4, vocab: digits}
    ranks: 0-3
    grid: {dp: 4}
schedule: {kind: 1f1b, microbatches: 1}
batch: {global: 8, seq: 33}
data: {kind: digits}
train: {steps: 2, precision: fp32}
"""


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1, (file.name, before)
    file.write_text(text.replace(before, after), encoding="utf-8")


def follow(sources: Path, scale: str) -> None:
    """Write the three files of the recipe, and the oracle, which multiplies by `scale`."""
    union = "EncoderKinds = VisionKinds"
    module = sources / "spec" / "module.py"
    edit(module, f"\n{union}", f"\n{union} | ScaledVitModel")
    imported = "from mimo_launch.spec.vit import VitModel\n"
    edit(module, imported, f"from mimo_launch.spec.scaled_vit import ScaledVitModel\n{imported}")
    (sources / "spec" / "scaled_vit.py").write_text(KEYS, encoding="utf-8")
    (sources / "kinds" / "scaled_vit.py").write_text(KIND, encoding="utf-8")
    (sources / "models" / "scaled_vit.py").write_text(STAGE, encoding="utf-8")
    oracle = sources / "verify" / "oracle_towers.py"
    known = '    "vit": Tower(),\n'
    placed = f"lambda *given: {scale} * _placed(*given)"
    edit(oracle, known, f'{known}    "scaled_vit": Tower(placed={placed}),\n')


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    command = [sys.executable, "-m", "mimo_launch", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.example
@pytest.mark.parametrize(
    ("scale", "is_right"), [('given[0][f"{given[1]}.scale.weight"]', True), ("1.0", False)]
)
def test_an_encoder_kind_takes_three_files_and_is_proved(
    scale: str, is_right: bool, tmp_path: Path
) -> None:
    copy = tmp_path / "mimo_launch"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    follow(copy, scale)
    (tmp_path / "scaled.yaml").write_text(SPEC, encoding="utf-8")
    planned = run(tmp_path, "plan", "scaled.yaml")
    assert (planned.returncode, planned.stderr) == (0, "")
    assert "vision" in planned.stdout
    proved = run(tmp_path, "verify", "scaled.yaml")
    assert (proved.returncode == 0) == is_right, proved.stdout + proved.stderr
    assert (": relative error" in proved.stdout + proved.stderr) != is_right
    changed = {
        file.relative_to(copy).as_posix()
        for file in copy.rglob("*.py")
        if not (there := SOURCES / file.relative_to(copy)).exists()
        or not filecmp.cmp(file, there, shallow=False)
    }
    code = {f"{room}/scaled_vit.py" for room in ("spec", "kinds", "models")}
    assert changed == code | {"spec/module.py", "verify/oracle_towers.py"}
    recipe = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = recipe.partition("## Recipe: an encoder kind")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\d\. .*?`([a-z_/.]+)`", steps, re.MULTILINE))
    assert named == {"spec/", "kinds/", "models/"}
