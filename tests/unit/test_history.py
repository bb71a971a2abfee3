"""metrics.jsonl is read back as it was meant, also after crashes."""

import math
from pathlib import Path

import pytest
from tests.support.histories import evaluated, step, write

from mimo_launch.train.history import NoHistory, moving_average, read_history, thinned


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    return folder


def test_a_run_is_its_steps_and_evaluations(run: Path) -> None:
    write(run, step(1, 3.0), step(2, 2.0), evaluated(2))
    for path in (run, run / "metrics.jsonl"):
        found = read_history(path)
        assert (found.name, found.run) == ("one", run)
        assert found.curve("loss") == ([1, 2], [3.0, 2.0])
        assert found.eval_curve("eval_loss") == ([2], [0.5])
        assert list(found.norms()) == ["vision", "language"]
        assert found.norms()["language"] == ([1, 2], [2.0, 2.0])
        assert found.total("bad_samples") == 4


def test_each_named_set_has_its_curve(run: Path) -> None:
    both = (evaluated(2, 3.0, "photos"), evaluated(2, 4.0, "charts"))
    write(run, step(1), step(2), *both, step(3), evaluated(3, 2.0, "photos"), step(3))
    found = read_history(run)
    assert found.eval_sets == ["photos", "charts"]
    assert found.eval_curve("eval_loss", "photos") == ([2], [3.0])
    assert found.eval_curve("eval_loss", "charts") == ([2], [4.0])


def test_a_number_that_is_not_finite_is_a_gap(run: Path) -> None:
    write(run, step(1), step(2, math.inf), step(3))
    found = read_history(run)
    assert math.isnan(found.curve("loss")[1][1])
    assert found.total("skipped") == 1


def test_half_a_line_is_left_out_silently(run: Path) -> None:
    """A run may be writing it at this moment."""
    write(run, step(1), step(2)[:40])
    found = read_history(run)
    assert found.curve("loss")[0] == [1]
    assert found.num_other_lines == 0


def test_a_last_line_without_newline_counts(run: Path) -> None:
    write(run, step(1), step(2).rstrip())
    assert read_history(run).curve("loss")[0] == [1, 2]


def test_lines_that_are_no_records_are_counted(run: Path) -> None:
    write(run, step(1), "\x00\x00\n", "[1]\n", '{"loss": 1}\n', "\n", step(2))
    found = read_history(run)
    assert found.curve("loss")[0] == [1, 2]
    assert found.num_other_lines == 3


def test_of_a_step_done_twice_the_later_counts(run: Path) -> None:
    """A killed run had gone past its checkpoint after step 1; what it did there is not shown."""
    write(run, step(1, 9.0), evaluated(1), step(3, 8.0), evaluated(3), step(4, 7.0), step(2, 5.0))
    found = read_history(run)
    assert found.curve("loss") == ([1, 2], [9.0, 5.0])
    assert found.eval_curve("eval_loss")[0] == [1]


def test_records_of_other_releases_are_read_as_far_as_they_go(run: Path) -> None:
    write(run, '{"step": 1, "loss": 2.5, "grad_norms": 3}\n')
    found = read_history(run)
    assert found.curve("loss") == ([1], [2.5])
    assert found.norms() == {}
    assert found.rates() == {}
    assert math.isnan(found.curve("tokens_per_s")[1][0])
    assert found.total("bad_samples") == 0


def test_modules_that_share_a_learning_rate_share_an_entry(run: Path) -> None:
    write(run, step(1), step(2))
    assert list(read_history(run).rates()) == [("vision",), ("language",)]
    write(run, step(1, lrs={"a": 1.0, "b": 2.0, "c": 1.0}))
    assert read_history(run).rates() == {("b",): ([1], [2.0]), ("a", "c"): ([1], [1.0])}


@pytest.mark.parametrize("text", ["", "\n", step(1)[:20]])
def test_a_run_without_a_step_says_wait(run: Path, text: str) -> None:
    write(run, text)
    with pytest.raises(NoHistory, match=r"metrics\.jsonl holds no step") as caught:
        read_history(run)
    assert "wait" in caught.value.help


def test_another_file_says_what_is_wanted(run: Path) -> None:
    write(run, '{"a": 1}\n')
    with pytest.raises(NoHistory) as caught:
        read_history(run)
    assert "mimo-launch train" in caught.value.help


def test_a_folder_of_runs_names_them(run: Path) -> None:
    write(run, step(1))
    with pytest.raises(NoHistory) as caught:
        read_history(run.parent)
    assert str(run) in caught.value.help
    with pytest.raises(NoHistory, match="there is no"):
        read_history(run / "nowhere")


def test_a_moving_average_leaves_gaps_out() -> None:
    values = [2.0, 4.0, math.nan, 6.0]
    assert moving_average(values, 2) == [2.0, 3.0, 4.0, 6.0]
    assert moving_average([1.0, 5.0], 1) == [1.0, 5.0]
    assert math.isnan(moving_average([math.nan], 3)[0])


def test_a_thinned_curve_keeps_peaks_and_gaps() -> None:
    values = [1.0] * 10_000
    values[5_000], values[7_000] = 99.0, -99.0
    values[9_000:9_100] = [math.nan] * 100
    steps, kept = thinned((list(range(10_000)), values), 1_000)
    assert len(steps) <= 1_000
    assert steps == sorted(set(steps))
    assert kept[steps.index(5_000)] == 99.0
    assert kept[steps.index(7_000)] == -99.0
    assert any(math.isnan(value) for value in kept)
    assert thinned(([1, 2], [3.0, 4.0]), 1_000) == ([1, 2], [3.0, 4.0])


def test_a_count_that_is_not_a_number_is_no_count(run: Path) -> None:
    write(run, step(1, bad_samples=None), step(2))
    assert read_history(run).total("bad_samples") == 2
