"""The packages that the sources import are those that pyproject.toml declares."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "mimo_launch"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Where a package is not installed, its distribution cannot be looked up.
OF_GPUS = {
    "fla": "fla-core",
    "transformer_engine": "transformer-engine",
    "transformer_engine_torch": "transformer-engine",
    "mamba_ssm": "mamba-ssm",
    "causal_conv1d": "causal-conv1d",
}


def declared(*extras: str) -> set[str]:
    """The distributions that a user has who installs the package with these extras."""
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(each for extra in extras for each in optional[extra])]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def imports_of(path: Path) -> Iterator[ast.Import | ast.ImportFrom]:
    """All import statements of a file, those inside of functions, too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level):
            yield node


def packages_of(node: ast.Import | ast.ImportFrom) -> set[str]:
    names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module]
    return {str(name).partition(".")[0] for name in names}


def test_every_package_that_a_source_imports_is_declared() -> None:
    homes = {
        package: [canonicalize_name(each) for each in dists]
        for package, dists in packages_distributions().items()
    }
    allowed = declared(*PROJECT["optional-dependencies"])
    ours = {"mimo_launch", *sys.stdlib_module_names}
    seen = set()
    for path in sorted(SOURCES.rglob("*.py")):
        for package in {name for node in imports_of(path) for name in packages_of(node)} - ours:
            known = OF_GPUS.get(package, package)
            assert {known, *homes.get(package, [])} & allowed, f"{path}: {package} is not declared"
            seen.add(package)
    assert {"torch", "braceexpand", "av", "soxr", "wandb"} <= seen


def with_their_own(names: set[str]) -> set[str]:
    """Distributions and all that they require by themselves, as pip installs them."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        if (name := waiting.pop()) in found:
            continue
        found.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        waiting += [
            canonicalize_name(needed.name)
            for needed in map(Requirement, lines)
            if needed.marker is None or needed.marker.evaluate({"extra": ""})
        ]
    return found


# Runs every import statement of files, where some packages cannot be imported; then again those of
# a package that is hidden, too.
RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
for name in {hidden!r}:
    sys.modules[name] = None
import ast, importlib
from tests.unit.test_dependencies import SOURCES, imports_of
files = sorted((SOURCES / "data").rglob("*.py"))
for path in files:
    module = ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)
    importlib.import_module(module.removesuffix(".__init__"))
statements = [node for path in files for node in imports_of(path)]
for node in statements:
    exec(ast.unparse(node))
print("all")
sys.modules["braceexpand"] = None
for node in statements:
    exec(ast.unparse(node))
"""


def test_the_declared_extras_are_enough_to_import_every_file_of_data() -> None:
    """Also what a function imports when it is called; without one of them they are not."""
    kept = with_their_own(declared("data", "audio", "processors", "tables", "video"))
    kept |= with_their_own({"pytest", "packaging"})  # What this test itself imports.
    hidden = [
        package
        for package, dists in packages_distributions().items()
        if package not in ("mimo_launch", "_pytest")
        and not {canonicalize_name(each) for each in dists} & kept
    ]
    assert "webdataset" in hidden
    code = RUN.format(root=str(ROOT), hidden=hidden)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "all\n", done.stderr
    assert done.returncode != 0
    assert "braceexpand" in done.stderr.splitlines()[-1]


def test_an_index_is_known_without_what_reads_records() -> None:
    """What reads templates takes a plan some 0.05 s."""
    modules = "{'jinja2', 'tokenizers'} & {*sys.modules}"
    code = f"import sys, mimo_launch.data.known_shards; print({modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"
