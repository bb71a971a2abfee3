"""Checks of how the samples of a step are divided among ranks.

Decides: which batch, microbatch and dp sizes go together.
Relies on: `layout` for groups of microbatches, `data.sample_sizes` for the longest sample.
Leaves: widths and heads to `widths`; what to change rather than the batch to `proposals`.
"""

from math import gcd, lcm

from mimo_launch.checks.rule import Findings, next_multiple
from mimo_launch.data.sample_sizes import longest_sample
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.layout.samples import group_size, grouped_encoders, shares_ranks
from mimo_launch.layout.space import group_sizes
from mimo_launch.spec.base import LANGUAGE, Axis
from mimo_launch.spec.spec import Spec, UserData

_DP = ("modules", LANGUAGE, "grid", Axis.DP)
_GLOBAL = ("batch", "global")
_MICROBATCHES = ("schedule", "microbatches")


def batch_splits(spec: Spec) -> Findings:
    """The global batch is a whole number of microbatches on each language replica."""
    dp, microbatches = spec.language.grid.dp, spec.schedule.microbatches
    if spec.batch.global_ % (dp * microbatches) == 0:
        return
    fits = next_multiple(spec.batch.global_, dp * microbatches)
    yield Diagnostic(
        code="batch-not-divisible",
        headline=f"`global` {spec.batch.global_} does not split into language dp {dp} * "
        f"microbatches {microbatches} = {dp * microbatches}",
        path=_GLOBAL,
        why="each language replica runs the same number of microbatches of the same size",
        help=f"write `global: {fits}`",
        related=(Related(_DP, f"{dp} replicas"), Related(_MICROBATCHES, f"{microbatches} each")),
    )


def groups_split(spec: Spec) -> Findings:
    """`encoder_microbatches` and `generator_microbatches` divide `microbatches`, if used."""
    encoders = grouped_encoders(spec)
    generators = [name for name in spec.generators if shares_ranks(spec, name)]
    microbatches = spec.schedule.microbatches
    for key, sharing, why in (
        ("encoder_microbatches", encoders, "encoders take microbatches in groups of one size"),
        (
            "generator_microbatches",
            generators,
            "generators that share ranks with language take microbatches in groups of one size",
        ),
    ):
        k = getattr(spec.schedule, key)
        if k is None or not sharing or microbatches % k == 0:
            continue
        legal = group_sizes(spec, sharing, microbatches)
        yield Diagnostic(
            code="encoder-microbatches-uneven",
            headline=f"`microbatches` {microbatches} is not a multiple of `{key}` {k}",
            path=("schedule", key),
            why=why,
            help=f"write `{key}: {max([n for n in legal if n <= k], default=legal[0])}`"
            if legal
            else f"no `{key}` fits: write other `microbatches`",
            related=(Related(_MICROBATCHES, f"{microbatches} microbatches"),),
        )


def encoder_share_is_even(spec: Spec, name: str) -> Findings:
    """Fan-in and fan-out: each encoder replica encodes the same number of samples of a group."""
    if name == LANGUAGE:
        return
    replicas, dp = spec.modules[name].grid.dp, spec.language.grid.dp
    microbatches = spec.schedule.microbatches
    size = spec.batch.global_ // (dp * microbatches)
    k = group_size(spec, name)
    samples = dp * size * k
    if samples % replicas == 0:
        return
    makes = name in spec.generators
    base = microbatches * lcm(dp, replicas // gcd(replicas, k))
    fits = next_multiple(spec.batch.global_, base)
    smallest = "" if fits == base else f" (the smallest is {base})"
    yield Diagnostic(
        code="encoder-share-uneven",
        headline=f"`{name}` dp {replicas} does not divide the {samples} samples it "
        f"{'works on' if makes else 'encodes'} at once",
        path=("modules", name, "grid", Axis.DP),
        why=f"language dp {dp} * microbatch size {size} * {k} microbatch{'es' * (k != 1)} = "
        f"{samples} samples are cut evenly over the replicas of `{name}`",
        help=f"write `global: {fits}`{smallest}",
        related=(
            Related(_GLOBAL, "sets the microbatch size"),
            Related(_DP, f"{dp} language replicas"),
        ),
    )


def dp_sizes_related(spec: Spec, name: str) -> Findings:
    """One of the two dp sizes at a bridge divides the other (a warning)."""
    mine = spec.modules[name].grid.dp
    for reader in spec.modules:
        theirs = spec.modules[reader].grid.dp
        if name not in spec.sources_of(reader) or mine % theirs == 0 or theirs % mine == 0:
            continue
        shown = LANGUAGE if reader == LANGUAGE else f"`{reader}`"
        yield Diagnostic(
            code="unrelated-dp-sizes",
            severity=Severity.WARNING,
            headline=f"`{name}` dp {mine} and {shown} dp {theirs} do not divide each other",
            path=("modules", name, "grid", Axis.DP),
            why="legal, but each replica then exchanges rows with several replicas that overlap, "
            "which means more and smaller messages",
            help=f"a dp that divides {theirs}, or a multiple of it, gives fewer messages",
            related=(Related(("modules", reader, "grid", Axis.DP), f"dp {theirs}"),),
        )


def seq_holds_samples(spec: Spec) -> Findings:
    """The longest sample of the data set fits into `seq`."""
    longest = longest_sample(spec)
    if spec.batch.seq >= longest:
        return
    of_shards = isinstance(spec.data, UserData)
    what = "a sample with one image or clip" if of_shards else "the longest sample"
    yield Diagnostic(
        code="seq-too-short",
        headline=f"`seq` {spec.batch.seq} is shorter than {what}, {longest} tokens",
        path=("batch", "seq"),
        why="samples are never cut: a row without its place would train nothing",
        help=f"write `seq: {next_multiple(longest, lcm(8, seq_unit(spec)))}`",
        related=(Related(("data", "kind"), "these data"),),
    )


def seq_splits_over_tp(spec: Spec) -> Findings:
    """Under sequence parallelism the tokens of a sample are cut over tp."""
    language = spec.language
    if not language.sequence_parallel or spec.batch.seq % language.grid.tp == 0:
        return
    tp = language.grid.tp
    yield Diagnostic(
        code="seq-over-tp",
        headline=f"`seq` {spec.batch.seq} does not split over language tp {tp}",
        path=("batch", "seq"),
        why="`sequence_parallel: true` gives each tp rank an equal share of the tokens",
        help=f"write `seq: {next_multiple(spec.batch.seq, tp)}`",
        related=(Related(("modules", LANGUAGE, "grid", Axis.TP), f"tp {tp}"),),
    )


def seq_splits_over_cp(spec: Spec) -> Findings:
    """Each cp rank holds two equal chunks of a sample, cut over tp under sequence parallelism."""
    cp, unit = spec.language.grid.cp, seq_unit(spec)
    if cp == 1 or spec.batch.seq % unit == 0:
        return
    product = f"2 * cp {cp}" + (f" * tp {unit // (2 * cp)}" if unit > 2 * cp else "")
    yield Diagnostic(
        code="seq-over-cp",
        headline=f"`seq` {spec.batch.seq} is not a multiple of {product} = {unit}",
        path=("batch", "seq"),
        why="context parallelism gives each rank two chunks of every sample, one from each end, "
        "so that causal attention costs all of them the same",
        help=f"write `seq: {next_multiple(spec.batch.seq, unit)}`; samples are padded at the end",
        related=(Related(("modules", LANGUAGE, "grid", Axis.CP), f"cp {cp}"),),
    )


def seq_unit(spec: Spec) -> int:
    """Return the number that must divide `seq`."""
    language = spec.language
    chunks = 2 * language.grid.cp if language.grid.cp > 1 else 1
    return chunks * (language.grid.tp if language.sequence_parallel else 1)
