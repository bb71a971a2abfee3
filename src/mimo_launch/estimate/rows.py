"""The estimates of a step, as frozen rows of plain values.

Decides: the list of numbers; their names are keys of `plan --json` (docs/plan-json.md).
Relies on: nothing.
Leaves: the numbers to `estimates`.
"""

from mimo_launch.diag.frozen import frozen


@frozen(kw_only=True)
class MemoryRow:
    """Bytes of a rank at its peak; the allocator holds all but `device`.

    `weights` are shards and gathered copies, `transfers` the buffers of bridges, stage edges,
    gathers and reductions. `reserve` is memory that the allocator holds and cannot use, `device`
    the CUDA context, communicators and tokens that other GPUs copy. `host` is in the memory of the
    host, none of it here.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    transfers: int
    workspace: int
    reserve: int
    device: int
    host: int = 0

    @property
    def allocated(self) -> int:
        """Bytes in tensors, as `torch.cuda.max_memory_allocated` measures them."""
        parts = (self.weights, self.gradients, self.optimizer, self.activations, self.transfers)
        return sum(parts) + self.workspace

    @property
    def parts(self) -> dict[str, int]:
        """All bytes of the device, in categories that users know."""
        names = ("weights", "gradients", "optimizer", "activations", "transfers")
        rest = self.workspace + self.reserve + self.device
        return {name: getattr(self, name) for name in names} | {"other": rest}

    @property
    def total(self) -> int:
        """All bytes of the device."""
        return self.allocated + self.reserve + self.device


@frozen(kw_only=True)
class StageEstimate:
    """One stage on one rank: its weights before sharding over dp x cp, and its work in a step.

    `tflop` counts model FLOPs; `forward_ms` and `backward_ms` are the time of one action. The
    shares of the step are the stage's part of the shares in `RankEstimate`; `reducing` may overlap
    with other work.
    """

    module: str
    stage: int
    parameters: int
    trained_parameters: int
    tflop: float
    forward_ms: float
    backward_ms: float
    communicating: float
    all_to_all: float
    sharding: float
    recomputing: float
    reducing: float
    offloading: float = 0.0


@frozen(kw_only=True)
class RankEstimate:
    """Ranks with equal estimates: memory, work and shares of the step's time.

    `memory` is the largest of the run: `fullest_rank` needs it in step `fullest_step`, from 0 on.
    `bubble` is the share of the schedule in which they do not compute. The shares of the step are
    `computing`, `waiting` (for other ranks or transfers), `reducing` (sums of gradients after the
    last backward) and `updating` (all that follows the schedule). `computing` includes
    `communicating` (exchanges with other ranks inside forwards and backwards), `recomputing`
    (forwards that run again) and `starting` (time of the host). `communicating` includes
    `all_to_all` (tokens of experts), `sharding` (weights and gradients of replicas) and
    `offloading` (activations that go to the host, or come back). `waiting` includes `reading` (for
    hosts that look up the samples of the next step).
    """

    role: tuple[str, ...]
    ranks: tuple[int, ...]
    parameters: int
    stages: tuple[StageEstimate, ...]
    memory: MemoryRow
    allocated_bytes: int
    total_bytes: int
    fullest_rank: int
    fullest_step: int
    tflop: float
    bubble: float
    computing: float
    communicating: float
    all_to_all: float
    sharding: float
    recomputing: float
    starting: float
    waiting: float
    reading: float
    reducing: float
    updating: float
    offloading: float = 0.0


@frozen(kw_only=True)
class Estimates:
    """The estimates of a step on one kind of device.

    `bubble` is the mean over ranks with work, in estimated time. `not_counted` has, by module, what
    the estimates leave out because its layers are unknown.
    """

    device: str
    gpu_memory: int | None
    step_seconds: float
    schedule_seconds: float
    tokens_per_second_per_gpu: float
    tflop: float
    tflops_per_gpu: float
    bubble: float
    not_counted: dict[str, tuple[str, ...]]
    ranks: tuple[RankEstimate, ...]
