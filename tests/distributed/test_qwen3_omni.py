"""A thinker and a talker of ours are those of a Qwen3-Omni, its code predictor included."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.distributed.test_qwen_omni import CHANGED, OPTIMIZERS, STILL, losses_on_rank
from tests.support import omni
from tests.support.exports import bits, exported, tensors, trained, with_sections
from tests.support.hugging_face import ids_of, save, tokens_of, widen, widen_softmax
from tests.support.omni import END, START
from tests.support.proof import failures, verdicts
from tests.support.specs import Box, box
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

KIND = "qwen3_omni_moe"
# Layouts of the thinker, and boxes of the talker.
LAYOUTS: dict[str, tuple[str, Box]] = {
    "one rank": ("one rank", box(0)),
    "tp2": ("tp2", box(0, tp=2, sequence_parallel=True)),
    "tp2 without sequence parallelism": ("tp2", box(0, tp=2)),
    "pp2 of both": ("pp2", box(0, pp=2)),
    "cp2 of both": ("cp2", box(0, cp=2)),
    "dp2 of experts": ("colocated", box(0, dp=2, experts={"ep": 2})),
    "all apart": ("apart", box(8, tp=2)),
    "pp2 apart": ("one rank", box(1, pp=2, tp=2)),
    "thinker over pp, talker over cp": ("pp2", box(0, tp=2, cp=2, sequence_parallel=True)),
    "thinker over cp, talker fully sharded": ("cp2", box(0, dp=2, pp=2, sharding="full")),
    "experts apart": ("tp2", box(2, dp=2, tp=2, experts={"ep": 2, "tp": 2})),
    "overlapping": ("colocated", box(1, dp=2)),
}
OFTEN = {"one rank", "pp2 of both"}


def tiny(dtype: torch.dtype = torch.float32) -> Any:
    return omni.tiny_whole(KIND, dtype)


def widen_all(model: Any) -> None:
    """Compute norms and angles of thinker, talker and code predictor in float64."""
    model.thinker.set_experts_implementation("eager")
    model.talker.set_experts_implementation("eager")
    omni.widen_all(model.thinker)
    widen(model.talker.model)
    widen(model.talker.code_predictor.model)


def losses_of(model: Any, asked: Spec) -> dict[str, Tensor]:
    """Return the mean losses of a step, by plain code on the modules of transformers."""
    dataset, ids = build_dataset(asked), ids_of(asked)
    labels = [torch.from_numpy(dataset.text("train", sample)[1]) for sample in ids]
    talker, inside = model.talker, model.talker.code_predictor
    out = model.thinker(**omni.inputs_of(model.thinker, asked), output_hidden_states=True)
    text = F.cross_entropy(out.logits.flatten(0, 1), torch.cat(labels))
    states = out.hidden_states[2]
    tokens = tokens_of(asked)
    embeds = model.thinker.get_input_embeddings()(tokens)
    is_media = (tokens == omni.SEEN) | (tokens == omni.HEARD)
    tables = [talker.model.codec_embedding, *inside.model.codec_embedding]
    said: list[Tensor] = []
    for row, sample in enumerate(ids):
        spans = dataset.describe("train", sample).spans.get("speech", ())
        for span, clip in zip(spans, dataset.images("train", sample, "speech"), strict=True):
            read = slice(span.position, span.position + span.num_positions)
            rows = torch.where(
                is_media[row, read, None],
                talker.hidden_projection(states[row, read]),
                talker.text_projection(embeds[row, read]),
            )
            codes_KN = torch.from_numpy(clip)
            each = torch.stack([table(c) for table, c in zip(tables, codes_KN, strict=True)])
            start = tables[0](torch.tensor([START]))
            seen = torch.cat([rows, start, each.sum(0)])[None]
            places = torch.arange(seen.shape[1]).expand(3, 1, -1)
            hidden = talker.model(inputs_embeds=seen, position_ids=places)[0][0, len(rows) :]
            answer = torch.cat([codes_KN[0], torch.tensor([END])])
            lost = F.cross_entropy(talker.codec_head(hidden), answer, reduction="none")
            # Frames are sequences of the code predictor: the state, then all codes but the last.
            frames = torch.cat([hidden[:-1, None], each[:-1].transpose(0, 1)], dim=1)
            states_of = inside.model(inputs_embeds=frames).last_hidden_state
            for book, head in enumerate(inside.lm_head):
                logits = head(states_of[:, book + 1])
                later = F.cross_entropy(logits, codes_KN[book + 1], reduction="none")
                lost = lost + F.pad(later, (0, 1))
            said.append(lost / len(codes_KN))
    return {"language": text, "speech": torch.cat(said).mean()}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_losses_are_those_of_transformers(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(torch.float64)
    save(model, tmp_path / "model")
    thinker, speech = LAYOUTS[layout]
    asked = omni.made(KIND, thinker, tmp_path / "model", "fp64", speech)
    (found, *_) = run_ranks(losses_on_rank, asked, tmp_path, world_size=world_size(asked))
    widen_all(model)
    widen_softmax(monkeypatch)
    for name, loss in losses_of(model, asked).items():
        assert found[name] == pytest.approx(float(loss.detach()), rel=1e-9), name


@pytest.mark.sweep
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_whole_graph_is_proved(layout: str, tmp_path: Path) -> None:
    """By the oracle in float64: gradients of all modules, from initial weights."""
    save(tiny(), tmp_path / "model")
    thinker, speech = LAYOUTS[layout]
    asked = omni.made(KIND, thinker, tmp_path / "model", "fp64", speech)
    modules = {name: each.replace(init_from=None) for name, each in asked.modules.items()}
    assert failures(verdicts(asked.replace(modules=modules))) == []


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.sweep)])
def test_a_step_is_that_of_plain_torch(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names of all tensors of the folder; the vocoder stays as it was."""
    model = tiny(torch.float64)
    save(model, tmp_path / "model")
    ours, theirs = OPTIMIZERS[optimizer]
    sections = {"optimizer": {**ours, "kind": optimizer, "clip": None}}
    asked = omni.made(KIND, "one rank", tmp_path / "model", "fp64", box(0))
    found = exported(
        trained(with_sections(asked, **sections), tmp_path / "run"), tmp_path / "out", dtype="fp64"
    )
    widen_all(model)
    widen_softmax(monkeypatch)
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
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-8, msg=name)


def test_codes_of_all_codebooks_become_a_wave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the script of docs/speech.md."""
    save(tiny(), tmp_path / "model")
    page = Path("docs/speech.md").read_text(encoding="utf-8")
    fence = re.search(r'^```python title="code2wav.py"\n(.*?)^```$', page, re.DOTALL | re.MULTILINE)
    assert fence is not None
    (tmp_path / "said").mkdir()
    np.save(tmp_path / "said" / "one.npy", np.ones((3, 7), dtype=np.int64))
    arguments = ["code2wav.py", str(tmp_path / "model"), str(tmp_path / "said")]
    monkeypatch.setattr(sys, "argv", arguments)
    given: dict[str, Any] = {}
    exec(fence[1], given)
    names = {name.removeprefix(given["prefix"]) for name in tensors(tmp_path / "model")}
    assert given["vocoder"].state_dict().keys() <= names
    # Four numbers a frame; its last convolution cuts off two.
    wave, rate = given["soundfile"].read(tmp_path / "said" / "one.wav")
    assert (wave.shape, rate) == ((7 * 2 * 2 - 2,), 24_000)


def test_an_untouched_export_is_the_folder_that_it_came_from(tmp_path: Path) -> None:
    """Every tensor to the bit, and every setting, those of the vocoder, too."""
    model = tiny()
    save(model, tmp_path / "model")
    contents = read_contents(tmp_path / "model")
    names = [each.name for each in contents.modules]
    assert names == ["vision", "audio", "language", "talker"]
    assert contents.unknown == ()
    assert all(name.startswith("code2wav.") for name in contents.left_out)
    asked = omni.made(KIND, "one rank", tmp_path / "model", speech=box(0))
    asked = with_sections(asked, optimizer=STILL)
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out")
    before = tensors(tmp_path / "model")
    assert found.keys() == before.keys()
    assert all(bits(found[name]) == bits(before[name]) for name in before)
    type(model).from_pretrained(tmp_path / "out")
    there, here = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("model", "out")
    )
    # The thinker repeats the former.
    changed = CHANGED | {"initializer_range"}
    assert {key for key in there if there[key] != here.get(key)} <= changed
    talker = there["talker_config"]
    inner = {"text_config", "code_predictor_config", "model_type", "dtype"}
    assert {k for k in talker if talker[k] != here["talker_config"].get(k)} <= inner
    for key in ("text_config", "code_predictor_config"):
        mine = here["talker_config"][key]
        assert {k for k in talker[key] if talker[key][k] != mine.get(k)} <= {
            "rope_parameters",
            "layer_types",
        }
