"""`mimo-launch bench` from the outside: what it measures, prints and leaves, and how it fails."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.support.faulty_train import Launcher
from tests.support.shard_runs import shard_spec
from tests.support.shards import write_shards

from mimo_launch.data.random_draws import Split
from mimo_launch.data.shard_samples import ShardSamples
from mimo_launch.estimate.device_constants import Calibration, load
from mimo_launch.launcher import gpus
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.load import dump_spec, load_spec

ROOT = Path(__file__).parents[2]
SPEC = str(ROOT / "topologies" / "colocated_one_to_one.yaml")
TINY = str(ROOT / "tests" / "fixtures" / "tiny_train.yaml")
TWO_RANKS = (
    "--set", "modules.vision.ranks=0-1", "--set", "modules.vision.grid.dp=2",
    "--set", "modules.language.ranks=0-1", "--set", "modules.language.grid.dp=2",
)  # fmt: skip
ON_CPU = ("--device", "cpu")


def bench(folder: Path, *args: str, fault: str = "slow", step: int = 0) -> Launcher:
    """Start a bench; the fault strikes rank 1 at its step, by default never."""
    return Launcher(folder, fault, 1, step, "bench", *args, *ON_CPU)


def test_a_bench_on_two_ranks(tmp_path: Path) -> None:
    launcher = bench(tmp_path, SPEC, *TWO_RANKS, "--steps", "4", "--warmup", "1", "--json")
    code, out, err = launcher.finish()
    assert code == 0, err
    assert "run folder: runs/bench/colocated-one-to-one" in err
    run = tmp_path / "runs" / "bench" / "colocated-one-to-one"
    record = json.loads(out)
    assert json.loads((run / "bench.json").read_text()) == record
    assert not (run / "metrics.jsonl").exists()
    assert not (run / "checkpoints").exists()

    settings = [each for each in TWO_RANKS if each != "--set"]
    spec = load_spec(Path(SPEC), settings).spec
    assert spec is not None
    assert (record["version"], record["plan_hash"]) == (1, Plan.of(spec).identity)
    assert record["command"].startswith("mimo-launch bench ")
    assert "--steps 4 --warmup 1 --json" in record["command"]
    assert (record["warmup"], record["steps"], record["skipped"]) == (1, 4, 0)
    assert record["machine"]["device_kind"] == "cpu"
    assert record["machine"]["versions"]["torch"]

    times, spread = record["step_times_s"], record["step_s"]
    assert len(times) == 4
    assert min(times) > 0
    assert spread["minimum"] <= spread["q1"] <= spread["median"] <= spread["q3"]
    assert spread["q3"] <= spread["maximum"] == max(times)
    speed = record["speed"]
    assert speed["tokens"] == 16 * 48
    assert speed["tokens_per_s"] == pytest.approx(speed["tokens"] / spread["median"])
    assert speed["tokens_per_s_per_rank"] == pytest.approx(speed["tokens_per_s"] / 2)
    assert set(speed["tflop"]) == {"vision", "language"}
    of_all = speed["tflop"]["language"] / sum(speed["tflop"].values())
    assert speed["language_tokens_per_s_per_rank"] * of_all == pytest.approx(
        speed["tokens_per_s_per_rank"]
    )
    assert record["twin_of"] is None
    # The constants are those of another device, so its peak is not known.
    assert (speed["peak_tflops"], speed["mfu"]) == (None, None)

    assert [rank["rank"] for rank in record["ranks"]] == [0, 1]
    for rank in record["ranks"]:
        shares = rank["shares"]
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) >= 0
        assert shares["compute"] > 0.3
        assert min(shares["gradient_sync"], shares["optimizer"]) > 0
        assert shares["p2p"] == shares["all_to_all"] == 0
        assert 50e6 < rank["memory"]["resident"] < 50e9
        assert rank["memory"]["allocated"] is None
        assert 0 < rank["memory"]["estimated_allocated"] < rank["memory"]["estimated_total"]
        assert rank["estimated_bubble"] is None


def test_tokens_that_travel_to_experts(tmp_path: Path) -> None:
    """The share of all-to-alls is there, in the record and in a column, where experts are."""
    experts = (
        str(ROOT / "topologies" / "experts_ep4.yaml"), *TWO_RANKS[:-4],
        "--set", "modules.language.ranks=0-1", "--set", "modules.language.grid.pp=1",
        "--set", "modules.language.grid.dp=1", "--set", "modules.language.experts.ep=2",
        "--steps", "2", "--warmup", "0",
    )  # fmt: skip
    code, out, err = bench(tmp_path, *experts).finish()
    assert code == 0, err
    assert re.search("compute +all-to-all +bridge", out)
    run = tmp_path / "runs" / "bench" / "experts-ep4"
    record = json.loads((run / "bench.json").read_text())
    for rank in record["ranks"]:
        assert min(rank["shares"]["all_to_all"], rank["shares"]["compute"]) > 0
        assert sum(rank["shares"].values()) == pytest.approx(1)
        assert min(rank["shares"].values()) >= 0


@pytest.fixture
def read_from_shards(tmp_path: Path) -> list[str]:
    """A bench of two ranks that reads 60 samples of two shards, 12 a step."""
    write_shards(tmp_path, samples=60, bad=0, shards=2)
    made = shard_spec(tmp_path, 2, placed="colocated", train={"steps": 1, "precision": "fp32"})
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(dump_spec(made)))
    one_at_a_time = ["--set", "data.decode_threads=1"]
    return ["spec.yaml", "--with-loader", "--steps", "2", "--warmup", "1", *one_at_a_time]


def test_a_bench_with_the_loader_reports_how_long_steps_wait_for_samples(
    tmp_path: Path, read_from_shards: list[str]
) -> None:
    """Each of a rank's 6 texts takes 150 ms longer than it should; steps take much less."""

    def slow_texts() -> None:
        text = ShardSamples.text

        def slow(self: ShardSamples, split: Split, index: int) -> object:
            time.sleep(0.15)
            return text(self, split, index)

        ShardSamples.text = slow  # type: ignore[assignment]

    waited = {}
    for name, enter in (("fast", lambda: None), ("slow", slow_texts)):
        command = ("bench", *read_from_shards, *ON_CPU, "--json")
        launcher = Launcher(tmp_path, "slow", 1, 0, *command, name=name, enter=enter)
        code, out, err = launcher.finish()
        assert code == 0, err
        record = json.loads(out)
        # More steps than the spec has, all of them read ahead.
        assert (record["with_loader"], len(record["step_times_s"])) == (True, 2)
        for rank in record["ranks"]:
            loading = rank["loading"]
            assert loading["read_s"]["minimum"] > 0
            waits = loading["waited_s"]
            assert 0 <= waits["minimum"] <= waits["median"] <= record["step_s"]["maximum"]
            waited.setdefault(name, []).append(loading)
    for fast, slow in zip(*waited.values(), strict=True):
        assert slow["read_s"]["median"] > 0.9 > fast["read_s"]["median"]
        assert slow["waited_s"]["median"] > 0.1 + fast["waited_s"]["median"]
        assert slow["share"] > fast["share"]


def test_a_bench_with_the_loader_says_what_it_cannot_read(
    tmp_path: Path, read_from_shards: list[str]
) -> None:
    def truncated() -> None:
        def gone(self: ShardSamples, split: Split, index: int) -> object:
            raise EOFError("the shard ends early")

        ShardSamples.text = gone  # type: ignore[assignment]

    command = ("bench", *read_from_shards, *ON_CPU, "--set", "data.max_bad_samples=5")
    code, out, err = Launcher(tmp_path, "slow", 1, 0, *command, enter=truncated).finish()
    assert (code, out) == (1, "")
    assert "12 samples could not be read, `data.max_bad_samples` allows 5" in err
    assert "EOFError: the shard ends early" in err
    for shard in tmp_path.glob("*.tar"):
        shard.unlink()
    code, out, err = bench(tmp_path, *read_from_shards).finish()
    assert (code, out) == (2, "")
    assert "error[shards-not-found]" in err


def test_tables_and_a_comparison(tmp_path: Path) -> None:
    small = (TINY, "--steps", "2", "--warmup", "0")
    code, out, err = bench(tmp_path, *small, "--json", "--with-loader").finish()
    assert code == 0, err
    (tmp_path / "old.json").write_text(out)
    launcher = Launcher(
        tmp_path, "slow", 1, 0, "bench", *small, *ON_CPU, "--compare", "old.json", name="second"
    )
    code, out, err = launcher.finish()
    assert code == 0, err
    for words in ("timed steps", "grad sync", "bubble", "resident", "MFLOP", "  step time x "):
        assert words in out, words
    assert "plan, in all" not in out, "the plan counts memory of a GPU"
    assert "all-to-all" not in out, "there are no experts"
    assert "waited for samples" not in out, "none was read"
    assert "  samples read -> in memory" in out
    assert (tmp_path / "runs" / "bench" / "tiny.1" / "bench.json").exists()


def test_a_text_only_twin_is_timed_on_the_ranks_of_language(tmp_path: Path) -> None:
    disjoint = str(ROOT / "topologies" / "disjoint_fan_in_4_1.yaml")
    few = ("--text-only", "--steps", "1", "--warmup", "0")
    code, out, err = bench(tmp_path, disjoint, *few).finish()
    assert code == 0, err
    assert f"text-only twin of {disjoint}: language alone, same positions" in out
    assert re.search("per rank +of language", out)
    run = tmp_path / "runs" / "bench" / "disjoint-fan-in-4-1-text-only"
    record = json.loads((run / "bench.json").read_text())
    spec = load_spec(Path(disjoint)).spec
    assert spec is not None
    assert record["twin_of"] == disjoint
    assert len(record["ranks"]) == spec.language.grid.num_ranks < 5
    speed = record["speed"]
    assert set(speed["tflop"]) == {"language"}
    assert speed["tokens"] == spec.batch.global_ * spec.batch.seq
    alone = speed["tokens_per_s_per_rank"]
    assert speed["language_tokens_per_s_per_rank"] == pytest.approx(alone)


@pytest.mark.parametrize(
    ("fault", "how", "said"),
    [
        ("raise", "failed first", "ValueError: no such sample"),
        ("stop", "is suspended", "its process is stopped"),
    ],
)
def test_a_bench_that_fails_ends_with_the_report_of_a_run(
    tmp_path: Path, fault: str, how: str, said: str
) -> None:
    launcher = bench(tmp_path, TINY, "--set", "train.timeout=2", fault=fault, step=3)
    code, out, err = launcher.finish()
    assert (code, out) == (1, "")
    assert f"error: rank 1 {how} (language tp 0 cp 0 dp 0 pp 0)" in err
    assert said in err
    assert "step 3, running its program" in err
    assert "again:   mimo-launch bench " in err
    assert "checkpoint" not in err
    assert "run folder: runs/bench/tiny" in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bench missing.yaml", "missing.yaml"),
        ("bench tiny_train.yaml --device cuda", "2 workers on this host need a GPU each"),
        ("bench tiny_train.yaml --compare missing.json", "missing.json: no such file or directory"),
        ("bench tiny_train.yaml --compare tiny_train.yaml", "tiny_train.yaml is not JSON"),
        ("bench tiny_train.yaml --calibration missing.json", "missing.json"),
        ("bench tiny_train.yaml --calibrate missing/out.json", "there is no folder missing"),
        ("bench tiny_train.yaml --calibrate .", ". is a folder"),
        ("bench tiny_train.yaml --calibrate tiny_train.yaml", "would be written over the spec"),
        ("bench tiny_train.yaml --calibrate out.json --json", "instead of a result"),
        ("bench tiny_train.yaml --calibrate out.json --with-loader", "samples in memory"),
        ("bench tiny_train.yaml --steps 0", "--steps"),
        (
            "bench tiny_train.yaml --text-only --set modules.language.frozen=true",
            "--set modules.language.frozen=false",
        ),
        ("bench tiny_train.yaml --nproc 3 --device cpu", "3"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    run_cli: Callable[[str], tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    said: str,
) -> None:
    monkeypatch.setattr(gpus, "num_gpus", lambda: 1)
    code, out, err = run_cli(line)
    assert (code, out) == (2, "")
    assert said in err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("out", "said"), [("tiny_train_new.json", "tests/fixtures"), ("errors/new.json", "errors")]
)
def test_a_file_that_may_not_be_written_is_refused_before_anything_starts(
    run_cli: Callable[[str], tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    out: str,
    said: str,
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    code, _, err = run_cli(f"bench tiny_train.yaml --device cpu --calibrate {out}")
    assert code == 2
    assert f"{said} may not be written" in err


def test_constants_that_cannot_be_written_are_shown_nevertheless(tmp_path: Path) -> None:
    few = (TINY, "--steps", "1", "--warmup", "0")
    code, out, err = bench(tmp_path, *few, "--calibrate", "/dev/full").finish()
    assert code == 1
    assert "memory_bandwidth" in out
    assert "wrote" not in out
    assert "said:    NotWritten: /dev/full cannot be written: no space left on device" in err
    assert "during:  step 1, writing its results" in err
    assert "again:   the same command would end in the same way" in err


def test_a_spec_without_images_can_be_calibrated(tmp_path: Path) -> None:
    few = (TINY, "--steps", "1", "--warmup", "0", "--set", "data.text_only=1")
    code, out, err = bench(tmp_path, *few, "--calibrate", "made.json").finish()
    assert code == 0, err
    assert "memory_bandwidth" in out
    assert load(tmp_path / "made.json").dynamic_starts == Calibration().dynamic_starts


def test_calibrated_constants_are_those_of_the_machine(tmp_path: Path) -> None:
    """What two ranks without a common group can measure is measured, and the plan reads it."""
    small = (TINY, "--steps", "3", "--warmup", "1", "--set", "data.text_only=0")
    code, out, err = bench(tmp_path, *small, "--calibrate", "made.json").finish()
    assert code == 0, err
    assert "wrote made.json" in out
    assert re.search(
        r"^step: .* measured \(median\), .* estimated with these constants, [+-]", out, re.M
    )
    made, default = load(tmp_path / "made.json"), Calibration()
    assert "memory_bandwidth" in out
    assert 0 < made.memory_bandwidth < default.memory_bandwidth
    assert made.kernels.device == made.device
    assert made.kernels.grids["product"] != default.kernels.grids["product"]
    # A processor has no attention over lists.
    documents = "documents attention forward"
    assert made.kernels.grids[documents] == default.kernels.grids[documents]
    assert made.p2p_latency > 0
    assert made.action_overhead > 0
    # Nothing was gathered, there was one host, and a processor starts no kernels.
    for name in ("experts_starts", "collective_bandwidth", "network_bandwidth", "context_memory"):
        assert name not in out
        assert getattr(made, name) == getattr(default, name)

    again = ("--calibration", "made.json", "--json")
    launcher = Launcher(tmp_path, "slow", 1, 0, "bench", *small, *ON_CPU, *again, name="second")
    code, out, err = launcher.finish()
    assert code == 0, err
    record = json.loads(out)
    assert record["machine"]["device"] == made.device
    assert record["estimated_step_s"] > 0
    speed = record["speed"]
    assert speed["peak_tflops"] == pytest.approx(made.peak * made.fp32_speed)
    assert speed["mfu"] == pytest.approx(speed["tflops_per_rank"] / speed["peak_tflops"])
    assert 0 < speed["mfu"] < 1
