"""Accounts for every tensor of a folder: taken by a module, left out for a reason, or unknown.

Decides: our names of all tensors that a module may have, and the reasons in words.
Relies on: the places of the families, which know the names in files.
Leaves: shapes, and names that exist only under other settings of a family, to `checkpoint`.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from mimo_launch.hugging_face.families import own
from mimo_launch.hugging_face.family import OURS_OF_MTP, OneDepthApart
from mimo_launch.hugging_face.part import SCALE_OF_INPUTS, Part
from mimo_launch.hugging_face.tensors import EMBEDDING, HEAD
from mimo_launch.kinds.clipped_shapes import BOUNDS
from mimo_launch.kinds.layer import Ends
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.base import LANGUAGE

_LAYER_NUMBER = re.compile(r"\blayers\.(\d{1,6})\.")
_KINDS = ("weight", "bias")
_MLP = ("gate", "up", "down")
# Names of layers at both ends of a module, and inside each of its layers.
_ENDS = (
    *("embedding", "head", "norm", "pre_norm", "patch", "patch_norm", "positions", "class_token"),
    *("registers", "conv1", "conv2", "conv3", "joined"),
    *("per_layer.table", "per_layer.project", "per_layer.norm"),
)
_PROJECTOR = (
    *("up", "down", "linear", "norm", "merge", "middle", "middle_norm", "convolution", "newline"),
    *("head", "head_norm", "separator"),
    *(f"mlp.{x}" for x in _MLP),
)
_DEEP = ("norm", "mlp.up", "mlp.down")
_MIXTURE = (
    *("router", "router.norm", "shared_gate"),
    *("routed_norm", "routed_post_norm", "shared_post_norm"),
)
_LAYER = (
    *("norm", "attention_norm", "mlp_norm", "post_attention_norm", "post_mlp_norm"),
    *(f"attention.{x}" for x in ("q", "k", "v", "o", "q_norm", "k_norm", "sinks")),
    *(f"attention.latent.{x}_{y}" for x in ("q", "kv") for y in ("down", "norm", "up")),
    *("attention_scale", "mlp_scale", "layer_scalar"),
    *("per_layer.narrow", "per_layer.widen", "per_layer.norm"),
    *(f"mamba.{x}" for x in ("x", "z", "B", "C", "dt", "norm", "out")),
    *(f"mamba.conv.{x}" for x in ("x", "B", "C")),
    *(f"deltanet.{x}" for x in ("q", "k", "v", "z", "a", "b", "norm", "out")),
    *(f"deltanet.conv.{x}" for x in ("q", "k", "v")),
    *(f"short_conv.{x}" for x in ("B", "C", "x", "conv", "out")),
    *(f"mlp.{x}" for x in (*_MLP, *_MIXTURE)),
    *(f"mlp.shared.{x}" for x in _MLP),
    *(f"moe.{x}" for x in _MIXTURE),
    *(f"moe.shared.{x}" for x in _MLP),
)
# Names of tensors that are neither the weight nor the bias of a layer.
_ALONE = (
    *("mamba.A_log", "mamba.D", "mamba.dt_bias", "deltanet.A_log", "deltanet.dt_bias"),
    *(f"{x}.router.{y}" for x in ("mlp", "moe") for y in ("expert_bias", "scale")),
    *(f"mlp.activation.{x}" for x in ("alpha_p", "alpha_n", "beta", "eps")),
)
# Of maps that clip their numbers.
_BOUNDS = (
    *(f"attention.{x}.{bound}" for x in "qkvo" for bound in BOUNDS),
    *(f"mlp.{x}.{bound}" for x in _MLP for bound in BOUNDS),
)
_DEPTH = ("token_norm", "hidden_norm", "project", "norm")


def _names(part: Part, model: Any) -> Iterator[str]:
    """Yield every name that a tensor of our model may have, without the module's name."""
    kind = kind_of(model)
    if kind.codes is not None:
        both = Ends(is_first=True, is_last=True, vocab=0, row_width=0, sources=((LANGUAGE, 1),))
        yield from (
            weight.name
            for shape in kind.around(both)
            for each in shape.weights()
            for weight in each
        )
    if kind.clips is not None:
        both = Ends(is_first=True, is_last=True, vocab=0, row_width=1)
        for weights in kind.weights(range(model.layers), both):
            yield from (weight.name for weight in weights)
    layers = [*_LAYER]
    if kind.moe is not None:
        numbers = range(kind.moe.experts)
        stacks = product(("mlp", "moe"), numbers, _MLP)
        layers += [f"{x}.experts.{number}.{part}" for x, number, part in stacks]
    inside = [*(f"{layer}.{each}" for layer in layers for each in _KINDS), *_ALONE]
    if getattr(model, "clipped_linears", False):
        inside += _BOUNDS
    # Names that no layer has are sorted out once, not in each layer.
    in_layers = [each for each in inside if part.family.may_have(f"layers.0.{each}")]
    ends = [*_ENDS, *(f"projector.{each}" for each in _PROJECTOR)]
    deep = range(len(getattr(model, "deepstack", ())))
    ends += [f"projector.deepstack.{number}.{each}" for number, each in product(deep, _DEEP)]
    ends += [f"{OURS_OF_MTP}{n}.{each}" for n, each in product(range(kind.depths), _DEPTH)]
    yield from (f"{each}.{x}" for each in ends for x in _KINDS)
    yield from (f"layers.{n}.{x}" for n in range(model.layers) for x in in_layers)
    yield from (f"{OURS_OF_MTP}{n}.block.{x}" for n in range(kind.depths) for x in inside)


def names_in_files(part: Part, model: Any) -> set[str]:
    """Return the family's names of the tensors that our model may take."""
    found = {place.name for place in part.projector.values()}
    for name in _names(part, model):
        for place in (part.place, part.family.other_place):
            try:
                at = place(name, model)
            except (LookupError, ValueError):  # The family has no such tensor.
                continue
            if at is not None:
                found.add(at.name)
    return found


def taken(part: Part, model: Any, tensors: Iterable[str]) -> set[str]:
    """Return the tensors of files that our model takes."""
    inner = {name: found for name in tensors if (found := part.inner_name(name)) is not None}
    if part.family in own.FAMILIES:  # Their tensors may have any name.
        return set(inner)
    known = names_in_files(part, model)
    return {
        name for name, found in inner.items() if found in known and not part.is_ignored(name, model)
    }


def unknown(part: Part, model: Any, tensors: Iterable[str]) -> list[str]:
    """Return the tensors of files that our model neither takes nor leaves out by rule."""
    tensors = list(tensors)
    mine = taken(part, model, tensors)
    return [name for name in tensors if name not in mine and not part.is_ignored(name, model)]


def lacking(part: Part, model: Any, tensors: Iterable[str]) -> list[str]:
    """Return the ends and layers of a language model that the tensors of files lack.

    The list is empty if the files hold nothing of the part.
    """
    there = {inner for name in tensors if (inner := part.inner_name(name)) is not None}
    family, kind = part.family, kind_of(model)
    if not there or not kind.reads_tokens:
        return []
    missing = []
    for segment in ("embedding.weight", "norm.weight", "head.weight"):
        is_apart = segment != "head.weight" or not kind.text.tied
        place = part.place(segment, model) if is_apart else None
        if place is not None and place.name not in there:
            missing.append(place.name)
    if kind.text.tied and HEAD in there:  # Either may hold the values of both.
        missing = [name for name in missing if name != EMBEDDING]
    has_apart = isinstance(family.depths, OneDepthApart)
    if has_apart and (held := part.depths_among(there, model)) < kind.depths:
        missing.append(f"what predicts further tokens in depth {held + 1}")
    if has_apart:
        there = {inner for inner in there if not inner.startswith(OURS_OF_MTP)}
    layers = {int(found[1]) for inner in there if (found := _LAYER_NUMBER.search(inner))}
    # A layer of some families corresponds to several layers here.
    depths = kind.depths if family.depths and not has_apart else 0
    theirs = dict.fromkeys(n // family.tensors.layers_in_one for n in range(model.layers + depths))
    return missing + [f"layer {n}" for n in theirs if layers and n not in layers]


def reason(part: Part, model: Any, name: str) -> str:
    """Return why a tensor that no module takes is left out."""
    inner = part.inner_name(name)
    has_depths = part.family.depths is not None
    further = "it predicts further tokens, which a model without `mtp` does not"
    if (inner or name).startswith(OURS_OF_MTP):
        left = "it predicts further tokens, and `transformers` leaves it out as well"
        return further if has_depths else left
    if inner is None:
        return "it is of a part that is no module here"
    if inner == HEAD and getattr(model, "tied", False):
        return "the output layer is the embedding"
    if inner.endswith(("inv_freq", "position_ids", SCALE_OF_INPUTS)):
        is_scale = inner.endswith(SCALE_OF_INPUTS)
        return "inputs are not quantized here" if is_scale else "it follows from the settings"
    numbers = [int(each) for each in inner.split(".") if each.isdecimal()]
    if not numbers or numbers[0] < -(-model.layers // part.family.tensors.layers_in_one):
        return "nothing here computes with it"
    after = "its layer comes after the last one that is used"
    return further if has_depths else after


def left_out(
    parts: Iterable[tuple[Part, Any]], tensors: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """Return why tensors that no part takes are left out, and the names of unknown tensors.

    Each part comes with its model, or None if it is not computed.
    """
    pairs = list(parts)
    why, strange = dict[str, str](), []
    for name in tensors if pairs else ():
        owner = next((pair for pair in pairs if pair[0].inner_name(name) is not None), pairs[0])
        if owner[1] is None and owner[0].inner_name(name) is not None:
            why[name] = "its module is not computed here"
        elif all(model is None or part.is_ignored(name, model) for part, model in pairs):
            why[name] = reason(*owner, name)
        else:
            strange.append(name)
    return why, strange
