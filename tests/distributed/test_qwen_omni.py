"""A decoder and a talker of ours are the thinker and the talker of a Qwen2.5-Omni."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.support import omni
from tests.support.exports import bits, exported, tensors, trained, with_sections
from tests.support.hugging_face import ids_of, save, started, tokens_of
from tests.support.qwen_omni import END, LAYOUTS, START, made, tiny, widen_all
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs

# What the export itself says, and the parts that our modules are.
CHANGED = {"transformers_version", "thinker_config", "talker_config", "text_config"}
STILL = {"kind": "sgd", "lr": 0.0, "weight_decay": 0.0}
OFTEN = {"one rank", "unequal, apart"}


def losses_of(model: Any, asked: Spec) -> dict[str, Tensor]:
    """Return the mean losses of a step, by plain code on the modules of transformers."""
    dataset, words = build_dataset(asked), tokens_of(asked)
    labels = [torch.from_numpy(dataset.text("train", sample)[1]) for sample in ids_of(asked)]
    thinker, talker = model.thinker, model.talker
    out = thinker(input_ids=words, output_hidden_states=True)
    text = F.cross_entropy(out.logits.flatten(0, 1), torch.cat(labels))
    said: list[Tensor] = []
    for row, sample in enumerate(ids_of(asked)):
        spans = dataset.describe("train", sample).spans.get("speech", ())
        for span, clip in zip(spans, dataset.images("train", sample, "speech"), strict=True):
            read = slice(span.position, span.position + span.num_positions)
            rows = out.hidden_states[-1][row, read] + out.hidden_states[0][row, read]
            codes = torch.from_numpy(clip[0])
            seen = talker.get_input_embeddings()(torch.cat([torch.tensor([START]), codes]))
            embeds = talker.thinker_to_talker_proj(torch.cat([rows, seen]).unsqueeze(0))
            places = torch.arange(embeds.shape[1]).expand(3, 1, -1)
            hidden = talker.model(inputs_embeds=embeds, position_ids=places)[0]
            # Not its whole forward, which ends in fp32.
            logits = talker.codec_head(hidden)[0, len(rows) :]
            answer = torch.cat([codes, torch.tensor([END])])
            said.append(F.cross_entropy(logits, answer, reduction="none"))
    return {"language": text, "speech": torch.cat(said).mean()}


def losses_on_rank(spec: Spec, run: Path) -> dict[str, float]:
    """Return the losses of the first step from the weights of `init_from`."""
    session, _ = started(spec, run)
    inputs = step_inputs(build_dataset(spec), "train", ids_of(spec), 0)
    found = session.gradients(inputs).read().losses
    session.__exit__(None, None, None)
    return dict(found)


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_losses_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    model = tiny(torch.float64)
    save(model, tmp_path / "model")
    asked = made(layout, tmp_path / "model")
    (found, *_) = run_ranks(losses_on_rank, asked, tmp_path, world_size=world_size(asked))
    widen_all(model)
    for name, loss in losses_of(model, asked).items():
        assert found[name] == pytest.approx(float(loss.detach()), rel=1e-9), name


OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": ({"lr": 0.05, "weight_decay": 0.0}, partial(torch.optim.SGD, lr=0.05)),
    "adamw": (
        {"lr": 0.01, "weight_decay": 0.1, "decay": {"embeddings": True}},
        partial(torch.optim.AdamW, lr=0.01, betas=(0.9, 0.95), eps=1e-8),
    ),
}


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.sweep)])
def test_a_step_is_that_of_plain_torch(optimizer: str, tmp_path: Path) -> None:
    """By the names of all tensors of the folder; the towers and the vocoder stay as they were."""
    model = tiny(torch.float64)
    save(model, tmp_path / "model")
    ours, theirs = OPTIMIZERS[optimizer]
    sections = {"optimizer": {**ours, "kind": optimizer, "clip": None}}
    asked = with_sections(made("one rank", tmp_path / "model"), **sections)
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype="fp64")
    widen_all(model)
    losses = losses_of(model, asked)
    (losses["language"] + 0.5 * losses["speech"]).backward()
    trains = [p for p in model.parameters() if p.grad is not None]
    groups = [
        {"params": [p for p in trains if (p.dim() > 1) == decays], "weight_decay": wd}
        for decays, wd in ((True, ours["weight_decay"]), (False, 0.0))
    ]
    theirs(groups).step()
    save(model, tmp_path / "wanted")
    wanted = tensors(tmp_path / "wanted")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-9, msg=name)


def test_a_thinker_comes_out_with_the_talker_of_its_folder(tmp_path: Path) -> None:
    """A spec of the thinker of a Qwen3-Omni alone keeps talker and vocoder."""
    model = omni.tiny_whole("qwen3_omni_moe")
    save(model, tmp_path / "model")
    contents = read_contents(tmp_path / "model")
    assert contents.unknown == ()
    asked = omni.made("qwen3_omni_moe", "one rank", tmp_path / "model")
    asked = with_sections(asked, optimizer=STILL)
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out")
    before = tensors(tmp_path / "model")
    assert found.keys() == before.keys()
    assert all(bits(found[name]) == bits(before[name]) for name in before)
    type(model).from_pretrained(tmp_path / "out")
    there, here = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("model", "out")
    )
    assert here["talker_config"] == there["talker_config"]
    assert here["code2wav_config"] == there["code2wav_config"]


def test_an_untouched_export_is_the_folder_that_it_came_from(tmp_path: Path) -> None:
    """Every tensor to the bit, and every setting, those of the towers and the vocoder, too."""
    model = tiny()
    save(model, tmp_path / "model")
    torch.save({}, tmp_path / "model" / "spk_dict.pt")
    asked = made("one rank", tmp_path / "model", "fp32")
    frozen = with_sections(asked, optimizer=STILL)
    found = exported(trained(frozen, tmp_path / "run"), tmp_path / "out")
    before = tensors(tmp_path / "model")
    assert found.keys() == before.keys()
    assert all(bits(found[name]) == bits(before[name]) for name in before)
    type(model).from_pretrained(tmp_path / "out")
    there, here = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("model", "out")
    )
    assert {key: there[key] for key in there if there[key] != here.get(key)}.keys() <= CHANGED
    thinker = there["thinker_config"]
    assert {k for k in thinker if thinker[k] != here["thinker_config"].get(k)} <= CHANGED
