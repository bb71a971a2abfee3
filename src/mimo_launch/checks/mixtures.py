"""Checks of names and weights of sources: which have one, and which changes hold.

Decides: that names differ; that all sources have weights or none; which settings then do nothing;
that a block has a sample of each source, where weights share out samples.
Relies on: `spec.user_data` for the names of sources, `data.order.block_counts`.
Leaves: weights of tokens, which need the lengths of samples, to `data.order.mixture`.
"""

from collections.abc import Iterator, Mapping

from mimo_launch.checks.rule import Findings, no_effect
from mimo_launch.data.order.block_counts import BLOCK, BadMixture, counts_of, least_shares
from mimo_launch.diag.diagnostic import Diagnostic, Related, YamlPath
from mimo_launch.spec.near_words import did_you_mean
from mimo_launch.spec.spec import FilesData, Spec

_EACH_BLOCK = f"each block of {BLOCK:,} samples has the same number of samples of each source"


def names_differ(spec: Spec, data: FilesData) -> Findings:
    """No two sources have the same `name`: it is how metrics and weights tell them apart."""
    del spec
    first = dict[str, YamlPath]()
    for number, (source, numbered) in enumerate(zip(data.sources, data.source_names, strict=True)):
        name, path = source.name, ("data", "sources", number, "name")
        if name is None or first.setdefault(name, path) == path:
            continue
        # A name has 64 characters at most.
        other = name[:58] + numbered.removeprefix(name)
        yield Diagnostic(
            code="bad-value",
            headline=f"two sources have the name `{name}`",
            path=path,
            why="metrics and `weight_changes` tell sources apart by their names",
            help=f"write another name, such as `name: {other}`",
            related=(Related(first[name], "the other one"),),
        )


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
    """Yield a finding of each weight that is too small, at its place, if a block lacks a source."""
    names, shares = list(weights), list(weights.values())
    if data.weigh != "samples" or not any(shares):
        return
    try:
        counts_of(shares, names)
        return
    except BadMixture as error:
        lacks = error.source
    number = sum(map(bool, shares))
    if number > BLOCK:
        yield Diagnostic(
            code="mixture-not-usable",
            headline=f"{number:,} sources have a weight, and a block has {BLOCK:,} samples",
            path=places[lacks],
            why=_EACH_BLOCK,
            help="join files into fewer sources: `path: [FILE, FILE]`",
        )
        return
    for place, least in least_shares(shares).items():
        name = names[place]
        key = "weight" if places[name][-1] == "weight" else name
        yield Diagnostic(
            code="mixture-not-usable",
            headline=f"the weight of `{name}` gives it less than one of {BLOCK:,} samples",
            path=places[name],
            why=_EACH_BLOCK,
            # Half a percent more than needed, so that three digits suffice.
            help=f"write `{key}: {1.005 * least:.3g}`, or 0 to leave it out",
        )


def tokens_do_not_mix(error: BadMixture) -> Diagnostic:
    """Return the finding that weights of tokens leave a block without a source."""
    return Diagnostic(
        code="mixture-not-usable",
        headline=f"the weight of `{error.source}` gives it less than one of {BLOCK:,} samples",
        path=("data", "weigh"),
        why=f"with `weigh: tokens`, a source of long records has few of them; {_EACH_BLOCK}",
        help=f"raise the weight of `{error.source}`, or write `weigh: samples`",
    )


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
    weights, rare = data.source_weights, set[str]()
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
            # At the first change that is at fault.
            found = list(_rare(data, weights, places))
            yield from (each for each in found if each.headline not in rare)
            rare = {each.headline for each in found}
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
