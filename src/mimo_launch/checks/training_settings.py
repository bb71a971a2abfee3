"""Checks of training settings that contradict each other or do nothing.

Decides: which settings are reported as having no effect (warnings).
Relies on: which keys the user wrote; a default never counts, written or not.
Leaves: values that are wrong by themselves to `spec`.
"""

from collections.abc import Iterator
from itertools import chain

from mimo_launch.checks.rule import Findings, chosen_keys, no_effect
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity, YamlPath
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.samples import shares_ranks
from mimo_launch.spec.base import LANGUAGE, part_of_run
from mimo_launch.spec.optimizers import RULES
from mimo_launch.spec.spec import Spec, SyntheticData, UserData
from mimo_launch.spec.wording import flow, listing

_SCHEDULE = ("optimizer", "schedule")


def something_trains(spec: Spec) -> Findings:
    """At least one module is not frozen, and some loss counts."""
    losses = [n for n, module in spec.modules.items() if kind_of(module.model).computes_loss]
    if losses and not any(spec.modules[name].loss_weight for name in losses):
        yield Diagnostic(
            code="nothing-to-train",
            headline="every loss counts 0, so there is nothing to learn",
            path=("modules", losses[-1], "loss_weight"),
            why="gradients are those of the sum of all losses, each times its `loss_weight`",
            help="delete `loss_weight`",
        )
    if spec.modules and all(module.frozen is True for module in spec.modules.values()):
        yield Diagnostic(
            code="nothing-to-train",
            headline="every module is frozen, so there is nothing to train",
            path=("modules", LANGUAGE, "frozen"),
            why="a frozen module keeps its weights, its projector included",
            help="delete `frozen: true` from the module that should learn",
        )


def frozen_weights_left_out(spec: Spec) -> Findings:
    """`frozen_weights: false` needs frozen weights that `init_from` holds (a warning)."""
    if spec.saving is None or spec.saving.frozen_weights:
        return
    modules = spec.modules.items()
    frozen = [name for name, own in modules if not own.body_trains or own.frozen_layers]
    if any(spec.modules[name].init_from for name in frozen):
        return
    names = ", ".join(f"`{name}`" for name in frozen)
    yield no_effect(
        ("checkpoint", "frozen_weights"),
        "`frozen_weights: false` leaves out no weights",
        f"a run must be able to read them again, and there is no `init_from` in {names}"
        if frozen
        else "every module trains",
    )


def schedule_fits_steps(spec: Spec) -> Findings:
    """Warm-up and decay of wsd fit into the run, if its steps are known."""
    schedule, steps = spec.optimizer.schedule, spec.train.steps
    warmup, decay = schedule.warmup_steps(steps), schedule.decay_steps(steps)
    if schedule.kind != "wsd" or warmup + decay <= steps or not spec.train.are_steps_known:
        return
    fixed = isinstance(schedule.warmup, int) and isinstance(schedule.decay, int)
    yield Diagnostic(
        code="wsd-longer-than-run",
        headline=f"warmup {schedule.warmup} + decay {schedule.decay} is more than steps {steps}",
        path=(*_SCHEDULE, "decay"),
        why="wsd decays over the last `decay` steps, which must not overlap the warmup",
        help=f"write `steps: {warmup + decay}` under `train` for both as they are, or " * fixed
        + (
            f"{'write ' * (not fixed)}`decay: {steps - warmup}` for a shorter fall"
            if warmup < steps
            else f"{'write ' * (not fixed)}a warmup below {steps}"
        ),
    )


def warmup_ends(spec: Spec) -> Findings:
    """Warm-up ends before the run does (a warning), if its steps are known."""
    if not spec.train.are_steps_known:
        return
    steps, common = spec.train.steps, spec.optimizer.schedule.warmup
    warmups: Iterator[tuple[YamlPath, int | str | None]] = (
        (("modules", name, "optimizer", "warmup"), module.optimizer.warmup)
        for name, module in spec.modules.items()
    )
    for path, warmup in chain([((*_SCHEDULE, "warmup"), common)], warmups):
        if isinstance(warmup, int) and warmup > steps:  # A percentage never is.
            yield Diagnostic(
                code="warmup-beyond-run",
                severity=Severity.WARNING,
                headline=f"warmup {warmup} is more than steps {steps}",
                path=path,
                why="the run ends before the learning rate has reached its peak",
                help=f"raise `train.steps` above {warmup}, or write a warmup below {steps}",
            )


def sequence_parallel_used(spec: Spec, name: str) -> Findings:
    """`sequence_parallel` needs tp."""
    module = spec.modules[name]
    if module.sequence_parallel and module.grid.tp == 1:
        yield no_effect(
            ("modules", name, "sequence_parallel"),
            f"`sequence_parallel` of `{name}` does nothing at tp 1",
            "it splits activations over the tp ranks, and there is one",
        )


def losses_have_no_projector(spec: Spec, name: str) -> Findings:
    """`except_projector` is for encoders, which end with one."""
    module = spec.modules[name]
    if module.frozen != "except_projector" or not kind_of(module.model).computes_loss:
        return
    yield Diagnostic(
        code="frozen-without-projector",
        headline=f"`{name}` has no projector that `except_projector` could train",
        path=("modules", name, "frozen"),
        why="the projector is the last layer of an encoder",
        help="write `frozen: true`, or `frozen: false`",
    )


def frozen_layers_exist(spec: Spec, name: str) -> Findings:
    """`frozen: {layers: ...}` names layers of the model, whose numbers say which they are."""
    module, path = spec.modules[name], ("modules", name, "frozen")
    frozen, layers = module.frozen_layers, module.model.layers
    if not frozen:
        return
    if kind_of(module.model).is_custom:
        yield Diagnostic(
            code="frozen-layers-unknown",
            headline=f"`{name}` cannot freeze some of its layers",
            path=path,
            why="your own class says what comes before its layers and after them, and nothing else "
            "knows it",
            help="write `frozen: false`, and freeze weights in the class with "
            "`requires_grad_(False)`",
        )
    elif frozen.stop > layers:
        kept = f"`layers: {frozen.start}-{layers - 1}`"
        yield Diagnostic(
            code="frozen-layers-unknown",
            headline=f"`{name}` has no layer {frozen.stop - 1}: the last one is {layers - 1}",
            path=(*path, "layers"),
            why="layers are counted from 0",
            help=f"write {kept if frozen.start < layers else f'`layers: 0-{layers - 1}`'}",
            related=(Related(("modules", name, "model", "layers"), f"{layers} layers"),),
        )


def parts_recompute(spec: Spec, name: str) -> Findings:
    """Layers with parts recompute some: your own have none, and an engine's hold norms."""
    module, parts = spec.modules[name], spec.modules[name].recomputed_parts
    if not parts:
        return
    if kind_of(module.model).is_custom:
        why, instead = "nothing says what the parts of your own layers are", "full"
    elif module.backend != "torch" and "norms" in parts:
        why = "a norm and the product after it are one layer of Transformer Engine"
        instead = flow(sorted(parts - {"norms"})) if len(parts) > 1 else "none"
    else:
        return
    said = listing(sorted(f"`{part}`" for part in parts))
    yield Diagnostic(
        code="recompute-part-unknown",
        headline=f"`{name}` cannot recompute {said} alone",
        path=("modules", name, "recompute"),
        why=why,
        help=f"write `recompute: {instead}`",
    )


def activations_move(spec: Spec, name: str) -> Findings:
    """FP8 products save weights in 8 bits beside activations, which only their library tells."""
    module = spec.modules[name]
    if module.offloads and module.fp8 is not None:
        yield Diagnostic(
            code="offload-with-fp8",
            headline=f"`{name}` cannot keep activations on the host with `fp8`",
            path=("modules", name, "offload"),
            why="its products save weights in 8 bits beside activations; both would move in every "
            "microbatch",
            help=f"write `offload: {flow([*set(module.offload) - {'activations'}])}`; `recompute: "
            "full` saves as much memory",
        )


def own_optimizer_used(spec: Spec, name: str) -> Findings:
    """A frozen module has no optimizer, and no weight of a user's class is known as a matrix."""
    module = spec.modules[name]
    of_matrices = any(rule.matrices_only for rule in spec.optimizer.rules(module.optimizer))
    if module.optimizer.kind is not None and of_matrices and kind_of(module.model).is_custom:
        yield no_effect(
            ("modules", name, "optimizer", "kind"),
            f"`kind: {module.optimizer.kind}` of `{name}` does nothing",
            "it is for matrices, and weights of your own class do not say which they are: all of "
            "them follow AdamW",
        )
    if module.frozen is True and chosen_keys(module.optimizer):
        yield no_effect(
            ("modules", name, "optimizer"),
            f"`optimizer` of `{name}` does nothing, because `{name}` is frozen",
            "a frozen module is never updated",
            at_key=True,
        )


def loss_weight_used(spec: Spec, name: str) -> Findings:
    """`loss_weight` is for modules that compute a loss."""
    module = spec.modules[name]
    if module.loss_weight != 1 and not kind_of(module.model).computes_loss:
        yield no_effect(
            ("modules", name, "loss_weight"),
            f"`loss_weight` of `{name}` does nothing",
            f"a `{module.model.kind}` computes no loss",
        )


def balance_used(spec: Spec, name: str) -> Findings:
    """`balance` moves samples among replicas of an encoder."""
    module, path = spec.modules[name], ("modules", name, "balance")
    if module.balance == "none" or "balance" not in chosen_keys(module):
        return
    if name == LANGUAGE:
        yield no_effect(
            path,
            f"`balance` of `{LANGUAGE}` does nothing",
            "only encoders are balanced: samples of language all have `batch.seq` tokens",
        )
    elif module.grid.dp == 1:
        yield no_effect(
            path, f"`balance` of `{name}` does nothing at dp 1", "there is only one replica"
        )


def encoder_microbatches_used(spec: Spec) -> Findings:
    """`encoder_microbatches` needs encoders."""
    if spec.schedule.encoder_microbatches is not None and not spec.encoders:
        yield no_effect(
            ("schedule", "encoder_microbatches"),
            "`encoder_microbatches` does nothing: language reads no encoder",
            "it is the number of microbatches that encoders take at once",
        )


def generator_microbatches_used(spec: Spec) -> Findings:
    """`generator_microbatches` is for generators that share ranks with language."""
    if "generator_microbatches" not in chosen_keys(spec.schedule):
        return
    if not any(shares_ranks(spec, name) for name in spec.generators):
        yield no_effect(
            ("schedule", "generator_microbatches"),
            "`generator_microbatches` does nothing: no generator shares ranks with language",
            "generators on ranks of their own work on one microbatch at a time, behind language",
        )


def lr_schedule_used(spec: Spec) -> Findings:
    """Settings of one schedule kind have no effect with another (warnings)."""
    schedule = spec.optimizer.schedule
    falls = part_of_run(schedule.decay, spec.train.steps) > 0
    if schedule.kind != "wsd" and falls:
        yield no_effect(
            (*_SCHEDULE, "decay"),
            f"`decay` does nothing with `kind: {schedule.kind}`",
            "only wsd has a decay phase of a given length",
        )
    if schedule.kind == "wsd" and not falls:
        yield no_effect(
            (*_SCHEDULE, "kind"),
            "`kind: wsd` does nothing without `decay`",
            "wsd without a decay phase is a constant learning rate",
            "add `decay`, the number of steps in which it falls, or write `kind: constant`",
        )
    if schedule.kind == "constant" and schedule.min_lr > 0:
        yield no_effect(
            (*_SCHEDULE, "min_lr"),
            "`min_lr` does nothing with `kind: constant`",
            "a constant learning rate never falls",
        )
    elif schedule.min_lr >= spec.optimizer.lr > 0:
        yield no_effect(
            (*_SCHEDULE, "min_lr"),
            f"`min_lr` {schedule.min_lr} is not below `lr` {spec.optimizer.lr}",
            "the learning rate falls from `lr` to `min_lr`, so it would stay where it is",
        )


def optimizer_settings_used(spec: Spec) -> Findings:
    """Settings of a rule need a module that follows it, those of weight decay need decay."""
    own = [module.optimizer.weight_decay for module in spec.modules.values()]
    if spec.optimizer.decay.embeddings and not any((spec.optimizer.weight_decay, *own)):
        yield no_effect(
            ("optimizer", "decay", "embeddings"),
            "`decay: {embeddings: true}` does nothing without `weight_decay`",
            "it says what weight decay applies to, and `weight_decay` is 0",
        )
    kinds = {each.optimizer.kind or spec.optimizer.kind for each in spec.modules.values()}
    read = {key for kind in kinds for rule in RULES[kind] for key in rule.settings}
    owners = {key: rule for rules in RULES.values() for rule in rules for key in rule.settings}
    chosen = chosen_keys(spec.optimizer)
    for key, rule in owners.items():
        if key in chosen and key not in read:
            yield no_effect(
                ("optimizer", key),
                f"`{key}` does nothing with {listing(sorted(f'`kind: {kind}`' for kind in kinds))}",
                f"it belongs to {rule.title}",
            )


def target_settings_used(spec: Spec) -> Findings:
    """Targets of shards are read for generators."""
    if not isinstance(spec.data, UserData) or spec.generators:
        return
    for key in ("target_marker", "target_reads"):
        if key in chosen_keys(spec.data):
            yield no_effect(
                ("data", key),
                f"`{key}` without a generator does nothing",
                "only a generator, such as `kind: flow`, learns to make the targets of shards",
            )


def image_sizes_used(spec: Spec, data: SyntheticData) -> Findings:
    """Limits of random sizes have no effect where all images have one size."""
    if data.image is None:
        return
    for key in ("min_patches", "max_patches"):
        if key in chosen_keys(data):
            yield no_effect(
                ("data", key), f"`{key}` does nothing with `image`", "every image has that size"
            )
