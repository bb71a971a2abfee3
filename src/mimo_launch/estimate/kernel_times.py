"""Seconds of the kernels of a stage: of a forward, a backward, and a forward that is repeated.

Decides: which kernels a layer needs, at which sizes: products from its weights, attention and
recurrences from its widths, passes over memory from the tensors that lie between them.
Relies on: `kinds` for shapes and widths, `kernel_table` for rates, `memory` for these tensors.
Leaves: exchanges between ranks and the time of the host to `cost_model`.

A forward of a tensor between products writes it and reads it, and some are read twice. Passes in
fp32, with sums for gradients of biases, or with much to compute, take longer than the bytes say. In
profiles of single layers (docs/profiles.md) a forward took as long as moving 2.5 times its
tensors, a backward as 4.2 times.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.activations import Activations
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.fp8_times import fp8_seconds
from mimo_launch.estimate.parameters import layer_parameters
from mimo_launch.estimate.workload import BackwardPath, backward_path, mask_of_sequences
from mimo_launch.kinds.adapters import adapter_of
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.block_shapes import parts_of
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.language import CausalKind
from mimo_launch.kinds.layer import LayerKind, Widths, Workload, even_cut
from mimo_launch.kinds.registry import kind_of, layer_of
from mimo_launch.kinds.vocabulary import ends_of
from mimo_launch.kinds.weights import Parameter, Share, parameters
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.stages import Stage
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import ExpertGrid, ModuleSpec, Spec

_FORWARD, _BACKWARD = 2.5, 4.2
# The update of a map writes its output, scales it, and adds it to that of the map; its backward
# scales the gradient, and adds to that of the input. So often is each read or written.
_OUTPUT, _GRADIENT, _INPUT = 6, 2, 4
# Bytes of a score, its weight, the numbers drawn for it and what stays, written and read.
_SCORES = 64
_MEGA = 1e6


# Not frozen: a plan with many microbatches makes 100,000 of them, in a third of the time.
@dataclass(slots=True)
class Seconds:
    """Seconds of a forward; of the gradients of its inputs, and of its weights."""

    forward: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0

    def __add__(self, other: "Seconds") -> "Seconds":
        """Return the seconds of both."""
        return Seconds(
            self.forward + other.forward, self.inputs + other.inputs, self.weights + other.weights
        )

    def times(self, number: float) -> "Seconds":
        """Return the seconds of several."""
        return Seconds(number * self.forward, number * self.inputs, number * self.weights)


@frozen
class Shared:
    """Seconds of the kernels of one stage that its forwards share.

    `products` are those of a layer by the number of its tokens; `ends` and `moved` are by the sizes
    of the work.
    """

    products: dict[tuple[int, int], Seconds] = field(default_factory=dict)
    ends: dict[Hashable, tuple[Seconds, Seconds, Seconds]] = field(default_factory=dict)
    moved: dict[Hashable, float] = field(default_factory=dict)


@frozen(slots=False)
class StageKernels:
    """The kernels of one stage in one forward with this work, on the tp rank with most of it."""

    spec: Spec
    layout: Layout
    module: ModuleLayout
    stage: Stage
    work: Workload
    constants: Calibration
    shared: Shared | None = None
    known: dict[tuple[int, ...], Seconds] = field(default_factory=dict, init=False)

    def forward(self) -> float:
        """Return the seconds of one forward."""
        return self.layers(self.numbers).forward + sum(each.forward for each in self.ends)

    def repeated(self) -> float:
        """Return the seconds of a forward that is run again before the backward."""
        if self._written.recompute == "none":
            return 0.0
        if self._written.recomputes:
            return self.layers(self._path.layers).forward
        parts, total = self._written.recomputed_parts, Seconds()
        adapter = adapter_of(self._written)
        alike = _alike(self._written, self._path.layers, self._share)
        for number, times, _ in alike:
            for part, name, shape in parts_of(layer_of(self._written.model, number)):
                if part in parts:
                    own = None if adapter is None else adapter.of_layer(number)
                    base = self._written.quantize_base
                    held = parameters(shape, self._share, own and own.inside(name), base)
                    between = self._between(number) if part == "attention" else Seconds()
                    total += sum(self._products(held), between).times(times)
        moved = self._moved({number: times for number, times, _ in alike}, again=True)
        return total.forward + _FORWARD * moved

    def backward(self) -> float:
        """Return the seconds of one backward, without a repeated forward.

        A frozen module has only gradients of inputs, and only if it reads modules that train.
        """
        if not needs_backward(self.layout, self.module, self.stage.index):
            return 0.0
        before, after, projector = self.ends
        written, path = self._written, self._path
        total = projector.inputs + written.projector_trains * projector.weights
        if path.after:
            total += after.inputs + written.body_trains * after.weights
        if path.before:
            total += before.inputs + written.layer_trains(0) * before.weights
        return total + self.layers(path.layers).inputs + self.layers(path.trained).weights

    def layers(self, numbers: tuple[int, ...]) -> Seconds:
        """Return the seconds of some layers of the stage; equal ones are counted together."""
        if numbers not in self.known:
            self.known[numbers] = self._layers(numbers)
        return self.known[numbers]

    def _layers(self, numbers: tuple[int, ...]) -> Seconds:
        kind, total, products = self._kind, Seconds(), self._shared.products
        alike = _alike(self._written, numbers, self._share)
        for number, times, held in alike:
            key = number, self._tokens
            if key not in products:
                products[key] = sum(self._products(held), Seconds())
            total += (products[key] + self._between(number)).times(times)
            total += self._dropped(number, held).times(times)
        if kind.is_custom:
            ends = ends_of(self.spec, self.module.name, is_first=False, is_last=False)
            flops = sum(f.linear for f in kind.forward_flops(numbers, ends, self.work).values())
            total += self._product(flops / self._parts, self._tokens, self._width, self._width)
        moved = self._moved({number: times for number, times, _ in alike})
        return total + Seconds(_FORWARD * moved, _BACKWARD * moved)

    @cached_property
    def _shared(self) -> Shared:
        return Shared() if self.shared is None else self.shared

    @cached_property
    def _sizes(self) -> Hashable:
        return sizes_of(self.layout, self.module, self.work)

    def _moved(self, numbers: Mapping[int, int], *, again: bool = False) -> float:
        """Return the seconds to move once what layers make; see `Activations.made`."""
        key, moved = (tuple(numbers.items()), again, self._sizes), self._shared.moved
        if key not in moved:
            size = self._made_bytes(numbers, again=again)
            moved[key] = self._pass(size, self._tokens * self._width * self._number)
        return moved[key]

    def _made_bytes(self, numbers: Mapping[int, int], *, again: bool) -> int:
        place = self.spec, self.layout, self.module, self.stage, self.work, self._tp - 1
        return Activations(*place).made(numbers, again=again)

    @property
    def ends(self) -> tuple[Seconds, Seconds, Seconds]:
        """The seconds around the layers: of what is before them, of a head, of a projector."""
        ends = self._shared.ends
        if self._sizes not in ends:
            ends[self._sizes] = self._at_ends()
        return ends[self._sizes]

    def _at_ends(self) -> tuple[Seconds, Seconds, Seconds]:
        kind, width, stage = self._kind, self._width, self.stage
        ends = ends_of(self.spec, self.module.name, is_first=stage.is_first, is_last=stage.is_last)
        flops = kind.end_flops(ends, self.work)
        words = len(even_cut(ends.vocab, self._tp, self._tp - 1))
        before = self._product(flops.patch / self._sharing, self._tokens, width, width)
        outputs = words if kind.reads_tokens else width
        is_cut = kind.reads_tokens or kind.codes is not None
        parts = self._parts if is_cut else self._sharing
        after = self._product(flops.head / parts, self._tokens, width, outputs)
        if flops.head and kind.reads_tokens:
            logits = float(self._tokens * (1 + kind.depths) * words)
            # The gradient is made in the forward; the backward scales it.
            loss = self.constants.seconds_of("loss", logits, logits / _MEGA)
            after += Seconds(2 / 3 * loss, 1 / 3 * loss)
        rows = max(1.0, self.work.rows / self.module.grid.size(Axis.CP))
        products = (flops.projector - flops.whole) / self._parts + flops.whole / self._sharing
        projector = self._product(products, rows, width, ends.row_width)
        return before, after, projector

    def _products(self, held: Iterable[Parameter]) -> Iterator[Seconds]:
        """Yield the products of one layer with its weights."""
        for weight in held:
            if weight.role != "adapter" and not weight.matrix:
                continue
            if weight.experts:
                one = self._experts(weight)
            else:
                outputs, inputs = weight.shape
                shares = weight.whole and weight.role != "adapter"
                tokens = self._tokens // (self._between_regions if shares else 1)
                one = self._linear(tokens, inputs, outputs)
            if weight.role == "adapter":
                # It trains, whether or not the weights beside it do.
                yield Seconds(one.forward, one.inputs + one.weights) + self._added(weight)
            else:
                yield one + self._unpacked(weight)

    def _linear(self, tokens: int, inputs: int, outputs: int) -> Seconds:
        """Return the seconds of the products of a linear layer of a block. FP8 has no adapters."""
        fp8 = self._written.fp8
        if fp8 is None:
            return self._product(2.0 * tokens * inputs * outputs, tokens, inputs, outputs)
        return Seconds(*fp8_seconds(self.constants, fp8.rule, tokens, inputs, outputs))

    def _product(self, flops: float, rows: float, inputs: int, outputs: int) -> Seconds:
        """Return the seconds of products of rows and a matrix."""
        names = ("product", "product, gradient of inputs", "product, gradient of weights")
        speed = self.constants.speed(self.spec.train.numbers)
        return Seconds(
            *(
                self.constants.seconds_of(name, flops, rows, inputs, outputs) / speed
                for name in names
            )
        )

    def _added(self, weight: Parameter) -> Seconds:
        """Return the seconds of the passes that add the update of a map, for one of its matrices.

        The first has the width of the map's input, the second that of its output. Those of experts
        are not counted.
        """
        if weight.experts:
            return Seconds()
        wide, is_first = max(weight.shape), weight.shape[0] < weight.shape[1]
        rows = self._tokens * self._number * wide
        forward, backward = (0, _INPUT) if is_first else (_OUTPUT, _GRADIENT)
        return Seconds(self._pass(forward * rows, rows), self._pass(backward * rows, rows))

    def _unpacked(self, weight: Parameter) -> Seconds:
        """Return the seconds that dequantizing a packed map takes, forward and backward."""
        if weight.packed is None:
            return Seconds()
        made = weight.numel * self._number
        # NF4 has one kernel; other kinds are cast to fp32, scaled, and cast to the computed type.
        between = 0 if weight.packed.kind == "nf4" else 4 * 4 * weight.numel
        once = self._pass(3 * weight.bytes(self._number) + between + made, made)
        return Seconds(once, once)

    def _experts(self, weight: Parameter) -> Seconds:
        """Return the seconds of the experts of a rank, with balanced loads."""
        moe, experts = self._kind.moe, self.module.experts
        if moe is None:
            raise ValueError(f"{self.module.name} has weights of experts and no experts")
        split = 1 if experts is None else experts.size(Axis.EXPERT_TP)
        own = len(even_cut(moe.experts, self._share.ep, self._share.ep_index))
        outputs, inputs = weight.shape[0] // own, weight.shape[1]
        # A rank gets as many tokens as it sends, and those of the ranks that split its experts.
        rows = moe.top_k * self._tokens / self._tp * split / own
        flops = 2.0 * rows * own * inputs * outputs
        forward, backward = self._both_ways("grouped product", flops, rows, inputs, outputs)
        return Seconds(forward, backward / 2, backward / 2)

    def _both_ways(self, name: str, flops: float, *sizes: float) -> tuple[float, float]:
        """Return the seconds of a kernel forward, and backward with twice the work."""
        forward = self._seconds(f"{name} forward", flops, *sizes)
        return forward, self._seconds(f"{name} backward", 2 * flops, *sizes)

    def _seconds(self, name: str, flops: float, *sizes: float) -> float:
        """Return the seconds of a kernel in the numbers of the module."""
        speed = self.constants.speed(self.spec.train.numbers)
        return self.constants.seconds_of(name, flops, *sizes) / speed

    def _between(self, number: int) -> Seconds:
        """Return the seconds of attention or of a recurrence in a layer."""
        kind, work = self._kind, self.work
        widths, total = kind.layer_widths(number), Seconds()
        if widths.scored and work.tokens:
            pairs = kind.pairs(number, work)
            flops = 2.0 * pairs * widths.scored / self._parts
            length = pairs / work.tokens * (2 if isinstance(kind, CausalKind) else 1)
            calls = self._calls(number, length)
            for mask, share, keys, both in calls:
                name, own = f"{mask} attention", share * flops
                forward = self._seconds(f"{name} forward", own, keys, widths.unit)
                backward = self._seconds(f"{name} backward", 2 * own, both, widths.unit)
                total += Seconds(forward, backward)
            total += self._merged(widths) if len(calls) > 1 else Seconds()
        if widths.between:
            layer, flops = kind.layer_kind(number), widths.between * work.tokens / self._parts
            forward, backward = self._both_ways(layer.value, flops, self._tokens)
            total += Seconds(forward, backward)
            if layer is LayerKind.DELTANET:
                channels = self._kind.layer_widths(number)
                numbers = (channels.query + 2 * channels.key) * work.tokens / self._parts
                seconds_of = self.constants.seconds_of
                ahead = seconds_of("convolution forward", numbers, self._tokens)
                back = seconds_of("convolution backward", 2 * numbers, self._tokens)
                # Its backward runs both again, unless they run again with more of the layer. Rates
                # of `mamba` are with their convolution.
                again = 0.0 if self._written.recomputes_mixers else forward + ahead
                total += Seconds(ahead, again + back)
        return total

    def _dropped(self, number: int, held: Iterable[Parameter]) -> Seconds:
        """Return the seconds of the passes that drop numbers of a layer, or weights of attention.

        Attention by scores writes and reads those of all pairs, later tokens included.
        """
        own, numbers, pairs = self._written, 0.0, 0.0
        if own.dropout:
            numbers += 2 * self._tokens * self._width
        if own.adapter is not None and own.adapter.dropout:
            # Of both matrices of an update, the first has the width of an input.
            sizes = (each.shape[1] for each in held if each.role == "adapter")
            numbers += self._tokens * sum(size for size in sizes if size != own.adapter.rank)
        heads = self._kind.layer_widths(number).scored and own.attention_dropout
        if heads and isinstance(self._kind, CausalKind):
            pairs = 2 * self._kind.pairs(number, self.work) * self._kind.model.heads / self._parts
        move = 2 * numbers * self._number
        forward = self._pass(move, numbers * self._number) if numbers else 0.0
        return Seconds(
            forward + (self._pass(_SCORES * pairs, _SCORES * pairs) if pairs else 0.0),
            forward + (2 * self._pass(_SCORES * pairs, _SCORES * pairs) if pairs else 0.0),
        )

    def _calls(self, number: int, length: float) -> list[tuple[str, float, float, float]]:
        """Return the kernels of attention of a layer, shares of its work, and lengths of each way.

        A cp rank has two chunks of a sequence: each attends to itself, and to all before it. Of
        all n chunks, both together have n - 1 before them. In a forward a block of queries goes
        over all keys. A backward has such passes for each query, and for each block of keys one
        over queries: its length is the harmonic mean of both numbers.
        """
        cp, mask = self.module.grid.size(Axis.CP), self._mask(number)
        if mask != "causal" or cp == 1:
            return [(mask, 1.0, length, length)]
        chunk = min(self.layout.seq / (2 * cp), length)
        own, earlier = chunk / length, max(chunk, (length - chunk) / 2)
        both = 2 / (1 / chunk + 1 / earlier)
        calls = [("causal", own, chunk, chunk), ("whole", 1 - own, earlier, both)]
        return [each for each in calls if each[1]]

    def _merged(self, widths: Widths) -> Seconds:
        """Return the seconds of passes over chunks of a cp rank, beside kernels of attention.

        Each chunk has two outputs, of which one is made, and chunks are joined; so are gradients of
        queries. Gradients of keys and values of whole sequences start at zero; those of each call
        are added: of two chunks themselves, and of all chunks but one (`layers.chunk_attention`).
        """
        cp, held = self.module.grid.size(Axis.CP), self._tokens * self._number
        queries = held * widths.query / self._tp
        keys = cp * held * max(widths.key / self._tp, widths.unit)
        once = self._pass((3 + 2) * queries, queries / 2)
        added = self._pass(2 * (1 + 3 * (2 * cp + 1) / (2 * cp)) * keys, keys)
        return Seconds(once, once + added)

    def _mask(self, number: int) -> str:
        """Return which kernels of attention a layer takes, as `layers.attention` does."""
        kind, work = self._kind, self.work
        cp, windows = self.module.grid.size(Axis.CP), kind.attending.in_windows(number)
        if not kind.reads_tokens:
            is_list = windows or len(work.spans) > 1 or cp > 1
            whole = "causal" if self.module.is_causal else "whole"
            return ("documents" if self.module.is_causal else "images") if is_list else whole
        found = mask_of_sequences(self.spec, self.layout, self.module, number, work)
        layer = layer_of(self._written.model, number)
        for *_, shape in parts_of(layer):
            if isinstance(shape, AttentionShape):
                found = shape.mask(found, cp)
        return found

    def _pass(self, size: float, tensor: float) -> float:
        """Return the seconds to move so many bytes, in tensors of so many."""
        return self.constants.seconds_of("pass", size, max(1.0, tensor) / _MEGA)

    @cached_property
    def _path(self) -> BackwardPath:
        return backward_path(self.spec, self.layout, self.module, self.stage)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of its layers, and of depths after them."""
        return tuple(self._kind.numbers(self.stage.layers, is_last=self.stage.is_last))

    @cached_property
    def _kind(self) -> ModelKind:
        return kind_of(self.spec.modules[self.module.name].model)

    @cached_property
    def _share(self) -> Share:
        experts = self.spec.modules[self.module.name].experts or ExpertGrid()
        return Share(self._tp, self._tp - 1, experts.ep, experts.tp)

    @property
    def _written(self) -> ModuleSpec:
        return self.spec.modules[self.module.name]

    @property
    def _tp(self) -> int:
        return self.module.grid.size(Axis.TP)

    @property
    def _parts(self) -> int:
        return self._tp * self.module.grid.size(Axis.CP)

    @property
    def _between_regions(self) -> int:
        """Number of tp ranks that share the tokens between tensor-parallel regions."""
        return self._tp if self.module.sequence_parallel else 1

    @property
    def _sharing(self) -> int:
        """Number of ranks that share the work of a map that each tp rank holds whole."""
        return self._between_regions * self.module.grid.size(Axis.CP)

    @property
    def _tokens(self) -> int:
        return max(1, self.work.held)

    @property
    def _width(self) -> int:
        return self.spec.modules[self.module.name].model.hidden

    @property
    def _number(self) -> int:
        return self.spec.train.numbers.computed.bytes


def sizes_of(layout: Layout, module: ModuleLayout, work: Workload) -> Hashable:
    """Return what all times of a forward but those of attention depend on, besides its stage.

    Over cp, what is kept of lists of documents depends on the length of each.
    """
    if module.grid.size(Axis.CP) > 1:
        return work.key
    items = work.has_documents(layout.seq) if module.is_language else work.spans.total()
    tokens = work.held, work.tokens, work.extra_tokens
    return tokens, work.rows, work.reads, items, bool(work.blocks)


@lru_cache(maxsize=256)
def _alike(
    module: ModuleSpec, numbers: tuple[int, ...], share: Share
) -> tuple[tuple[int, int, tuple[Parameter, ...]], ...]:
    """Return the first of equal layers, how many there are, and what a rank holds of one."""
    kind, bare = kind_of(module.model), module.frozen_layers
    layers = ((n, layer_of(module.model, n), kind.attending.in_windows(n)) for n in numbers)
    found = {n: (*each, n in bare) for n, *each in layers}
    times, first = Counter(found.values()), {each: n for n, each in reversed(found.items())}
    return tuple(
        (number, times[each], layer_parameters(module, number, share))
        for each, number in ((each, first[each]) for each in times)
    )
