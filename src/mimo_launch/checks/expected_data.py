"""Checks of `data.expect`: what samples hold that are not here.

Decides: which names and files it may have.
Relies on: `data.expected_steps` for samples made from it.
Leaves: its numbers to `spec.expect`.
"""

from collections.abc import Iterator

from mimo_launch.checks.rule import Findings, no_effect
from mimo_launch.diag.diagnostic import Diagnostic, YamlPath
from mimo_launch.processors.recipes import video_reader_of
from mimo_launch.spec.near_words import did_you_mean
from mimo_launch.spec.spec import Spec, UserData

_EXPECT: YamlPath = ("data", "expect")


def expect_is_usable(spec: Spec, data: UserData) -> Findings:
    """The modules in `expect` are in the spec, a file is one of statistics, and samples fit."""
    if data.expect is None:
        return
    unknown = list(_unknown(spec, data))
    yield from unknown
    if unknown:
        return
    # Imported here because few specs have `expect`, and others are checked without numpy.
    from mimo_launch.data.expected_samples import NoRoom
    from mimo_launch.data.expected_steps import expected_records
    from mimo_launch.data.sample_statistics import BadStatistics

    try:
        expected_records(spec, data)
    except NoRoom as error:
        yield _unusable(str(error), "write fewer tokens and rows, or a larger `batch.seq`")
    except BadStatistics as error:
        yield _unusable(
            str(error), "where the shards are: `mimo-launch data SPEC --stats FILE`, for this spec"
        )
    if not isinstance(data.expect, str) and data.expect.videos and video_reader_of(spec) is None:
        yield no_effect((*_EXPECT, "videos"), "`videos` does nothing", "no encoder reads videos")


def _unusable(why: str, help_: str) -> Diagnostic:
    return Diagnostic(
        code="expect-not-usable",
        headline="`data.expect` describes no sample of this spec",
        path=_EXPECT,
        why=why,
        help=help_,
    )


def _unknown(spec: Spec, data: UserData) -> Iterator[Diagnostic]:
    """Yield a finding for each name that is no encoder or generator."""
    if data.expect is None or isinstance(data.expect, str):
        return
    for key in ("images", "rows"):
        said = getattr(data.expect, key)
        known = (*spec.encoders, *(spec.generators if key == "rows" else ()))
        for name in said if isinstance(said, dict) else ():
            if name not in known:
                likely = did_you_mean(name, known)
                yield Diagnostic(
                    code="expect-not-usable",
                    headline=f"`{key}` names `{name}`, which has none",
                    path=(*_EXPECT, key, name),
                    at_key=True,
                    why=f"encoders{' and generators' * (key == 'rows')} of this spec: "
                    + (", ".join(f"`{each}`" for each in known) or "none"),
                    help=likely or "delete it, or write one number for all",
                )
