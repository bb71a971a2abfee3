"""The YAML of a first spec: its values, and comments that say why and what may be changed.

Decides: the values that hold for every first spec; the order of the keys; the comments.
Relies on: `search.first_spec` for the other values, `spec.wording` for values as YAML.
Leaves: models, data and layout to `init_draft` and `search`.
"""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from mimo_launch.diag.diagnostic import YamlPath
from mimo_launch.diag.quantities import percent
from mimo_launch.layout.space import OF_MODULE
from mimo_launch.search.first_spec import FirstSpec
from mimo_launch.spec.wording import flow

# The placeholders of an image and a clip in texts, unless `data` sets others.
MARKERS = {"vision": "<image>", "audio": "<audio>"}
_WIDTH = 96
# The keys of a module in the order in which people read them, then all others of a layout.
_MODULE = tuple(dict.fromkeys((
    "model", "init_from", "placeholder", "ranks", "grid", "experts", "sequence_parallel",
    "sharding", "recompute", *OF_MODULE,
)))  # fmt: skip
_COSTS = {
    "sharding": "less memory, more communication",
    "recompute": "less memory, a third more work",
}
# Comments by the path of the key below them, or by that of a section and "": at its end.
Comments = dict[YamlPath, list[str]]


def spec_text(first: FirstSpec, memory: str | None, of_data: str = "") -> str:
    """Return the spec with comments.

    `memory` is a GPU's memory or name, if known; `of_data` is the comment on the data, if any.
    """
    return text_with_comments(first.data, of_data, _why(first, memory))


def text_with_comments(data: Mapping[str, Any], of_data: str, why: str = "") -> str:
    """Return the data of a spec with comments; `why` is the first one, about the layout."""
    data = _values(data)
    comments = _comments(data)
    if not why:
        del comments["schedule",]  # It is about a layout that will change.
    if of_data:
        comments["data",] = wrap(of_data, _WIDTH)
    comments["version",] = [
        *wrap(why, _WIDTH),
        "What each key means: docs/spec-reference.md, or `mimo-launch schema` for your editor.",
    ]
    return "".join(f"{line}\n" for line in _lines(data, comments))


def _values(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return all values of a spec in the order in which they are written."""
    lr, warmup = learning_rate(data["modules"])
    optimizer = {
        "kind": "adamw", "lr": lr, "betas": [0.9, 0.95], "weight_decay": 0.1, "clip": 1.0,
        "schedule": {"kind": "cosine", "warmup": min(warmup, data["train"]["steps"])},
    }  # fmt: skip
    modules = {}
    for name, module in data["modules"].items():
        modules[name] = written = {key: module[key] for key in _MODULE if key in module}
        # As people write it: one rank is a number, and axes of size 1 are left out.
        if str(module["ranks"]).isdecimal():
            written["ranks"] = int(module["ranks"])
        for key in {"grid", "experts"} & written.keys():
            written[key] = {axis: size for axis, size in module[key].items() if size > 1}
    return {
        **{key: data[key] for key in ("version", "name")},
        "modules": modules,
        "schedule": {"kind": "1f1b", **data["schedule"]},
        **{key: data[key] for key in ("batch", "data")},
        "optimizer": optimizer,
        **{key: data[key] for key in ("train", "checkpoint", "nodes") if key in data},
    }


# Peak learning rates from scratch, up to a width of language, from the digits example, GPT-3 Small
# (arXiv:2005.14165, table 2.1), and Llama 3 8B, 70B and 405B (arXiv:2407.21783, table 3).
_FROM_SCRATCH = ((512, 2e-3), (1024, 6e-4), (6144, 3e-4), (12288, 1.5e-4))
_WIDEST = 8e-5
# With pretrained weights: the rate of LLaVA's second stage (arXiv:2304.08485).
_FINE_TUNING, _SHORT_WARMUP, _WARMUP = 2e-5, 20, 50


def learning_rate(modules: Mapping[str, Any]) -> tuple[float, int]:
    """Return the peak learning rate and the warmup steps of a first spec."""
    if any("init_from" in module for module in modules.values()):
        return _FINE_TUNING, _SHORT_WARMUP
    hidden = modules["language"]["model"]["hidden"]
    return next((lr for most, lr in _FROM_SCRATCH if hidden <= most), _WIDEST), _WARMUP


def _comments(data: Mapping[str, Any]) -> Comments:
    """Return the comments on the values of a spec."""
    modules, samples = data["modules"], data["data"]
    comments: Comments = {}
    for name, module in modules.items():
        place = ("modules", name)
        if samples["kind"] != "digits" and "init_from" not in module:
            key = "placeholder" if "placeholder" in module else "ranks"
            words = "init_from: FOLDER    # none here: there were no weights beside config.json"
            comments[*place, key] = [words]
        if name in MARKERS and "placeholder" not in module and "tokenizer" in samples:
            # An exported model then needs a tokenizer with that token before it can take images.
            words = f"placeholder: the last id; the tokenizer has no {MARKERS[name]}"
            comments.setdefault((*place, "ranks"), []).append(words)
        if name != "language":
            words = "frozen: except_projector    # a first stage: train the projector alone"
            comments[*place, ""] = [words]
        elif len(modules) > 1:
            words = "frozen: true    # a first stage: train encoders, or projectors, alone"
            comments[*place, ""] = [words]
    replicas, number = modules["language"]["grid"].get("dp", 1), data["schedule"]["microbatches"]
    times = _many(number, "microbatch", "es")
    size = _many(data["batch"]["global"] // (replicas * number), "sample")
    who = f"each of {replicas} language replicas" if replicas > 1 else "the language replica"
    words = f"In a step {who} has {times} of {size}."
    comments["schedule",] = [words]
    if samples["kind"] == "synthetic":
        words = "Random data, to see the layout at work; your own are `kind: webdataset`."
        comments["data",] = [words]
    return comments


def _why(first: FirstSpec, memory: str | None) -> str:
    """Return a sentence about the layout and why it was chosen."""
    if not first.changes:
        fits = f"fits into {memory}" if memory else "the memory of GPUs is not known"
        return (
            "A first spec, to be changed. All modules share all ranks: language has the smallest "
            f"tp * pp ({fits}), encoders are data parallel."
        )
    why = f"the fastest that fits into {memory}, of {first.compared} layouts that were compared"
    if first.gain is None:
        return f"A first spec, to be changed: {why}."
    return (
        f"A first spec, to be changed: {why}. It is {percent(first.gain)} faster than all modules "
        f"on all ranks with the smallest tp * pp. What differs: {first.changes}."
    )


def _lines(data: Mapping[str, Any], comments: Comments, path: YamlPath = ()) -> Iterator[str]:
    """Yield values as YAML, a key of a module and any other section on a line, with comments."""
    for key, value in data.items():
        here = (*path, key)
        yield from (f"# {words}" for words in comments.get(here, ()))
        if here[0] == "modules" and len(here) < 3:
            yield f"{key}:"
            yield from (f"  {line}" for line in _lines(value, comments, here))
            continue
        line = f"{key}: {flow(value)}"
        if not path and len(line) > _WIDTH:
            yield f"{key}:"
            yield from _folded([f"{inner}: {flow(each)}" for inner, each in value.items()])
        elif key in _COSTS and value == "full":
            yield f"{line}    # {_COSTS[key]}"
        else:
            yield line
    yield from (f"# {words}" for words in comments.get((*path, ""), ()))


def _folded(entries: Sequence[str]) -> Iterator[str]:
    """Yield the entries of a mapping on several lines."""
    line = "  {" + entries[0]
    for entry in entries[1:]:
        if len(line) + len(entry) > _WIDTH:
            yield f"{line},"
            line = f"   {entry}"
        else:
            line += f", {entry}"
    yield line + "}"


def _many(number: int, word: str, ending: str = "s") -> str:
    return f"{number} {word}{ending * (number != 1)}"
