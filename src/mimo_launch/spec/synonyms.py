"""Lists the words of other trainers beside the keys of a spec that mean the same.

Decides: which key a foreign word is, and its value where that is written in another way; which
words have no key of one meaning, and what to say of them. docs/coming-from.md shows the same words.
Relies on: nothing.
Leaves: where the key belongs and whether it takes the value to `renaming`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

_M = "modules.*."
_LAYER = _M + "model."
# The path of a key, with `*` for any module, and the words for it. `a.b` is `b` in a section `a`.
_WORDS = {
    "kind": "type",
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
    _LAYER + "patch": "patch_size patch_dim",
    _LAYER + "image": "image_size img_size",
    _LAYER + "norm_eps": "rms_norm_eps layer_norm_eps layernorm_epsilon norm_epsilon",
    _LAYER + "rope_theta": "rotary_base rope_base",
    _LAYER + "tied": "tie_word_embeddings tie_embeddings",
    _LAYER + "moe.experts": "num_experts num_local_experts n_routed_experts",
    _LAYER + "moe.top_k": "num_experts_per_tok moe_router_topk",
    _LAYER + "mtp.depth": "mtp_num_layers",
    _LAYER + "mtp.loss_weight": "mtp_loss_scaling_factor",
    _M + "grid": "parallelism",
    _M + "grid.tp": "tp grid.tensor tensor_parallel tensor_parallel_size tensor_parallel_degree "
    "tensor_model_parallel_size tp_size",
    _M + "grid.cp": "cp grid.context context_parallel context_parallel_size "
    "context_parallel_degree cp_size",
    _M + "grid.pp": "pp grid.pipeline pipeline_parallel pipeline_parallel_size "
    "pipeline_parallel_degree pipeline_model_parallel_size pp_size",
    _M + "grid.dp": "dp grid.data data_parallel data_parallel_size data_parallel_degree dp_size "
    "data_parallel_shard_degree data_parallel_replicate_degree",
    _M + "experts.ep": "ep expert_parallel_size expert_model_parallel_size expert_parallel_degree",
    _M + "experts.tp": "expert_tensor_parallel_size",
    _M + "backend": "transformer_impl",
    _M + "fp8.format": "fp8_format",
    _M + "fp8.scaling": "fp8_recipe",
    _M + "init_from": "base_model pretrained checkpoint_path",
    "batch.global": "global_batch_size global_batch",
    "batch.seq": "max_seq_len max_seq_length max_sequence_length seq_len seq_length "
    "sequence_length sequence_len max_length",
    "schedule.kind": "pipeline_parallel_schedule pipeline_schedule",
    "schedule.microbatches": "gradient_accumulation_steps grad_accum_steps gradient_accumulation",
    "optimizer.lr": "learning_rate",
    "optimizer.clip": "grad_clip gradient_clipping max_grad_norm clip_grad clip_grad_norm "
    "gradient_clip_val gradient_clip",
    "optimizer.eps": "adam_epsilon adam_eps epsilon",
    "optimizer.betas": "adam_betas",
    "optimizer.schedule.kind": "lr_scheduler lr_scheduler_type lr_decay_style",
    "optimizer.schedule.warmup": "warmup_steps num_warmup_steps lr_warmup_iters lr_warmup_steps "
    "warmup_iters",
    "optimizer.schedule.min_lr": "min_learning_rate",
    "train.steps": "iterations max_steps train_iters train_steps num_steps max_iters "
    "total_steps num_train_steps",
    "train.precision": "dtype torch_dtype mixed_precision",
    "train.log_every": "log_interval logging_steps log_freq",
    "checkpoint.every": "checkpoint.interval save_interval save_steps save_every",
    "checkpoint.keep": "keep_latest_k save_total_limit",
    "eval.every": "eval_interval eval_steps",
    "data.packing": "sample_packing",
    "log.tensorboard": "enable_tensorboard",
    "log.wandb.project": "wandb_project",
    "log.mlflow.experiment": "mlflow_experiment_name",
}
_FULL = {"true": "full", "full": "full", "false": "", "none": "none"}
_SHARDED = {"true": "full", "false": ""}
_TRUE = {"true": "optimizer"}
# Words whose value is written in another way: the key, and its value beside each of theirs.
_VALUES: dict[str, tuple[str, Mapping[str, str]]] = {
    "bf16": ("train.precision", {"true": "bf16", "false": ""}),
    "fp16": ("train.precision", {"true": "bf16", "false": ""}),
    "fsdp": (_M + "sharding", _SHARDED),
    "use_megatron_fsdp": (_M + "sharding", _SHARDED),
    "use_torch_fsdp2": (_M + "sharding", _SHARDED),
    "use_distributed_optimizer": (_M + "sharding", _TRUE),
    "zero": (_M + "sharding", {"1": "optimizer", "2": "optimizer", "3": "full"}),
    "zero_stage": (_M + "sharding", {"1": "optimizer", "2": "optimizer", "3": "full"}),
    "activation_checkpointing": (_M + "recompute", _FULL),
    "gradient_checkpointing": (_M + "recompute", _FULL),
    "recompute_granularity": (_M + "recompute", _FULL),
    "recompute_activations": (_M + "recompute", _FULL),
    "untie_embeddings_and_output_weights": (
        _LAYER + "tied",
        {"true": "false", "false": "true"},
    ),
    "untie_embeddings": (_LAYER + "tied", {"true": "false", "false": "true"}),
}
_SIZED = (
    "micro_batch_size microbatch_size mbs local_batch_size pipeline_parallel_microbatch_size "
    "per_device_train_batch_size"
)
_BETAS = {"beta1": 0, "beta2": 1, "adam_beta1": 0, "adam_beta2": 1}
# Words without one key of the same meaning, and what to write.
_NOTES = {
    "batch_size": "`global` of `batch` counts the samples of a step over all replicas; if this "
    "counts those of one, multiply it by dp of `language`, and by gradient accumulation",
    "num_epochs": "a run counts `steps` under `train`; `mimo-launch data` counts the records of an "
    "epoch, which are its samples, and a step takes `batch.global`",
    "warmup_ratio": "`warmup` of `optimizer.schedule` counts steps: the ratio x `train.steps`",
    "num_layers_per_virtual_pipeline_stage": "`virtual_stages` of `schedule` counts stages of a "
    "rank, not layers: layers / (pp x this)",
    "deepspeed": "write `sharding: full` in modules where the file says ZeRO-3; `sharding: "
    "optimizer`, the default, is ZeRO-1",
    "fsdp_config": "write `sharding: full` in modules that FSDP should shard",
    "freeze_lm": "write `frozen: true` in the module `language`",
    "freeze_vit": "write `frozen: true` in the encoder, or `frozen: except_projector`",
    "unfrozen_parameters": "write `frozen: true` in each module that does not train, or `frozen: "
    "except_projector`",
    "datasets": "write one `data` section, such as `data: {kind: webdataset, shards: PATTERN}`",
    "use_tp_pp_dp_mapping": "write `order: [tp, cp, dp, pp]` with its axes, in a module",
    "enable_wandb": "write `wandb: {project: NAME}` under `log`",
    "save": "a run saves to its folder under `runs/`; write `every: STEPS` under `checkpoint`",
    "load": "the same command resumes; weights of another run are `init_from` of a module",
    "activation_checkpoint": "write `recompute: full` in a module; selective recomputation is "
    "missing",
}
_WHY = {
    "fp16": "fp16 needs loss scaling, which is not here; bf16 takes as much memory and needs none",
    "zero": "weights are whole on every rank, and gradients take one reduce-scatter, below ZeRO-3",
}


@dataclass(frozen=True, slots=True)
class Synonym:
    """What a word of another trainer means.

    `values` are our values by theirs, if they differ: "" for one that is the default. `sized` is
    the size of a microbatch, `beta` the place of one of `betas`. `note` is said where no key has
    its meaning, `why` where a value changes.
    """

    key: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    why: str = ""
    sized: bool = False
    beta: int | None = None


def synonym(section: str, word: str) -> Synonym | None:
    """Return what a key of a section means; None for words of no trainer."""
    plain = word.strip("-").lower().replace("-", "_")
    for name in (f"{section}.{plain}", plain):
        if name in _TABLE:
            return _TABLE[name]
    return None


_TABLE = {
    **{word: Synonym(key) for key, words in _WORDS.items() for word in words.split()},
    **{w: Synonym(key, values, why=_WHY.get(w, "")) for w, (key, values) in _VALUES.items()},
    **{word: Synonym("schedule.microbatches", sized=True) for word in _SIZED.split()},
    **{word: Synonym("optimizer.betas", beta=place) for word, place in _BETAS.items()},
    **{word: Synonym(note=note) for word, note in _NOTES.items()},
}
