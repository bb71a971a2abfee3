"""What users install holds every file of the package, also where the wheel is made of the sdist."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mimo_launch"


def built(project: Path, target: str, folder: Path) -> Path:
    """Build a wheel or sdist of a project as `pip` does, and return its file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=120)
    (file,) = folder.iterdir()
    return file


def test_a_wheel_made_of_the_sdist_has_every_file_of_the_package(tmp_path: Path) -> None:
    with tarfile.open(built(ROOT, "sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("mimo_launch-*")
    with zipfile.ZipFile(built(unpacked, "wheel", tmp_path / "wheel")) as wheel:
        installed = {name for name in wheel.namelist() if name.startswith("mimo_launch/")}
    files = (path for path in PACKAGE.rglob("*") if path.is_file())
    assert installed == {
        str(path.relative_to(PACKAGE.parent)) for path in files if "__pycache__" not in path.parts
    }
