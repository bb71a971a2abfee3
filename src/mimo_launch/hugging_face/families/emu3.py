"""Emu3: a Llama with words for text and for images; what turns pixels into words is copied.

Sources: arXiv:2409.18869; `transformers` 5.24, models/emu3.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face.families.llama import LLAMA
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.nested import Nested, NestedWhole
from mimo_launch.hugging_face.refusals import Refusal, left_out, refusals
from mimo_launch.hugging_face.wholes import Tokens

_DROPOUT, _TEXT, _TIED = "attention_dropout", "text_config", "tie_word_embeddings"


def _of_residuals(config: Config) -> Iterator[str]:
    if rate := config[_DROPOUT]:
        yield f"residual_dropout: {rate}"


EMU3_TEXT = replace(
    LLAMA,
    model_type="emu3_text_model",
    architecture="Emu3ForCausalLM",
    published=(),
    defaults={
        "vocab_size": 184622, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, _DROPOUT: 0.1,
    },
    # One setting for both dropouts.
    refused=LLAMA.refused
    + refusals(Refusal(f"`{_DROPOUT}` of what a layer adds (`residual_dropout`)", _of_residuals)),
    rank=2,
)  # fmt: skip


def _config_of(models: Mapping[str, Any], _tokens: Tokens) -> Config:
    text = models["decoder"]
    inner = EMU3_TEXT.config(text)
    return {"model_type": "emu3", _TEXT: inner, _TIED: text.tied}


EMU3 = NestedWhole(
    model_type="emu3",
    architecture="Emu3ForConditionalGeneration",
    published=("BAAI/Emu3-Chat-hf", "BAAI/Emu3-Gen-hf"),
    parts=(
        Nested(
            family=EMU3_TEXT,
            where=(_TEXT,),
            prefixes=(
                ("text_model.model.", "model."),
                ("text_model.lm_head.", "lm_head."),
                ("model.text_model.", "model."),
                ("lm_head.", "lm_head."),
            ),
            around=lambda config: {"tie_word_embeddings": config.get(_TIED, False)},
        ),
    ),
    refusals=refusals(left_out("what turns pixels into words, and back")),
    left_out=("vqmodel.", "model.vqmodel."),
    config_of=_config_of,
    notes="Images are texts here: each is the words of its codes, line by line, as "
    "`get_image_tokens` of the model in `transformers` makes them; write them into the data. "
    "`export` copies what turns pixels into words from the folder that the weights came from. "
    "`attention_dropout` (0.1) drops weights of attention and what a layer adds: write both "
    "`attention_dropout` and `dropout` in the module, or 0 in `config.json`.",
)
