"""Weights that are read are not drawn; all are as if everything had been drawn first."""

import re
from collections import Counter
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.distributed.test_checkpoints import VISION, make_spec, run
from tests.support.exports import bits
from tests.support.hugging_face import VOCAB, ids_of, made, save, tiny
from tests.support.running_ranks import run_on_running_ranks

from mimo_launch.checkpoint import hugging_face
from mimo_launch.checkpoint.boxes import Box
from mimo_launch.checkpoint.loading import load_all_weights, start_run
from mimo_launch.data.build import build_dataset
from mimo_launch.launcher.run_on_ranks import RankError, run_ranks
from mimo_launch.layers import initial_weights
from mimo_launch.layers.parameter_segments import local_segments
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession

LORA = {"rank": 2, "targets": ["attention", "mlp"]}


class Started(NamedTuple):
    """The bits of what a rank holds, and the rows of it that were drawn, by name."""

    held: dict[str, Any]
    drawn: dict[str, int]

    @property
    def rows(self) -> dict[str, int]:
        """The rows that the rank holds."""
        return {name: shape[0] for name, (_, shape, _) in self.held.items()}


def start(asked: Spec, folder: Path, begin: Callable[..., object], draw: bool) -> Started:
    drawn: Counter[str] = Counter()
    real = initial_weights.initial_values

    def noting(name: str, *args: Any, rows: range, **more: Any) -> Any:
        drawn[name] += len(rows)
        return real(name, *args, rows=rows, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(initial_weights, "initial_values", noting)
        with RankSession(Plan.of(asked), draw=draw) as session:
            begin(session, folder, lambda event: None)
            declared = [each for module in session.modules.values() for each in module.declared()]
            parts = local_segments(declared, lambda weight: weight.detach())
            return Started({each.name: bits(each.local.clone()) for each in parts}, dict(drawn))


def started(asked: Spec, folder: Path, begin: Callable[..., object] = start_run) -> list[Started]:
    """Start with drawing everything first, and without; every rank must hold the same."""
    first, found = (
        run_on_running_ranks(start, asked, folder, begin, draw, world_size=world_size(asked))
        for draw in (True, False)
    )
    for before, rank in zip(first, found, strict=True):
        assert before.drawn == before.rows == rank.rows
        assert before.held == rank.held
    return found


@pytest.mark.parametrize("layout", ["cp2 tp2 sp", "interleaved", "fully sharded dp4"])
def test_without_a_source_everything_is_drawn_once(layout: str, tmp_path: Path) -> None:
    for rank in started(make_spec(layout, 1), tmp_path):
        assert rank.drawn == rank.rows


@pytest.mark.parametrize("layout", ["tp3 and pp2", "fully sharded dp4"])
def test_what_a_run_brings_is_not_drawn(layout: str, tmp_path: Path) -> None:
    """A module from another run, with an adapter; then all of a run that goes on."""
    run(make_spec("one rank", 3), tmp_path / "old")
    vision = {("vision", "init_from"): str(tmp_path / "old")}
    for rank in started(make_spec(layout, 3, modules=vision), tmp_path / "new"):
        ours = {name: rows for name, rows in rank.rows.items() if name.startswith("language.")}
        assert rank.drawn == ours
    both = vision | {
        ("language", "init_from"): str(tmp_path / "old"),
        ("language", "adapter"): LORA,
    }
    for rank in started(make_spec(layout, 3, modules=both), tmp_path / "new"):
        assert rank.drawn == {k: rows for k, rows in rank.rows.items() if ".lora_" in k}
    resumed = make_spec(layout, 5)
    for begin in (start_run, load_all_weights):
        assert not any(rank.drawn for rank in started(resumed, tmp_path / "old", begin))


def test_what_does_not_fit_is_drawn(tmp_path: Path) -> None:
    run(make_spec("one rank", 3), tmp_path / "old")
    start = {("vision", "init_from"): str(tmp_path / "old"), ("vision", "init_partial"): True}
    other = make_spec(
        "tp3 and pp2", 1, modules=start | {("vision", "model"): {**VISION, "mlp": 48}}
    )
    for rank in started(other, tmp_path / "new"):
        assert rank.drawn == {
            name: rows
            for name, rows in rank.rows.items()
            if name.startswith("language.") or re.search(r"layers\..*\.(up\.|down\.weight)", name)
        }


@pytest.mark.parametrize(
    ("kind", "layout", "more"),
    [
        ("llama", "tp4 dp2", {"sharding": "full"}),
        ("qwen2", "pp2", {"model": {"tied": True}}),
        ("mixtral", "tp2 pp2", {}),
        ("llama", "colocated dp2", {"adapter": LORA}),
        ("qwen3", "tp2", {"adapter": LORA, "quantize_base": {"kind": "int8", "block": 8}}),
    ],
)
def test_of_a_folder_only_padding_and_adapters_are_drawn(
    kind: str, layout: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """The vocabulary has one more word than the files, and padding."""
    save(tiny(kind, tie_word_embeddings=bool(more.get("model"))), tmp_path / "model")
    model = {"vocab": VOCAB + 1, **more.get("model", {})}
    asked = made(kind, layout, tmp_path / "model", **{**more, "model": model})
    tables, adapters = 0, 0
    for rank in started(asked, tmp_path / "run"):
        for name, rows in rank.drawn.items():
            if name.startswith("vision."):
                continue
            is_table = name in ("language.embedding.weight", "language.head.weight")
            assert is_table or ".lora_" in name
            assert is_table or rows == rank.rows[name]
            tables += rows * is_table
            adapters += ".lora_" in name
    assert tables
    assert bool(adapters) == ("adapter" in more)


def loss_of(asked: Spec, folder: Path | None, lose: bool) -> float:
    """Return the loss of a step after a start, or without one; `lose` one of the tensors read."""
    fill, lost = hugging_face._fill, list[Box]()

    def losing(box: Box, *args: Any) -> None:
        if lose and not lost and ".norm" in box.name:
            lost.append(box)
        else:
            fill(box, *args)

    with pytest.MonkeyPatch.context() as patch, RankSession(Plan.of(asked), draw=False) as session:
        patch.setattr(hugging_face, "_fill", losing)
        if folder is not None:
            start_run(session, folder, lambda event: None)
        inputs = step_inputs(build_dataset(asked), "train", ids_of(asked), 0)
        return float(session.gradients(inputs).read().loss)


def test_no_stage_runs_before_its_weights_have_values(tmp_path: Path) -> None:
    words = r"`vision` would run before its weights were drawn; .* \d\d of them: vision\.patch\."
    with pytest.raises(RankError, match=words):
        run_ranks(loss_of, make_spec("one rank", 1), None, False, world_size=1)


def test_a_tensor_that_a_source_takes_for_read_and_does_not_fill_shows_at_once(
    tmp_path: Path,
) -> None:
    save(tiny("llama"), tmp_path / "model")
    asked = made("llama", "one rank", tmp_path / "model")
    for lose in (False, True):
        (loss,) = run_ranks(loss_of, asked, tmp_path / "run", lose, world_size=1)
        assert isnan(loss) == lose
