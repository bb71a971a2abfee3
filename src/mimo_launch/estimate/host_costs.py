"""What hosts and storage take besides the work of GPUs: much of it grows with ranks and samples.

Decides: which parts are counted: Python of every rank for the samples of a step, the start of a
job, its checkpoints.
Relies on: `device_constants` for rates; the groups of the plan; `memory.checkpoint_bytes`.
Leaves: the weights that a run starts from, which are not counted; how a step waits for its hosts
to `estimates`.

Every rank packs and looks up all samples of every step and deals them out, in a thread that reads a
step ahead. It reads the texts and the arrays of its own replicas: decoding leaves Python to others,
the rest does not. In the end all ranks agree on unreadable samples: gloo passes a few numbers
around a ring of all ranks, twice. All ranks meet at one store for every group that any of them is
in. The first rank makes the index of a checkpoint alone, and every rank reads it.
"""

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.communication_times import GIGA, MICRO
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.memory import checkpoint_bytes
from mimo_launch.estimate.parameters import StageWeights
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import ModuleLayout
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.optimizers import rule_for
from mimo_launch.spec.spec import Spec


@frozen(kw_only=True)
class HostCosts:
    """Seconds and bytes; of a checkpoint None if the spec saves nothing.

    `python_seconds` is what a rank's thread takes to look up and deal out the samples of a step,
    and to read its own, `agreeing_seconds` what it then waits for all others. `start_seconds` is
    the time until all ranks have their `groups`, `compiling_seconds` what the first steps take
    longer; a rank opens at most so many `communicators`. While a checkpoint is saved, training
    waits for `stall_seconds`; `save_seconds` and `resume_seconds` are the whole.
    """

    python_seconds: float
    agreeing_seconds: float
    start_seconds: float
    compiling_seconds: float
    groups: int
    communicators: int
    checkpoint_bytes: int | None
    stall_seconds: float | None
    save_seconds: float | None
    resume_seconds: float | None


def dealing_seconds(constants: Calibration, records: float, *, packing: bool) -> float:
    """Return the seconds in which a rank looks up and deals out the records of a step.

    With `packing`, it packs them first.
    """
    each = constants.record_overhead + packing * constants.packing_overhead
    return records * each * MICRO


def reading_seconds(constants: Calibration, *, texts: float, tokens: float, arrays: float) -> float:
    """Return the seconds of Python in which a rank reads its texts, with `tokens`, and arrays."""
    text = texts * constants.text_overhead + tokens * constants.token_overhead
    return (text + arrays * constants.array_overhead) * MICRO


def agreeing_seconds(constants: Calibration, num_ranks: int) -> float:
    """Return the seconds in which all ranks agree on the samples of a step."""
    return 2 * (num_ranks - 1) * constants.agreement_latency * MICRO


def num_boxes(module: ModuleLayout, weights: StageWeights) -> int:
    """Return the parts of tensors that a rank with a stage of a module writes: of state, too.

    Weights that share a parameter count once: the shard of a rank is rarely part of several.
    """
    kept = (
        len(rule_for(module.rules, is_matrix=each.matrix).state) if each.trains else 0
        for each in weights.all()
    )
    return sum(1 + state for state in kept)


def host_costs(
    plan: Plan, constants: Calibration, *, python: float, communicators: int, boxes: int
) -> HostCosts:
    """Return the costs of a plan in which a rank needs `python` seconds for the samples of a step.

    A checkpoint has so many `boxes`, the parts that ranks write of its tensors.
    """
    world = plan.layout.world_size
    several = {group.ranks for group in plan.groups if len(group.ranks) > 1}
    # One of all ranks, one for reading, one for saving.
    groups = len(several) + len(plan.p2p_groups) + (3 if world > 1 else 0)
    meeting = groups * world * constants.group_time * MICRO
    size = stall = save = resume = None
    if (saving := plan.spec.saving) is not None:
        size, nodes = checkpoint_bytes(plan.spec), plan.spec.nodes
        hosts = -(-world // nodes.gpus) if nodes else 1
        rate = min(hosts * constants.storage_bandwidth, constants.storage_limit) * GIGA
        index = boxes * constants.box_overhead * MICRO
        resume = index + size / rate
        stall = size / world / constants.copy_bandwidth / GIGA
        # Written, and read back for its checksums.
        save = stall + index + 2 * size / rate
        if not saving.asynchronous:
            stall = save
    return HostCosts(
        python_seconds=python,
        agreeing_seconds=agreeing_seconds(constants, world),
        start_seconds=constants.import_time + meeting + communicators * constants.communicator_time,
        compiling_seconds=_kinds_of_layers(plan.spec) * constants.compiling,
        groups=groups,
        communicators=communicators,
        checkpoint_bytes=size,
        stall_seconds=stall,
        save_seconds=save,
        resume_seconds=resume,
    )


def _kinds_of_layers(spec: Spec) -> int:
    """Return how many kinds of layers are compiled, in each module for itself."""
    found = 0
    for module in spec.modules.values():
        is_exact = module.compile == "auto" and spec.train.numbers.is_exact
        if module.compile and not is_exact:
            kind = kind_of(module.model)
            found += len({kind.layer_name(number) for number in range(module.model.layers)})
    return found
