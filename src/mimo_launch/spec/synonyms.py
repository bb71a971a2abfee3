"""Lists words of other trainers with the keys of a spec that mean the same.

Decides: which key a foreign word means, and our value where theirs is written in another way.
docs/coming-from.md shows the same words.
Relies on: `derived_values` for values in another unit, `words_without_key` for all other words.
Leaves: where the key belongs and whether it takes the value to `renaming`; words that are values to
`meant`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mimo_launch.spec.derived_values import (
    ACCUMULATION,
    Derive,
    accumulation,
    beta_of,
    microbatches_of_size,
    min_lr_of_ratio,
    patches_of_pixels,
    samples_of_accumulation,
    samples_of_batches,
    seconds_of_minutes,
    stages_of_layers,
    steps_of_epochs,
    steps_of_ratio,
    steps_of_samples,
)
from mimo_launch.spec.words_without_key import MISSING, NOTES

_M = "modules.*."
_LAYER = _M + "model."
# The path of a key, with `*` for any module, and the words for it. `a.b` is `b` in a section `a`.
_WORDS = {
    "kind": "type",
    "name": "run_name experiment_name exp_name job_name wandb_run_name",
    "nodes": "cluster hosts",
    "train": "training trainer",
    "checkpoint": "checkpointing",
    "eval": "evaluation",
    _LAYER + "layers": "num_hidden_layers num_layers n_layer n_layers",
    _LAYER + "hidden": "hidden_size d_model n_embd dim embed_dim model_dim",
    _LAYER + "heads": "num_attention_heads num_heads n_head n_heads attention_heads",
    _LAYER + "kv_heads": "num_key_value_heads n_kv_heads num_kv_heads num_query_groups",
    _LAYER + "head_dim": "kv_channels head_size",
    _LAYER + "mlp": "intermediate_size ffn_hidden_size ffn_dim ffn_size mlp_dim n_inner d_ff",
    _LAYER + "vocab": "vocab_size padded_vocab_size n_vocab",
    _LAYER + "vocab_multiple": "make_vocab_size_divisible_by",
    _LAYER + "patch": "patch_size patch_dim",
    _LAYER + "norm_eps": "rms_norm_eps layer_norm_eps layernorm_epsilon norm_epsilon",
    _LAYER + "rope_theta": "rotary_base rope_base",
    _LAYER + "rope_scaling.rope_type": "rope_scaling.type",
    _LAYER + "rotary_factor": "rotary_percent partial_rotary_factor",
    _LAYER + "activation": "hidden_act hidden_activation activation_function act_fn",
    _LAYER + "tied": "tie_word_embeddings tie_embeddings",
    _LAYER + "moe.experts": "num_experts num_local_experts n_routed_experts",
    _LAYER + "moe.top_k": "num_experts_per_tok moe_router_topk",
    _LAYER + "mtp.depth": "mtp_num_layers",
    _LAYER + "mtp.loss_weight": "mtp_loss_scaling_factor",
    _M + "grid": "parallelism",
    _M + "grid.tp": "tp grid.tensor tensor_parallel tensor_parallel_size tensor_parallel_degree "
    "tensor_model_parallel_size tp_size",
    _M + "grid.cp": "cp grid.context context_parallel context_parallel_size "
    "context_parallel_degree cp_size sequence_parallel_size sequence_parallel_degree",
    _M + "grid.pp": "pp grid.pipeline pipeline_parallel pipeline_parallel_size "
    "pipeline_parallel_degree pipeline_model_parallel_size pp_size",
    _M + "grid.dp": "dp grid.data data_parallel data_parallel_size data_parallel_degree dp_size "
    "data_parallel_shard_degree data_parallel_replicate_degree",
    _M + "experts.ep": "ep expert_parallel_size expert_model_parallel_size expert_parallel_degree",
    _M + "experts.tp": "expert_tensor_parallel_size",
    _M + "backend": "transformer_impl",
    _M + "fp8.format": "fp8_format",
    _M + "fp8.scaling": "fp8_recipe",
    _M + "init_from": "base_model pretrained model_name_or_path",
    _M + "frozen": "freeze",
    _M + "compile": "torch_compile",
    "batch.global": "global_batch_size global_batch",
    "batch.seq": "max_seq_len max_seq_length max_sequence_length seq_len seq_length "
    "sequence_length sequence_len max_length cutoff_len",
    "schedule.kind": "pipeline_parallel_schedule pipeline_schedule",
    "schedule.virtual_stages": "virtual_pipeline_model_parallel_size",
    "schedule.microbatches": " ".join(ACCUMULATION),
    "optimizer.kind": "optim optimizer_type optimizer_name optimizer.name",
    "optimizer.lr": "learning_rate",
    "optimizer.weight_decay": "wd adam_weight_decay",
    "optimizer.clip": "grad_clip gradient_clipping max_grad_norm clip_grad clip_grad_norm "
    "gradient_clip_val gradient_clip",
    "optimizer.eps": "adam_epsilon adam_eps epsilon",
    "optimizer.betas": "adam_betas",
    "optimizer.schedule.kind": "scheduler lr_scheduler lr_scheduler_type lr_decay_style "
    "lr_schedule schedule.name",
    "optimizer.schedule.decay": "lr_wsd_decay_iters num_decay_steps wsd_decay_steps",
    "optimizer.schedule.warmup": "warmup_steps num_warmup_steps lr_warmup_iters lr_warmup_steps "
    "warmup_iters",
    "optimizer.schedule.min_lr": "min_learning_rate lr_min eta_min",
    "train.steps": "iterations max_steps train_iters train_steps num_steps max_iters "
    "total_steps num_train_steps",
    "train.precision": "dtype torch_dtype mixed_precision",
    "train.seed": "random_seed manual_seed rng_seed",
    "train.timeout": "ddp_timeout",
    "train.log_every": "log_interval logging_steps log_freq log_every_n_steps",
    "checkpoint.every": "checkpoint.interval save_interval save_steps save_every",
    "checkpoint.keep": "keep_latest_k save_total_limit keep_last keep_last_n max_to_keep",
    "checkpoint.asynchronous": "async_save",
    "eval.every": "eval_interval eval_steps",
    "data.packing": "sample_packing",
    "log.tensorboard": "enable_tensorboard",
    "nodes.gpus": "gpus_per_node nproc_per_node",
    "log.wandb.project": "wandb_project",
    "log.wandb.entity": "wandb_entity",
    "log.mlflow.experiment": "mlflow_experiment_name",
}
_FULL = {"true": "full", "full": "full", "false": "", "none": "none"}
_SHARDED = {"true": "full", "false": ""}
_SUMMED = {"true": "optimizer", "false": ""}
# Words with values that we write in another way: the key, and our value for each of theirs.
_VALUES: dict[str, tuple[str, Mapping[str, str]]] = {
    "bf16": ("train.precision", {"true": "bf16", "false": ""}),
    "fp16": ("train.precision", {"true": "bf16", "false": ""}),
    "fsdp": (_M + "sharding", _SHARDED),
    "use_megatron_fsdp": (_M + "sharding", _SHARDED),
    "use_torch_fsdp2": (_M + "sharding", _SHARDED),
    "use_distributed_optimizer": (_M + "sharding", _SUMMED),
    "zero": (_M + "sharding", {"1": "optimizer", "2": "optimizer", "3": "full"}),
    "zero_stage": (_M + "sharding", {"1": "optimizer", "2": "optimizer", "3": "full"}),
    "activation_checkpointing": (_M + "recompute", _FULL),
    "gradient_checkpointing": (_M + "recompute", _FULL),
    "recompute_granularity": (_M + "recompute", _FULL),
    "recompute_activations": (_M + "recompute", _FULL),
    "trainable": (_M + "frozen", {"true": "", "false": "true"}),
    "requires_grad": (_M + "frozen", {"true": "", "false": "true"}),
    "untie_embeddings_and_output_weights": (
        _LAYER + "tied",
        {"true": "false", "false": "true"},
    ),
    "untie_embeddings": (_LAYER + "tied", {"true": "false", "false": "true"}),
}
_OF_SAMPLES = "this / `batch.global`, a number of steps"
# Words for values in another unit: the key, the function that derives its value, and a formula.
_DERIVED: dict[str, tuple[str, Derive, str]] = {
    "micro_batch_size microbatch_size mbs local_batch_size pipeline_parallel_microbatch_size "
    "per_device_train_batch_size": (
        "schedule.microbatches",
        microbatches_of_size,
        "`batch.global` / (dp of `language` x this), a number of microbatches",
    ),
    "warmup_ratio lr_warmup_fraction warmup_fraction": (
        "optimizer.schedule.warmup",
        steps_of_ratio,
        "this x `train.steps`, a number of steps",
    ),
    "min_lr_ratio cosine_min_lr_ratio min_lr_rate": (
        "optimizer.schedule.min_lr",
        min_lr_of_ratio,
        "this x `optimizer.lr`, a learning rate",
    ),
    "epochs num_epochs num_train_epochs max_epochs train_epochs": (
        "train.steps",
        steps_of_epochs,
        "this x the samples of an epoch / `batch.global`, a number of steps; `mimo-launch data` "
        "counts the records of an epoch",
    ),
    "train_samples": ("train.steps", steps_of_samples, _OF_SAMPLES),
    "warmup_samples lr_warmup_samples": (
        "optimizer.schedule.warmup",
        steps_of_samples,
        _OF_SAMPLES,
    ),
    "eval_iters eval_batches": (
        "eval.samples",
        samples_of_batches,
        "this x the samples of such a batch",
    ),
    "num_layers_per_virtual_pipeline_stage": (
        "schedule.virtual_stages",
        stages_of_layers,
        "layers of `language` / (its pp x this), the stages of a rank",
    ),
    "distributed_timeout_minutes": ("train.timeout", seconds_of_minutes, "this x 60, in seconds"),
    "image_size img_size": (
        _LAYER + "image",
        patches_of_pixels,
        "height and width in patches: this / `patch`, twice",
    ),
    "beta1 adam_beta1": ("optimizer.betas", partial(beta_of, 0), "a list of both"),
    "beta2 adam_beta2": ("optimizer.betas", partial(beta_of, 1), "a list of both"),
}
_WHY = {
    "fp16": "fp16 needs loss scaling, which is not here; bf16 takes as much memory and needs none",
    "use_distributed_optimizer": "moments are sharded, and the run trains the same",
    "zero": "weights are whole on every rank, and gradients take one reduce-scatter, below ZeRO-3",
}


@dataclass(frozen=True, slots=True)
class Synonym:
    """The meaning of a word of another trainer.

    `values` maps their values to ours, if they differ: "" for the default. `derive` computes ours
    from theirs and the data of the spec, and `formula` says how. `note` is the help if no key has
    its meaning, `missing` names a thing that is not here, `why` explains a value that changes.
    """

    key: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    why: str = ""
    derive: Derive | None = None
    formula: str = ""
    missing: str = ""


def synonym(section: str, word: str, data: Any = None) -> Synonym | None:
    """Return what a key of a section means; None for words of no trainer.

    `data` is the spec: if it has a number of microbatches, their size gives the size of a step.
    """
    plain = word.strip("-").lower().replace("-", "_")
    found = _TABLE.get(f"{section}.{plain}") or _TABLE.get(plain)
    if found is not None and found.derive is microbatches_of_size and accumulation(data):
        formula = "this x gradient accumulation x dp of `language`, the samples of a step"
        return Synonym("batch.global", derive=samples_of_accumulation, formula=formula)
    return found


_TABLE = {
    **{word: Synonym(key) for key, words in _WORDS.items() for word in words.split()},
    **{w: Synonym(key, values, why=_WHY.get(w, "")) for w, (key, values) in _VALUES.items()},
    **{
        word: Synonym(key, derive=derive, formula=formula)
        for words, (key, derive, formula) in _DERIVED.items()
        for word in words.split()
    },
    **{word: Synonym(note=note) for words, note in NOTES.items() for word in words.split()},
    **{
        word: Synonym(missing=name, note=without)
        for words, (name, without) in MISSING.items()
        for word in words.split()
    },
}
