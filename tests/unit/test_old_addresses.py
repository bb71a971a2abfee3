"""What users imported keeps working for a release, and says where it is now."""

import subprocess
import sys

import pytest

CUSTOM, SPANS = "mimo_launch.custom", "mimo_launch.drawing.spans"
OLD = [
    ("mimo_launch.modules.encoder", "EncoderStage", CUSTOM),
    ("mimo_launch.modules.encoder", "EncoderFactory", CUSTOM),
    ("mimo_launch.modules.inputs", "EncoderInput", CUSTOM),
    ("mimo_launch.modules.rows", "projector", CUSTOM),
    ("mimo_launch.parallel.attention", "Attention", CUSTOM),
    ("mimo_launch.parallel.context", "ParallelContext", CUSTOM),
    ("mimo_launch.parallel.layers", "ColumnLinear", CUSTOM),
    ("mimo_launch.parallel.layers", "Norm", CUSTOM),
    ("mimo_launch.parallel.layers", "RowLinear", CUSTOM),
    ("mimo_launch.parallel.segments", "SegmentedModule", CUSTOM),
    ("mimo_launch.parallel.segments", "replicated", CUSTOM),
    ("mimo_launch.plan.spans", "parse_timeline", SPANS),
]


@pytest.fixture(scope="module")
def told() -> list[str]:
    """The warnings of a process that imports every old name by its old address."""
    lines = ["import importlib, warnings", "warnings.simplefilter('always')"]
    for old, name, new in OLD:
        lines.append(f"from {old} import {name} as found")
        lines.append(f"assert found is importlib.import_module('{new}').{name}, '{old}'")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "DeprecationWarning" in line]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mimo_launch.modules", CUSTOM),
        ("mimo_launch.parallel", CUSTOM),
        ("mimo_launch.plan.spans", SPANS),
    ],
)
def test_an_old_address_warns_once_and_names_the_new_one(
    told: list[str], old: str, new: str
) -> None:
    (line,) = [line for line in told if f": {old} goes" in line]
    assert f"{new}:" in line
    assert line.startswith("<string>:")  # The line of the importer, not of the old address.
