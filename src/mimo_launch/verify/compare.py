"""Judges a layout's tensors against the oracle's.

Decides: when two tensors agree, and when agreement proves too little.
Relies on: the parts of canonical tensors that ranks hold, as checkpoints take them; every copy
of a part counts.
Leaves: printing to `cli.verify`.

Two tensors agree if ||a - b|| <= t * max(||b||, f * ||all tensors of the module||): in float64 t is
1e-10 and f 1e-6, in float32 both are 1e-3 (see `BOUNDS`). The second term is the floor: relative
errors below it would be noise. A tensor is too small to be judged if an error of 1 % of it would
pass; it is a failure if these are more than 5 % of a module's tensors over all steps. Two kinds of
tensors do not count. The exact gradient of an encoder's key bias is zero, because a softmax does
not change when all scores shift (unless rotary embeddings come between, as in the decoder and some
encoders). Other gradients that are exactly zero may hold only rounding: of an expert with no token
that reaches a loss, of an output layer if its loss does not count, of a talker's map of rows of
images if it reads none, and of a whole module if no row of a step reaches a loss.

AdamW's first moment is a running sum of gradients, which may cancel, and its rounding error is as
large as that of the gradients. There ||b|| is computed as if none cancelled, from absolute values.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mimo_launch.checkpoint.boxes import resharded_parameters
from mimo_launch.layers.parameter_segments import DeclaredParameter, local_segments
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec, TalkerModel
from mimo_launch.train.rank_session import RankSession


@dataclass(frozen=True, slots=True)
class Bound:
    """The limits within which tensors count as equal: see the module's docstring.

    `zero_floor` is the floor for tensors that are zero in exact arithmetic. They differ by the
    rounding of terms that cancel, which are as large as other terms of the module. A module counts
    as zero in exact arithmetic if its tensors are at most `rounding` times the tensors of all.
    """

    tolerance: float
    floor: float
    zero_floor: float
    rounding: float = 1e-15


EXACT = Bound(1e-10, 1e-6, 1e-3)
# AdamW divides by the size of a gradient, or by `eps` if that is zero: then noise moves a weight.
TRAINED = Bound(1e-10, 1e-6, 1.0)
# Images are fp32 numbers; codes are either equal or not.
MADE = Bound(1e-6, 0.0, 0.0)
BOUNDS = {"fp64": EXACT, "fp32": Bound(1e-3, 1e-3, 1e-1, 1e-6)}
MAX_FLOOR_SHARE = 0.05
# An error of this part of a tensor must not pass.
PART = 0.01
EXEMPT_SUFFIX = ".attention.k.bias"
EXPERTS = ".experts."
STATES = ".project.states."


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """The part of a canonical tensor on one rank: a box of it, which starts at `offsets`."""

    name: str
    offsets: tuple[int, ...]
    values: Tensor


@dataclass(slots=True)
class ModuleVerdict:
    """Result for one kind of tensor (gradients, weights) of one module.

    `unread` names the tensors of a talker's map of rows of images and clips that read none.
    """

    module: str
    what: str
    tensors: int = 0
    worst: float = 0.0
    worst_name: str = ""
    judged: int = 0
    by_floor: int = 0
    unread: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every tensor agrees."""
        return not self.failures


def compare_tensors(
    what: str,
    modules: Iterable[str],
    got: Iterable[TensorPiece],
    want: Mapping[str, Tensor],
    bound: Bound = EXACT,
    unused: Collection[str] = (),
    summed: Mapping[str, Tensor] | None = None,
) -> list[ModuleVerdict]:
    """Return a verdict per module over all tensors of `want` and `got`.

    Tensors of `unused` parameters must be zero, apart from rounding. Where the terms of a tensor
    may cancel, `summed` holds the sums of their absolute values.
    """
    sizes = {name: float(tensor.norm()) for name, tensor in (summed or want).items()}
    pieces: dict[str, list[TensorPiece]] = {}
    for piece in got:
        pieces.setdefault(piece.name, []).append(piece)
    judge = _Judge(bound, bound.rounding * norm_of(want.values()), unused, sizes)
    return [
        judge.module(
            ModuleVerdict(module, what),
            {n: p for n, p in pieces.items() if n.startswith(f"{module}.")},
            {n: t for n, t in want.items() if n.startswith(f"{module}.")},
        )
        for module in modules
    ]


def unused_heads(spec: Spec, right: Mapping[str, Tensor]) -> list[str]:
    """Return the tensors of an output layer that no loss reads.

    A user's loss may read states alone: then the oracle's tensors are zero.
    """
    heads = [name for name in right if name.startswith(("language.head.", "language.mtp."))]
    if spec.language.loss is not None:
        return [name for name in heads if not right[name].any()]
    return [] if spec.language.loss_weight > 0 else heads


def unused_states(spec: Spec, right: Mapping[str, Tensor]) -> list[str]:
    """Return the tensors of a talker's own map of rows of images and clips, if it reads none.

    The places that it reads may all hold text: then the oracle's tensors are zero.
    """
    talkers = tuple(
        f"{name}{STATES}"
        for name, module in spec.generators.items()
        if isinstance(module.model, TalkerModel) and module.model.maps_text_apart
    )
    return [name for name in right if name.startswith(talkers) and not right[name].any()]


def norm_of(tensors: Iterable[Tensor]) -> float:
    """Return the norm of several tensors together."""
    return math.sqrt(float(sum(tensor.double().square().sum() for tensor in tensors)))


def compare_numbers(
    what: str, module: str, got: float, want: float, bound: Bound = EXACT, *, largest: float = 0.0
) -> ModuleVerdict:
    """Return a verdict over one number (a loss, a norm); `largest` sets the scale of rounding."""
    verdict = ModuleVerdict(module, what, tensors=1, worst_name=what)
    if got != want and not abs(got - want) <= bound.rounding * largest:
        verdict.worst = abs(got - want) / max(abs(want), 1e-300)
    if not verdict.worst <= bound.tolerance:
        verdict.failures.append(f"{module} {what}: {got!r}, oracle {want!r}")
    return verdict


@dataclass(frozen=True, slots=True)
class _Judge:
    """Compares tensors within a bound; `sizes` are the norms to which errors are relative.

    Differences of at most `rounding` are noise in tensors that are zero, such as `unused` ones.
    """

    bound: Bound
    rounding: float
    unused: Collection[str]
    sizes: Mapping[str, float]

    def module(
        self, verdict: ModuleVerdict, got: dict[str, list[TensorPiece]], want: dict[str, Tensor]
    ) -> ModuleVerdict:
        """Return the verdict with the tensors of one module."""
        bound, rounding = self.bound, self.rounding
        module_norm = norm_of(want.values())
        verdict.failures += [f"{name}: only in the layout" for name in sorted(got.keys() - want)]
        for name, full in want.items():
            if name not in got:
                verdict.failures.append(f"{name}: only in the oracle")
                continue
            verdict.tensors += 1
            difference, norm = _difference(got[name], full), self.sizes[name]
            is_unused = norm == 0 and (EXPERTS in name or name in self.unused)
            if is_unused and STATES in name:
                verdict.unread.append(name)
            if (is_unused or module_norm <= rounding) and difference <= rounding:
                continue
            # Where nothing rotates, a bias of keys adds the same to all scores of a query.
            is_zero = name.endswith(EXEMPT_SUFFIX) and (
                verdict.module != LANGUAGE or norm <= bound.tolerance * module_norm
            )
            floor = bound.zero_floor if is_zero else 0.0 if is_unused else bound.floor
            scale = max(norm, floor * module_norm)
            error = 0.0 if difference == 0 else difference / scale if scale else float("inf")
            if not error <= verdict.worst:
                verdict.worst, verdict.worst_name = error, name
            if not error <= bound.tolerance:
                to = ", to the floor" if norm < scale else ""
                verdict.failures.append(f"{name}: relative error {error:.1e}{to}")
            if not is_zero and not is_unused:
                verdict.judged += 1
                verdict.by_floor += bound.tolerance * scale > PART * norm
        return verdict


def merge(verdicts: Iterable[ModuleVerdict]) -> list[ModuleVerdict]:
    """Return one verdict per module and kind of tensor over all steps.

    This is also where it becomes a failure if the floor decides for too many tensors.
    """
    merged: dict[tuple[str, str], ModuleVerdict] = {}
    for verdict in verdicts:
        key = verdict.module, verdict.what
        into = merged.setdefault(key, ModuleVerdict(*key, unread=verdict.unread))
        into.unread = [name for name in into.unread if name in verdict.unread]
        into.tensors += verdict.tensors
        into.judged += verdict.judged
        into.by_floor += verdict.by_floor
        into.failures += verdict.failures
        if not verdict.worst <= into.worst:
            into.worst, into.worst_name = verdict.worst, verdict.worst_name
    for verdict in merged.values():
        if verdict.by_floor > MAX_FLOOR_SHARE * verdict.judged:
            small = f"{verdict.by_floor} of {verdict.judged} tensors are too small to be judged"
            verdict.failures.append(small)
    return list(merged.values())


def _difference(pieces: list[TensorPiece], full: Tensor) -> float:
    """Return ||a - b||, with the worst copy of each part; infinity if a part is missing."""
    worst: dict[tuple[tuple[int, int], ...], float] = {}
    covered = torch.zeros(full.shape, dtype=torch.bool)
    for piece in pieces:
        box = tuple(zip(piece.offsets, piece.values.shape, strict=True))
        places = tuple(slice(start, start + length) for start, length in box)
        want = full[places]
        if want.shape != piece.values.shape:
            return float("inf")
        square = float((piece.values - want).square().sum())
        if math.isnan(square):
            return float("inf")
        worst[box] = max(worst.get(box, 0.0), square)
        covered[places] = True
    return float(sum(worst.values())) ** 0.5 if bool(covered.all()) else float("inf")


def pieces_of(
    session: RankSession, tensor_of: Callable[[Tensor], Tensor | None]
) -> list[TensorPiece]:
    """Return this rank's parts of a tensor for each parameter that has one.

    `tensor_of` returns it, sharded like the parameter.
    """
    pieces: list[TensorPiece] = []
    for name, module in session.modules.items():
        # A frozen module has no backward to free the weights that its forward gathers.
        frozen = module.layout.frozen
        declared = resharded_parameters(module) if frozen else session.declared(name)
        pieces += local_pieces(declared, tensor_of)
    return pieces


def local_pieces(
    declared: Iterable[DeclaredParameter], tensor_of: Callable[[Tensor], Tensor | None]
) -> Iterator[TensorPiece]:
    """Yield this rank's parts of a tensor of some parameters, each a copy on the CPU."""
    for item in local_segments(declared, tensor_of):
        # Copy, because the update writes into gradients and weights.
        values = item.segment.unpacked(item.local.detach()).to("cpu", copy=True)
        yield TensorPiece(item.name, item.offsets, values)
