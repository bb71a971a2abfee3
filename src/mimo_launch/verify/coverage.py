"""Reports which parts of a spec the proof of a smaller spec covers, and which it leaves open.

Decides: which facts of a layout a proof on fewer ranks must keep, and which it may lose if it
reports that; which facts no proof covers.
Relies on: both specs, compared key by key without exception, so that every setting that differs is
reported; `layout` for phases.
Leaves: making specs small to `shrink` and `shrink_grids`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, groupby
from math import gcd
from typing import TYPE_CHECKING, Any

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.samples import Bridge, group_size, runs_in_phases
from mimo_launch.layout.stages import stage_sizes
from mimo_launch.schedule.orders import ORDERS
from mimo_launch.spec.base import LANGUAGE, rank_range
from mimo_launch.spec.spec import ExpertGrid, Grid, Spec

if TYPE_CHECKING:
    from mimo_launch.verify.compare import ModuleVerdict

Facts = Mapping[str, str]
# The parts of recurrent layers, by their key, that several heads share.
GROUPS = {"mamba": "Mamba groups", "deltanet": "DeltaNet key heads"}


def relations(spec: Spec) -> Facts:
    """Return how the ranks of modules relate, and when modules other than language run."""
    spans = {f"`{name}`": module.rank_range for name, module in spec.modules.items()}
    if spec.idle_ranks is not None:
        spans["idle ranks"] = rank_range(spec.idle_ranks)
    facts = {}
    for (one, mine), (other, theirs) in combinations(spans.items(), 2):
        if mine.stop <= theirs.start or theirs.stop <= mine.start:
            relation = f"disjoint, {one if mine.start < theirs.start else other} first"
        elif mine == theirs:
            relation = "equal"
        else:
            starts = _order(one, mine.start, other, theirs.start, "starts")
            ends = _order(one, mine.stop, other, theirs.stop, "ends")
            relation = f"overlapping, {starts}, {ends}"
        facts[f"ranks of {one} and {other}"] = relation
    for name in spec.encoders:
        size, when = group_size(spec, name), "in front of the pipeline"
        if runs_in_phases(spec, name):
            bubbles = ORDERS[spec.schedule.kind].fills_bubbles and spec.language.grid.pp > 1
            when = "in the bubbles" if bubbles else "between phases"
        if size > 1 or runs_in_phases(spec, name):
            groups = "one group" if size == spec.schedule.microbatches else "several groups"
            when += f", {groups} of microbatches"
        facts[f"schedule of `{name}`"] = when
    for name in spec.generators:
        size = group_size(spec, name)
        groups = "one group" if size == spec.schedule.microbatches else "several groups"
        when = "one microbatch at a time" if size == 1 else f"{groups} of microbatches"
        facts[f"schedule of `{name}`"] = when
    return facts


def _order(one: str, mine: int, other: str, theirs: int, verb: str) -> str:
    if mine == theirs:
        return f"both {verb.removesuffix('s')} together"
    return f"{one if mine < theirs else other} {verb} first"


def consequences(spec: Spec) -> Facts:
    """Return facts that follow from sizes of grids: fans, islands, shared heads, uneven stages."""
    facts = {}
    for name, module in spec.modules.items():
        layers = stage_sizes(spec, name)
        even = "" if len(set(layers)) == 1 else ", unevenly cut"
        facts[f"stages of `{name}`"] = (
            f"{'one layer' if min(layers) == 1 else 'several layers'} each{even}"
        )
        for reader in (each for each in spec.modules if name in spec.sources_of(each)):
            mine, theirs = module.grid.dp, spec.modules[reader].grid.dp
            ratio = Fraction(mine, theirs)
            facts[f"fan of `{Bridge(name, reader, 1, 1).name}`"] = (
                f"{fan(mine, theirs)}, {ratio.numerator} to {ratio.denominator}"
            )
        if name != LANGUAGE:
            alone = gcd(module.grid.dp, spec.language.grid.dp) == 1
            facts[f"islands of `{name}`"] = "one" if alone else "several"
        for place, heads in kind_of(module.model).cuts.kv_heads.items():
            what = "key/value heads" if place == ("kv_heads",) else "key/value heads in windows"
            where = "" if name == LANGUAGE else f" of `{name}`"
            facts[f"{what}{where}"] = kv_sharing(heads, module.grid.tp)
    kind, grid = kind_of(spec.language.model), spec.language.grid
    if kind.moe is not None:
        experts = spec.language.experts or ExpertGrid()
        replicas = grid.tp * grid.cp * grid.dp // (experts.tp * experts.ep)
        facts["replicas of experts"] = "one" if replicas == 1 else "several"
    for key, sizes in kind.recurrent.items():
        facts[GROUPS[key]] = group_sharing(sizes.groups, grid)
    return facts


def differing(before: Facts, after: Facts) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each fact that differs, and both values."""
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name, "none"), after.get(name, "none")
        if one != other:
            yield name, one, other


def fan(encoder: int, language: int) -> str:
    """Return the name of the relation between two dp sizes at a bridge."""
    if encoder == language:
        return "one-to-one"
    if encoder % language and language % encoder:
        return "uneven " + ("fan-in" if encoder > language else "fan-out")
    return "fan-in" if encoder > language else "fan-out"


def kv_sharing(kv_heads: int, tp: int) -> str:
    """Return in words how key/value heads are placed on tp ranks."""
    if kv_heads >= tp:
        return "whole on each tp rank"
    return "one on all tp ranks" if kv_heads == 1 else "several, each on several tp ranks"


def group_sharing(groups: int, grid: Grid) -> str:
    """Return in words how groups of heads are placed on tp ranks and their cp ranks."""
    if groups < grid.tp:
        return "shared by tp ranks"
    local = groups // grid.tp
    if local < grid.cp:
        return "shared by cp ranks"
    return "several on each rank" if local > grid.cp else "one on each rank"


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that is not proved: the user set `key` to `asked`, and the proof ran with `proved`.

    Both are JSON values. `section` is a path in the spec, `spec` for its top level, `layout` for
    facts that follow from settings, or `run` for facts that no setting names.
    """

    section: str
    key: str
    asked: Any
    proved: Any


def not_proved(asked: Spec, proved: Spec) -> tuple[Remark, ...]:
    """Return everything in `asked` that a proof of `proved` does not cover."""
    settings = _settings(_as_json(asked), _as_json(proved), "")
    follows = differing(consequences(asked), consequences(proved))
    return (*settings, *(Remark("layout", *each) for each in follows), *_never_proved(asked))


def _never_proved(spec: Spec) -> Iterator[Remark]:
    """Yield facts that no proof compares and no setting names."""
    yield Remark("run", "initial weights", "drawn or loaded", "random, none of them 0")
    yield Remark("run", "updates of weights", "unequal once a resume thaws a module", "equal")
    for name, module in spec.generators.items():
        kind = kind_of(module.model)
        if kind.draws and spec.eval is None:
            made = "codes" if kind.codes else "images"
            yield Remark("run", f"what `{name}` makes", made, "nothing")
    if spec.train.count_zero_grads:
        yield Remark("run", "counts of zero gradients", "reported", "nothing")


def not_reached(verdicts: Iterable["ModuleVerdict"]) -> Iterator[Remark]:
    """Yield a remark on each module that trains, but with no gradient beyond rounding in any step.

    Then usually no row of it reached a loss, and its backward proves nothing. The same of a
    talker's map of rows of images and clips, if it read only text.
    """
    for verdict in verdicts:
        if verdict.what == "gradients" and verdict.tensors and not verdict.judged:
            yield Remark("run", f"gradients of `{verdict.module}`", "any", "0, or rounding")
        elif verdict.what == "gradients" and verdict.unread:
            layer = min(verdict.unread).partition(".states.")[0]
            yield Remark("run", f"gradients of `{layer}.states`", "any", "0")


def lines_of(remarks: Iterable[Remark]) -> Iterator[str]:
    """Yield a line for each section in which something is not proved."""
    for section, found in groupby(remarks, key=lambda remark: remark.section):
        parts = [f"{r.key} {_words(r.asked)} (proved: {_words(r.proved)})" for r in found]
        yield f"not proved: {section}: {', '.join(parts)}"


def _as_json(spec: Spec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True)


def _settings(asked: dict[str, Any], proved: dict[str, Any], section: str) -> Iterator[Remark]:
    """Yield the settings that differ; a section with different keys counts as one setting."""
    inner = []
    for key in dict.fromkeys((*asked, *proved)):
        old, new = asked.get(key), proved.get(key)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
            inner.append((old, new, f"{section}.{key}" if section else key))
        else:
            yield Remark(section or "spec", key, old, new)
    for old, new, path in inner:
        yield from _settings(old, new, path)


def _words(value: Any) -> str:
    """Return a short text for a value."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        inside = {key: value[key] for key in ("kind", *value) if value.get(key) is not None}
        return f"{{{', '.join(f'{key}: {_words(each)}' for key, each in inside.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_words, value))}]"
    return str(value)
