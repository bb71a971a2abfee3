"""The settings of an adapter in a folder of peft (https://huggingface.co/docs/peft).

Decides: which adapters we compute; the rank and the factor of the update of each map.
Relies on: the names of modules in a loaded model, by which peft names maps.
Leaves: the tensors to `checkpoint.adapter_folder`.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.folder import ADAPTER, FilesError
from mimo_launch.spec.files import read_json

ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
# Settings that would compute something else, and the values with which they do not.
_ELSE: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, []),
    "alora_invocation_tokens": (None, []),
    # Others change the weights below the adapter as they start.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
    "layer_replication": (None, []),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    "arrow_config": (None,),
}


# A map of an expert with a tensor of its own in a file, and the stacks of a loaded model.
_ALONE = re.compile(r"(?P<module>.*\.experts)\.(?P<number>\d+)\.[^.]+(\.weight)?")
FUSED = "gate_up_proj"
_STACKS = {"gate": FUSED, "up": FUSED, "down": "down_proj"}


def wrapper_of(module: str, parameter: str) -> str:
    """Return the module of a parameter's update: peft wraps the last parameter outermost."""
    return module if parameter == "down_proj" else f"{module}.base_layer"


@frozen
class StackName:
    """A stack of experts, a parameter of a module of a loaded model, and an expert in it."""

    module: str
    parameter: str
    number: int
    own: str

    @property
    def wrapper(self) -> str:
        """The module of its update."""
        return wrapper_of(self.module, self.parameter)

    @classmethod
    def of(cls, name: str, own: str, stacked: int | None) -> "StackName | None":
        """Return the stack of a map of an expert, by its name in files; None for other maps.

        `own` is our name of the map, `stacked` the number of the expert if the tensor is a stack.
        """
        if stacked is not None:
            module, _, parameter = name.removesuffix(".weight").rpartition(".")
            return cls(module, parameter, stacked, own)
        alone = _ALONE.fullmatch(name)
        if alone is None or own not in _STACKS:
            return None
        module = alone["module"].replace("block_sparse_moe", "mlp")
        return cls(module, _STACKS[own], int(alone["number"]), own)


@frozen
class AdapterConfig:
    """An `adapter_config.json`."""

    settings: Mapping[str, Any]

    def refusals(self) -> Iterator[str]:
        """Yield what we do not compute, such as `use_dora: True`."""
        kind = self.settings.get("peft_type")
        if kind != "LORA":
            yield f"peft_type: {kind}"
        for key, values in _ELSE.items():
            if (value := self.settings.get(key)) not in values:
                yield f"{key}: {value}"

    @property
    def rank(self) -> int:
        """The rank of maps without one of their own."""
        return int(self.settings.get("r", 8))

    def scale(self, module: str) -> float:
        """Return the factor of the update of a map, by the name of its module."""
        rank = self._of("rank_pattern", module, self.rank)
        alpha = self._of("alpha_pattern", module, self.settings.get("lora_alpha", 8))
        return float(alpha / (rank**0.5 if self.settings.get("use_rslora") else rank))

    def _of(self, pattern: str, module: str, usual: float) -> float:
        """Return the value of the first pattern that ends the name of a module, as in peft."""
        for key, value in (self.settings.get(pattern) or {}).items():
            if re.match(rf"(.*\.)?({key})$", module):
                return float(value)
        return usual


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Return the settings of a folder. Raises: FilesError if it holds no adapter."""
    try:
        found = read_json(folder / ADAPTER)
    except (OSError, ValueError) as error:
        raise FilesError(f"{folder / ADAPTER} cannot be read: {error}") from error
    if not isinstance(found, dict) or not (folder / ADAPTER_WEIGHTS).is_file():
        raise FilesError(f"{folder} holds no adapter: it needs {ADAPTER} and {ADAPTER_WEIGHTS}")
    return AdapterConfig(found)
