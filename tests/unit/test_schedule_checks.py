"""Which schedule kinds go with which grids: the limit of each check."""

import pytest
from tests.support.specs import Box, box, spec

from mimo_launch.checks import schedules
from mimo_launch.checks.rule import ModuleRule, SpecRule, run_rules
from mimo_launch.diag.diagnostic import Diagnostic

RULES = (
    SpecRule(schedules.virtual_stages_used),
    SpecRule(schedules.interleaved_has_stages),
    SpecRule(schedules.interleaved_runs_whole),
    SpecRule(schedules.bubbles_are_filled),
    ModuleRule(schedules.bubbles_need_no_gather),
)


def findings(
    kind: str, m: int, v: int = 1, k: int | None = None, **modules: Box
) -> list[Diagnostic]:
    made = spec(
        modules, kind=kind, microbatches=m, virtual_stages=v, encoder_microbatches=k, max_patches=1
    )
    return run_rules(made, RULES)


ALONE = {"language": box(0, pp=4)}
SHARED = {"vision": box(0, dp=4), "language": box(0, pp=4)}
APART = {"vision": box(4), "language": box(0, pp=4)}


@pytest.mark.parametrize(
    ("kind", "m", "v", "k", "modules", "code", "help_"),
    [
        ("1f1b", 3, 1, None, ALONE, "", ""),
        ("1f1b", 4, 2, None, ALONE, "virtual-stages-without-interleaved", "write `kind: inter"),
        ("gpipe", 4, 2, None, ALONE, "virtual-stages-without-interleaved", "write `kind: inter"),
        ("interleaved", 4, 2, None, ALONE, "", ""),
        ("interleaved", 4, 1, None, ALONE, "interleaved-without-stages", "write `virtual_stages:"),
        ("interleaved", 4, 2, None, {"language": box(0)}, "interleaved-without-stages", "write `k"),
        (
            *("interleaved", 6, 2, None, ALONE),
            *("interleaved-microbatches-uneven", "write `microbatches: 8`"),
        ),
        ("interleaved", 8, 2, 4, SHARED, "", ""),
        (
            *("interleaved", 8, 2, 2, SHARED),
            *("interleaved-microbatches-uneven", "write `encoder_microbatches: 4`"),
        ),
        (
            *("interleaved", 12, 2, 6, SHARED),
            *("interleaved-microbatches-uneven", "write `encoder_microbatches: 4`"),
        ),
        # Encoders of their own ranks have no groups.
        ("interleaved", 8, 2, 2, APART, "", ""),
        ("bubble_filling", 8, 1, 2, SHARED, "", ""),
        ("bubble_filling", 8, 1, None, APART, "setting-without-effect", "write `kind: 1f1b`"),
        (
            *("bubble_filling", 8, 1, None, {"vision": box(0), "language": box(0)}),
            *("setting-without-effect", "write `kind: 1f1b`"),
        ),
        (
            *("bubble_filling", 8, 1, 2),
            {"vision": box(0, dp=4, sharding="full"), "language": box(0, pp=4)},
            *("full-sharding-in-bubbles", "write `sharding: optimizer`"),
        ),
        (
            *("bubble_filling", 8, 1, 2),
            {"vision": box(0, tp=4, sharding="full"), "language": box(0, pp=4)},
            *("", ""),
        ),
    ],
)
def test_a_kind_and_its_pipeline(kind, m, v, k, modules, code, help_):
    found = findings(kind, m, v, k, **modules)
    assert [item.code for item in found] == [code] * bool(code)
    assert not code or found[0].help.startswith(help_)


def test_filling_nothing_is_a_warning_and_a_pipeline_that_cannot_run_an_error():
    assert not findings("bubble_filling", 8, **APART)[0].is_error
    assert findings("interleaved", 4, **ALONE)[0].is_error
