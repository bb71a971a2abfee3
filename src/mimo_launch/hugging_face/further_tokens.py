"""Multi-token prediction in the files of a family: a layer after the last one for each depth.

Decides: the names of its tensors; that a depth repeats the embedding and the output layer.
Relies on: nothing.
Leaves: the tensors of a layer, and whether there are depths, to the families.

The files show the number of depths: transformers drops these tensors and keeps the setting.
Source: the published weights of DeepSeek-V3 and of GLM-4.5.
"""

from collections.abc import Iterator, Mapping

from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.spec import DecoderModel

OURS = "mtp."
# The setting for the number of depths.
NUMBER = "num_nextn_predict_layers"
_BLOCK = "block."
_AROUND: Mapping[str, str] = {
    "token_norm.weight": "enorm.weight",
    "hidden_norm.weight": "hnorm.weight",
    "project.weight": "eh_proj.weight",
    "norm.weight": "shared_head.norm.weight",
}


def as_layer(name: str, model: DecoderModel) -> tuple[str, str | None]:
    """Return our name of a depth's tensor as if of a layer, and the files' name around a block.

    Raises: KeyError for a name that no depth has.
    """
    _, depth, rest = name.split(".", 2)
    layer = f"layers.{model.layers + int(depth)}"
    if rest.startswith(_BLOCK):
        return f"{layer}.{rest.removeprefix(_BLOCK)}", None
    return f"{layer}.{rest}", f"model.{layer}.{_AROUND[rest]}"


def copies(model: DecoderModel) -> Iterator[tuple[str, str]]:
    """Yield our tensors that files repeat, with the family's names of the copies."""
    for depth in range(kind_of(model).depths):
        layer = f"model.layers.{model.layers + depth}"
        yield "embedding.weight", f"{layer}.embed_tokens.weight"
        head = "embedding.weight" if model.tied else "head.weight"
        yield head, f"{layer}.shared_head.head.weight"
