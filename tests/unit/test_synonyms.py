"""Words of other trainers are read as the keys that mean the same, with their values."""

import re
from pathlib import Path

import pytest
from tests.unit.test_pasted_help import VALID, mended, spec_of

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.spec.fields import places_of
from mimo_launch.spec.foreign_words import synonym, synonyms

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
DECODER = "{kind: decoder, layers: 2, hidden: 64, heads: 4, vocab: digits}"
GRID = "    grid: {tp: 2, dp: 2}"

# A part of the valid spec, how others write it, and what was meant, if not that part.
FOREIGN = {
    **{
        f"{theirs} for {ours}": (f"{ours}: {value}", f"{theirs}: {value}", None)
        for ours, value, words in (
            ("hidden", "64, heads: 4, vocab", "dim hidden_size d_model n_embd"),
            ("heads", "4, vocab", "num_attention_heads n_head num_heads"),
            ("vocab", "digits", "vocab_size"),
            ("seq", "64", "max_seq_len seq_len seq_length sequence_length max_length sequence_len"),
            ("global", "32", "global_batch_size global-batch-size"),
            ("steps", "100", "iterations max_steps train_iters"),
            ("lr", "0.001", "learning_rate"),
            ("tp", "2", "tensor tensor_parallel tensor_parallel_size tensor_model_parallel_size"),
            ("dp", "2", "data data_parallel data_parallel_size"),
            ("nodes", "{gpus", "cluster"),
        )
        for theirs in words.split()
    },
    **{
        f"{words} of a decoder": (DECODER, DECODER.replace("layers", words), None)
        for words in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num-hidden-layers")
    },
    **{
        line: (GRID, f"{GRID}\n    {line}", f"{GRID}\n    {meant}")
        for line, meant in (
            ("fsdp: true", "sharding: full"),
            ("fsdp: false", "sharding: optimizer"),
            ("zero: 1", "sharding: optimizer"),
            ("zero: 2", "sharding: optimizer"),
            ("zero: 3", "sharding: full"),
            ("activation_checkpointing: true", "recompute: full"),
            ("gradient_checkpointing: true", "recompute: full"),
            ("gradient_checkpointing: false", "recompute: none"),
        )
    },
    **{
        line: (DECODER, DECODER.replace("}", f", {line}}}"), DECODER.replace("}", f", {meant}}}"))
        for line, meant in (
            ("num_key_value_heads: 2", "kv_heads: 2"),
            ("n_kv_heads: 2", "kv_heads: 2"),
            ("intermediate_size: 128", "mlp: 128"),
            ("ffn_hidden_size: 128", "mlp: 128"),
            ("ffn_dim: 128", "mlp: 128"),
            ("tie_word_embeddings: true", "tied: true"),
            ("untie_embeddings: false", "tied: true"),
        )
    },
    **{
        line: ("lr: 0.001", f"lr: 0.001, {line}", f"lr: 0.001, {meant}")
        for line, meant in (
            ("grad_clip: 1.0", "clip: 1.0"),
            ("max_grad_norm: 1.0", "clip: 1.0"),
            ("clip_grad_norm: 1.0", "clip: 1.0"),
            ("clip_grad: 0.5", "clip: 0.5"),
            ("warmup_steps: 5", "schedule: {warmup: 5}"),
        )
    },
    **{
        line: ("steps: 100", f"steps: 100, {line}", f"steps: 100, {meant}")
        for line, meant in (
            ("dtype: bfloat16", "precision: bf16"),
            ("torch_dtype: bfloat16", "precision: bf16"),
            ("bf16: true", "precision: bf16"),
            ("fp16: true", "precision: bf16"),
            ("bf16: false", "precision: fp32"),
            ("max_seq_len: 64", "precision: fp32"),
            ("micro_batch_size: 8", "precision: fp32"),
        )
    },
    "sizes under the module": (GRID, "    tp: 2\n    dp: 2", None),
    "words for sizes under the module": (
        GRID,
        "    tensor_parallel_size: 2\n    data_parallel_size: 2",
        None,
    ),
    "a stage of pipelines": ("tp: 2, dp: 2", "pipeline: 2, dp: 2", "pp: 2, dp: 2"),
    "a part of contexts": ("tp: 2, dp: 2", "context: 2, dp: 2", "cp: 2, dp: 2"),
    "an interval": (
        "nodes:",
        "checkpoint: {interval: 5}\nnodes:",
        "checkpoint: {every: 5}\nnodes:",
    ),
    "save_interval": (
        "nodes:",
        "checkpoint: {save_interval: 5}\nnodes:",
        "checkpoint: {every: 5}\nnodes:",
    ),
    "a rate under train": (
        "steps: 100}\noptimizer: {kind: adamw, lr: 0.001,",
        "steps: 100, learning_rate: 0.1}\noptimizer: {kind: adamw,",
        "steps: 100}\noptimizer: {kind: adamw, lr: 0.1,",
    ),
    "steps at the top": ("train: {steps: 100}", "max_steps: 50", "train: {steps: 50}"),
    "batch at the top": (
        "batch: {global: 32, seq: 64}",
        "global_batch_size: 32\nseq_len: 64",
        None,
    ),
    "the size of a microbatch": (
        "schedule: {kind: 1f1b, microbatches: 2}",
        "schedule: {kind: 1f1b, micro_batch_size: 4}",
        "schedule: {kind: 1f1b, microbatches: 4}",
    ),
    "accumulation": ("microbatches: 2", "gradient_accumulation_steps: 2", None),
    "one beta": ("betas: [0.9, 0.95]", "beta1: 0.8", "betas: [0.8, 0.95]"),
    "two betas": (
        "betas: [0.9, 0.95]",
        "adam_beta1: 0.8, adam_beta2: 0.99",
        "betas: [0.8, 0.99]",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_word_of_another_trainer_keeps_its_meaning(name: str) -> None:
    old, wrong, right = FOREIGN[name]
    assert old in VALID
    text = VALID.replace(old, wrong, 1)
    meant = spec_of(VALID.replace(old, right or old, 1))
    specs = mended(text)
    assert meant in specs, [(d.headline, d.help) for d in check_text(text).diagnostics]
    assert all(spec == meant for spec in specs[-1:])


@pytest.mark.parametrize(
    ("section", "word"),
    [("grid", "parallelism"), ("checkpoint", "checkpointing"), ("train", "training")],
)
def test_a_word_for_a_section_means_nothing_inside_it(section: str, word: str) -> None:
    text = VALID.replace("    grid: {tp: 2", f"    grid: {{{word}: 1, tp: 2", section == "grid")
    text += f"checkpoint: {{{word}: 1}}\n"
    assert "unknown-key" in {item.code for item in check_text(text).diagnostics}


# Words of the page that are no keys: sentences, classes, flags of programs, files.
NO_KEYS = (
    "ModuleParallelismConfig",
    "HyperCommGrid",
    "BridgeCommunicator",
    "torchrun",
    "transformers",
    "compile.enable",
    "LoraConfig",
    "PeftModel",
    "model.",
    "EarlyStoppingCallback",
)


def words_of_the_page() -> list[tuple[str, str]]:
    """Return each word of the left columns, with the text of the right column."""
    found = []
    keys = PAGE.read_text(encoding="utf-8").partition("## Megatron-LM")[2]
    for line in keys.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 2:
            for code in re.findall(r"`([^`]+)`", cells[0]):
                if not code.startswith(NO_KEYS):
                    word = re.split(r"[ :]", code)[0].removeprefix("--")
                    found.append((word, cells[1]))
    return found


@pytest.mark.parametrize(("word", "ours"), words_of_the_page())
def test_the_page_of_words_is_in_step_with_the_table(word: str, ours: str) -> None:
    *section, key = word.split(".")
    if places_of(key.replace("-", "_")):
        return  # Ours, too, and found from any section.
    known = synonym(section[-1] if section else "", key)
    assert known is not None, f"{word} is not in the table"
    said = known.key.rpartition(".")[2] if known.key else None
    assert said is None or re.search(rf"\b{said}\b", ours), (word, known.key)


@pytest.mark.parametrize("word", sorted(synonyms()))
def test_every_synonym_stands_for_a_key_of_the_spec(word: str) -> None:
    known = synonyms()[word]
    assert bool(known.key) is not bool(known.note)
    if known.key not in ("", "kind"):
        assert tuple(known.key.split(".")) in places_of(known.key.rpartition(".")[2])
