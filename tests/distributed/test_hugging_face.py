"""Weights that `init_from` takes from a Hugging Face folder: each once, where they belong."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.distributed.test_exported_models import assert_same, saved_untouched
from tests.support.exports import exported, tensors
from tests.support.hugging_face import KINDS, VOCAB, made, save, tiny, weights_on_rank
from torch import Tensor

from mimo_launch.checkpoint import folder_tensors
from mimo_launch.checkpoint.boxes import Box
from mimo_launch.hugging_face.registry import FAMILIES
from mimo_launch.launcher.run_on_ranks import RankError, run_ranks
from mimo_launch.runtime.progress import Progress
from mimo_launch.spec.spec import DecoderModel


def tensor_name(kind: str, chunk: str) -> str:
    ours = chunk.removeprefix("weights/language.")
    return FAMILIES[kind].tensors.place(ours, DecoderModel.model_construct()).name


_OFTEN = ("llama", "qwen2", "qwen3", "mistral", "ministral3", "smollm3")


def count_beats_and_read_few_rows() -> list[int]:
    """Note each sign of progress; the mean of a vocabulary is taken 8 rows at a time."""
    beats: list[int] = []
    folder_tensors.ROWS = 8
    Progress.beat = lambda self, phase=None: beats.append(1)  # type: ignore[method-assign]
    return beats


def full_tensor(kind: str, chunk: Box, state: dict[str, Tensor]) -> Tensor:
    """Return a tensor of transformers with rows of the mean, then padding, which is not known."""
    saved = state[tensor_name(kind, chunk.name)]
    if saved.shape[0] != VOCAB or saved.ndim != 2:
        return saved
    mean = saved.double().mean(0, keepdim=True)
    padding = torch.full((chunk.shape[0] - VOCAB - 1, saved.shape[1]), torch.nan)
    return torch.cat([saved.double(), mean, padding.double()]).to(saved.dtype)


# Their files stack maps, have other names than the model in transformers, or hold numbers that are
# no weights; `test_families` compares their logits.
_OTHER_FILES = ("glm", "phi3", "youtu", "lfm2", "apertus", "gemma4")
# By default, every second of those that are tested often is fully sharded.
_FULL = _OFTEN[1::2]


@pytest.mark.parametrize(
    ("kind", "sharding"),
    [
        pytest.param(
            x,
            cut,
            marks=() if x in _OFTEN and (cut == "full") == (x in _FULL) else pytest.mark.sweep,
        )
        for cut in ("optimizer", "full")
        for x in KINDS
        if not x.startswith(_OTHER_FILES) and x != "exaone"
    ],
)
def test_every_rank_holds_the_tensors_of_the_files(
    kind: str, sharding: str, tmp_path: Path
) -> None:
    """Sharded files, fused and cut weights, shared key/value heads, FSDP, a larger vocabulary.

    A rank says that it makes progress with each tensor, and within a mean of many rows.
    """
    model = tiny(kind)
    save(model, tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    asked = made(kind, "tp4 dp2", tmp_path / "model", sharding=sharding, model={"vocab": VOCAB + 1})
    ranks = run_ranks(weights_on_rank, asked, tmp_path, count_beats_and_read_few_rows, world_size=8)
    state, seen = model.state_dict(), set()
    for chunks, [event], beats in ranks:
        assert (event.missing, event.misfits, event.unused) == ((), (), ())
        num_means = 0
        for chunk in chunks:
            whole = full_tensor(kind, chunk, state)
            box_of = zip(chunk.offsets, chunk.tensor.shape, strict=True)
            wanted = whole[tuple(slice(o, o + n) for o, n in box_of)]
            known = ~wanted.isnan()
            assert torch.equal(chunk.tensor[known], wanted[known]), chunk.name
            assert chunk.tensor.isfinite().all()
            if chunk.name.endswith(("embedding.weight", "head.weight")):
                # Padding keeps its initial values, which differ from row to row.
                num_rows = len(chunk.tensor)
                num_means += VOCAB in range(chunk.offsets[0], chunk.offsets[0] + num_rows)
                assert len(chunk.tensor.unique(dim=0)) == num_rows, chunk.name
            seen.add(chunk.name)
        assert event.num_loaded == len(dict(model.named_parameters()))
        assert len(beats) == len(chunks) + num_means * -(-VOCAB // 8)
    assert len(seen) == event.num_loaded


def count_reads() -> list[int]:
    """Note how many elements are taken from files on this rank."""
    read: list[int] = []

    class Counted:
        def __init__(self, part: Any) -> None:
            self.part = part
            self.get_shape, self.get_dtype = part.get_shape, part.get_dtype

        def __getitem__(self, where: Any) -> Tensor:
            values: Tensor = self.part[where]
            read.append(values.numel())
            return values

    class Opened:
        def __init__(self, *where: Any, **how: Any) -> None:
            self.file = safe_open(*where, **how)
            self.keys = self.file.keys

        def __enter__(self) -> "Opened":
            self.file.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self.file.__exit__(*error)

        def get_slice(self, name: str) -> Counted:
            return Counted(self.file.get_slice(name))

    folder_tensors.safe_open = Opened  # type: ignore[misc, assignment]
    return read


def test_a_rank_reads_what_it_holds_and_no_more(tmp_path: Path) -> None:
    save(tiny("qwen2"), tmp_path / "model")
    asked = made("qwen2", "colocated dp2", tmp_path / "model", model={"vocab": VOCAB - 1})
    words = VOCAB
    ranks = run_ranks(weights_on_rank, asked, tmp_path, count_reads, world_size=2)
    for chunks, _, read in ranks:
        held = sum(
            max(0, min(c.tensor.shape[0], words - c.offsets[0])) * c.tensor[0].numel()
            if c.name.endswith("embedding.weight")
            else c.tensor.numel()
            for c in chunks
        )
        assert sum(read) == held


def change(folder: Path, *without: str, **more: Tensor) -> None:
    """Take tensors out of a file, and put others in."""
    state = load_file(folder / "model.safetensors")
    for name in without:
        del state[name]
    save_file(state | more, folder / "model.safetensors", {"format": "pt"})


def test_every_tensor_that_does_not_fit_is_listed_once_for_all(tmp_path: Path) -> None:
    save(tiny("llama"), tmp_path / "model")
    gone, other = "model.layers.1.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight"
    # Before the folder is damaged: `validate` finds tensors that nobody takes.
    asked = made("llama", "tp2", tmp_path / "model")
    change(tmp_path / "model", gone, **{other: torch.ones(31), "lm_head.bias": torch.ones(VOCAB)})
    with pytest.raises(RankError) as caught:
        run_ranks(weights_on_rank, asked, tmp_path, world_size=2)
    for words in (
        f"1 missing there: {gone} (48x32)",
        f"1 of another shape: {other} (31 there, 32 here)",
        "1 there only: lm_head.bias (37)",
        "`init_partial: true` loads what fits",
    ):
        assert words in str(caught.value)
    partial = made("llama", "tp2", tmp_path / "model", init_partial=True)
    for _, [event], _ in run_ranks(weights_on_rank, partial, tmp_path, world_size=2):
        assert event.missing == (gone,)
        assert event.misfits == (f"{other} (31 there, 32 here)",)
        assert event.unused == ("lm_head.bias",)
        assert event.num_loaded == 19
    change(tmp_path / "model", *load_file(tmp_path / "model" / "model.safetensors"))
    with pytest.raises(RankError, match="does not fit"):
        run_ranks(weights_on_rank, partial, tmp_path, world_size=2)


def test_a_vocabulary_that_is_smaller_than_the_files_fits_no_table_of_words(tmp_path: Path) -> None:
    """Its first words need not be those of the tokenizer of the run."""
    save(tiny("llama"), tmp_path / "model")
    asked = made("llama", "tp2", tmp_path / "model", init_partial=True, model={"vocab": VOCAB - 9})
    words = VOCAB - 9
    for _, [event], _ in run_ranks(weights_on_rank, asked, tmp_path, world_size=2):
        assert event.misfits == (
            f"lm_head.weight ({VOCAB}x32 there, {words}x32 here)",
            f"model.embed_tokens.weight ({VOCAB}x32 there, {words}x32 here)",
        )


def test_tensors_that_a_family_does_not_have_are_missing_in_its_folders(tmp_path: Path) -> None:
    """A Llama has no experts: with `init_partial`, which `validate` asks for, they start anew."""
    save(tiny("llama"), tmp_path / "model")
    moe = {"experts": 4, "top_k": 2, "width": 16}
    asked = made("llama", "tp2", tmp_path / "model", init_partial=True, model={"moe": moe})
    for _, [event], _ in run_ranks(weights_on_rank, asked, tmp_path, world_size=2):
        assert "layers.0.mlp.router.weight" in event.missing
        assert event.misfits == ()
        assert "model.layers.1.mlp.up_proj.weight" in event.unused
        assert event.num_loaded == 15


def test_what_is_said_twice_is_left_out_by_rule_and_listed(tmp_path: Path) -> None:
    """Frequencies that old versions saved, and the head of a tied model."""
    model = tiny("qwen2")
    save(model, tmp_path / "model")
    again = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "lm_head.weight": model.model.embed_tokens.weight.detach().clone(),
    }
    change(tmp_path / "model", **again)
    asked = made("qwen2", "one rank", tmp_path / "model")
    [(_, [event], _)] = run_ranks(weights_on_rank, asked, tmp_path, world_size=1)
    assert (event.missing, event.misfits, event.unused) == ((), (), tuple(sorted(again)))


def test_a_separate_output_layer_beside_a_tied_configuration_is_that_of_transformers(
    tmp_path: Path,
) -> None:
    """Loaded as it is in the files, and written again as a layer of its own."""
    folder = tmp_path / "model"
    model = tiny("qwen2")
    save(model, folder)
    own = torch.randn(model.model.embed_tokens.weight.shape)
    change(folder, **{"lm_head.weight": own})
    theirs = type(model).from_pretrained(folder)
    assert torch.equal(theirs.lm_head.weight, own)
    asked = made("qwen2", "one rank", folder, model={"tied": False})
    [(chunks, [event], _)] = run_ranks(weights_on_rank, asked, tmp_path, world_size=1)
    assert (event.missing, event.misfits, event.unused) == ((), (), ())
    [head] = [each for each in chunks if each.name.endswith("head.weight")]
    assert torch.equal(head.tensor[:VOCAB], own)
    found = exported(saved_untouched(asked, tmp_path), tmp_path / "out")
    assert_same(found, tensors(folder))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False


def test_the_output_layer_of_a_tied_model_may_stand_for_its_embedding(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = tiny("qwen2")
    save(model, folder)
    own = model.model.embed_tokens.weight.detach().clone()
    change(folder, "model.embed_tokens.weight", **{"lm_head.weight": own})
    assert torch.equal(type(model).from_pretrained(folder).model.embed_tokens.weight, own)
    asked = made("qwen2", "one rank", folder)
    [(chunks, [event], _)] = run_ranks(weights_on_rank, asked, tmp_path, world_size=1)
    assert (event.missing, event.misfits, event.unused) == ((), (), ())
    [embedding] = [each for each in chunks if each.name.endswith("embedding.weight")]
    assert torch.equal(embedding.tensor[:VOCAB], own)


@pytest.mark.parametrize("unlike", ["value", "shape"])
def test_every_value_of_what_repeats_another_is_compared(unlike: str, tmp_path: Path) -> None:
    """On the ranks that hold it, before a step; `validate` has seen samples."""
    folder = tmp_path / "model"
    model = tiny("qwen2")
    save(model, folder)
    same = model.model.embed_tokens.weight.detach().clone()
    change(folder, **{"lm_head.weight": same})
    asked = made("qwen2", "tp2", folder)
    if unlike == "value":
        same[VOCAB - 1, 5] += 1
    else:
        same = torch.cat([same, same[:1]])
    change(folder, **{"lm_head.weight": same})
    with pytest.raises(RankError) as caught:
        run_ranks(weights_on_rank, asked, tmp_path, world_size=2)
    assert "lm_head.weight is not model.embed_tokens.weight" in str(caught.value)
    assert "write `tied: false` in `model` and `init_partial: true`" in str(caught.value)


@pytest.mark.parametrize("fault", ["cut", "index", "file", "type"])
def test_files_that_cannot_be_read_end_in_one_message(fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(
        tiny("llama"), folder, **({"max_shard_size": "20KB"} if fault in ("index", "file") else {})
    )
    asked = made("llama", "tp2", folder)  # Before the damage: `validate` would find most of it.
    if fault == "cut":
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-64])
    elif fault == "index":
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": [1]}))
    elif fault == "file":
        next(folder.glob("*.safetensors")).unlink()
    else:
        change(folder, **{"model.norm.weight": torch.ones(32, dtype=torch.int64)})
    with pytest.raises(RankError, match=r"cannot be read: "):
        run_ranks(weights_on_rank, asked, tmp_path, world_size=2)
