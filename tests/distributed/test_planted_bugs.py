"""The proof can fail: every planted bug is rejected, on the same specs that pass without it."""

from collections import Counter

import pytest
from tests.support.planted import (
    BUGS,
    PARTS,
    Bug,
    class_tokens,
    colocated,
    disjoint,
    grouped,
    mixed_text,
    piped,
    shuffled,
    skewed,
    three_axes,
    turned_patches,
    wide_group,
)
from tests.support.planted_chunks import chunked
from tests.support.planted_deepstack import stacked
from tests.support.planted_experts import GATED, mixture, routed
from tests.support.planted_gates import gated, mixed
from tests.support.planted_graphs import drawn, frozen_between, spoken, two_readers, two_towers
from tests.support.planted_hybrid import split_heads
from tests.support.planted_silence import unpadded
from tests.support.planted_sliding import sliding
from tests.support.planted_training import (
    TRAINING_BUGS,
    behind_language,
    impatient,
    over_cp,
    settings,
    without_images,
)
from tests.support.planted_windows import windowed
from tests.support.proof import failures, training_verdicts, verdicts
from tests.support.sweeps import cases

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import GlobalOrder, make_step_data
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.proof import verify_spec
from mimo_launch.verify.shrink import shrink

CLEAN = {
    "colocated": colocated,
    "disjoint": disjoint,
    "groups in front": grouped,
    "mixed text": mixed_text,
    "piped": piped,
    "wide group": wide_group,
    "shuffled": shuffled,
    "skewed": skewed,
    "class tokens": class_tokens,
    "three axes": three_axes,
    "three axes in turn": lambda: three_axes(language={"mrope_interleaved": True}),
    "turned patches": turned_patches,
    "hybrid over tp": lambda: split_heads(tp=2),
    "hybrid over cp": lambda: split_heads(cp=2),
    "hybrid, one group": lambda: split_heads(1, tp=2),
    "shared gate": lambda: routed({"ep": 2}, GATED, tp=2, sequence_parallel=True),
    "DeltaNet over tp": lambda: split_heads(2, "G-*G", tp=2),
    "DeltaNet over cp": lambda: split_heads(2, "G-*G", cp=2),
    "DeltaNet": lambda: split_heads(2, "G-*G"),
    "windows": lambda: windowed(cp=2),
    "sliding windows": lambda: sliding(cp=2),
    "gates": lambda: gated(tp=2),
    "gates over cp": lambda: gated(cp=2),
    "gates of a hybrid": mixed,
    "gates of a hybrid over cp": lambda: mixed(cp=2),
    "deepstack": lambda: stacked({"pp": 2}, {"pp": 2}),
    "unpadded": unpadded,
    "in chunks": chunked,
    "in chunks of squares": lambda: chunked("aut"),
    "two readers": two_readers,
    "two towers": two_towers,
    "frozen between": frozen_between,
    "drawn by two replicas": lambda: drawn(dp=2),
    "drawn over cp": lambda: drawn(cp=2),
    "spoken": spoken,
    "spoken over cp": lambda: spoken(cp=2),
}


@pytest.mark.parametrize("name", CLEAN)
def test_the_specs_of_the_planted_bugs_pass_without_them(name: str) -> None:
    """Parallelism: as the builders in tests/support/planted.py say."""
    assert failures(verdicts(CLEAN[name]())) == []


def test_the_last_group_of_the_mixed_spec_has_no_image() -> None:
    """Else the bug "zero-row backward skipped" would have nothing to skip."""
    small = shrink(mixed_text())
    data = _first_step(small)
    share = small.batch.global_ // small.schedule.microbatches
    assert sum(s.rows("vision") for s in data.samples[-share:]) == 0
    assert sum(s.rows("vision") for s in data.samples) > 0


def _first_step(made: Spec) -> StepData:
    dataset = build_dataset(made)
    order = GlobalOrder(dataset.num_samples("train"), made.batch.global_, made.train.seed)
    return make_step_data(dataset, "train", order.ids(0), 0)


def test_samples_of_the_skewed_spec_move() -> None:
    """Else the bug "rows received by the even cut" would be none."""
    small = shrink(skewed())
    layout = build_layout(small)
    found = StepViews(layout, _first_step(small)).imbalance(layout["vision"])
    assert found.before > found.after


# Proofs in float64 reject them; they change results by less than 20 bounds of float32.
SMALL = {"padding capped", "exact GELU"}


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in BUGS if name not in SMALL])
def test_a_planted_bug_is_rejected_in_float32(name: str) -> None:
    """By far more than the bound of 1e-3, or by NaN where memory is read that nobody wrote."""
    bug: Bug = BUGS[name]
    found = verify_spec(shrink(bug.spec, "fp32"), prepare=bug.plant, timeout_s=20)
    assert not all(verdict.worst <= 0.03 for verdict in found)


# Each has a sibling among the others; `nox -s sweep` plants all of them.
SELDOM = {
    "further labels one too near", "further tokens behind the cut",
    "further tokens divided by all labels", "labels counted per replica",
    "replicated weights counted twice",
    "row bias added before the sum", "rows sequence-major", "records of a pack see each other",
    "labels over the end of a record", "slot of a whole group", "squares row-major",
    "stacked across clips", "images share a class token", "position of the class token forgotten",
    "positions of another image", "axes lost behind the first stage", "rows and columns swapped",
    "places of the first cp rank", "group norm over a share", "squares not summed back",
    "convolution not passed between cp ranks", "Mamba heads swapped over cp",
    "convolution over documents", "loads of one tp rank", "balance of a cp rank's own tokens",
    "balance of a whole microbatch", "padding balanced", "replicas of experts not summed",
    "tokens sent once per tp rank", "second reader counted twice",
    "weight of a loss applied twice", "towers swapped", "time of the neighbour", "windows ignored",
    "windows shared by images", "windows of one width", "outputs stay by window",
    "windows in every layer", "windows counted in the stage", "windows end with a chunk",
    "squares of heads not summed back", "norm over own heads", "rows of layers swapped",
    "rows added in front of a layer", "axes not in turn", "sinks scaled like scores",
    "sinks lost in the backward", "bounds of YaRN rounded",
    "images as one", "windows without images", "images out of reach", "mean of other patches",
    "biases of other experts", "last dimensions rotate", "gate ignored",
    "delta state over documents", "decays taken for strengths", "shared gate ignored",
    "narrow widths not normed", "best expert makes a group", "loose tokens in front",
    "loose tokens at the start",
    "slope forgotten", "scores capped before their scale",
    "swapped slots", "norm over one grid only", "encoder end of the bridge zero-filled",
    "language end of the bridge summed", "exchange of the last group lost", "wrong chunk",
    "neighbouring clips heard", "height and width swapped", "group norm over the wrong size",
    "shared groups taken for own", "shards in the order of ranks", "head norms taken for own",
    "loads of one replica", "aux loss counted per tp rank", "experts summed over dense dp",
    "gradients of a split expert not summed", "images of a sample reversed to a connector",
    "frame sees itself", "talker sees ahead", "windows end with the cp rank",
    "one base everywhere", "patches merged in another order",
    "patches convolved in another order", "norm behind positions", "convolution of own rows",
    "merge of own rows", "sinks of other heads", "images end with a chunk", "pairs of halves",
    "frequencies of whole heads", "narrow widths taken for complete", "padding capped",
    "blocks a query late", "rows averaged between corners", "patches of another cp rank",
    "registers kind by kind", "table cropped by no side", "further tokens of other documents",
    "only what rotates grows", "queries of the first cp rank", "keys grow, too",
    "places of the clip", "chunks together", "frame after the end", "norm of own patches",
    "prompts in reach",
}  # fmt: skip


# Nothing in a first step shows them.
LATER = {"chunks of sequences", "outputs stay by window"}


def test_bugs_that_are_named_exist() -> None:
    assert BUGS.keys() >= SELDOM | LATER | SMALL


def test_no_bug_replaces_another_of_its_name() -> None:
    counted = Counter(name for part in PARTS for name in part)
    assert [name for name, count in counted.items() if count > 1] == []
    assert BUGS.keys() > counted.keys()


@pytest.mark.parametrize("name", cases(BUGS, BUGS.keys() - SELDOM))
def test_a_planted_bug_is_rejected(name: str) -> None:
    """Not by the floor: some tensor or number that is no noise differs by more than noise."""
    bug: Bug = BUGS[name]
    steps = 2 if name in LATER else 1
    found = verdicts(bug.spec, steps=steps, prepare=bug.plant, timeout_s=20)
    by_floor = ("too small to be judged", ", to the floor")
    wrong = [f for f in failures(found) if not f.endswith(by_floor)]
    assert wrong, f"{name} passes"


CLEAN_RUNS = {
    "a rate, a decay and a warm-up of 0": lambda: settings(
        {"lr": 0, "weight_decay": 0, "warmup": 0}
    ),
    "experts": lambda: settings(**mixture()),
    "an optimizer of its own": lambda: settings({"kind": "sgd"}),
    "two losses": behind_language,
    "a tower without images": lambda: without_images(2),
    "an early end": impatient,
    "packed records over cp": over_cp,
}


@pytest.mark.parametrize("name", CLEAN_RUNS)
def test_training_passes_without_planted_bugs(name: str) -> None:
    assert failures(training_verdicts(CLEAN_RUNS[name]())) == []


OFTEN = {
    "rate of the step before", "decay of 0 taken for unset", "batches weigh as the first",
    "evaluation moves weights", "held-out losses of each other", "no gradient, no update",
    "no end without a better one",
}  # fmt: skip


def test_what_is_planted_often_in_training_exists() -> None:
    assert TRAINING_BUGS.keys() >= OFTEN


@pytest.mark.parametrize("name", cases(TRAINING_BUGS, OFTEN))
def test_a_bug_planted_in_training_is_rejected(name: str) -> None:
    """By the proof of training; that of gradients does not see it."""
    plant, made = TRAINING_BUGS[name]
    assert failures(training_verdicts(made, prepare=plant)), f"{name} passes"
