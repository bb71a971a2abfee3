"""Which layers a run says that torch computes, and what it says to install."""

from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
from tests.support.specs import box, hybrid, spec

from mimo_launch.diag import installed
from mimo_launch.launcher import gpus
from mimo_launch.spec.spec import Spec

HOPPER = gpus.Gpus(1, (9, 0))


def made(pattern: str, precision: str = "bf16") -> Spec:
    return spec({"language": box(0, model=hybrid({}, pattern))}, train={"precision": precision})


def notes(of: Spec, device: Any = "cuda") -> list[str]:
    return list(gpus.missing_kernels(of, device))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages that count as installed, on a Hopper with a Triton that needs tilelang."""
    packages: set[str] = set()
    monkeypatch.setattr(installed, "is_installed", lambda name: name in packages)
    monkeypatch.setattr(installed, "version", lambda name: "3.6.0")
    monkeypatch.setattr(gpus, "gpus_here", lambda: HOPPER)
    return packages


def test_each_kind_of_layer_names_its_packages(here: set[str]) -> None:
    mamba, delta = notes(made("MG*-"))
    assert "the Mamba-2 layers of `language`" in mamba
    assert mamba.endswith("pip install 'mamba-ssm>=2.3' 'causal-conv1d>=1.5'")
    assert "the Gated DeltaNet layers of `language`" in delta
    assert delta.endswith("pip install 'fla-core>=0.6' 'tilelang>=0.1.15'")
    here |= {"fla", "mamba_ssm", "causal_conv1d"}
    (only,) = notes(made("MG*-"))
    assert only.endswith("pip install 'tilelang>=0.1.15'")
    here.add("tilelang")
    assert notes(made("MG*-")) == []


@pytest.mark.usefixtures("here")
def test_nothing_is_said_where_kernels_would_not_be_used() -> None:
    assert notes(made("*-")) == []
    assert notes(made("G*-"), "cpu") == []
    assert notes(made("G*-", "fp64")) == []
    # In fp32 only Mamba-2 has kernels.
    (only,) = notes(made("MG", "fp32"))
    assert "Mamba-2" in only


@pytest.mark.parametrize(
    ("pattern", "sought"),
    [("*-", set()), ("M-", {"mamba_ssm", "causal_conv1d"}), ("G-", {"fla", "tilelang"})],
)
def test_only_packages_of_layers_that_are_there_are_sought(
    pattern: str, sought: set[str], here: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set[str]()
    monkeypatch.setattr(installed, "is_installed", lambda name: asked.add(name) or name in here)
    notes(made(pattern))
    assert asked == sought


def test_a_triton_of_unknown_version_needs_tilelang(
    here: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installed, "version", unknown)
    here.add("fla")
    (only,) = notes(made("G*-"))
    assert only.endswith("pip install 'tilelang>=0.1.15'")
