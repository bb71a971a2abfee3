"""The spec that `init` writes, as commented YAML.

Decides: the order of the lines, the comments, and which defaults are written out.
Relies on: `search.first_spec` for the data of the spec.
Leaves: every other value to `init_draft`.
"""

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from mimo_launch.diag.quantities import percent
from mimo_launch.search.first_spec import FirstSpec
from mimo_launch.spec.wording import flow

# The placeholders of an image and a clip in texts, unless `data` says otherwise.
MARKERS = {"vision": "<image>", "audio": "<audio>"}


# Peak learning rates from scratch, up to a width of language: of the digits example, of GPT-3 Small
# (arXiv:2005.14165, table 2.1), and of Llama 3 8B, 70B and 405B (arXiv:2407.21783, table 3).
_FROM_SCRATCH = ((512, 2e-3), (1024, 6e-4), (6144, 3e-4), (12288, 1.5e-4))
_WIDEST = 8e-5
# With weights to start from: that of LLaVA's second stage (arXiv:2304.08485).
_FINE_TUNING, _SHORT_WARMUP, _WARMUP = 2e-5, 20, 50


def learning_rate(modules: Mapping[str, Any]) -> tuple[float, int]:
    """Return the peak learning rate and the warmup steps of a first spec."""
    if any("init_from" in module for module in modules.values()):
        return _FINE_TUNING, _SHORT_WARMUP
    hidden = modules["language"]["model"]["hidden"]
    return next((lr for most, lr in _FROM_SCRATCH if hidden <= most), _WIDEST), _WARMUP


def spec_text(first: FirstSpec, memory: str | None) -> str:
    """Return the spec with comments; `memory` is that of a GPU, or its name, if it is known."""
    data = first.data
    lines = [
        *(f"# {line}" for line in wrap(_why(first, memory), 96)),
        "# What each key means: docs/spec-reference.md, or `mimo-launch schema` for your editor.",
        "version: 1",
        f"name: {flow(data['name'])}",
        "modules:",
    ]
    for name in data["modules"]:
        lines += [f"  {name}:", *(f"    {line}" for line in _module_lines(data, name))]
    schedule = flow({"kind": "1f1b", **data["schedule"]})
    replicas = data["modules"]["language"]["grid"].get("dp", 1)
    number = data["schedule"]["microbatches"]
    size, times = data["batch"]["global"] // (replicas * number), _many(number, "microbatch", "es")
    lr, warmup = learning_rate(data["modules"])
    lines += [
        f"# In a step each of {replicas} language replicas has {times} of {_many(size, 'sample')}.",
        f"schedule: {schedule}",
        f"batch: {flow(data['batch'])}",
        *(
            ["# Random data, to see the layout at work; your own are `kind: webdataset`."]
            if data["data"]["kind"] == "synthetic"
            else []
        ),
        f"data: {flow(data['data'])}",
        "optimizer:",
        f"  {{kind: adamw, lr: {lr:g}, betas: [0.9, 0.95], weight_decay: 0.1, clip: 1.0,",
        f"   schedule: {{kind: cosine, warmup: {min(warmup, data['train']['steps'])}}}}}",
        f"train: {flow(data['train'])}",
        f"checkpoint: {flow(data['checkpoint'])}",
    ]
    lines += [f"nodes: {flow(data['nodes'])}"] if "nodes" in data else []
    return "\n".join(lines) + "\n"


def _why(first: FirstSpec, memory: str | None) -> str:
    """Return what the layout is, and why."""
    if not first.changes:
        fits = f"fits into {memory}" if memory else "the memory of GPUs is not known"
        return (
            "A first spec, to be changed. All modules share all ranks: language has the smallest "
            f"tp * pp ({fits}), encoders are data parallel."
        )
    why = f"the fastest that fits into {memory}, of {first.planned} layouts that were estimated"
    if first.gain is None:
        return f"A first spec, to be changed: {why}."
    return (
        f"A first spec, to be changed: {why}. It is {percent(first.gain)} faster than all modules "
        f"on all ranks with the smallest tp * pp. What differs: {first.changes}."
    )


# What a module says behind its ranks and its grid, and what `full` costs.
PLACED = {
    "experts": "",
    "sequence_parallel": "",
    "sharding": "    # less memory, more communication",
    "recompute": "    # less memory, a third more work",
}


def _module_lines(data: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the lines of a module."""
    module = data["modules"][name]
    yield f"model: {flow(module['model'])}"
    if data["data"]["kind"] != "digits" and "init_from" not in module:
        yield "# init_from: FOLDER    # none here: there were no weights beside config.json"
    for key in ("init_from", "placeholder"):
        if key in module:
            yield f"{key}: {flow(module[key])}"
    if name in MARKERS and "placeholder" not in module and "tokenizer" in data["data"]:
        # Then an exported model needs a tokenizer with that token before it can take images.
        yield f"# placeholder: the last id; the tokenizer has no {MARKERS[name]}"
    yield f"ranks: {module['ranks']}"
    yield f"grid: {flow({axis: n for axis, n in module['grid'].items() if n > 1})}"
    for key, comment in PLACED.items():
        if key in module:
            value = module[key]
            if isinstance(value, dict):
                value = {axis: n for axis, n in value.items() if n > 1}
            yield f"{key}: {flow(value)}" + comment * (value == "full")
    if name != "language":
        yield "# frozen: except_projector    # a first stage: train the projector alone"
    elif len(data["modules"]) > 1:
        yield "# frozen: true    # a first stage: train encoders, or projectors, alone"


def _many(number: int, word: str, ending: str = "s") -> str:
    return f"{number} {word}{ending * (number != 1)}"
