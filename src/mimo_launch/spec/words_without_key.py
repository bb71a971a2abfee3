"""Lists words of other trainers that do not mean one key of a spec.

Decides: what to write for words of several meanings; which words name something that is not here,
and how a run does without it.
Relies on: nothing.
Leaves: words that mean a key to `synonyms`.
"""

_PLACE = "a run saves to its folder, `runs/` and its `name`; `--runs DIR` of `train` puts it in DIR"
_RESUME = (
    "the same command resumes, from the newest checkpoint of the run that has this `name`; weights "
    "of another run are `init_from` of a module"
)
_SHARDS = "write one `data` section, such as `data: {kind: webdataset, shards: PATTERN}`"
_FROZEN = "write `frozen: true` in the module `language`"
_FROZEN_TOWER = (
    "write `frozen: true` in the encoder, with its projector, or `frozen: except_projector`"
)
# Words without one key of the same meaning, and what to write.
NOTES = {
    "batch_size train_batch_size": "`global` of `batch` counts the samples of a step over all "
    "replicas; if this counts those of one, multiply it by dp of `language`, and by gradient "
    "accumulation",
    "deepspeed zero_optimization": "write `sharding: full` in modules where the file says ZeRO-3; "
    "`sharding: optimizer`, the default, is ZeRO-1",
    "fsdp_config": "write `sharding: full` in modules that FSDP should shard",
    "freeze_lm freeze_llm freeze_language_model": _FROZEN,
    "freeze_vit freeze_vision_tower freeze_vision_model": _FROZEN_TOWER,
    "freeze_aligner freeze_multi_modal_projector freeze_mm_mlp_adapter": "`frozen: true` of an "
    "encoder freezes its projector, too; no setting freezes a projector alone",
    "unfrozen_parameters": "write `frozen: true` in each module that does not train, or `frozen: "
    "except_projector`; a module cannot train in part",
    "datasets dataset data_path train_files dataset_path": _SHARDS,
    "val_set_size split_dataset_ratio test_split": "held-out samples are shards of their own, "
    "`eval_shards` of `data`; nothing splits the training data",
    "use_tp_pp_dp_mapping": "write `order: [tp, cp, dp, pp]` with its axes, in a module",
    "enable_wandb use_wandb": "write `wandb: {project: NAME}` under `log`",
    "report_to logger": "write `tensorboard: true`, `wandb: {project: NAME}` or `mlflow: "
    "{experiment: NAME}` under `log`",
    "save output_dir save_dir work_dir default_root_dir": _PLACE,
    "save_strategy eval_strategy evaluation_strategy": "`every` of `checkpoint` and of `eval` "
    "counts the steps between two, or is `null`",
    "vit_lr vision_lr vision_tower_lr mm_projector_lr aligner_lr": "each module may have its "
    "own `lr` under `optimizer`, which a projector shares with its encoder",
    "load resume_from resume_from_checkpoint ckpt_path checkpoint_path": _RESUME,
    "activation_checkpoint": "write `recompute: full` in a module; selective recomputation is "
    "missing",
    "lr_decay_iters lr_decay_steps": "the rate falls until the last of `train.steps`; `decay` of "
    "`optimizer.schedule` counts the steps of the fall with `kind: wsd`",
    "layers_to_freeze freeze_layers frozen_layers freeze_parameters": "`frozen` is for all layers "
    "of a module; single layers cannot be frozen",
    "attn_implementation attn_impl flash_attention use_flash_attn flash_attn "
    "use_flash_attention attention_backend": "nothing chooses the kernels of attention: flash "
    "attention runs where it can, and gives the same numbers as others up to rounding",
}
# Words for things that are not here: the name, and how a run does without it.
MISSING = {
    "dropout attention_dropout hidden_dropout attn_dropout resid_dropout resid_pdrop attn_pdrop "
    "embd_pdrop attention_probs_dropout_prob hidden_dropout_prob drop_path drop_path_rate "
    "stochastic_depth": ("dropout", "a run would train without it"),
    "lora lora_r lora_rank lora_alpha lora_dropout lora_target_modules lora_target_linear peft "
    "peft_type peft_config adapter use_lora qlora use_dora finetuning_type train_type tuner_type": (
        "LoRA",
        "a run would train all weights of a module, or none with `frozen: true`",
    ),
    "load_in_4bit load_in_8bit quantization quantization_bit quantization_config quant_method "
    "quant_bits": ("training of quantised weights", "a run would keep weights in fp32"),
    "label_smoothing label_smoothing_factor": (
        "label smoothing",
        "a run would learn from the plain cross-entropy",
    ),
    "ema ema_decay use_ema ema_kwargs": (
        "moving average of weights",
        "checkpoints hold the weights of their step",
    ),
    "callbacks hooks plugins": (
        "callback",
        "a run would call nothing of yours; it writes each step to `metrics.jsonl`, and `log` "
        "sends it on",
    ),
    "early_stopping early_stopping_patience": (
        "early stopping",
        "a run would make all of its `train.steps`",
    ),
    "keep_every keep_every_n keep_every_n_steps save_retain_interval": (
        "interval of checkpoints that stay",
        "`keep` counts the newest ones, and older ones are deleted, so copy those that shall stay",
    ),
    "save_top_k load_best_model_at_end metric_for_best_model": (
        "choice of the best checkpoint",
        "`keep` counts the newest ones",
    ),
    "offload cpu_offload cpu_offloading offload_optimizer optimizer_offload optimizer_cpu_offload "
    "offload_param offload_params activation_offloading enable_cpu_offload": (
        "offloading to the memory of the host",
        "`sharding: full` and `recompute: full` of a module save memory of GPUs instead, and train "
        "the same",
    ),
    "neftune_noise_alpha": ("noise on embeddings", "a run would train without it"),
    "loss_scale initial_loss_scale min_loss_scale loss_scale_window": (
        "scaling of losses for fp16",
        "bf16 needs none",
    ),
    "momentum sgd_momentum nesterov": (
        "momentum of `sgd`",
        "a run would train without it; `adamw` has `betas`",
    ),
    "weight_averaging swa": ("average of weights", "checkpoints hold the weights of their step"),
    "rlhf_type rl dpo_beta reward_model ref_model": (
        "preference or reinforcement learning",
        "a run would learn the answers of its data",
    ),
    "augmentation augment data_augmentation": (
        "augmentation of images",
        "a run would see each image as it is",
    ),
    "llrd layer_decay layerwise_lr_decay lr_layer_decay": (
        "learning rate by layer",
        "`optimizer` of a module has the one of all its layers",
    ),
}
# Values that say that something is not wanted.
OFF = ("none", "null", "no", "off", "false", "full", "0", "0.0", "[]", "{}", "")
