"""Our modules beside a whole model of `transformers`: logits, a step, and what export writes.

Both start from one folder; samples have several images or clips, or none.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.support.exports import bits, exported, save_on_rank, tensors, trained, with_sections
from tests.support.hugging_face import ids_of, joined, logits_on_rank, save, widen
from tests.support.llava import VOCAB
from tests.support.running_ranks import run_on_running_ranks
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": ({"lr": 0.05, "weight_decay": 0.0}, partial(torch.optim.SGD, lr=0.05)),
    "adamw": (
        {"lr": 0.01, "weight_decay": 0.1, "decay": {"embeddings": True}},
        partial(torch.optim.AdamW, lr=0.01, betas=(0.9, 0.95), eps=1e-8),
    ),
}
DTYPES = {"fp64": torch.float64, "fp32": torch.float32}
# These have one dimension, and are no norms or biases.
DECAYED = ("class_embedding", "cls_token")


def deviation(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference by the largest logit."""
    assert found.shape == wanted.shape
    assert wanted.std() > 0.1
    return float((found - wanted).abs().max() / wanted.abs().max())


def found_logits(asked: Spec, run: Path, words: int = VOCAB) -> Tensor:
    """Return the logits of our ranks in the first step, [samples, S, words]."""
    parts = run_on_running_ranks(logits_on_rank, asked, run, world_size=world_size(asked))
    return joined(asked, parts, words)


def with_optimizer(asked: Spec, optimizer: str) -> Spec:
    """Return a spec with an optimizer of `OPTIMIZERS`, which saves after each step."""
    section = {**OPTIMIZERS[optimizer][0], "kind": optimizer, "clip": None}
    return with_sections(asked, optimizer=section)


def step_of_torch(model: Any, logits: Tensor, asked: Spec, optimizer: str) -> None:
    """Take the first step by torch alone; norms and biases do not decay."""
    F.cross_entropy(logits.flatten(0, 1), labels_of(asked).flatten()).backward()
    moved_by_torch(model, optimizer)


def labels_of(asked: Spec) -> Tensor:
    """Return the labels of the first step, each the token behind its place."""
    data = build_dataset(asked)
    return torch.from_numpy(np.stack([data.text("train", each)[1] for each in ids_of(asked)]))


def moved_by_torch(model: Any, optimizer: str) -> None:
    """Update the weights of a model that has gradients, by torch alone."""
    ours, theirs = OPTIMIZERS[optimizer]
    trains = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in trains if decays_in(n, p) == decays],
         "weight_decay": ours["weight_decay"] if decays else 0.0}
        for decays in (True, False)
    ]  # fmt: skip
    theirs(groups).step()


def decays_in(name: str, weight: Tensor) -> bool:
    """Return whether a tensor decays; biases of all experts together are a matrix."""
    return (weight.dim() > 1 and not name.endswith("bias")) or name.endswith(DECAYED)


@dataclass(frozen=True)
class WholeModel:
    """A tiny whole model of `transformers`, and our specs for it.

    `tiny(dtype=...)` makes it, `made(layout, folder, precision)` a spec that starts from a folder,
    and `logits_of(model, spec)` are its logits for the samples of the first step. `section` has
    the settings of its encoder, and `token` is the number of a placeholder, behind its keys.
    Settings of parts that are `derived` need not be written.
    """

    tiny: Callable[..., Any]
    made: Callable[..., Spec]
    logits_of: Callable[[Any, Spec], Tensor]
    section: str
    token: tuple[tuple[str, ...], int]
    derived: frozenset[str] = frozenset()

    def wanted(self, model: Any, asked: Spec) -> Tensor:
        """Return the logits of `transformers`, [samples, S, words]."""
        with torch.no_grad():
            return self.logits_of(model, asked).double()

    def deviation(self, layout: str, run: Path) -> float:
        """Return how far our logits are from those of `transformers`, on a layout in float32."""
        model = self.tiny()
        save(model, run / "model")
        asked = self.made(layout, run / "model")
        return deviation(found_logits(asked, run), self.wanted(model, asked))

    def deviations_in_float64(
        self, run: Path, change: Callable[[Any], Tensor] | None = None
    ) -> tuple[float, float]:
        """Return the same in float64 on one rank, and with one row of a weight of theirs changed.

        `change(model)` is that row.
        """
        model = self.tiny(dtype=torch.float64)
        save(model, run / "model")
        asked = self.made("one rank", run / "model", "fp64")
        found = found_logits(asked, run)
        widen(model)
        as_it_is = deviation(found, self.wanted(model, asked))
        if change is None:
            return as_it_is, 0.0
        with torch.no_grad():
            row = change(model)
            row += 1e-3
        return as_it_is, deviation(found, self.wanted(model, asked))

    def assert_step(
        self,
        optimizer: str,
        run: Path,
        *,
        precision: str = "fp64",
        bound: float = 1e-9,
        stays: Callable[[str], bool] = lambda name: False,
        undecided: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Compare every tensor of an export, by name, after a step of ours and one of torch.

        No step moves a tensor that `stays`; one whose gradient is zero but for rounding is
        `undecided`.
        """
        model = self.tiny(dtype=DTYPES[precision])
        save(model, run / "model")
        asked = with_optimizer(self.made("one rank", run / "model", precision), optimizer)
        found = exported(trained(asked, run / "run"), run / "out", dtype=precision)

        if precision == "fp64":
            widen(model)
        step_of_torch(model, self.logits_of(model, asked), asked, optimizer)
        save(model, run / "wanted")
        wanted, start = tensors(run / "wanted"), tensors(run / "model")
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert (found[name] - tensor).abs().max() < bound, name
            assert undecided(name) or torch.equal(tensor, start[name]) == stays(name), name

    def assert_untouched(self, run: Path) -> dict[str, Any]:
        """Export a model that nothing trained: every bit and setting is there.

        Returns the configuration that was written.
        """
        save(self.tiny(dtype=torch.bfloat16), run / "model")
        asked = with_sections(self.made("tp2", run / "model"))
        run_on_running_ranks(save_on_rank, asked, run / "run", world_size=world_size(asked))
        found, wanted = exported(run / "run", run / "out"), tensors(run / "model")
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert bits(found[name]) == bits(tensor), name
        config, source = (
            json.loads((run / each / "config.json").read_text()) for each in ("out", "model")
        )
        keys, token = self.token
        assert [config[key] for key in keys if key in config] == [token]
        assert config["architectures"] == source["architectures"]
        for part in (self.section, "text_config"):
            kept = {key: each for key, each in source[part].items() if key not in self.derived}
            assert {key: config[part].get(key) for key in kept} == kept
        return config
