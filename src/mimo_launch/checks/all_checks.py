"""The one way in: a file, or a spec, and everything that is wrong with it.

Decides: which checks run, in which order, and which make others moot.
Relies on: the rules of the other files; `spec.load` for the file.
Leaves: showing the findings to `diag.text`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mimo_launch.checks import (
    audio,
    backends,
    batch,
    custom,
    data,
    earlier_runs,
    experts,
    fp8,
    hugging_face,
    hybrid,
    packages,
    placeholders,
    ranks,
    rotary,
    schedules,
    shards,
    training_settings,
    widths,
)
from mimo_launch.checks.rule import ModuleRule, SpecRule, run_rules
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.diag.places import Source
from mimo_launch.spec.load import Loaded, load_spec, load_text
from mimo_launch.spec.model import MissingPartError, Spec

_GRID = ("grid-size-mismatch",)
_ORDER = ("order-not-permutation",)
_ROLE = ("wrong-kind-for-role",)
_HEADS = ("heads-over-kv-heads", "hidden-over-heads")
_BATCH = ("batch-not-divisible", *_GRID)
_KINDS = ("virtual-stages-without-interleaved", "interleaved-without-stages")
_SCHEDULES = (*_KINDS, "interleaved-microbatches-uneven", "full-sharding-in-bubbles")
_PACKAGES = ("missing-package",)
_SHARDS = ("shards-not-found", "shards-compressed", "shards-not-tar")
_IMAGES = (
    "patch-over-digit",
    "empty-digit-range",
    "empty-image-range",
    "shuffle-over-image",
    "processor-not-supported",
)
_CLIPS = ("sound-not-in-data", "frames-over-rows", "row-over-clips")

# Order matters: a rule is skipped when one above it has found what it `needs` to be absent.
RULES: tuple[ModuleRule | SpecRule, ...] = (
    SpecRule(ranks.language_present),
    ModuleRule(ranks.kind_fits_role, needs=("no-language-module",)),
    ModuleRule(custom.class_is_there, needs=("not-supported-yet",)),
    ModuleRule(ranks.grid_fills_ranks),
    ModuleRule(ranks.order_is_permutation),
    ModuleRule(ranks.cp_inside_dp, needs=_ORDER),
    ModuleRule(ranks.idle_ranks_idle),
    SpecRule(ranks.no_holes, needs=_GRID),
    ModuleRule(ranks.groups_inside_nodes, needs=(*_GRID, *_ORDER)),
    ModuleRule(widths.hidden_over_heads),
    ModuleRule(widths.heads_over_kv_heads),
    ModuleRule(widths.heads_over_tp),
    ModuleRule(widths.kv_heads_over_tp, needs=_HEADS),
    ModuleRule(rotary.head_size_even, needs=_HEADS),
    ModuleRule(rotary.mrope_fills_head, needs=(*_HEADS, "odd-head-size")),
    ModuleRule(rotary.scaling_in_order),
    ModuleRule(widths.mlp_over_tp),
    ModuleRule(widths.layers_over_stages),
    ModuleRule(experts.experts_have_model),
    ModuleRule(experts.grid_of_experts_fits, needs=_GRID),
    ModuleRule(experts.choices_of_experts),
    ModuleRule(experts.layers_have_experts),
    ModuleRule(widths.vocab_over_tp, needs=("no-language-module", *_ROLE)),
    ModuleRule(widths.hidden_holds_positions, needs=_HEADS),
    ModuleRule(widths.heads_hold_places, needs=_HEADS),
    ModuleRule(widths.learned_positions_have_grid),
    ModuleRule(widths.class_token_has_place),
    ModuleRule(hybrid.mamba_has_sizes),
    ModuleRule(hybrid.mamba_heads_over_groups),
    ModuleRule(hybrid.mamba_over_grid, needs=("mamba-heads-over-groups",)),
    ModuleRule(audio.hidden_holds_sinusoids, needs=_HEADS),
    ModuleRule(audio.frames_are_whole_rows),
    SpecRule(batch.batch_splits),
    SpecRule(batch.groups_split, needs=_BATCH),
    ModuleRule(batch.encoder_share_is_even, needs=(*_BATCH, "encoder-microbatches-uneven")),
    ModuleRule(batch.dp_sizes_related, needs=(*_BATCH, "encoder-share-uneven")),
    SpecRule(schedules.virtual_stages_used),
    SpecRule(schedules.interleaved_has_stages),
    SpecRule(schedules.interleaved_runs_whole, needs=_KINDS),
    SpecRule(schedules.bubbles_are_filled),
    ModuleRule(schedules.bubbles_need_no_gather),
    SpecRule(data.digit_range_not_empty),
    SpecRule(data.image_ranges_not_empty),
    ModuleRule(data.patch_divides_digit),
    ModuleRule(data.shuffle_tiles_images, needs=("patch-over-digit",)),
    ModuleRule(data.channels_fit_digits),
    ModuleRule(audio.digits_are_seen),
    ModuleRule(audio.clips_hold_a_row, needs=("frames-over-rows",)),
    SpecRule(data.vocab_holds_tokens),
    SpecRule(shards.shard_packages_installed),
    SpecRule(shards.shards_are_there, needs=_PACKAGES),
    SpecRule(shards.tokenizer_is_usable),
    SpecRule(shards.vocab_holds_tokenizer, needs=("tokenizer-not-usable", "no-language-module")),
    ModuleRule(
        shards.placeholder_is_token,
        needs=("tokenizer-not-usable", "placeholder-outside-vocab", "setting-without-effect"),
    ),
    ModuleRule(shards.processor_is_understood),
    SpecRule(shards.processors_have_encoders),
    SpecRule(shards.members_for_encoders, needs=(*_PACKAGES, *_SHARDS)),
    ModuleRule(placeholders.placeholder_is_free, needs=(*_ROLE, "vocab-too-small")),
    SpecRule(batch.seq_holds_samples, needs=(*_IMAGES, *_CLIPS, *_ROLE)),
    SpecRule(batch.seq_splits_over_tp, needs=("seq-too-short",)),
    SpecRule(batch.seq_splits_over_cp, needs=("seq-too-short", "seq-over-tp")),
    SpecRule(training_settings.something_trains),
    ModuleRule(training_settings.language_has_no_projector),
    ModuleRule(training_settings.balance_used, needs=("no-language-module",)),
    SpecRule(training_settings.schedule_fits_steps),
    SpecRule(training_settings.warmup_ends, needs=("wsd-longer-than-run",)),
    ModuleRule(training_settings.sequence_parallel_used),
    ModuleRule(training_settings.frozen_optimizer_unused),
    SpecRule(training_settings.encoder_microbatches_used),
    SpecRule(training_settings.lr_schedule_used),
    SpecRule(training_settings.optimizer_settings_used),
    SpecRule(training_settings.image_sizes_used),
    SpecRule(training_settings.eval_shards_used),
    SpecRule(audio.frame_limits_used),
    ModuleRule(training_settings.vision_settings_used),
    ModuleRule(backends.backend_can, needs=_HEADS),
    ModuleRule(fp8.fp8_can, needs=(*_HEADS, *_BATCH, "mlp-over-tp", "seq-over-cp", "seq-over-tp")),
    ModuleRule(earlier_runs.init_from_is_checkpoint),
    ModuleRule(earlier_runs.init_from_is_same_model),
    ModuleRule(hugging_face.init_from_fits_config, needs=(*_HEADS, *_ROLE, "no-language-module")),
    ModuleRule(earlier_runs.init_partial_used),
    SpecRule(packages.log_packages_installed),
)


@dataclass(frozen=True, slots=True)
class Checked:
    """A spec that passed every check, or None; warnings do not count. Findings in file order."""

    spec: Spec | None
    diagnostics: tuple[Diagnostic, ...]
    source: Source


def load_and_check(
    path: str | Path,
    overrides: Sequence[str] = (),
    world: int | None = None,
    *,
    runs_here: bool = False,
) -> Checked:
    """Read a file, apply `path=value` overrides and run every check.

    With `runs_here` the backends must be installed, too.
    """
    return _checked(load_spec(path, overrides), world, runs_here=runs_here)


def check_text(
    text: str, name: str = "<text>", overrides: Sequence[str] = (), world: int | None = None
) -> Checked:
    """Do the same for a text that is already in memory."""
    return _checked(load_text(text, name, overrides), world, runs_here=False)


def check(spec: Spec, *, world: int | None = None) -> tuple[Diagnostic, ...]:
    """Return the findings about a spec, or about the sound parts of one, in table order."""
    findings = run_rules(spec, RULES)
    if world is not None:
        findings += _world(spec, world, "the job has")
    return tuple(dict.fromkeys(findings))


def check_world(spec: Spec, nproc: int, nnodes: int = 1) -> tuple[Diagnostic, ...]:
    """Return the findings when `nproc` processes on each of `nnodes` hosts are to run a spec."""
    product = f"{nproc} * {nnodes} = " if nnodes > 1 else ""
    words = f"--nproc {nproc}" + (f" --nnodes {nnodes}" if nnodes > 1 else "")
    return tuple(_world(spec, nproc * nnodes, f"{words} ({product}{nproc * nnodes}) gives"))


def _world(spec: Spec, world: int, words: str) -> Iterator[Diagnostic]:
    try:
        yield from ranks.world_fits(spec, world, words)
    except MissingPartError:
        return


def _checked(loaded: Loaded, world: int | None, *, runs_here: bool) -> Checked:
    found = loaded.diagnostics
    if loaded.partial is not None:
        found += check(loaded.partial, world=world)
    if loaded.spec is not None and runs_here:
        found += tuple(backends.backends_are_here(loaded.spec))
    found = loaded.source.sorted(found)
    is_valid = loaded.spec is not None and not any(item.is_error for item in found)
    return Checked(loaded.spec if is_valid else None, found, loaded.source)
