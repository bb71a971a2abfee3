"""Checks of a user's loss of language: its class is there, and the data have its columns.

Decides: which modules and data a loss fits, before any class is imported.
Relies on: `packages` to look for the class.
Leaves: what the loss returns to `models.custom_loss`, the values of columns to the index.
"""

from mimo_launch.checks.packages import named_is_there
from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related, YamlPath
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.near_words import did_you_mean
from mimo_launch.spec.spec import DigitsData, Spec, UserData


def loss_has_place(spec: Spec, name: str) -> Findings:
    """Only language may have a user's loss; its class is there."""
    loss, path = spec.modules[name].loss, ("modules", name, "loss")
    if loss is None:
        return
    if name != LANGUAGE:
        yield _cannot(
            path,
            f"`{name}` has a `loss`",
            "only `language` can have a loss of your own",
            f"move `loss` to `{LANGUAGE}`, or delete it; a generator of your own has its own loss",
        )
        return
    yield from named_is_there((*path, "kind"), f"`{name}`: ", loss.kind)


def loss_has_columns(spec: Spec) -> Findings:
    """The columns of tokens and the one that counts are read, and the data have columns."""
    module = spec.modules.get(LANGUAGE)
    if module is None or (loss := module.loss) is None:
        return
    path, data = ("modules", LANGUAGE, "loss"), spec.data
    counts = ((("counts",), loss.counts),) if loss.counts else ()
    of_tokens = ((("token_columns", n), each) for n, each in enumerate(loss.token_columns))
    for key, column in (*of_tokens, *counts):
        if column not in loss.columns:
            yield _cannot(
                (*path, *key),
                f"`{column}` is none of the `columns` that the loss reads",
                "a column is read if `columns` gives its width",
                did_you_mean(column, loss.columns) or f"write `{column}: 1` in `columns`",
            )
    if loss.counts and (loss.columns.get(loss.counts, 1) > 1 or loss.counts in loss.token_columns):
        yield _cannot(
            (*path, "counts"),
            f"`{loss.counts}` is not one number for each token",
            "the loss is divided by the sum of these numbers",
            "name a column of width 1, or delete `counts`",
        )
    if loss.columns and isinstance(data, DigitsData):
        yield _cannot(
            (*path, "columns"),
            "data of kind digits have no columns",
            "columns are in the records of your own data",
            "write data of your own, or delete `columns`",
            (Related(("data", "kind"), "these data"),),
        )
    if loss.counts and isinstance(data, UserData) and data.too_long == "truncate":
        yield _cannot(
            (*path, "counts"),
            "`counts` does not go with samples that are cut",
            "the index knows the sum of the column for whole samples only",
            "write `too_long: drop` in `data`",
            (Related(("data", "too_long"), "cuts samples"),),
        )


def _cannot(
    path: YamlPath, headline: str, why: str, help_: str, related: tuple[Related, ...] = ()
) -> Diagnostic:
    return Diagnostic(
        code="loss-cannot", headline=headline, path=path, why=why, help=help_, related=related
    )
