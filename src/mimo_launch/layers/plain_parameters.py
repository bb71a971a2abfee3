"""Plain parameters of a network, declared by nobody: each becomes a segment that is held whole.

Decides: that a plain `nn.Parameter` is complete on one tp rank, starts with what its constructor
gave it, and decays if it has two dimensions or more.
Relies on: `segments.declared_parameters`, which reads what is noted here.
Leaves: refusing them where there are several tp ranks to `models.custom_stages`.
"""

from collections.abc import Iterator

from torch import nn

from mimo_launch.layers.parameter_segments import ADOPTED, Segment, SegmentedModule


def adopt_parameters(root: nn.Module) -> list[str]:
    """Declare every parameter below `root` that no layer declares, and return their names.

    Raises: ValueError for a parameter without a dimension, of which FSDP2 has no shards, and for
    one at several places, which would be several once they are given memory.
    """
    adopted: list[str] = []
    first: dict[int, str] = {}
    for path, layer, attribute, parameter in list(_plain(root)):
        name = f"{path}.{attribute}" if path else attribute
        if first.setdefault(id(parameter), name) != name:
            other = first[id(parameter)]
            raise ValueError(f"`{name}` is tied to `{other}`; keep one parameter and use it twice")
        if parameter.ndim == 0:
            raise ValueError(f"parameter `{name}` has no dimension; give it one, of size 1")
        segment = Segment(
            attribute,
            tuple(parameter.shape),
            None,
            0,
            parameter.shape[0],
            "complete",
            counted=True,
            init="given",
            decay=parameter.ndim > 1,
            trains=parameter.requires_grad,
        )
        if isinstance(layer, SegmentedModule):
            layer.segments[attribute] = (segment,)
        else:
            vars(layer).setdefault(ADOPTED, {})[attribute] = (segment,)
        adopted.append(name)
    return adopted


def _plain(root: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Yield path, layer, attribute and parameter of what is not declared."""
    declared = {
        f"{path}.{attribute}".strip(".")
        for path, layer in root.named_modules()
        if isinstance(layer, SegmentedModule)
        for attribute in layer.segments
    }
    for path, layer in root.named_modules():
        for attribute, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            if f"{path}.{attribute}".strip(".") not in declared:
                yield path, layer, attribute, parameter
