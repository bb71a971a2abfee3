"""A run that goes on from a checkpoint over shards that have changed since."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_ranks import run_on_running_ranks
from tests.support.shard_runs import shard_spec
from tests.support.shards import write_shard

from mimo_launch.checkpoint import saver
from mimo_launch.checkpoint.folder import DataHasChanged
from mimo_launch.checkpoint.loading import start_run
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import RunResumed
from mimo_launch.train.loop import Hooks, train
from mimo_launch.train.metrics_file import MetricsFile
from mimo_launch.train.rank_session import RankSession


def run_on_rank(spec: Spec, folder: Path) -> tuple[list[Any], str]:
    """Train; return the events, and why the run refused to go on, if it did."""
    events: list[Any] = []
    metrics = MetricsFile(folder / "metrics.jsonl", events.append)

    def emit(event: Any) -> None:
        events.append(event)
        metrics(event)

    with RankSession(Plan.of(spec)) as session:
        try:
            state, saves = start_run(session, folder, emit)
        except DataHasChanged as error:
            return events, str(error)
        train(session, emit, Hooks(saver=saves), state)
    return events, ""


def run_of_an_earlier_version(spec: Spec, folder: Path) -> tuple[list[Any], str]:
    """Train as `run_on_rank`, and save the settings without keys that are new since."""

    def dump(spec: Spec) -> dict[str, Any]:
        settings = dump_spec(spec)
        del settings["optimizer"]["momentum"], settings["train"]["allow_changed_data"]
        return settings

    saver.dump_spec = dump
    return run_on_rank(spec, folder)


def text(number: int) -> dict[str, Any]:
    asked, said = {"role": "user", "content": "?"}, {"role": "assistant", "content": str(number)}
    return {"json": {"messages": [asked, said]}}


@pytest.mark.parametrize("change", ["a shard added", "held-out only"])
def test_a_run_goes_on_with_other_data_only_if_it_is_told_to(tmp_path: Path, change: str) -> None:
    shards, runs = tmp_path / "shards", tmp_path / "run"
    runs.mkdir()
    write_shard(shards / "000.tar", [(f"a{n}", text(n)) for n in range(12)])
    write_shard(tmp_path / "held" / "h.tar", [("h0", text(0))])

    def go_on(steps: int, **train_settings: Any) -> tuple[list[str] | None, str]:
        """The changes that the run tells, and why it stops."""
        made = shard_spec(
            shards, 1, placed="same", eval={"every": 1, "samples": 1}, checkpoint={"every": 1},
            train={"steps": steps, "precision": "fp32", **train_settings},
        )  # fmt: skip
        held = {"eval_shards": str(tmp_path / "held" / "*.tar")}
        made = made.model_copy(update={"data": made.data.model_copy(update=held)})
        [(events, refused)] = run_on_running_ranks(run_on_rank, made, runs, world_size=1)
        told = [list(each.changes) for each in events if isinstance(each, RunResumed)]
        return (told[0] if told else None), refused

    # An evaluation of other samples, or after other training, is not better or worse.
    forgotten = "best evaluation: that of step 2 -> none"
    assert go_on(1) == (None, "")
    assert go_on(2) == (["train.steps: 1 -> 2"], "")
    if change == "held-out only":
        write_shard(tmp_path / "held" / "h.tar", [("h0", text(0)), ("h1", text(1))])
        told = "data.eval_shards h.tar: 1 sample -> 2 samples"
        assert go_on(3) == (["train.steps: 2 -> 3", told, forgotten], "")
        return
    write_shard(shards / "001.tar", [("b0", text(50))])
    told, refused = go_on(3)
    assert told is None
    assert "step-00000002 was saved with: 001.tar: none -> 1 sample\n" in refused
    assert "`--set train.allow_changed_data=true` goes on" in refused
    told, refused = go_on(3, allow_changed_data=True)
    assert (told, refused) == (
        ["train.steps: 2 -> 3", "train.allow_changed_data: false -> true",
         "data.shards 001.tar: none -> 1 sample", forgotten],
        "",
    )  # fmt: skip
    lines = (runs / "metrics.jsonl").read_text().splitlines()
    assert [each["changes"] for line in lines if "changes" in (each := json.loads(line))][
        -1
    ] == told
    # What is saved from now on is compared with the data that there are now.
    assert go_on(4) == (
        ["train.steps: 3 -> 4", "train.allow_changed_data: true -> false"], ""
    )  # fmt: skip


def test_a_key_that_is_new_since_the_checkpoint_is_no_change(tmp_path: Path) -> None:
    """It changes only if it is set."""
    write_shard(tmp_path / "shards" / "000.tar", [(f"a{n}", text(n)) for n in range(8)])
    (tmp_path / "run").mkdir()

    def changes(run: Any, steps: int, **settings: Any) -> list[list[str]]:
        made = shard_spec(
            tmp_path / "shards", 1, placed="same", checkpoint={"every": 1},
            train={"steps": steps, "precision": "fp32"} | settings,
        )  # fmt: skip
        [(events, _)] = run_on_running_ranks(run, made, tmp_path / "run", world_size=1)
        return [list(each.changes) for each in events if isinstance(each, RunResumed)]

    assert changes(run_of_an_earlier_version, 1) == []
    assert changes(run_of_an_earlier_version, 2) == [["train.steps: 1 -> 2"]]
    assert changes(run_on_rank, 3, allow_changed_data=True) == [
        ["train.steps: 2 -> 3", "train.allow_changed_data: false -> true"]
    ]
