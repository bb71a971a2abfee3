"""The encoder of Parakeet is that of `transformers`, number by number, on any layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tests.support.exports import (
    bits,
    exported,
    save_on_rank,
    tensors,
    trained,
    with_sections,
)
from tests.support.hugging_face import ids_of, model_keys, save, tokens_of, widen
from tests.support.hugging_face import tiny as tiny_text
from tests.support.parakeet import (
    LAYOUTS,
    deviations,
    heard,
    heard_together,
    made,
    tiny,
    tokens_on_rank,
    widened,
)
from tests.support.radio import TOKEN
from tests.support.running_ranks import run_on_running_ranks
from tests.support.whole_models import OPTIMIZERS

from mimo_launch.data.build import build_dataset
from mimo_launch.layers import conformer
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

BOUNDS = {"fp32": 1e-5, "fp64": 1e-9}


def found_on(layout: str, precision: str, run: Path) -> list[float]:
    """Return the deviations of a tiny model on a layout."""
    model = tiny(torch.float64 if precision == "fp64" else torch.float32)
    save(model, run / "model")
    asked = made(layout, run / "model", precision)
    parts = run_on_running_ranks(tokens_on_rank, asked, run, world_size=world_size(asked))
    return deviations(widened(model), asked, parts)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", BOUNDS)
def test_tokens_are_those_of_transformers(layout: str, precision: str, tmp_path: Path) -> None:
    """Of clips of several lengths, in lists."""
    found = found_on(layout, precision, tmp_path)
    assert found
    assert max(found) < BOUNDS[precision]


def test_a_clip_in_a_batch_of_transformers_is_as_if_it_were_alone() -> None:
    """So that the tests, which compare with clips alone, also cover its batches."""
    model = widened(tiny(torch.float64))
    clips = [torch.randn(16, frames, dtype=torch.float64) for frames in (89, 8, 41, 17)]
    for clip, tokens in zip(clips, heard_together(model, clips), strict=True):
        assert (heard(model, clip) - tokens).abs().max() < 1e-9


def across_clips(clips: Any) -> None:
    """Take no place as one after the end of its clip."""
    del clips


def reversed_distances(tokens: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Return the distances from the least to the greatest."""
    return CORRECT(tokens, width, like).flip(0)


CORRECT = conformer.distances
PLANTED: dict[str, Callable[..., Any]] = {
    "outside": across_clips, "distances": reversed_distances,
}  # fmt: skip


def planted_on_rank(name: str, made: Spec, run: Path) -> Any:
    """Run a step with a mistake."""
    correct = getattr(conformer, name)
    setattr(conformer, name, PLANTED[name])
    try:
        return tokens_on_rank(made, run)
    finally:
        setattr(conformer, name, correct)


@pytest.mark.parametrize("name", PLANTED)
def test_the_bound_sees_a_mistake(name: str, tmp_path: Path) -> None:
    model = tiny()
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model")
    [seen] = run_on_running_ranks(planted_on_rank, name, asked, tmp_path, world_size=1)
    assert max(deviations(model, asked, [seen])) > 1e-3


def test_an_untouched_encoder_comes_out_bit_for_bit(tmp_path: Path) -> None:
    """With statistics, and the number of batches that they are of."""
    save(tiny(torch.bfloat16), tmp_path / "model")
    asked = with_sections(made("tp2", tmp_path / "model"))
    run_on_running_ranks(save_on_rank, asked, tmp_path / "run", world_size=world_size(asked))
    exported(tmp_path / "run", tmp_path / "out", ["audio"])
    found, wanted = tensors(tmp_path / "out" / "audio"), tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert bits(found[name]) == bits(tensor), name


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_step_is_that_of_plain_torch(optimizer: str, tmp_path: Path) -> None:
    """Of the encoder, a projector that starts from random values, and a Llama, by name."""
    encoder, text = tiny(torch.float64), tiny_text("llama", torch.float64)
    save(encoder, tmp_path / "encoder")
    save(text, tmp_path / "text")
    ours, theirs = OPTIMIZERS[optimizer]
    words = {"model": model_keys("llama"), "init_from": str(tmp_path / "text")}
    asked = with_sections(
        made("one rank", tmp_path / "encoder", "fp64", words),
        optimizer={**ours, "kind": optimizer, "clip": None},
    )
    run_on_running_ranks(save_on_rank, asked, tmp_path / "start", world_size=1)
    exported(tmp_path / "start", tmp_path / "before", ["audio"])
    ends = load_file(tmp_path / "before" / "audio" / "projector.safetensors")
    ends = {name.removeprefix("projector."): each.requires_grad_() for name, each in ends.items()}
    run = trained(asked, tmp_path / "run")
    exported(run, tmp_path / "out", ["audio", "language"], dtype="fp64")

    widened(encoder)
    widen(text)
    dataset, logits = build_dataset(asked), []
    for sample, tokens in zip(ids_of(asked), tokens_of(asked), strict=True):
        embedded = text.get_input_embeddings()(tokens)
        if clips := dataset.images("train", sample, "audio"):
            x = torch.cat([heard(encoder, torch.from_numpy(clip)) for clip in clips])
            x = F.gelu(F.linear(x, ends["up.weight"], ends["up.bias"]))
            rows = F.linear(x, ends["down.weight"], ends["down.bias"])
            embedded = embedded.masked_scatter((tokens == TOKEN)[:, None], rows)
        logits.append(text(inputs_embeds=embedded[None]).logits)
    labels = np.stack([dataset.text("train", sample)[1] for sample in ids_of(asked)])
    F.cross_entropy(torch.cat(logits).flatten(0, 1), torch.from_numpy(labels).flatten()).backward()
    named = [*encoder.named_parameters(), *text.named_parameters(), *ends.items()]
    plain = [x for name, x in named if x.dim() == 1 or ".bias_" in name]
    matrices = [x for name, x in named if x.dim() > 1 and ".bias_" not in name]
    decay = ours["weight_decay"]
    theirs(
        [
            {"params": matrices, "weight_decay": decay},
            {"params": plain, "weight_decay": 0.0},
        ]
    ).step()
    for model, was, module in ((encoder, "encoder", "audio"), (text, "text", "language")):
        save(model, tmp_path / f"{module} wanted")
        wanted, found = tensors(tmp_path / f"{module} wanted"), tensors(tmp_path / "out" / module)
        start = tensors(tmp_path / was)
        assert found.keys() == wanted.keys()
        for each, tensor in wanted.items():
            assert (found[each] - tensor).abs().max() < 1e-9, each
            # Biases of keys change no score against another, and have gradients of rounding alone.
            if "k_proj.bias" in each:
                continue
            is_constant = "running_" in each or "num_batches" in each
            assert torch.equal(tensor, start[each]) == is_constant, each
    found = load_file(tmp_path / "out" / "audio" / "projector.safetensors")
    for each, tensor in ends.items():
        assert (found[f"projector.{each}"] - tensor).abs().max() < 1e-9, each
