"""An encoder of `transformers` alone: an export bit for bit, and a step beside plain torch.

A module of the encoder has `tiny(dtype)`, a model with random weights; `made(layout, folder,
precision, text)`, a spec whose encoder starts from a folder and whose language has the settings
`text`; `features_of(model, input)`, the states [n, D] of one image or clip; `widen(model)`, which
has a model compute in float64; and `CONSTANT`, a pattern of tensors that no step moves.
"""

import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tests.support.exports import bits, exported, save_on_rank, tensors, trained, with_sections
from tests.support.hugging_face import ids_of, model_keys, save, tokens_of, widen
from tests.support.hugging_face import tiny as tiny_text
from tests.support.radio import TOKEN
from tests.support.running_ranks import run_on_running_ranks
from tests.support.whole_models import labels_of, moved_by_torch, with_optimizer
from torch import Tensor, nn

from mimo_launch.data.build import build_dataset
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec


def assert_untouched(asked: Spec, name: str, run: Path, prefix: str = "") -> None:
    """Export module `name`, which started from `run / "model"` and did not train: same bits.

    A whole model has it behind `prefix`; its numbers of batches are then left out.
    """
    asked = with_sections(asked)
    run_on_running_ranks(save_on_rank, asked, run / "run", world_size=world_size(asked))
    exported(run / "run", run / "out", [name])
    found, wanted = tensors(run / "out" / name), tensors(run / "model")
    if prefix:
        wanted = {
            each.removeprefix(prefix): tensor
            for each, tensor in wanted.items()
            if each.startswith(prefix) and not each.endswith("num_batches_tracked")
        }
    assert found.keys() == wanted.keys()
    for each, tensor in wanted.items():
        assert bits(found[each]) == bits(tensor), each


def assert_step(of: Any, name: str, optimizer: str, run: Path) -> None:
    """Compare every tensor, by name, after a step of ours and one of plain torch.

    Of module `name`, of its projector, which starts from random values, and of a Llama.
    """
    encoder, text = of.tiny(torch.float64), tiny_text("llama", torch.float64)
    save(encoder, run / "encoder")
    save(text, run / "text")
    words = {"model": model_keys("llama"), "init_from": str(run / "text")}
    asked = with_optimizer(of.made("one rank", run / "encoder", "fp64", words), optimizer)
    run_on_running_ranks(save_on_rank, asked, run / "start", world_size=1)
    exported(run / "start", run / "before", [name])
    projector = _projector(run / "before" / name)
    exported(trained(asked, run / "run"), run / "out", [name, "language"], dtype="fp64")

    of.widen(encoder)
    widen(text)
    logits = _logits(of, name, asked, encoder, projector, text)
    F.cross_entropy(logits.flatten(0, 1), labels_of(asked).flatten()).backward()
    for model in (encoder, projector, text):
        moved_by_torch(model, optimizer)
    for model, was, module in ((encoder, "encoder", name), (text, "text", "language")):
        save(model, run / f"{module} wanted")
        wanted, found = tensors(run / f"{module} wanted"), tensors(run / "out" / module)
        start = tensors(run / was)
        assert found.keys() == wanted.keys()
        for each, tensor in wanted.items():
            assert (found[each] - tensor).abs().max() < 1e-9, each
            # Biases of keys change no score against another, and have gradients of rounding alone.
            if re.search(r"key\.bias|k_proj\.bias", each):
                continue
            is_constant = re.search(of.CONSTANT, each) is not None
            assert torch.equal(tensor, start[each]) == is_constant, each
    ends = _projector(run / "out" / name).state_dict()
    for each, tensor in projector.state_dict().items():
        assert (ends[each] - tensor).abs().max() < 1e-9, each


def _projector(folder: Path) -> nn.ModuleDict:
    """Return the two maps that an export has beside a folder."""
    held = load_file(folder / "projector.safetensors")
    maps = {each: nn.Linear(*held[f"projector.{each}.weight"].mT.shape) for each in ("up", "down")}
    made = nn.ModuleDict(maps).double()
    made.load_state_dict({each.removeprefix("projector."): x for each, x in held.items()})
    return made


def _logits(
    of: Any, name: str, asked: Spec, encoder: Any, projector: nn.ModuleDict, text: Any
) -> Tensor:
    """Return the logits of each sample of the first step by itself, [samples, S, words]."""
    dataset, logits = build_dataset(asked), []
    for sample, tokens in zip(ids_of(asked), tokens_of(asked), strict=True):
        embedded = text.get_input_embeddings()(tokens)
        if read := dataset.images("train", sample, name):
            x_ND = torch.cat([of.features_of(encoder, each) for each in read])
            rows = projector["down"](F.gelu(projector["up"](x_ND)))
            embedded = embedded.masked_scatter((tokens == TOKEN)[:, None], rows)
        logits.append(text(inputs_embeds=embedded[None]).logits)
    return torch.cat(logits)
