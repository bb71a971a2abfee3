"""Optional packages: what to install, and whether a package is here.

Decides: the versions that findings and `doctor` propose; when a package counts as installed; which
packages kernels of recurrent layers need.
Relies on: Python's finders, which find a package without importing it, and the metadata of Triton.
Leaves: which setting needs which package to `checks.packages`; what to do without one to callers.
"""

import importlib.util
import re
from importlib.metadata import PackageNotFoundError, version

ENGINE = "transformer_engine"
# The bounds of the extras in pyproject.toml, which a test compares.
TENSORBOARD = "tensorboard>=2.14"
WANDB = "wandb>=0.17"
MLFLOW = "mlflow-skinny>=2.16"
SHARD_PACKAGES = {
    "braceexpand": "braceexpand>=0.1.7",
    "tokenizers": "tokenizers>=0.21",
    "PIL": "pillow>=11.3",
    "jinja2": "jinja2>=3.1.6",
}
AUDIO_PACKAGES = {"soundfile": "soundfile>=0.12", "soxr": "soxr>=0.4"}
AV = "av>=14"
BITSANDBYTES = "bitsandbytes>=0.49"
PYARROW = "pyarrow>=17"
# The packages that fetch an address, by its scheme.
FSSPEC, AIOHTTP = "fsspec>=2024.6", "aiohttp>=3.9"
REMOTE_PACKAGES = {
    "s3": {"fsspec": FSSPEC, "s3fs": "s3fs>=2024.6"},
    "gs": {"fsspec": FSSPEC, "gcsfs": "gcsfs>=2024.6"},
    "http": {"fsspec": FSSPEC, "aiohttp": AIOHTTP},
    "https": {"fsspec": FSSPEC, "aiohttp": AIOHTTP},
}
TRANSFORMERS = "transformers>=5.0"
MAMBA_PACKAGES = {"mamba_ssm": "mamba-ssm>=2.3", "causal_conv1d": "causal-conv1d>=1.5"}
FLA, TILELANG = "fla-core>=0.6", "tilelang>=0.1.15"
# From WRONG_FROM to before RIGHT_FROM, Triton miscompiles a gradient of the kernels of fla-core for
# Hopper (fla-org/flash-linear-attention#640); the package then takes that kernel from tilelang, or
# raises.
HOPPER, WRONG_FROM, RIGHT_FROM = 9, (3, 4), (3, 7, 1)
TRANSFORMER_ENGINE = "transformer-engine[pytorch]>=2.20"


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; a bare folder of its name is not a package."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def missing_for_mamba() -> list[str]:
    """Return what to install so that Mamba-2 layers have kernels on GPUs."""
    return [needed for name, needed in MAMBA_PACKAGES.items() if not is_installed(name)]


def missing_for_delta_rule(capability: tuple[int, int]) -> list[str]:
    """Return what to install so that Gated DeltaNet layers have kernels on such GPUs."""
    missing = [] if is_installed("fla") else [FLA]
    if capability[0] == HOPPER and not is_installed("tilelang"):
        missing += [TILELANG] * _may_miscompile()
    return missing


def _may_miscompile() -> bool:
    """Return whether Triton is of a version that is wrong on Hopper, or of an unknown one."""
    try:
        said = version("triton")
    except PackageNotFoundError:  # Nightly builds of torch bring it under another name.
        return True
    return WRONG_FROM <= tuple(int(each) for each in re.findall(r"\d+", said)[:3]) < RIGHT_FROM
