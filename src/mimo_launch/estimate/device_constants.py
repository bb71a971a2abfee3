"""The rates and sizes of a device: every constant of the estimates, in one table.

Decides: names, units, defaults and sources of the constants; the form of a calibration file.
Relies on: `kernel_table` for rates that depend on sizes.
Leaves: the formulas to `cost_model` and its siblings, measuring to `mimo-launch bench --calibrate`.

Only `peak` is from a data sheet. GB and GB/s are powers of ten.
"""

import json
from dataclasses import Field, field, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import bytes_text
from mimo_launch.estimate.kernel_table import KernelTable, table_of
from mimo_launch.spec.files import read_json
from mimo_launch.spec.near_words import did_you_mean
from mimo_launch.spec.sections import NodesSpec
from mimo_launch.spec.values import GPUS, MEASURED, Precision, network_bandwidth
from mimo_launch.spec.wording import found

VERSION = 2
# Constants of files of version 1.
ROUGH_RATES = frozenset(
    f"{name}_{what}"
    for name in ("language", "vision")
    for what in ("linear", "attention", "fp8_speed")
) | {"mamba", "deltanet", "experts", "head", "matmul"}

_HOST = "measured with topologies/bench/kernels.yaml on one H200"
_SHEET = "ratio of peaks in NVIDIA's H200 data sheet, not measured"
_OPEN = "assumed; not measured yet"
_NCCL = "of NCCL's own model (src/graph/tuning.cc); not measured here"
_READING = (
    "CPU of one thread: 1.6 ms for chats of 523 tokens on an Intel Xeon beside H200; on another "
    "processor 2.5 us a token where a chat took 2.3 ms, and 0.38 ms for a tiny image"
)
_EPYC = "one core of an AMD EPYC of 2023 at 2.6 GHz, Python 3.11 (docs/profiles.md)"


# Separates the name of a device from the part of its memory that a spec gives a rank.
_LIMIT = " limited to "


@cache
def _shipped() -> KernelTable:
    """Return the table of the package, of the GPU `MEASURED`."""
    text = resources.files(__package__).joinpath("kernels_h200.json").read_text(encoding="utf-8")
    return table_of(json.loads(text))


class CalibrationError(ValueError):
    """A calibration file cannot be used; the message says which one, and why."""


def _constant(default: float, unit: str, meaning: str, source: str) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning, "source": source})


@frozen(kw_only=True)
class Calibration:
    """The constants of one kind of device; the defaults are for an H200 with NVLink.

    `kernels` has the rates of its kernels by size, in bf16.
    """

    device: str = "NVIDIA H200"
    date: str = ""

    kernels: KernelTable = field(default_factory=_shipped, hash=False)

    peak: float = _constant(
        989.0, "TFLOP/s", "what `bench` gives MFU as a share of", "NVIDIA's H200 data sheet, dense"
    )
    sustained: float = _constant(
        0.95,
        "x alone",
        "rate of kernels in a step, at the power limit of a GPU, against the same kernels alone",
        "kernels in a profile of a step of topologies/bench/r1_colocated_dp4.yaml (3.68 s) against "
        "`kernels` and passes (3.50 s)",
    )
    fp32_speed: float = _constant(67 / 989, "x bf16", "matmul rate in fp32", _SHEET)
    fp64_speed: float = _constant(67 / 989, "x bf16", "matmul rate in fp64", _SHEET)

    memory_bandwidth: float = _constant(
        4300.0, "GB/s", "reads and writes of a device's own memory", "measured on one H200"
    )
    host_bandwidth: float = _constant(
        50.0, "GB/s", "copies between a GPU and pinned memory of its host", f"PCIe 5.0; {_OPEN}"
    )
    collective_bandwidth: float = _constant(
        312.0, "GB/s", "bus bandwidth of collectives in a host", "all-gather on 4 H200, NVLink"
    )
    p2p_bandwidth: float = _constant(
        233.0, "GB/s", "between a pair of ranks in a host", "measured on 4 H200, NVLink"
    )
    network_bandwidth: float = _constant(
        50.0, "GB/s", "per rank between hosts", "400 Gbit/s per GPU, line rate; not measured"
    )
    collective_overlap: float = _constant(
        0.1,
        "x",
        "share of the exchange of weights and gradients beside computing that costs no time",
        "profiles of topologies/bench/r1_dp1_dp3.yaml with full sharding (0.14) and "
        "r1_colocated_dp4.yaml (0.03 to 0.11) on 4 H200: what exchanges add to kernels of ranks "
        "that compute, by waits and by multiprocessors that NCCL takes away, against their time "
        "alone; none on processors, which exchange with the cores that compute",
    )
    copy_overlap: float = _constant(
        0.5,
        "x",
        "share of the exchange of tokens by copies between two GPUs that costs no time",
        "steps with language tp 2 on 2 H200, with and without copies: 0.53 (ADR 0040)",
    )
    collective_latency: float = _constant(
        20.0, "us", "start of one collective, without its hops", _OPEN
    )
    hop_latency: float = _constant(
        3.4, "us", "one hop of a ring in a host, for large messages", f"protocol Simple {_NCCL}"
    )
    short_hop_latency: float = _constant(
        0.5, "us", "one hop of a ring in a host, for short messages", f"protocol LL {_NCCL}"
    )
    network_hop_latency: float = _constant(
        9.6, "us", "one hop between hosts, for large messages", f"protocol Simple {_NCCL}"
    )
    short_network_hop_latency: float = _constant(
        2.7, "us", "one hop between hosts, for short messages", f"protocol LL {_NCCL}"
    )
    p2p_latency: float = _constant(20.0, "us", "start of one transfer between ranks", _OPEN)
    action_overhead: float = _constant(
        200.0, "us", "host and launch time of one forward or backward of a stage", _OPEN
    )
    layer_overhead: float = _constant(
        2080.0,
        "us",
        "host and launch time of a pass of a plain block, mean of its forward and its backward",
        "mean of steps of small layers on five hosts with H200, 2.0, 2.3, 2.4, 1.9 and 1.8 ms; "
        "other hosts need up to 3.7 ms",
    )
    forward_share: float = _constant(
        0.6,
        "of both",
        "the part of a forward in the host's time for a block, forward and backward together",
        "profiles of steps on one host with H200: 4.0 and 2.4 ms of a talker, 4.7 and 3.0 of a "
        "pipeline, 4.3 and 3.4 with tp",
    )
    norm_starts: float = _constant(
        0.14,
        "x block",
        "the host's time for each norm beyond two: of queries and keys, or after a part",
        "mean of three: kernels of a block (71 and 58), single layers (6.7 and 4.8 ms), steps of "
        "a pipeline against steps of a talker on one host",
    )
    exchange_starts: float = _constant(
        0.07,
        "x block",
        "the same of an exchange over tp or cp inside a layer",
        "0.27 ms forward and 0.12 backward by samples of stacks, on a host that needs 2.65 a pass",
    )
    gather_starts: float = _constant(
        0.55,
        "x block",
        "the same of gathering a fully sharded unit, in a backward with its reduction",
        "9.9 ms for both passes of a block against 7.0 without, in profiles of four ranks on a "
        "host that needs 2.65 a pass",
    )
    experts_starts: float = _constant(
        2.15,
        "x block",
        "the same of a layer with experts, without its norms",
        "a layer alone on one host with H200, 10.9 ms against 4.8, and 0.3 for the FSDP unit of "
        "experts",
    )
    adapter_starts: float = _constant(
        0.02,
        "x block",
        "the same of an update of a map",
        "a step with 7 of them in each block takes 0.82 of what it took before they joined the "
        "products of their maps, when this was 0.06; a layer alone says 0.04",
    )
    recurrent_starts: float = _constant(2.0, "x block", "the same of a Mamba-2 layer", _OPEN)
    deltanet_starts: float = _constant(
        2.6,
        "x block",
        "the same of a Gated DeltaNet with kernels of fla-core",
        "24 of them, 8 layers of attention and 32 MLPs take 619 ms forward and backward in a "
        "profile of topologies/bench/qwen3_5_4b.yaml, a plain block 8.1 on the same host",
    )
    engine_starts: float = _constant(
        1.17,
        "x block",
        "the same of a block of Transformer Engine, in bf16",
        "mean of 1.28 and 1.05 on two hosts with H200, topologies/bench/kernels.yaml",
    )
    fp8_starts: float = _constant(
        1.38,
        "x engine",
        "the same in FP8",
        "passes of 36 blocks, 3.6 ms each on one H200, against `engine_starts` on other hosts",
    )
    dynamic_starts: float = _constant(
        1.0,
        "x block",
        "the same where the number of tokens changes from forward to forward",
        "1.04 for small layers on one host; 1.56 on another, which steps there do not show",
    )
    compiling: float = _constant(
        8.0,
        "s",
        "compiling and tuning the kernels of a kind of layer, in the first steps of a first run",
        "the first two steps of Qwen3-VL-4B on an H200, two kinds of layers; 2.5 in later runs",
    )
    step_overhead: float = _constant(
        18.5, "ms", "what a step takes besides: clearing, norm, metrics, next batch", _HOST
    )

    record_overhead: float = _constant(
        0.8, "us", "Python of every rank for each record of a step: its facts, dealt out", _EPYC
    )
    packing_overhead: float = _constant(
        0.6, "us", "the same for packing it, with `packing: true`", _EPYC
    )
    text_overhead: float = _constant(
        1000.0, "us", "Python of a rank for each text that it reads, without its tokens", _READING
    )
    token_overhead: float = _constant(1.1, "us", "the same for each token of a text", _READING)
    array_overhead: float = _constant(
        400.0, "us", "the same for each image or clip; decoding itself needs no Python", _READING
    )
    agreement_latency: float = _constant(
        40.0, "us", "one of the 2 (ranks - 1) hops in which hosts agree on unreadable data", _OPEN
    )
    import_time: float = _constant(
        10.0, "s", "processes, imports and rendezvous before groups are made", _OPEN
    )
    group_time: float = _constant(
        40.0,
        "us",
        "each rank's part of making a group, in which all ranks meet: 4 requests to one store",
        "10 us of a TCPStore for a request, measured on one core of an AMD EPYC, torch 2.11",
    )
    communicator_time: float = _constant(
        0.5, "s", "first use of one NCCL communicator of a rank", _OPEN
    )
    storage_bandwidth: float = _constant(
        2.0, "GB/s", "of one host to the storage of checkpoints, in each direction", _OPEN
    )
    storage_limit: float = _constant(
        100.0, "GB/s", "of all hosts together to that storage, in each direction", _OPEN
    )
    box_overhead: float = _constant(
        25.0, "us", "Python of the first rank for each part of a tensor in a checkpoint", _EPYC
    )
    copy_bandwidth: float = _constant(
        25.0, "GB/s", "of one GPU to the memory of its host, for a checkpoint", _OPEN
    )

    context_memory: float = _constant(
        0.6, "GB", "CUDA context, kernels and library workspaces outside the allocator", _OPEN
    )
    communicator_memory: float = _constant(
        0.1, "GB", "buffers of one NCCL communicator outside the allocator", _OPEN
    )
    allocator_slack: float = _constant(
        0.03, "x allocated", "memory that the allocator reserves and cannot use", _OPEN
    )
    workspace_memory: float = _constant(
        0.1, "GB", "cuBLAS and attention workspaces inside the allocator", _OPEN
    )

    def speed(self, precision: Precision) -> float:
        """Return the rate of products in a precision, relative to bf16."""
        return 1.0 if precision.speed is None else float(getattr(self, precision.speed))

    def peak_in(self, precision: Precision) -> float:
        """Return the peak in a precision, in TFLOP/s."""
        return self.peak * self.speed(precision)

    def seconds_of(self, kernel: str, amount: float, *sizes: float) -> float:
        """Return the seconds of a kernel in a step; see `KernelTable.seconds`."""
        return self.kernels.seconds(kernel, amount, *sizes) / self.sustained

    @property
    def without_reading(self) -> "Calibration":
        """The constants for steps with samples that are in memory already."""
        return replace(self, text_overhead=0.0, token_overhead=0.0, array_overhead=0.0)

    @property
    def rated_device(self) -> str:
        """The device of these rates, without the limit on its memory."""
        return self.device.partition(_LIMIT)[0]

    def dump(self, path: str | Path) -> None:
        """Write a calibration file that `load` reads.

        Raises: OSError if the file cannot be written.
        """
        head = {"version": VERSION, "device": self.device, "date": self.date}
        values = {each.name: getattr(self, each.name) for each in constants()}
        # A line for each constant, and for each key of a kernel.
        texts = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        texts += [f'"constants": {json.dumps(values, indent=2)}']
        texts += [f'"kernels": {self.kernels.dumped()}']
        Path(path).write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")


def constants_for(nodes: NodesSpec | None, given: Calibration | None = None) -> Calibration:
    """Return the constants of the GPUs and network that a spec names; `given` takes precedence.

    Rates of kernels, memory and links are measured on an H200 and scaled by the ratio of the data
    sheets.
    """
    if given is not None or nodes is None:
        return given or Calibration()
    made = Calibration()
    measured = GPUS[MEASURED]
    if nodes.gpu is not None:
        gpu = GPUS[nodes.gpu]
        compute, memory, links = (
            gpu.bf16 / measured.bf16,
            gpu.memory_bandwidth / measured.memory_bandwidth,
            gpu.links / measured.links,
        )
        values: dict[str, Any] = {
            "peak": made.peak * compute,
            "memory_bandwidth": made.memory_bandwidth * memory,
            "host_bandwidth": made.host_bandwidth * gpu.host_link / measured.host_link,
            "collective_bandwidth": made.collective_bandwidth * links,
            "p2p_bandwidth": made.p2p_bandwidth * links,
            "fp32_speed": gpu.fp32 / gpu.bf16,
            "fp64_speed": gpu.fp64 / gpu.bf16,
        }
        if nodes.gpu != MEASURED:
            kernels = made.kernels.scaled(gpu.name, compute=compute, memory=memory)
            made = replace(made, kernels=kernels)
        is_part = nodes.memory is not None and nodes.memory < 0.9 * gpu.memory
        limit = f"{_LIMIT}{bytes_text(nodes.memory)}" if nodes.memory and is_part else ""
        made = replace(made, device=f"{gpu.name}{limit}", **values)
    elif nodes.memory is not None and not 0.9 < nodes.memory / measured.memory < 1.1:
        made = replace(
            made, device=f"GPUs of {bytes_text(nodes.memory)} with the rates of an {made.device}"
        )
    if nodes.network is not None:
        made = replace(made, network_bandwidth=network_bandwidth(nodes.network))
    return made


def constants() -> tuple[Field[Any], ...]:
    """Return the fields that are constants; `metadata` holds `unit`, `meaning` and `source`."""
    return tuple(each for each in fields(Calibration) if each.metadata)


def load(path: str | Path) -> Calibration:
    """Return the calibration of a file; constants that it does not name keep their defaults.

    Raises: CalibrationError if the file cannot be read or holds anything unknown.
    """
    try:
        data = read_json(path)
    except OSError as error:
        raise CalibrationError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise CalibrationError(f"{path} is not JSON: {error}") from None
    try:
        return _calibration(data)
    except ValueError as error:
        raise CalibrationError(f"{path}: {error}") from None


def _calibration(data: Any) -> Calibration:
    if not isinstance(data, dict):
        raise ValueError(f"a calibration is a JSON object, not {found(data)}")
    if data.get("version") not in (1, VERSION):
        raise ValueError(f"`version` is {found(data.get('version'))}, and this reads {VERSION}")
    _only_known(data, ("version", "device", "date", "constants", "kernels"))
    for key in ("device", "date"):
        if not isinstance(data.get(key, ""), str):
            raise ValueError(f"`{key}` is {found(data[key])}; it must be text")
    values = data.get("constants", {})
    if not isinstance(values, dict):
        raise ValueError(f"`constants` is {found(values)}; it must be an object")
    known = {each.name: each for each in constants()}
    for name in ROUGH_RATES & values.keys():
        raise ValueError(
            f"`{name}` is one rate for all sizes, which estimates no longer use: they need "
            "`kernels`, which `bench --calibrate` measures"
        )
    _only_known(values, known)
    for name, value in values.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # Also rejects NaN, which JSON in Python may hold.
        if not is_number or not 0 <= value < float("inf"):
            raise ValueError(f"`{name}` is {found(value)}; it must be a finite number >= 0")
        if value == 0 and known[name].metadata["unit"].endswith(("/s", " bf16", " alone")):
            raise ValueError(f"`{name}` is 0 {known[name].metadata['unit']}: it divides")
    changes: dict[str, Any] = {key: data[key] for key in ("device", "date") if key in data}
    changes |= {name: float(value) for name, value in values.items()}
    made = replace(Calibration(), **changes)
    if "kernels" not in data:
        return made
    return replace(made, kernels=table_of(data["kernels"]).over(made.kernels))


def _only_known(values: dict[str, Any], known: Any) -> None:
    for key in values:
        if key not in known:
            guess = did_you_mean(str(key), known) or f"known are {', '.join(known)}"
            raise ValueError(f"`{key}` is not known here; {guess}")
