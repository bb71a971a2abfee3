"""Our modules beside a model of `transformers`: logits, a step, and what export writes.

Both start from one folder.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.support.exports import (
    bits,
    exported,
    load,
    save_on_rank,
    tensors,
    trained,
    with_sections,
)
from tests.support.hugging_face import ids_of, joined, logits_on_rank, save, tokens_of, widen
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
# These have several, and are biases of all experts or of each head, or learned rows.
NOT_DECAYED = (
    *("bias", "bias_u", "bias_v", "feature_extensor"),
    *("glu.b1", "glu.b2", "bias_values.weight"),
)


def deviation(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference by the largest logit."""
    assert found.shape == wanted.shape
    assert wanted.std() > 0.1
    return float((found - wanted).abs().max() / wanted.abs().max())


def found_logits(asked: Spec, run: Path) -> Tensor:
    """Return the logits of our ranks in the first step, [samples, S, words]."""
    parts = run_on_running_ranks(logits_on_rank, asked, run, world_size=world_size(asked))
    return joined(asked, parts, asked.language.model.vocab)


def text_logits(model: Any, asked: Spec) -> Tensor:
    """Return the logits of a model of text alone for the tokens of the first step."""
    logits: Tensor = model(input_ids=tokens_of(asked)).logits
    return logits


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
    """Return whether a tensor decays.

    A bias or a learned row does not, even if its file has it in several dimensions.
    """
    is_matrix = weight.dim() > 1 and not name.endswith(NOT_DECAYED)
    return is_matrix or name.endswith(DECAYED)


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """A tiny model of `transformers`, our specs for it, and how both are compared.

    `tiny(dtype=...)` makes it and `saved` its folder; `made(layout, folder, precision)` is a spec
    that starts from there, with the further settings of its layout, and `logits_of(model, spec)`
    are its logits for the samples of the first step. `widen` has it compute in float64.
    Of layouts, exact comparisons and steps, by optimizer and precision, those that are `often` run
    by default. Patterns name tensors that no step moves (`stays`), those that may stay or move
    (`undecided`), those that nothing decides (`free`), and those of its folder that an export of a
    run leaves out (`left_out`). Settings of `sections` come out as they
    were but for those that are `derived`; `token` is the number of a placeholder.
    """

    tiny: Callable[..., Any]
    made: Callable[..., Spec]
    logits_of: Callable[[Any, Spec], Tensor] = text_logits
    saved: Callable[[Any, Path], object] = save
    widen: Callable[[Any, pytest.MonkeyPatch], object] = lambda model, _: widen(model)
    layouts: Mapping[str, Mapping[str, Any]]
    often: Collection[str] = ()
    exact: Mapping[str, Any] | None = field(default_factory=dict)
    exact_often: bool = True
    steps: Mapping[tuple[str, str], bool]
    step_settings: Mapping[str, Any] = field(default_factory=dict)
    loss_of: Callable[[Any, Spec], Tensor] | None = None
    stays: str = "$^"
    undecided: str = "$^"
    free: str = "$^"
    left_out: str = "$^"
    untouched: Mapping[str, Any] | None = field(default_factory=dict)
    sections: tuple[str, ...] = ()
    derived: frozenset[str] = frozenset()
    token: tuple[tuple[str, ...], int] | None = None
    auto: str | None = None

    def wanted(self, model: Any, asked: Spec) -> Tensor:
        """Return the logits of `transformers`, [samples, S, words].

        A word that the file does not have gets the mean of the others' rows, so of their logits
        before a cap.
        """
        with torch.no_grad():
            logits = self.logits_of(model, asked).double()
        ours = asked.language.model
        cap = getattr(ours, "logit_softcap", None)
        mean = (logits if cap is None else (logits / cap).atanh() * cap).mean(-1, keepdim=True)
        mean = mean if cap is None else (mean / cap).tanh() * cap
        return torch.cat([logits, *[mean] * (ours.vocab - logits.shape[-1])], dim=-1)

    def start(
        self, layout: str, run: Path, precision: str = "fp32", **settings: Any
    ) -> tuple[Any, Spec]:
        """Save a model; return it and a spec that starts from its folder."""
        model = self.tiny(dtype=DTYPES[precision])
        self.saved(model, run / "model")
        return model, self.made(
            layout.split(";", maxsplit=1)[0], run / "model", precision, **settings
        )

    def deviation(self, layout: str, run: Path) -> float:
        """Return how far our logits are from those of `transformers`, on a layout in float32."""
        model, asked = self.start(layout, run, **self.layouts[layout])
        return deviation(found_logits(asked, run), self.wanted(model, asked))

    def deviations_in_float64(
        self,
        run: Path,
        monkeypatch: pytest.MonkeyPatch,
        change: Callable[[Any], Tensor] | None = None,
    ) -> tuple[float, float]:
        """Return the same in float64 on one rank, and with one row of a weight of theirs changed.

        `change(model)` is that row.
        """
        model, asked = self.start("one rank", run, "fp64", **self.exact or {})
        found = found_logits(asked, run)
        with monkeypatch.context() as patched:
            self.widen(model, patched)
            as_it_is = deviation(found, self.wanted(model, asked))
            if change is None:
                return as_it_is, 0.0
            with torch.no_grad():
                row = change(model)
                row += 1e-3
            return as_it_is, deviation(found, self.wanted(model, asked))

    def assert_step(
        self, optimizer: str, precision: str, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Compare every tensor of an export, by name, after a step of ours and one of torch."""
        model, asked = self.start("one rank", run, precision, **self.step_settings)
        asked = with_optimizer(asked, optimizer)
        found = exported(trained(asked, run / "run"), run / "out", dtype=precision)
        with monkeypatch.context() as patched:
            if precision == "fp64":
                self.widen(model, patched)
            if self.loss_of is None:
                logits, labels = self.logits_of(model, asked), labels_of(asked)
                F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
            else:
                # The loss would be taken in fp32.
                patched.setattr(torch.Tensor, "float", torch.Tensor.double)
                self.loss_of(model, asked).backward()
        moved_by_torch(model, optimizer)
        self.saved(model, run / "wanted")
        there, start = tensors(run / "wanted"), tensors(run / "model")
        wanted = {name: each for name, each in there.items() if not re.search(self.left_out, name)}
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            bound = 1e-9 if precision == "fp64" else 1e-6
            assert re.search(self.free, name) or (found[name] - tensor).abs().max() < bound, name
            stays = re.search(self.stays, name) is not None
            assert re.search(self.undecided, name) or torch.equal(tensor, start[name]) == stays, (
                name
            )

    def assert_untouched(self, run: Path) -> dict[str, Any]:
        """Export a model that nothing trained: every bit and setting is there.

        Returns the configuration that was written.
        """
        self.saved(self.tiny(dtype=torch.bfloat16), run / "model")
        settings = dict(self.untouched or {})
        asked = with_sections(self.made(settings.pop("layout", "tp2"), run / "model", **settings))
        run_on_running_ranks(save_on_rank, asked, run / "run", world_size=world_size(asked))
        found, wanted = exported(run / "run", run / "out"), tensors(run / "model")
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert bits(found[name]) == bits(tensor), name
        config, source = (
            json.loads((run / each / "config.json").read_text()) for each in ("out", "model")
        )
        assert config["architectures"] == source["architectures"]
        if self.token is not None:
            keys, token = self.token
            assert [config[key] for key in keys if key in config] == [token]
        for part in self.sections:
            kept = {key: each for key, each in source[part].items() if key not in self.derived}
            assert {key: config[part].get(key) for key in kept} == kept
        if self.auto is not None:
            load(self.auto, run / "out")
        return config
