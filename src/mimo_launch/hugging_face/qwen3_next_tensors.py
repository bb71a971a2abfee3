"""The names of the tensors of a Qwen3-Next.

Decides: the places of the inputs of a Gated DeltaNet: for each key head in turn, one tensor holds
queries, keys, values and gates, and another one writing strengths and decays.
Relies on: `qwen3_5_tensors` for all other names, which are the same.
Leaves: the configuration to `qwen3_next`.
"""

import re
from collections.abc import Mapping

from mimo_launch.hugging_face import qwen3_5_tensors
from mimo_launch.hugging_face.family import Place, rows_of
from mimo_launch.hugging_face.runs import Runs
from mimo_launch.spec.spec import DeltaNetSizes, HybridModel

_INPUTS = re.compile(r"layers\.(\d+)\.deltanet\.([qkvzab])\.weight")


def place(name: str, model: HybridModel) -> Place:
    """Return the place of our tensor `name`, which excludes the module.

    Raises: KeyError for a name that a Qwen3-Next does not have.
    """
    found = _INPUTS.fullmatch(name)
    if found is None or model.deltanet is None:
        return qwen3_5_tensors.place(name, model)
    # Two of our layers form one layer in the files.
    layer = f"model.layers.{int(found[1]) // 2}.linear_attn"
    for fused, rows in _of_a_head(model.deltanet).items():
        if found[2] in rows:
            first, length = rows_of(rows, found[2])
            runs = Runs(length, sum(rows.values()))
            at = f"{layer}.{fused}.weight"
            return Place(at, first, length * model.deltanet.groups, runs=runs)
    raise KeyError(name)


def _of_a_head(sizes: DeltaNetSizes) -> Mapping[str, Mapping[str, int]]:
    """Return, by tensor of the files, the rows of a key head for each of our tensors, in order."""
    heads = sizes.heads // sizes.groups
    values = heads * sizes.head_dim
    return {
        "in_proj_qkvz": {"q": sizes.key_dim, "k": sizes.key_dim, "v": values, "z": values},
        "in_proj_ba": {"b": heads, "a": heads},
    }
