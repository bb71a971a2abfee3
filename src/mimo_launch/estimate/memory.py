"""The memory of one stage on one rank: constant parts, parts of each action; checkpoints.

Decides: the bytes of weights, gradients and moments, as FSDP2 holds them; the bytes of rows that
cross a bridge; the contents of a checkpoint on any layout: all weights, and the moments of trained
weights.
Relies on: `parameters` for weights, `activations` for the tensors of forwards and backwards.
Leaves: their sum during a step to `memory_peak`. A few kilobytes per rank that the files of a
checkpoint add are not counted.
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.activations import Activations
from mimo_launch.estimate.alike_stages import key_of_stage, key_of_weights
from mimo_launch.estimate.parameters import adds_in_products, stage_weights
from mimo_launch.estimate.weight_cut import WeightCut
from mimo_launch.kinds.layer import Workload
from mimo_launch.kinds.weights import Parameter
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.stages import Stage
from mimo_launch.spec.optimizers import UpdateRule, rule_for
from mimo_launch.spec.sections import CheckpointSpec
from mimo_launch.spec.spec import Grid, Spec


@frozen(kw_only=True)
class StageMemory:
    """Bytes of one stage on one rank.

    `weights`, `moments`: sharded over dp x cp, always present; moments may lie on the `host`.
    `gathered`: full weights, from the first forward to the last backward (with full sharding only
    the units in use); `gather_buffer`: in addition, while they arrive. `accumulated`: full
    gradients, from the first backward to the last. `gradients`: their shards, after the last
    backward (with full sharding after the first). `backward_gradients`: in addition, during any
    backward; `reduce_buffer`: in addition, during the last backward; `last_buffer`: at its end, for
    the weights around the layers. `kept`: per forward until its backward; `offloaded`: the same on
    the host. `in_flight`: the part of it that is being copied, from the first forward to the last
    backward. `forward_extra`, `backward_extra`: temporary activations of a forward and of a
    backward through layers; `end_extra`: of a backward before it reaches the layers. `edge`: one
    activation between stages.
    """

    weights: int
    moments: int
    host: int
    gathered: int
    gather_buffer: int
    accumulated: int
    gradients: int
    backward_gradients: int
    reduce_buffer: int
    last_buffer: int
    kept: int
    offloaded: int
    in_flight: int
    forward_extra: int
    backward_extra: int
    end_extra: int
    edge: int


def stage_memory(
    spec: Spec,
    layout: Layout,
    module: ModuleLayout,
    stage: Stage,
    work: Workload,
    tp: int,
    weights: dict[Hashable, StageMemory] | None = None,
) -> StageMemory:
    """Return the memory of a stage on the ranks at tp index `tp`.

    `weights` keeps the memory without activations, by what it depends on in any layout.
    """
    known, several = {} if weights is None else weights, work.forwards > 1
    key = key_of_weights(spec, module), several, key_of_stage(spec, layout, module, stage), tp
    if key not in known:
        known[key] = weight_memory(spec, module, stage, tp, several=several)
    alone, activations = known[key], Activations(spec, layout, module, stage, work, tp)
    away = activations.offloaded_by_layers()
    return replace(
        alone,
        kept=activations.kept(),
        offloaded=sum(away),
        # Those of two layers are on their way to the host or back.
        in_flight=sum(sorted(away)[-2:]),
        forward_extra=activations.forward(alone.forward_extra),
        backward_extra=activations.backward() + alone.backward_extra,
        end_extra=activations.backward_of_end(),
        edge=activations.edge,
    )


def weight_memory(
    spec: Spec, module: ModuleLayout, stage: Stage, tp: int, *, several: bool
) -> StageMemory:
    """Return the memory of a stage without activations; `several`: forwards in a step."""
    weights = stage_weights(spec, stage, tp)
    cut = WeightCut.of(spec, module)
    full, shards, replicas = cut.full, cut.over, cut.over * cut.copies
    stored, computed = cut.numbers.stored.bytes, cut.numbers.computed.bytes
    trained = [weight for weight in weights.all() if weight.trains]
    packed = [weight for weight in weights.all() if weight.packed is not None]
    own = cut.elements(trained)
    unpacked = max((each.numel * _beside_values(each, computed) for each in packed), default=0)
    *blocks, root = weights.units
    if module.experts or weights.depths:
        # Units differ in size: in the worst case the two largest are adjacent.
        blocks.sort(key=lambda unit: -sum(each.numel for each in unit))
    two_blocks = sum(map(cut.gathered, blocks[:2]))
    ends = cut.gathered(root)
    accumulates = bool(own) and not full and several
    unit = [weight for weights in blocks[:1] for weight in weights if weight.trains]
    rest = [weight for weight in root if weight.trains]
    # A gradient that a matrix product accumulates exists only as the sum.
    in_products = accumulates and adds_in_products(spec, module.name)
    beside = [each for each in (*unit, *rest) if not (in_products and each.in_product)]
    block, last = (sum(each.numel for each in some) for some in (unit, rest))
    moments, host = _moments(spec, module, [(each, cut.elements((each,))) for each in trained])
    return StageMemory(
        weights=sum(map(cut.held, weights.all())),
        moments=moments * stored,
        host=host * stored,
        # The root stays gathered, and one unit arrives while another computes.
        gathered=two_blocks + ends if full else cut.gathered(weights.all()),
        gather_buffer=(two_blocks or ends) if shards > 1 else 0,
        # Fully sharded, every backward adds its shards to those of the backwards before.
        accumulated=own * stored if full else weights.trained * stored if accumulates else 0,
        gradients=own * stored,
        # A block is reduced as soon as it is done, the rest at the end of the backward.
        backward_gradients=sum(each.numel for each in beside) * computed,
        # The buffer of the unit before is still there. Fully sharded, new shards are added
        # to those of the backwards before. Without units, replicas sum sharded gradients from a
        # copy of whole ones; one rank alone holds its gradients at the end.
        reduce_buffer=((2 * block + block // shards * full) or (replicas > 1) * last) * stored,
        # Without shards, replicas divide by 1 into a copy. One rank alone divides nothing: its sums
        # are the buffer, beside the gradients that it was filled from.
        last_buffer=(1 + (shards == 1 < replicas))
        * last
        * (computed if replicas == 1 and not (full or accumulates) else stored),
        kept=0,
        offloaded=0,
        in_flight=0,
        forward_extra=unpacked,
        backward_extra=unpacked,
        end_extra=0,
        edge=0,
    )


def _moments(
    spec: Spec, module: ModuleLayout, trained: Iterable[tuple[Parameter, int]]
) -> tuple[int, int]:
    """Return the values of optimizer state beside shards of weights: on the GPU, on the host."""
    here = host = 0
    for weight, shard in trained:
        rule = rule_for(module.rules, is_matrix=weight.matrix)
        values = len(rule.state) * shard
        if spec.offloads_moments(module.name) and rule.may_offload:
            host += values
        else:
            here += values
    return here, host


def _beside_values(weight: Parameter, computed: int) -> int:
    """Return the bytes for each value of a packed map during its product."""
    is_nf4 = weight.packed is not None and weight.packed.kind == "nf4"
    return computed + (1 if is_nf4 else 4)


def row_bytes(spec: Spec, bridge: Bridge) -> int:
    """Return the bytes of one row on a bridge."""
    return spec.sent_width(bridge.source) * spec.train.numbers.computed.bytes


def checkpoint_bytes(spec: Spec) -> int:
    """Return the bytes of the tensors in one checkpoint of a run."""
    update = {"grid": Grid(), "experts": None}
    modules = {name: each.model_copy(update=update) for name, each in spec.modules.items()}
    alone = spec.model_copy(update={"modules": modules})
    total, saving = 0, spec.saving or CheckpointSpec()
    for name, module in modules.items():
        rules = spec.optimizer.rules(module.optimizer)
        stage = Stage(name, 0, 0, module.model.layers, is_first=True, is_last=True)
        weights = [each for each in stage_weights(alone, stage, 0).all() if not each.packed]
        trained = [each for each in weights if each.trains]
        leaves_out = not saving.frozen_weights and module.init_from is not None
        for each in trained if leaves_out else weights:
            held = spec.train.numbers.held(trains=each.trains, ndim=len(each.shape))
            total += each.numel * held.bytes
        states = sum(_state(rules, each) * each.numel for each in trained)
        total += states * spec.train.numbers.stored.bytes
    return total


def _state(rules: tuple[UpdateRule, ...], weight: Parameter) -> int:
    """Return how many tensors like a weight its optimizer keeps."""
    return len(rule_for(rules, is_matrix=weight.matrix).state)
