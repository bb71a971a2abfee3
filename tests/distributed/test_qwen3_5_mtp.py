"""Multi-token prediction of Qwen3.5: as its own layers compute it, and files as they were."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.distributed.test_exported_models import assert_same, saved_untouched
from tests.distributed.test_qwen_omni import losses_on_rank
from tests.support.exports import exported, tensors, trained
from tests.support.hugging_face import ids_of, save
from tests.support.qwen_vl import inputs_of, made, tiny
from tests.support.whole_models import moved_by_torch, with_optimizer
from torch import Tensor, nn

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

MTP = {"mtp": {"depth": 1, "loss_weight": 0.5}}
PREFIX = "mtp."


class Ahead(nn.Module):
    """What `mtp.*` of a Qwen3.5 is, of the layers of transformers, by the names in its files.

    Of the token ahead and the state, in this order, a layer with attention makes a state. So it is
    of a Qwen3-Next.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        theirs: Any = import_module(type(model).__module__)
        config = getattr(model.config, "text_config", model.config)
        name = re.sub(r"For[A-Z]\w+$", "", type(model).__name__)
        width = config.hidden_size

        def norm() -> nn.Module:
            made: nn.Module = getattr(theirs, f"{name}RMSNorm")(width, eps=config.rms_norm_eps)
            return made

        attends = config.layer_types.index("full_attention")
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = nn.ModuleList([getattr(theirs, f"{name}DecoderLayer")(config, attends)])
        self.norm, self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = norm(), norm(), norm()

    def forward(self, x: Tensor, embedded: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        both = self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(x)
        x = self.fc(torch.cat(both, dim=-1))
        out: Tensor = self.norm(
            self.layers[0](x, position_embeddings=turns, attention_mask=None, position_ids=None)
        )
        return out


def with_ahead(kind: str, folder: Path, dtype: torch.dtype, *, in_stacks: bool = False) -> Any:
    """Save a model with `mtp.*` as in the published files; return both as modules."""
    model = tiny(dtype, kind=kind)
    save(model, folder)
    ahead, random = Ahead(model).to(dtype).eval(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in ahead.parameters():
            weight.copy_(0.2 * torch.randn(weight.shape, generator=random))
    own = in_files(ahead)
    held = load_file(folder / "model.safetensors") | (own if in_stacks else unstacked(own))
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    return model, ahead


def in_files(ahead: Ahead) -> dict[str, Tensor]:
    """Return its tensors by their names in files."""
    return {f"{PREFIX}{name}": each.detach().clone() for name, each in ahead.named_parameters()}


def unstacked(held: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in which each expert stands by itself, as transformers writes layers."""
    found = {name: each for name, each in held.items() if ".experts." not in name}
    for name in held.keys() - found.keys():
        layer, _, part = name.rpartition(".")
        for number, entry in enumerate(held[name]):
            names = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
            for each, rows in zip(names, entry.chunk(len(names)), strict=True):
                found[f"{layer}.{number}.{each}.weight"] = rows.contiguous()
    return found


def right_losses(model: Any, ahead: Ahead, asked: Spec) -> tuple[Tensor, Tensor]:
    """Return the losses of the next token and of the one behind it."""
    given, dataset = inputs_of(model, asked), build_dataset(asked)
    labels = torch.stack([torch.from_numpy(dataset.text("train", i)[1]) for i in ids_of(asked)])
    inner, tokens = model.model, given["input_ids"]
    x = inner(**given).last_hidden_state
    places, _ = inner.get_rope_index(
        tokens,
        mm_token_type_ids=given["mm_token_type_ids"],
        image_grid_thw=given["image_grid_thw"],
    )
    words = inner.language_model
    turns = words.rotary_emb(x, places[..., :-1])
    y = ahead(x[:, :-1], words.embed_tokens(tokens[:, 1:]), turns)
    return tuple(
        F.cross_entropy(model.lm_head(state).flatten(0, 1), said.flatten())
        for state, said in ((x, labels), (y, labels[:, 1:]))
    )  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("qwen3_5", "tp2"),
        ("qwen3_5_moe", "one rank"),
        *(
            pytest.param(kind, layout, marks=pytest.mark.sweep)
            for kind in ("qwen3_5", "qwen3_5_moe")
            for layout in ("cp2, apart", "pp2, apart")
        ),
    ],
)
def test_losses_are_those_of_its_own_layers(kind: str, layout: str, tmp_path: Path) -> None:
    model, ahead = with_ahead(kind, tmp_path / "model", torch.float32)
    asked = made(layout, tmp_path / "model", kind=kind, language=MTP)
    found = run_ranks(losses_on_rank, asked, tmp_path, world_size=world_size(asked))[-1]
    with torch.no_grad():
        right = [float(each) for each in right_losses(model, ahead, asked)]
    names = ("language", "language.mtp")
    assert [found[name] for name in names] == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize("kind", ["qwen3_5", pytest.param("qwen3_5_moe", marks=pytest.mark.sweep)])
def test_a_step_is_that_of_plain_torch(kind: str, tmp_path: Path) -> None:
    """By the names of tensors, with both losses; embedding and output layer learn from both."""
    model, ahead = with_ahead(kind, tmp_path / "model", torch.float32)
    asked = made("one rank", tmp_path / "model", kind=kind, language=MTP)
    asked = with_optimizer(asked, "sgd")
    found = exported(trained(asked, tmp_path / "run"), tmp_path / "out", dtype="fp32")
    before = tensors(tmp_path / "model")
    loss, further = right_losses(model, ahead, asked)
    (loss + 0.5 * further).backward()
    for each in (model, ahead):
        moved_by_torch(each, "sgd")
    save(model, tmp_path / "wanted")
    wanted = tensors(tmp_path / "wanted") | unstacked(in_files(ahead))
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert not torch.equal(tensor, before[name]), name
        assert (found[name] - tensor).abs().max() < 1e-6, name


@pytest.mark.parametrize("kind", ["qwen3_5_moe", pytest.param("qwen3_5", marks=pytest.mark.sweep)])
def test_an_untouched_folder_comes_out_bit_for_bit(kind: str, tmp_path: Path) -> None:
    """With every tensor of its depth, and without them where the spec has none."""
    folder = tmp_path / "model"
    with_ahead(kind, folder, torch.bfloat16)
    whole = tensors(folder)
    for name, keys in (("with", MTP), ("without", {})):
        asked = made("tp2", folder, kind=kind, language=keys)
        found = exported(saved_untouched(asked, tmp_path / name), tmp_path / f"{name} out")
        left = {each: x for each, x in whole.items() if keys or not each.startswith(PREFIX)}
        assert_same(found, left)
        config = json.loads((tmp_path / f"{name} out" / "config.json").read_text())
        assert config["text_config"]["mtp_num_hidden_layers"] == len(keys)


def test_experts_in_one_tensor_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model, ahead = with_ahead("qwen3_5_moe", folder, torch.float32, in_stacks=True)
    asked = made("one rank", folder, kind="qwen3_5_moe", language=MTP)
    [found] = run_ranks(losses_on_rank, asked, tmp_path, world_size=1)
    with torch.no_grad():
        _, right = right_losses(model, ahead, asked)
    assert found["language.mtp"] == pytest.approx(float(right), rel=1e-5)


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe"])
def test_a_folder_says_what_it_has_besides(kind: str, tmp_path: Path) -> None:
    with_ahead(kind, tmp_path, torch.bfloat16)
    language = next(each for each in read_contents(tmp_path).modules if each.kind == "hybrid")
    assert language.depths == 1
    assert "mtp" not in language.keys


def test_depths_that_a_folder_lacks_are_said(tmp_path: Path) -> None:
    with_ahead("qwen3_5", tmp_path / "model", torch.bfloat16)
    save(tiny(torch.bfloat16, kind="qwen3_5"), tmp_path / "bare")
    for folder, depth, lacking in (("model", 2, 2), ("bare", 1, 1)):
        asked = made("one rank", tmp_path / folder, kind="qwen3_5")
        keys = {**asked.language.model.model_dump(), "mtp": {"depth": depth}}
        model = type(asked.language.model).model_validate(keys)
        language = asked.language.model_copy(update={"model": model})
        asked = asked.model_copy(update={"modules": {**asked.modules, "language": language}})
        [found] = [each for each in check(asked) if each.is_error]
        assert found.code == "init-from-not-supported"
        assert f"what predicts further tokens in depth {lacking}" in f"{found.headline} {found.why}"
