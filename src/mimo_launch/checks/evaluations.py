"""Checks of evaluations: what is held out, and which number makes one better than another.

Decides: which numbers an evaluation of some data has.
Relies on: the names of sets in `data.eval_shards`.
Leaves: whether shards exist to `shards`.
"""

from collections.abc import Iterator, Sequence

from mimo_launch.checks.rule import Findings, no_effect
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity, YamlPath
from mimo_launch.spec.spec import CustomData, DigitsData, Spec, UserData, WebdatasetData

_METRIC, _STOP, _BEST = ("eval", "metric"), ("eval", "stop_after"), ("checkpoint", "keep_best")


def eval_shards_used(spec: Spec) -> Findings:
    """Held-out shards are read by evaluations."""
    if isinstance(spec.data, UserData) and spec.data.heldout_names and spec.eval is None:
        key = "eval_shards" if isinstance(spec.data, WebdatasetData) else "eval_sources"
        key = "eval_options" if isinstance(spec.data, CustomData) else key
        yield no_effect(
            ("data", key),
            f"`{key}` without an `eval` section does nothing",
            "they are read when the model is evaluated",
        )


def evaluation_ends(spec: Spec) -> Findings:
    """`samples: all` needs a held-out set with its own size (a warning)."""
    if spec.eval and spec.eval.samples == "all" and not isinstance(spec.data, UserData):
        yield Diagnostic(
            code="evaluation-of-made-up-data",
            severity=Severity.WARNING,
            headline="`samples: all` evaluates more than a million samples each time",
            path=("eval", "samples"),
            why=f"samples of {spec.data.kind} data are made up as they are asked for",
            help="write `samples: 256`, or as many as you want",
            related=(Related(("data", "kind"), "these data"),),
        )


def best_is_known(spec: Spec) -> Findings:
    """Evaluations have the number by which the best of them is chosen."""
    asked = next(_asks(spec), None)
    if asked is None:
        if spec.eval is not None and spec.eval.metric != "loss":
            yield no_effect(
                _METRIC,
                "`metric` does nothing",
                "it judges evaluations for `keep_best` of `checkpoint` and for `stop_after`",
            )
        return
    if spec.eval is None:
        yield _unknown(
            asked,
            "without `eval` no checkpoint is better than another",
            "held-out samples say which weights are better",
            "write `eval: {every: 100}`, or delete `keep_best`",
        )
        return
    names = spec.data.heldout_names if isinstance(spec.data, UserData) else ("",)
    if spec.eval.judged_set not in names:
        offered = [f"{name}{'.' * bool(name)}{spec.eval.judged_number}" for name in names]
        yield _unknown(
            _METRIC,
            f"`metric: {spec.eval.metric}` is of none of the held-out sets",
            f"sets are judged one by one, and here {_named(names)}",
            " or ".join(f"write `metric: {each}`" for each in offered),
        )
    elif spec.eval.judged_number == "accuracy" and not isinstance(spec.data, DigitsData):
        whole = spec.eval.metric.replace("accuracy", "loss")
        yield _unknown(
            _METRIC,
            f"evaluations of {spec.data.kind} data have no accuracy",
            "only answers to digits are generated and compared with the right ones",
            f"write `metric: {whole}`",
        )


def stop_is_possible(spec: Spec) -> Findings:
    """A run can only end early if it is evaluated before its end (a warning)."""
    if spec.eval is not None and spec.eval.stop_after is not None and spec.eval.every is None:
        yield no_effect(
            _STOP,
            "`stop_after` does nothing without `every`",
            "the run is evaluated once, after its last step",
            "write `every: 100` in `eval`, or delete `stop_after`",
        )


def _asks(spec: Spec) -> Iterator[YamlPath]:
    """Yield the settings that need to know the best evaluation."""
    if spec.saving is not None and spec.saving.keep_best:
        yield _BEST
    if spec.eval is not None and spec.eval.stop_after is not None:
        yield _STOP


def _named(names: Sequence[str]) -> str:
    if list(names) == [""]:
        return "the only one has no name"
    return f"they are {', '.join(f'`{name}`' for name in names)}"


def _unknown(path: YamlPath, headline: str, why: str, help_: str) -> Diagnostic:
    return Diagnostic(
        code="best-evaluation-unknown", headline=headline, path=path, why=why, help=help_
    )
