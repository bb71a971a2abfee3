"""Lists words of other tools with the values of a spec that mean the same.

Decides: which value a word means, and why the two are not quite the same; which words name
something that is not here, and what then differs. No value is offered that would change training.
Relies on: the choices of a key, since `kind` and `none` mean another thing under each key.
Leaves: numbers, lists and booleans to `meant`, keys to `synonyms`.
"""

import re
from collections.abc import Collection

# By choices that only the keys in question have: our words, and others' words for each.
_WORDS = {
    "bf16": {
        "fp64": "float64 double 64",
        "fp32": "float32 float single 32 32-true tf32 no",
        "bf16": "bfloat16 bfloat bf16-mixed bf16-true fp16 float16 half 16 f16 16-mixed 16-true "
        "mixed amp fp8",
    },
    "adamw": {
        "adamw": "adamw_torch adamw_torch_fused adamw_fused adamw_hf adamw_apex_fused fused_adamw "
        "adam fused_adam adamw_8bit adamw_bnb_8bit paged_adamw paged_adamw_8bit "
        "paged_adamw_32bit adamw_torch_8bit adam8bit adamw8bit"
    },
    "cosine": {
        "constant": "constant_with_warmup",
        "cosine": "cosine_with_min_lr cosine_annealing cosineannealinglr cosine_decay",
        "wsd": "warmup_stable_decay",
    },
    "transformer_engine": {
        "transformer_engine": "te transformer-engine transformerengine",
        "torch": "local native pytorch",
    },
    "optimizer full": {
        "full": "fsdp fsdp1 fsdp2 zero3 zero-3 zero_3 zero_stage_3 stage3 3 full_shard fully_shard "
        "fully_sharded optim_grads_params true",
        "optimizer": "ddp none no no_shard zero0 zero1 zero-1 zero_1 zero2 zero-2 zero_2 stage1 "
        "stage2 0 1 2 shard_grad_op optim optim_grads distributed_optimizer false",
    },
    "gelu_tanh": {
        "gelu_tanh": "gelu_pytorch_tanh gelu_new gelu_fast gelu_approx gelutanh",
        "silu": "swish swiglu",
        "squared_relu": "relu2 relu_squared",
    },
    "interleaved": {
        "1f1b": "pipedream one_f_one_b pipedream_flush",
        "interleaved": "interleaved1f1b interleaved_1f1b vpp virtual_pipeline",
    },
    "rms": {
        "layer": "layernorm layer_norm ln",
        "rms": "rmsnorm rms_norm",
    },
    "none full": {
        "full": "uniform block everything all",
        "none": "null nothing never",
    },
}
_HALF = "fp16 needs loss scaling, which is not here; bf16 takes as much memory and needs none"
_8BIT = "its moments are fp32: more memory, and no rounding to 8 bits"
# Why the value for a word does not quite mean the same.
_WHY = {
    "fp16 float16 half 16 f16 16-mixed 16-true": _HALF,
    "mixed amp bf16-true": "weights, reductions and norms stay fp32, products are bf16",
    "fp8": "8 bits are `fp8` of a module, beside bf16",
    "tf32": "products of fp32 are in full precision here",
    "adam fused_adam": "without `weight_decay` it is Adam; with it, decay acts on the weights, not "
    "through the gradient",
    "adamw_8bit adamw_bnb_8bit paged_adamw_8bit adamw_torch_8bit adam8bit adamw8bit": _8BIT,
    "paged_adamw paged_adamw_32bit": "the moments stay in the memory of the GPU",
    "zero2 zero-2 zero_2 stage2 shard_grad_op optim_grads": "gradients take one reduce-scatter",
    "ddp no_shard": "the moments are sharded, too, and the run trains the same",
}
_SAME = "every value trains the same"
# Words for things that are not here, by the same choices.
_MISSING = {
    "adamw": (
        r"adafactor|adagrad|adamax|lion|muon|sophia|lamb|lars|novograd|rmsprop|shampoo|soap|galore"
        r"|schedule_free|prodigy|came|apollo|ademamix|stable_adamw|.*momentum|sgdm|nadam|radam",
        "the optimizer `{}` is not here, and no other updates weights as it does",
    ),
    "cosine": (
        r"poly|inverse|inv_|rsqrt|exp|step|multistep|cosine_with_restarts|restarts|one_?cycle"
        r"|plateau|reduce_lr|cyclic|piecewise",
        "the schedule `{}` is not here, and no other has its rates; `wsd` falls linearly over its "
        "last `decay` steps to `min_lr`",
    ),
    "wsd": (
        r"linear",
        "`wsd` falls linearly over its last `decay` steps: `train.steps` less `warmup`",
    ),
    "optimizer full": (
        r"hsdp|hybrid|zero\+\+|zeropp|hpz",
        "sharding within a host and replicas over hosts (`{}`) are not here: `full` shards over "
        "all replicas, `optimizer` keeps whole weights on each; " + _SAME,
    ),
    "except_projector": (
        r"\[|\d|.*\.|.*layer|partial|lora|bias|norm",
        "freezing a part of a module (`{}`) is not here: `true` freezes all of it, "
        "`except_projector` all but its projector",
    ),
    "none full": (
        r"select|attn|attention|mlp|core|op|moe|layernorm|partial|some|\[",
        "recomputation of a part of a layer (`{}`) is not here: `full` recomputes whole layers, "
        "`none` keeps everything; " + _SAME,
    ),
    "transformer_engine": (
        r"megatron|apex|flash|sdpa|liger|xformers|jax|tensorrt|deepspeed|eager|inductor|triton",
        "the backend `{}` is not here; " + _SAME + ", up to rounding",
    ),
    "interleaved": (
        r"zero|zb|dual|chimera|v_|looped|bfs|dfs|hanayo",
        "the schedule `{}` is not here; " + _SAME,
    ),
    "gelu_tanh": (
        r"relu|geglu|reglu|silu|swish|swiglu|tanh|mish|elu|selu|leaky|glu|gelu$|sigmoid|softplus"
        r"|quick_gelu",
        "the activation `{}` is not here, and weights that were trained with it need it",
    ),
    "rms": (
        r"batch|bn|sync|group|gn|instance|in$|weight|spectral|none|dyt",
        "the norm `{}` is not here, and weights that were trained with it need it (statistics of a "
        "batch would differ from rank to rank)",
    ),
}


def word_of(value: object) -> str:
    """Return a value of any spelling as the tables spell it."""
    return str(value).strip().strip("'\"").lower().removeprefix("torch.")


def same_choice(choices: Collection[str], value: object) -> str:
    """Return the choice that a word of another tool means; "" if it is none of them."""
    word = word_of(value)
    for choice in choices:
        if word == choice.lower() and value != choice:
            return choice
    for marker in _markers(choices):
        for ours, theirs in _WORDS.get(marker, {}).items():
            if ours in choices and word in theirs.split():
                return ours
    return ""


def why_other(choices: Collection[str], value: object) -> str:
    """Return why the choice for a word does not quite mean the same; "" if it does."""
    word = word_of(value)
    if not same_choice(choices, value):
        return ""
    return next((why for words, why in _WHY.items() if word in words.split()), "")


def not_here(choices: Collection[str], value: object) -> str:
    """Return that a word names something that is not here; "" for an unknown word."""
    parts = list(value.values()) if isinstance(value, dict) else []
    for word in map(word_of, [value, *parts]):
        for marker in _markers(choices):
            pattern, words = _MISSING.get(marker, ("(?!)", ""))
            if re.match(pattern, word):
                return words.format(word[:40])
    return ""


def _markers(choices: Collection[str]) -> list[str]:
    return [marker for marker in {**_WORDS, **_MISSING} if set(marker.split()) <= set(choices)]


# Words for models: kinds of encoder, then kinds of language model.
_ENCODERS = {
    "audio": r"whisper|wav2vec|hubert|conformer|audio|speech",
    "connector": r"q_?former|resampler|perceiver",
    "flow": r"dit|mmdit|diffusion|flux|flow",
    "vit": r"vit|.*clip|.*siglip|.*vision|.*vit|dino|radio|pixtral|deit|.*vl",
}
_LANGUAGE = {
    "hybrid": r"mamba2?$|nemotron_?h|qwen3_?next|qwen3_?[5-9]|gated_?delta|hybrid",
    "decoder": r"llama|mistral|mixtral|ministral|qwen|gemma|phi|gpt_oss|deepseek|glm|olmo|internlm"
    r"|smol|granite|causal|llm|text|language|transformer",
}


def kind_of_model(name: str, *, speaks: bool) -> str:
    """Return the kind of a model by the name of its family; "" if it is unknown.

    `speaks` says that the module is the language model.
    """
    plain = word_of(name).replace("-", "_").replace(".", "_")
    families = _LANGUAGE if speaks else _ENCODERS
    return next((kind for kind, pattern in families.items() if re.match(pattern, plain)), "")
