"""Runs of some layouts correct the estimates of all."""

import pytest

from mimo_launch.search.correction import corrected, factors

LAYOUTS = [
    {"computing": 8.0, "waiting": 1.0, "updating": 0.5},
    {"computing": 5.0, "waiting": 5.0, "updating": 0.5},
    {"computing": 6.0, "waiting": 0.2, "updating": 3.0},
]


def test_one_run_scales_all_terms_alike() -> None:
    found = factors(LAYOUTS[:1], [2 * 9.5])
    assert found == pytest.approx(dict.fromkeys(LAYOUTS[0], 2.0))


def test_several_runs_tell_which_term_is_wrong() -> None:
    """Waiting takes three times as long as estimated."""
    measured = [terms["computing"] + 3 * terms["waiting"] + terms["updating"] for terms in LAYOUTS]
    found = factors(LAYOUTS, measured)
    assert found["waiting"] > 1.5 * found["computing"]
    for terms, seconds in zip(LAYOUTS, measured, strict=True):
        assert corrected(terms, found) == pytest.approx(seconds, rel=0.2)


def test_no_factor_is_negative() -> None:
    found = factors(LAYOUTS, [1.0, 20.0, 1.0])
    assert all(each >= 0 for each in found.values())
