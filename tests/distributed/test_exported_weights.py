"""What a run exports is what `transformers` loads: untouched bit for bit, trained by its logits."""

import json
from pathlib import Path

import pytest
import torch
from tests.support.exports import (
    bits,
    digits_run,
    exported,
    load,
    save_on_rank,
    tensors,
    trained,
    with_sections,
)
from tests.support.hugging_face import (
    VOCAB,
    joined,
    logits_on_rank,
    made,
    save,
    tiny,
    tokens_of,
)
from tests.support.running_ranks import run_on_running_ranks

from mimo_launch.layout.layout import world_size
from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.spec import Spec


@pytest.mark.parametrize(
    ("kind", "dtype", "shards"),
    [
        ("llama", torch.float32, 10**9),
        ("qwen2", torch.float16, 20_000),
        ("qwen3", torch.bfloat16, 20_000),
        ("glm", torch.bfloat16, 20_000),
        ("glm4", torch.bfloat16, 10**9),
        ("gemma2", torch.float16, 20_000),
        ("gemma3_text", torch.bfloat16, 20_000),
    ],
    ids=lambda each: str(each).removeprefix("torch."),
)
def test_an_untouched_import_comes_out_bit_for_bit(
    kind: str, dtype: torch.dtype, shards: int, tmp_path: Path
) -> None:
    save(tiny(kind, dtype), tmp_path / "model", max_shard_size="20KB")
    asked = with_sections(made(kind, "tp2", tmp_path / "model"))
    run_on_running_ranks(save_on_rank, asked, tmp_path / "run", world_size=2)
    found = exported(tmp_path / "run", tmp_path / "out", max_bytes=shards)
    wanted = tensors(tmp_path / "model")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert bits(found[name]) == bits(tensor), name
    num_files = len(list((tmp_path / "out").glob("*.safetensors")))
    assert (num_files > 1) == (shards < 10**9)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    source = json.loads((tmp_path / "model" / "config.json").read_text())
    differing = {key for key in source if config.get(key) != source[key]}
    assert differing <= {"layer_types", "transformers_version"}


def test_a_trained_model_has_the_same_logits_in_transformers(tmp_path: Path) -> None:
    """Weights trained over tp 2 and pp 2, a word more than the file has, padding left out."""
    save(tiny("qwen3"), tmp_path / "model")
    asked = with_sections(
        made("qwen3", "tp2 pp2", tmp_path / "model", model={"vocab": VOCAB + 1}),
        train={"steps": 3, "precision": "fp32"},
        optimizer={"lr": 1e-2},
    )
    run, world = tmp_path / "run", world_size(asked)
    found = exported(trained(asked, run), tmp_path / "out")
    untouched = tensors(tmp_path / "model")
    assert all(not torch.equal(found[name][:VOCAB], untouched[name]) for name in found)
    model = load("AutoModelForCausalLM", tmp_path / "out")
    assert model.config.vocab_size == VOCAB + 1
    with torch.no_grad():
        wanted = model(input_ids=tokens_of(asked)).logits.double()
    parts = run_on_running_ranks(logits_on_rank, asked, run, world_size=world)
    logits = joined(asked, parts, VOCAB + 1)
    assert wanted.std() > 0.1
    assert float((logits - wanted).abs().max() / wanted.abs().max()) < 1e-5


def test_types_and_tokens_are_known_through_runs_that_started_from_runs(tmp_path: Path) -> None:
    source = tmp_path / "model"
    save(tiny("llama", torch.bfloat16), source)
    (source / "tokenizer.json").write_text("{}")
    asked = with_sections(made("llama", "one rank", source))
    run_on_running_ranks(save_on_rank, asked, tmp_path / "stage1", world_size=1)
    data = dump_spec(asked)
    data["modules"]["language"]["init_from"] = None
    second = Spec.model_validate({**data, "init_from": str(tmp_path / "stage1")})
    run_on_running_ranks(save_on_rank, second, tmp_path / "stage2", world_size=1)
    found = exported(tmp_path / "stage2", tmp_path / "out")
    wanted = tensors(source)
    assert {name: bits(each) for name, each in found.items()} == {
        name: bits(each) for name, each in wanted.items()
    }
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    # Once the source is gone, types are those of the training.
    source.rename(tmp_path / "moved")
    found = exported(tmp_path / "stage2", tmp_path / "late")
    assert {each.dtype for each in found.values()} == {torch.float32}
    assert not (tmp_path / "late" / "tokenizer.json").exists()


def test_weights_with_an_update_are_rounded_once(tmp_path: Path) -> None:
    """To the type of the file, after the sum: a weight rounded before it has another last bit."""
    run = digits_run(tmp_path, adapter={"rank": 2, "targets": ["q", "o", "up"], "alpha": 64})
    for dtype in ("fp32", "bf16"):
        exported(run, tmp_path / dtype, ["language"], dtype=dtype)
    wide, narrow = (tensors(tmp_path / dtype / "language") for dtype in ("fp32", "bf16"))
    assert "model.layers.1.mlp.up_proj.weight" in wide
    assert {name: bits(each) for name, each in narrow.items()} == {
        name: bits(each.to(torch.bfloat16)) for name, each in wide.items()
    }
