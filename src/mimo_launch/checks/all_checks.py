"""Lists every rule for a spec in one table, and runs them.

Decides: which checks run, in which order, and after which findings a check is skipped.
Relies on: the rules of the other files.
Leaves: reading the file, and whether ranks fit into memory, to `load_and_check`.
"""

from collections.abc import Sequence

from mimo_launch.checks import (
    adapters,
    backends,
    backward_settings,
    batch,
    conformers,
    data,
    eight_bits,
    evaluations,
    expected_data,
    experts,
    graph,
    init_from,
    joined_rows,
    losses,
    mixtures,
    packages,
    per_layer,
    positions,
    quantized_base,
    ranks,
    row_cache,
    schedules,
    shards,
    shared_keys,
    sounds,
    sources,
    tiles_and_videos,
    training_settings,
    unused_model_settings,
    vocabulary,
    widths,
)
from mimo_launch.checks.proposals import with_grids, with_hosts, with_shares
from mimo_launch.checks.rule import (
    DataRule,
    ModelRule,
    ModuleRule,
    Rule,
    SpecRule,
    findings_of,
    run_rules,
)
from mimo_launch.diag.diagnostic import Diagnostic, YamlPath
from mimo_launch.spec.base import Strict
from mimo_launch.spec.conformer import ConformerModel
from mimo_launch.spec.language_models import CausalModel, DecoderBlocks
from mimo_launch.spec.spec import (
    AudioModel,
    CustomData,
    CustomModel,
    DecoderModel,
    DigitsData,
    FilesData,
    HybridModel,
    LanguageModel,
    Spec,
    SyntheticData,
    TalkerModel,
    UserData,
    VitModel,
    WebdatasetData,
)

_GRID = ("grid-size-mismatch",)
_ORDER = ("order-not-permutation",)
_ROLE = ("wrong-kind-for-role",)
_READS = (
    "reads-unknown-module",
    "reads-module-twice",
    "reads-in-circle",
    "reads-unlike-kind",
    *_ROLE,
)
_HEADS = ("heads-over-kv-heads", "hidden-over-heads")
_BATCH = ("batch-not-divisible", *_GRID)
_BACKWARD = (*_READS, *_HEADS, "nothing-to-train", "adapter-frozen", "adapter-cannot")
_KINDS = ("virtual-stages-without-interleaved", "interleaved-without-stages")
_PACKAGES = ("missing-package",)
_SHARDS = ("shards-not-found", "shards-compressed", "shards-not-tar", "source-not-read")
_IMAGES = (
    "patch-over-digit",
    "empty-digit-range",
    "empty-image-range",
    "shuffle-over-image",
    "processor-not-supported",
    "codes-outside-vocab",
    "codes-unlike-data",
)
_CLIPS = ("sound-not-in-data", "frames-over-rows", "row-over-clips")

# Order matters: a rule is skipped if a rule above it has a finding that it `needs` to be absent.
RULES: tuple[Rule, ...] = (
    SpecRule(ranks.language_present),
    ModuleRule(ranks.kind_fits_role, needs=("no-language-module",)),
    ModuleRule(graph.reads_modules),
    SpecRule(graph.reads_in_order),
    ModuleRule(graph.reads_fit_kind, needs=_ROLE),
    ModuleRule(graph.loss_is_behind_language, needs=_READS),
    ModuleRule(graph.behind_language_for_one, needs=_READS),
    ModuleRule(graph.rows_have_reader, needs=_READS),
    ModelRule(CustomModel, packages.class_is_there, needs=("not-supported-yet",)),
    ModuleRule(ranks.grid_fills_ranks),
    ModuleRule(ranks.order_is_permutation),
    ModuleRule(ranks.cp_inside_dp, needs=_ORDER),
    ModuleRule(ranks.shards_divide_replicas, needs=_GRID),
    ModuleRule(ranks.idle_ranks_idle),
    SpecRule(ranks.no_holes, needs=_GRID),
    ModuleRule(ranks.groups_inside_nodes, needs=(*_GRID, *_ORDER)),
    SpecRule(ranks.gpu_holds_memory),
    ModuleRule(widths.hidden_over_heads),
    ModelRule(CausalModel, widths.heads_over_kv_heads),
    ModelRule(VitModel, widths.heads_over_kv_heads),
    ModuleRule(widths.heads_over_tp),
    ModelRule(CausalModel, widths.kv_heads_over_tp, needs=_HEADS),
    ModelRule(VitModel, widths.kv_heads_over_tp, needs=_HEADS),
    ModelRule(CausalModel, positions.head_size_even, needs=_HEADS),
    ModelRule(DecoderModel, positions.latent_attention_fits, needs=_HEADS),
    ModelRule(LanguageModel, positions.mrope_fills_head, needs=(*_HEADS, "odd-head-size")),
    ModelRule(DecoderBlocks, positions.scaling_in_order),
    ModelRule(DecoderBlocks, positions.scaling_of_each_pair),
    ModelRule(DecoderBlocks, positions.sequences_have_scaling),
    ModelRule(DecoderModel, positions.chosen_layers_exist),
    ModelRule(LanguageModel, experts.further_tokens_fit),
    ModuleRule(widths.mlp_over_tp),
    ModuleRule(widths.layers_over_stages),
    ModuleRule(widths.stages_are_those_of_grid),
    ModelRule(DecoderModel, shared_keys.shared_keys_have_sources),
    ModelRule(DecoderModel, shared_keys.wider_mlps_act),
    ModelRule(
        DecoderModel,
        shared_keys.shared_keys_in_one_stage,
        needs=("layers-over-pp", "stages-not-of-grid", "shared-keys-without-source"),
    ),
    ModelRule(
        DecoderModel,
        per_layer.vectors_in_one_stage,
        needs=("layers-over-pp", "stages-not-of-grid"),
    ),
    ModelRule(
        DecoderModel, per_layer.padding_is_in_vocabulary, needs=("no-language-module", *_ROLE)
    ),
    ModuleRule(experts.experts_have_model),
    ModuleRule(experts.grid_of_experts_fits, needs=_GRID),
    ModuleRule(experts.choices_of_experts),
    ModelRule(CausalModel, experts.layers_have_experts),
    ModelRule(DecoderModel, experts.activation_is_of_one_mlp),
    ModuleRule(widths.vocab_over_tp, needs=("no-language-module", *_ROLE)),
    ModelRule(VitModel, positions.hidden_holds_positions, needs=_HEADS),
    ModelRule(VitModel, positions.heads_hold_places, needs=_HEADS),
    ModelRule(VitModel, positions.learned_positions_have_grid),
    ModelRule(VitModel, positions.chosen_layers_exist),
    ModelRule(VitModel, positions.windows_hold_all_tokens),
    ModelRule(VitModel, tiles_and_videos.tiles_fit, needs=("positions-without-grid",)),
    ModelRule(VitModel, joined_rows.deepstack_in_order),
    ModelRule(VitModel, joined_rows.features_are_layers),
    ModelRule(VitModel, tiles_and_videos.videos_can_be_read, needs=_READS),
    ModelRule(
        VitModel, joined_rows.deepstack_is_added, needs=(*_READS, "no-language-module", *_ROLE)
    ),
    ModelRule(HybridModel, widths.recurrent_layers_have_sizes),
    ModelRule(HybridModel, widths.recurrent_heads_over_groups),
    ModelRule(HybridModel, widths.recurrent_over_grid),
    ModelRule(AudioModel, positions.hidden_holds_sinusoids, needs=_HEADS),
    ModelRule(ConformerModel, conformers.clips_stay_whole),
    ModelRule(ConformerModel, conformers.convolutions_have_middles),
    ModuleRule(data.frames_are_whole_rows),
    SpecRule(batch.batch_splits),
    SpecRule(batch.groups_split, needs=_BATCH),
    ModuleRule(batch.encoder_share_is_even, needs=(*_BATCH, "encoder-microbatches-uneven")),
    ModuleRule(batch.dp_sizes_related, needs=(*_BATCH, "encoder-share-uneven")),
    SpecRule(schedules.virtual_stages_used),
    SpecRule(schedules.interleaved_has_stages),
    SpecRule(schedules.interleaved_runs_whole, needs=_KINDS),
    SpecRule(schedules.bubbles_are_filled),
    ModuleRule(schedules.bubbles_need_no_gather),
    DataRule(DigitsData, data.ranges_not_empty),
    DataRule(SyntheticData, data.ranges_not_empty),
    ModuleRule(data.patch_divides_digit),
    ModuleRule(data.shuffle_tiles_images, needs=("patch-over-digit",)),
    ModuleRule(data.channels_fit_digits),
    ModuleRule(data.digits_are_seen),
    ModuleRule(data.clips_hold_a_row, needs=("frames-over-rows",)),
    ModuleRule(data.places_hold_images, needs=(*_IMAGES, *_READS, *_ROLE)),
    ModuleRule(vocabulary.ends_are_codes),
    ModuleRule(vocabulary.codes_fit_digits, needs=("codes-outside-vocab",)),
    SpecRule(vocabulary.vocab_holds_tokens),
    DataRule(UserData, packages.shard_packages_installed),
    DataRule(WebdatasetData, shards.shards_are_there, needs=_PACKAGES),
    DataRule(CustomData, packages.data_class_is_there),
    DataRule(CustomData, sources.heldout_is_there),
    DataRule(FilesData, sources.sources_are_there, needs=_PACKAGES),
    DataRule(FilesData, sources.every_source_has_a_template),
    DataRule(FilesData, mixtures.names_differ),
    DataRule(FilesData, mixtures.weights_mix),
    DataRule(FilesData, sources.table_package_installed, needs=_SHARDS),
    DataRule(UserData, vocabulary.tokenizer_is_usable),
    DataRule(
        UserData,
        vocabulary.template_shows_media,
        needs=(
            *_PACKAGES,
            "tokenizer-not-usable",
            "processor-not-supported",
            "reads-unknown-module",
        ),
    ),
    SpecRule(
        vocabulary.vocab_holds_tokenizer, needs=("tokenizer-not-usable", "no-language-module")
    ),
    ModuleRule(
        vocabulary.placeholder_is_token, needs=("tokenizer-not-usable", "placeholder-outside-vocab")
    ),
    ModuleRule(shards.processor_is_understood),
    ModuleRule(sounds.frames_are_those_of_the_folder),
    DataRule(UserData, shards.processors_have_encoders),
    DataRule(UserData, shards.classes_are_run),
    DataRule(UserData, tiles_and_videos.processors_cut_alike),
    DataRule(UserData, joined_rows.shards_show_graph, needs=_READS),
    SpecRule(
        shards.members_for_encoders,
        needs=(*_PACKAGES, *_SHARDS, "not-supported-yet", "conformer-cannot"),
    ),
    SpecRule(
        tiles_and_videos.video_package_installed, needs=(*_PACKAGES, *_SHARDS, "not-supported-yet")
    ),
    ModuleRule(vocabulary.placeholder_is_free, needs=(*_READS, "vocab-too-small")),
    SpecRule(joined_rows.widths_merge, needs=(*_IMAGES, *_CLIPS, *_READS, "not-supported-yet")),
    DataRule(DigitsData, data.tasks_have_generator, needs=_READS),
    SpecRule(batch.seq_holds_samples, needs=(*_IMAGES, *_CLIPS, *_READS)),
    DataRule(
        UserData,
        expected_data.expect_is_usable,
        needs=(*_IMAGES, *_CLIPS, *_READS, *_ROLE, "not-supported-yet", "seq-too-short"),
    ),
    SpecRule(batch.seq_splits_over_tp, needs=("seq-too-short",)),
    SpecRule(batch.seq_splits_over_cp, needs=("seq-too-short", "seq-over-tp")),
    SpecRule(training_settings.something_trains),
    ModuleRule(training_settings.losses_have_no_projector),
    ModuleRule(losses.loss_has_place),
    SpecRule(losses.loss_has_columns),
    ModuleRule(training_settings.frozen_layers_exist),
    ModuleRule(training_settings.parts_recompute),
    ModuleRule(training_settings.activations_move),
    ModuleRule(adapters.adapter_has_place, needs=_ROLE),
    ModuleRule(adapters.dropout_has_place, needs=(*_ROLE, "adapter-cannot")),
    ModuleRule(adapters.start_is_an_adapter),
    ModuleRule(adapters.start_keeps_its_adapter),
    ModuleRule(adapters.targets_are_maps, needs=(*_ROLE, "adapter-cannot", *_HEADS)),
    ModuleRule(row_cache.rows_can_be_kept, needs=_ROLE),
    ModuleRule(quantized_base.base_has_place, needs=_ROLE),
    ModuleRule(
        quantized_base.cuts_lie_between_blocks,
        needs=(*_ROLE, *_HEADS, "quantized-base-cannot", "adapter-cannot"),
    ),
    ModuleRule(training_settings.loss_weight_used, needs=_ROLE),
    ModuleRule(training_settings.balance_used, needs=("no-language-module",)),
    SpecRule(training_settings.frozen_weights_left_out),
    SpecRule(training_settings.schedule_fits_steps),
    SpecRule(training_settings.warmup_ends, needs=("wsd-longer-than-run",)),
    ModuleRule(training_settings.sequence_parallel_used),
    ModuleRule(training_settings.own_optimizer_used),
    ModuleRule(backward_settings.recompute_used, needs=_BACKWARD),
    ModuleRule(backward_settings.offload_used, needs=_BACKWARD),
    SpecRule(backward_settings.common_offload_used),
    SpecRule(training_settings.encoder_microbatches_used),
    SpecRule(training_settings.generator_microbatches_used),
    SpecRule(training_settings.lr_schedule_used),
    SpecRule(training_settings.optimizer_settings_used),
    DataRule(SyntheticData, training_settings.image_sizes_used),
    SpecRule(evaluations.eval_shards_used),
    SpecRule(evaluations.evaluation_ends),
    SpecRule(evaluations.best_is_known, needs=("eval-without-shards",)),
    SpecRule(evaluations.stop_is_possible),
    SpecRule(training_settings.target_settings_used),
    SpecRule(tiles_and_videos.video_settings_used),
    SpecRule(tiles_and_videos.sound_can_be_heard, needs=_READS),
    ModelRule(TalkerModel, unused_model_settings.text_is_read, needs=_READS),
    ModelRule(TalkerModel, widths.predictor_over_tp),
    ModelRule(TalkerModel, positions.read_layer_exists),
    SpecRule(data.frame_limits_used),
    ModelRule(VitModel, unused_model_settings.vision_settings_used),
    ModelRule(AudioModel, unused_model_settings.clip_settings_used),
    ModelRule(Strict, unused_model_settings.settings_used),
    ModelRule(CausalModel, unused_model_settings.moe_settings_used),
    ModelRule(DecoderModel, unused_model_settings.norm_settings_used),
    ModelRule(DecoderModel, unused_model_settings.mlp_bias_used),
    ModelRule(DecoderModel, unused_model_settings.values_from_keys_used),
    ModelRule(DecoderModel, unused_model_settings.bidirectional_images_used, needs=_READS),
    ModelRule(DecoderBlocks, unused_model_settings.scaling_settings_used),
    ModuleRule(backends.backend_can, needs=_HEADS),
    ModuleRule(
        eight_bits.fp8_can, needs=(*_HEADS, *_BATCH, "mlp-over-tp", "seq-over-cp", "seq-over-tp")
    ),
    ModuleRule(init_from.init_from_is_checkpoint),
    ModuleRule(init_from.init_from_is_same_model),
    ModuleRule(init_from.init_from_fits_config, needs=(*_HEADS, *_ROLE, "no-language-module")),
    ModuleRule(init_from.init_partial_used),
    SpecRule(packages.log_packages_installed),
)

# Rules about the number of steps, which epochs have once their samples are counted.
STEP_RULES = tuple(
    rule
    for rule in RULES
    if rule.run in (training_settings.schedule_fits_steps, training_settings.warmup_ends)
)

# Rules about sizes alone, which a proposed grid must keep, too.
_SIZES = (
    ranks.grid_fills_ranks,
    widths.heads_over_tp,
    widths.kv_heads_over_tp,
    widths.mlp_over_tp,
    widths.layers_over_stages,
    widths.stages_are_those_of_grid,
    widths.vocab_over_tp,
    widths.recurrent_over_grid,
    experts.grid_of_experts_fits,
    batch.batch_splits,
    batch.groups_split,
    batch.encoder_share_is_even,
    batch.seq_splits_over_tp,
    batch.seq_splits_over_cp,
    shared_keys.shared_keys_in_one_stage,
    per_layer.vectors_in_one_stage,
    schedules.interleaved_has_stages,
    schedules.interleaved_runs_whole,
)
_SIZE_RULES = tuple(rule for rule in RULES if rule.run in _SIZES)


# Rules that look at files, which takes time; another layout of a spec keeps them.
_OF_FILES = (
    init_from.init_from_is_checkpoint,
    init_from.init_from_is_same_model,
    init_from.init_from_fits_config,
    shards.shards_are_there,
    shards.members_for_encoders,
    expected_data.expect_is_usable,
    vocabulary.tokenizer_is_usable,
    vocabulary.template_shows_media,
    vocabulary.vocab_holds_tokenizer,
    vocabulary.placeholder_is_token,
)
_LAYOUT_RULES = tuple(rule for rule in RULES if rule.run not in _OF_FILES)
# The files with rules about where modules run, and how they are cut. The other rules are about
# models and data, which are the same in every layout.
_PLACES = {
    each.__name__
    for each in (
        *(backends, batch, conformers, eight_bits, experts, per_layer, ranks, schedules),
        *(shared_keys, training_settings, widths),
    )
}
# First is a cheap rule that refuses a third of the layouts near one with an odd `seq`.
_PLACE_RULES = sorted(
    (rule for rule in _LAYOUT_RULES if rule.run.__module__ in _PLACES),
    key=lambda rule: rule.run is not batch.seq_splits_over_tp,
)


def is_legal(spec: Spec, *, files: bool = True) -> bool:
    """Return whether no rule finds an error, without working out what would help.

    A layout is legal although a file is not here. Without `files`, rules about files are skipped:
    for another layout of a checked spec.
    """
    return not _has_error(spec, RULES if files else _LAYOUT_RULES)


def is_legal_layout(spec: Spec) -> bool:
    """Return whether another layout of a legal spec, with the same models and data, is legal."""
    return not _has_error(spec, _PLACE_RULES)


def _has_error(spec: Spec, rules: Sequence[Rule]) -> bool:
    return any(found.is_error and not found.is_absence for found in findings_of(spec, rules))


def idle_settings(spec: Spec) -> frozenset[YamlPath]:
    """Return the settings that do nothing, as far as that is known without files."""
    found = run_rules(spec, _LAYOUT_RULES)
    return frozenset(each.path for each in found if each.code == "setting-without-effect")


def check(spec: Spec, *, world: int | None = None) -> tuple[Diagnostic, ...]:
    """Return the findings about a spec, or about the sound parts of one, in table order.

    With `world`, the job must have exactly the ranks that the spec names.
    """
    rules = RULES
    if world is not None:
        rules += (SpecRule(lambda each: ranks.world_fits(each, world)),)
    found = with_grids(spec, run_rules(spec, rules), _SIZE_RULES)
    found = with_hosts(spec, found, _SIZE_RULES)
    return tuple(dict.fromkeys(with_shares(spec, found, _SIZE_RULES)))
