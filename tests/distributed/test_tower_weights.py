"""Weights of towers and projectors: names of older versions, and every tensor accounted for."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.hugging_face import save, started
from tests.support.llava import features_on_rank, made_llava, made_tower, tiny_llava, tiny_tower
from tests.support.running_ranks import run_on_running_ranks
from torch import Tensor

from mimo_launch.launcher.run_on_ranks import RankError
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import WeightsLoaded

PROJECTOR = tuple(f"projector.{x}.{y}" for x in ("down", "up") for y in ("bias", "weight"))


def loaded(spec: Spec, run: Path) -> dict[str, WeightsLoaded]:
    session, events = started(spec, run)
    session.__exit__(None, None, None)
    return {event.module: event for event in events if isinstance(event, WeightsLoaded)}


def rewrite(folder: Path, names: dict[str, str], *without: str, **more: Tensor) -> None:
    """Change how names begin, take tensors out, and put others in."""
    state: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        old = next((old for old in names if name.startswith(old)), "")
        state[names.get(old, "") + name.removeprefix(old)] = tensor
    for name in without:
        del state[name]
    save_file(state | more, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    "names",
    [
        {"vision_tower.": "vision_tower.vision_model."},
        {
            "vision_tower.": "model.vision_tower.vision_model.",
            "multi_modal_projector.": "model.multi_modal_projector.",
            "language_model.lm_head.": "lm_head.",
            "language_model.model.": "model.language_model.",
        },
    ],
    ids=["until 4.51", "until 5"],
)
def test_names_of_older_versions_are_read(names: dict[str, str], tmp_path: Path) -> None:
    """Those saved numbers of positions, too, which are no weights."""
    folder = tmp_path / "model"
    save(tiny_llava("clip", "llama", 7), folder)
    asked = made_llava("clip", "llama", "tp2", folder, placeholder=7, precision="fp32")
    wanted = run_on_running_ranks(features_on_rank, asked, tmp_path, world_size=2)
    number = names["vision_tower."] + "embeddings.position_ids"
    rewrite(folder, names, **{number: torch.arange(17)[None]})
    for found, before in zip(
        run_on_running_ranks(features_on_rank, asked, tmp_path, world_size=2), wanted, strict=True
    ):
        assert torch.equal(found, before)
    for events in run_on_running_ranks(loaded, asked, tmp_path, world_size=2):
        assert [event.missing for event in events.values()] == [(), ()]
        assert number in events["vision"].unused


@pytest.mark.parametrize("whole", [False, True], ids=["alone", "beside a text model"])
def test_a_tower_leaves_the_projector_as_it_is(whole: bool, tmp_path: Path) -> None:
    """Without a word of `init_partial`; what is left out is listed."""
    save(tiny_tower("siglip", whole=whole), tmp_path / "model")
    asked = made_tower("siglip", tmp_path / "model", [4, 4], "fp32", layers=2)
    [events] = run_on_running_ranks(loaded, asked, tmp_path, world_size=1)
    event = events["vision"]
    assert (event.missing, event.misfits, event.num_loaded) == (PROJECTOR, (), 3 + 2 * 16)
    prefix = "vision_model." if whole else ""
    beyond = {name.removeprefix(prefix).split(".")[0] for name in event.unused}
    text = {"text_model", "logit_scale", "logit_bias"} if whole else set()
    assert beyond == {"encoder", "head", "post_layernorm"} | text


def test_what_does_not_fit_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(tiny_llava("siglip", "llama", 7), folder)
    table = "vision_tower.embeddings.position_embedding.weight"
    gone = ("multi_modal_projector.linear_1.bias", "vision_tower.encoder.layers.1.mlp.fc1.weight")
    other = {table: torch.ones(9, 32), "vision_tower.more": torch.ones(3), "more": torch.ones(1)}
    # Before the folder is damaged: `validate` finds tensors that nobody takes.
    asked = made_llava("siglip", "llama", "tp2", folder, placeholder=7, precision="fp32")
    rewrite(folder, {}, *gone, **other)
    with pytest.raises(RankError) as caught:
        run_on_running_ranks(loaded, asked, tmp_path, world_size=2)
    for words in (
        "2 missing there: encoder.layers.1.mlp.fc1.weight (48x32), "
        "multi_modal_projector.linear_1.bias (24)",
        "1 of another shape: embeddings.position_embedding.weight (9x32 there, 16x32 here)",
        "2 there only: more (1), vision_tower.more (3)",
    ):
        assert words in str(caught.value)


def test_a_convolution_of_another_shape_does_not_fit(tmp_path: Path) -> None:
    """As many numbers, in another order."""
    folder = tmp_path / "model"
    save(tiny_tower("siglip"), folder)
    name = "embeddings.patch_embedding.weight"
    rewrite(folder, {}, **{name: torch.ones(32, 2, 2, 3)})
    asked = made_tower("siglip", folder, [4, 4], "fp32", layers=3)
    with pytest.raises(RankError, match=r"32x2x2x3 there, 32x12 here"):
        run_on_running_ranks(loaded, asked, tmp_path, world_size=1)
