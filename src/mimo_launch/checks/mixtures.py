"""Checks of weights of sources: which have one, and which changes hold.

Decides: that all sources have weights or none; which settings then do nothing; that a block has a
sample of each source, where weights share out samples.
Relies on: `spec.user_data` for the names of sources, `data.order.block_counts`.
Leaves: weights of tokens, which need the lengths of samples, to `data.order.mixture`.
"""

import math
from collections.abc import Iterator, Mapping

from mimo_launch.checks.rule import Findings, no_effect
from mimo_launch.data.order.block_counts import BLOCK, too_rare
from mimo_launch.diag.diagnostic import Diagnostic, YamlPath
from mimo_launch.spec.near_words import did_you_mean
from mimo_launch.spec.spec import FilesData, Spec


def weights_mix(spec: Spec, data: FilesData) -> Findings:
    """All sources have a weight, or none has; changes of weights are of sources, in order."""
    if not data.is_mixed:
        if data.weight_changes:
            yield no_effect(
                ("data", "weight_changes"),
                "`weight_changes` without weights does nothing",
                "they change the `weight` of sources, and no source has one",
            )
        if data.weigh != "samples":
            yield no_effect(
                ("data", "weigh"),
                "`weigh` without weights does nothing",
                "it says what the `weight` of sources shares out, and no source has one",
            )
        return
    for number, (source, name) in enumerate(zip(data.sources, data.source_names, strict=True)):
        path: YamlPath = ("data", "sources", number)
        if source.weight is None:
            yield Diagnostic(
                code="mixture-not-usable",
                headline=f"the source `{name}` has no weight, and others have",
                path=path,
                why="a block of 1,000 samples is shared out by weights, so each source needs one",
                help="write `weight: 1` in it",
            )
        if source.epochs != 1:
            yield no_effect(
                (*path, "epochs"),
                f"`epochs` of `{name}` does nothing beside weights",
                "a weight says how many samples of each block are of a source, whatever its size",
            )
    weights = data.source_weights
    if not any(weights.values()):
        yield _nothing(("data", "sources", 0, "weight"), 0, "write a weight above 0")

    places = {name: ("data", "sources", n, "weight") for n, name in enumerate(weights)}
    yield from _rare(data, weights, places)
    yield from _changes(spec, data)


def _rare(
    data: FilesData, weights: Mapping[str, float], places: Mapping[str, YamlPath]
) -> Iterator[Diagnostic]:
    """Yield a finding of each source that a block would have no sample of, at its place."""
    if data.weigh != "samples" or not any(weights.values()):
        return
    names = list(weights)
    rare = [names[place] for place in too_rare([*weights.values()])]
    # Each of them then has one sample, and the others share the rest.
    others = sum(weight for name, weight in weights.items() if name not in rare)
    for name in rare:
        key = "weight" if places[name][-1] == "weight" else name
        yield Diagnostic(
            code="mixture-not-usable",
            headline=f"the weight of `{name}` is less than one in {BLOCK:,} samples",
            path=places[name],
            why=f"each block of {BLOCK:,} samples has the same number of samples of each source",
            help=f"write `{key}: {_rounded_up(others / (BLOCK - len(rare)))}`, or 0 to "
            "leave it out",
        )


def _rounded_up(number: float) -> str:
    """Return a number above 0 with three digits."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 2)
    return f"{math.ceil(number / unit) * unit:.3g}"


def _nothing(path: YamlPath, step: int, help_: str) -> Diagnostic:
    return Diagnostic(
        code="mixture-not-usable",
        headline=f"from step {step:,} on, no source has a weight",
        path=path,
        why="every weight is 0 then, so there is nothing to train on",
        help=help_,
    )


def _changes(spec: Spec, data: FilesData) -> Iterator[Diagnostic]:
    before, names = -1, data.source_names
    weights = data.source_weights
    for number, change in enumerate(data.weight_changes):
        path: YamlPath = ("data", "weight_changes", number)
        unknown = [name for name in change.weights if name not in names]
        for name in unknown:
            known = ", ".join(f"`{each}`" for each in names)
            yield Diagnostic(
                code="mixture-not-usable",
                headline=f"`weight_changes` names `{name}`, which is no source",
                path=(*path, "weights", name),
                at_key=True,
                why=f"the sources are {known}",
                help=did_you_mean(name, names) or "write `name: NAME` in a source to give it one",
            )
        weights |= change.weights
        if not unknown and not any(weights.values()):
            help_ = f"write `weights: {{{names[0]}: 1}}`"
            yield _nothing((*path, "weights"), change.step, help_)
        if not unknown:
            at = (*path, "weights")
            places = {name: (*at, name) if name in change.weights else at for name in names}
            yield from _rare(data, weights, places)
        if change.step <= before:
            yield Diagnostic(
                code="mixture-not-usable",
                headline=f"the change at step {change.step:,} comes after that at {before:,}",
                path=(*path, "step"),
                why="changes are written in the order of steps",
                help="write the changes in the order of their steps",
            )
        before = change.step
        if spec.train.are_steps_known and change.step >= spec.train.steps:
            yield no_effect(
                path,
                f"the change of weights at step {change.step:,} does nothing",
                f"the run has {spec.train.steps:,} steps",
                "delete it, or train longer",
            )
