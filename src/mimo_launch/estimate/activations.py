"""The activations of one forward of one stage on one rank, in bytes.

Decides: what a forward keeps until its backward, on the GPU and on the host; the temporary tensors
of a forward, of a backward through layers and of one through the layers around them.
Relies on: `kinds` for the tensors that a layer saves, `workload` for tokens.
Leaves: weights, gradients and moments to `memory`; their sum during a step to `memory_peak`.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from math import ceil

from mimo_launch.estimate.alike_stages import alike_layers
from mimo_launch.estimate.workload import backward_path, gathered_numbers, mask_of_sequences
from mimo_launch.kinds.adapters import adapter_of
from mimo_launch.kinds.block_shapes import narrow_width
from mimo_launch.kinds.language import CausalKind, LanguageKind
from mimo_launch.kinds.layer import Workload, even_cut
from mimo_launch.kinds.module_weights import lowest_trained
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.saved_activations import (
    DROPPED_BACKWARD,
    DROPPED_FORWARD,
    MOST_SCORES,
    NORM_INPUT,
    RECOMPUTED,
    RECOMPUTED_DEPTH,
    HeldAtEnds,
    Passes,
    Saved,
    Temporary,
)
from mimo_launch.kinds.shapes import NormShape
from mimo_launch.kinds.vocabulary import ends_of
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.stages import Stage
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.spec.base import Axis
from mimo_launch.spec.layers import SlidingWindow
from mimo_launch.spec.module import ModuleSpec
from mimo_launch.spec.spec import Spec


class Activations:
    """Bytes of the activations of one forward of a stage on the ranks at tp index `tp`."""

    def __init__(
        self,
        spec: Spec,
        layout: Layout,
        module: ModuleLayout,
        stage: Stage,
        work: Workload,
        tp: int,
    ) -> None:
        self.module, self.stage, self.work = module, stage, work
        own = spec.modules[module.name]
        self.kind, self.tp = kind_of(own.model), module.grid.size(Axis.TP)
        numbers = self.kind.numbers(stage.layers, is_last=stage.is_last)
        self.numbers = tuple(numbers)
        self.adapter, self.projector_trains = adapter_of(own), own.projector_trains
        self.ends = ends_of(spec, stage.module, is_first=stage.is_first, is_last=stage.is_last)
        self.width, self.bytes = own.model.hidden, spec.train.numbers.computed.bytes
        self.tokens, self.seq = work.held, layout.seq
        self.shared_tokens = work.held // (self.tp if module.sequence_parallel else 1)
        self.words = len(even_cut(self.ends.vocab, self.tp, tp))
        self.differentiates = needs_backward(layout, module, stage.index)
        self.path = backward_path(spec, layout, module, stage)
        self.recomputes, self.parts, self.own = own.recomputes, own.recomputed_parts, own
        # By default operations between products are compiled, as on GPUs (`models.build`). The
        # kernels of Transformer Engine are assumed to keep no more.
        compiled = own.compile
        if compiled == "auto":
            compiled = not spec.train.numbers.is_exact or own.backend != "torch"
        self.drops_attention = own.attention_dropout > 0
        self.passes = Passes(
            are_compiled=compiled,
            bytes=self.bytes,
            cp=own.grid.cp,
            weights_train=own.body_trains,
            adapts=own.adapter is not None,
            reorders=work.extra_tokens > 0,
            pads=not module.is_language and work.held * own.grid.cp > work.tokens,
        )
        self.place = spec, layout, module

    @cached_property
    def first(self) -> dict[int, int]:
        """For each layer the first one that keeps the same tensors."""
        return _first_alike(self.own, self.numbers)

    @property
    def stream(self) -> int:
        """One activation between blocks or stages."""
        return self.shared_tokens * self.width * self.bytes

    @property
    def edge(self) -> int:
        """The bytes that come from the previous stage: an activation and the other lanes."""
        return self.stream * (1 + self.stage.lanes)

    def kept(self) -> int:
        """Return the bytes that stay until the backward."""
        total = self._ends() if self.differentiates else 0
        if self.path.after:
            # The output, and what came with the input of the first layer.
            last = self.stage.is_last
            sent = 0 if last else self.module.stages[self.stage.index + 1].lanes
            # The input of a later stage stays, for its gradient.
            offloads = self.own.offloads
            layers = self.stream * (not self.stage.is_first) if offloads else self.saved_by_layers()
            total += layers + self.masks() + self.stream * (1 + sent + self.stage.lanes)
        return total

    def offloaded_by_layers(self) -> list[int]:
        """Return the bytes of each layer that stay on the host until the backward."""
        layers = self.path.layers if self.own.offloads else ()
        sizes = {
            each: self._sum(self._of_layer(each), each) + self._narrow(each) * (not self.recomputes)
            for each in {self.first[number] for number in layers}
        }
        return [sizes[self.first[each]] for each in layers]

    def masks(self) -> int:
        """Return the bytes of shared masks, if all tokens of an image see each other."""
        if not self.work.blocks:
            return 0
        attending = self.kind.attending
        seeing = (number for number in self.path.layers if attending.sees_later(number))
        kinds = {attending.in_windows(number) for number in seeing}
        return len(kinds) * self.tokens * self.seq * self.bytes

    def saved_by_layers(self) -> int:
        """Return the part of the kept bytes that layers keep."""
        alike = Counter(self.first[each] for each in self.path.layers)
        saved = sum(n * self._sum(self._of_layer(each), each) for each, n in alike.items())
        if self.recomputes:
            return saved
        return saved + sum(map(self._narrow, self.path.layers)) - self._constant_input()

    def _constant_input(self) -> int:
        """Return the bytes of a layer's input, and its copy, that RMSNorm needs for gradients."""
        first = next(iter(self.path.layers), None)
        if first is None or self.path.before or first != lowest_trained(self.own):
            return 0
        norm = getattr(self.kind.layer(first), "norm", None)
        is_rms = isinstance(norm, NormShape) and norm.kind == "rms"
        return is_rms * (not self.passes.are_compiled) * self.passes.wide * self.stream

    def _narrow(self, number: int) -> int:
        """Return the bytes that the updates of a layer keep between their two products."""
        if self.adapter is None or self.kind.is_depth(number):
            return 0
        moe, experts = self.kind.moe, self.module.experts
        split = 1 if experts is None else experts.size(Axis.EXPERT_TP)
        choices = 0.0 if moe is None else moe.top_k * split / self.tp
        adapter = self.adapter and self.adapter.of_layer(number)
        width = narrow_width(self.kind.layer(number), adapter, choices, self.parts)
        return ceil(self.tokens * width * self.bytes)

    def forward(self, unpacked: int) -> int:
        """Return the temporary bytes of a forward at its peak, `unpacked` for dequantized maps."""
        # With a backward there is less here than at its start, beside what is kept.
        alone = 0 if self.differentiates else self.kind.temporary_at_ends(self.ends, self._held)[0]
        ends = self.loss_forward() + self.tiles() + alone * self.bytes
        unkept = {self.first[each] for each in set(self.numbers) - set(self.path.layers)}
        layers = ((self._temporary(each).forward, each) for each in unkept)
        alive = max((self._sum(tensors, each) for tensors, each in layers), default=0)
        return max(ends, alive + unpacked)

    def _temporary(self, number: int) -> Temporary:
        """Return the tensors of a layer that are alive together; scores, too, if some drop."""
        found = self.kind.temporary_activations(number)
        if not self.drops_attention or not self.kind.layer_widths(number).scored:
            return found
        forward, backward = (
            tuple(each for each in tensors if not each.scores)
            for tensors in (found.forward, found.backward)
        )
        return Temporary(
            forward=(DROPPED_FORWARD, *forward), backward=(*backward, DROPPED_BACKWARD)
        )

    def backward(self) -> int:
        """Return the temporary bytes of a backward through the layers at its peak."""
        alike = {self.first[each] for each in self.path.layers}
        return max(map(self._layer_backward, alike), default=0)

    def backward_of_end(self) -> int:
        """Return the temporary bytes of a backward before it reaches the layers."""
        alone = self.kind.temporary_at_ends(self.ends, self._held)[1] * self.bytes
        return self.loss_backward() + self.tiles() + alone + self.stream * self.path.after

    def made(self, numbers: Mapping[int, int], *, again: bool = False) -> int:
        """Return the bytes of all tensors that layers make in a forward, kept or not.

        `numbers` has some layers of the stage, and how many are like each. `again`: only of those
        that are computed again, with a part or as a norm.
        """
        return sum(
            times * self._sum(filter(self._made_again, every) if again else every, number)
            for number, times in numbers.items()
            for every in (self._all(number),)
        )

    def _of_layer(self, number: int) -> tuple[Saved, ...]:
        every = self._all(number)
        if self.recomputes:
            found = RECOMPUTED_DEPTH if self.kind.is_depth(number) else RECOMPUTED
            return *found, *(each for each in every if each.stays)
        kept = tuple(each for each in every if not self._made_again(each))
        if self.passes.are_compiled or self.passes.wide == 1:
            return kept
        # A norm that is made again alone keeps a copy of its input, and the stream itself.
        alone = (each for each in every if self._made_again(each) and each.inside not in self.parts)
        return *kept, *(NORM_INPUT for each in alone if each.stream > 0)

    def _all(self, number: int) -> tuple[Saved, ...]:
        return self.kind.saved_activations(number, self._passes(number))

    def _made_again(self, saved: Saved) -> bool:
        """Return whether a tensor is computed again, with its part or as a norm."""
        if saved.stays:
            return False
        return saved.inside in self.parts or (saved.normed and "norms" in self.parts)

    def _passes(self, number: int) -> Passes:
        adapts = self.passes.adapts and number not in self.own.frozen_layers
        trains = self.own.layer_trains(number)
        passes = replace(self.passes, weights_train=trains, adapts=adapts)
        if not self.module.is_language:
            return passes
        passes = replace(passes, mask=mask_of_sequences(*self.place, number, self.work))
        if self.passes.cp == 1:
            return passes
        window = self.kind.window(number) if isinstance(self.kind, CausalKind) else None
        keys = _listed_keys(self.work, self.passes.cp, self.seq, window)
        return replace(passes, listed_keys=keys)

    def _layer_backward(self, number: int) -> int:
        total = self._sum(self._temporary(number).backward, number)
        if self.recomputes:
            return (
                total
                + self._sum(self._all(number), number)
                - self._sum(self._of_layer(number), number)
            )
        # One part is there at a time, or one norm.
        again = [each for each in self._all(number) if self._made_again(each)]
        found = ([e for e in again if e.inside == part] for part in {e.inside for e in again})
        return total + max((self._sum(each, number) for each in found), default=0)

    @property
    def logits(self) -> int:
        """Number of logits of a forward."""
        is_head = self.module.is_language and self.stage.is_last
        return self.tokens * self.words if is_head else 0

    def loss_forward(self) -> int:
        """Return the bytes of the loss beside the gradient of the logits, which `kept` counts.

        Compiled passes need only the logits. Others also make a truth value and three numbers of at
        least 4 bytes for each logit, before the gradient.
        """
        alone = self.bytes if self.passes.are_compiled else 3 * max(4, self.bytes) + 1
        return self.logits * alone

    def loss_backward(self) -> int:
        """Return the bytes of the gradient of the logits, times that of the loss."""
        copies = 1 if self.passes.are_compiled or self.passes.wide == 1 else 2 * self.passes.wide
        return self.logits * copies * self.bytes

    def tiles(self) -> int:
        """Return the bytes of the projected patches that make the rows of images in tiles.

        They exist next to learned rows and, where ranks share them, also in the gathered tensor.
        """
        gathered = gathered_numbers(self.place[0], self.module, self.stage, self.work)
        is_shared = self.module.sequence_parallel or self.module.grid.size(Axis.CP) > 1
        return (1 + is_shared) * gathered * self.bytes

    def _sum(self, tensors: Iterable[Saved], number: int) -> int:
        """Return the bytes of some tensors of one layer."""
        tp, size = self.tp, self.kind.layer_widths(number)
        stream, copies = self.width, 0
        # With fewer key heads than tp ranks each rank holds one; the same is true for groups.
        key = max(size.key // tp, size.unit)
        moe, experts = self.kind.moe, self.module.experts
        if moe is not None and experts is not None and self.kind.has_experts(number):
            copies = moe.top_k * stream // tp
        split = 1 if experts is None else experts.size(Axis.EXPERT_TP)
        total = 0
        for each in tensors:
            width = each.stream * stream + each.routed * stream // tp
            width += ceil(each.query * size.query / tp) + ceil(each.key * key)
            width += each.inner * size.inner // tp
            width += each.narrow * size.narrow + each.entered * size.entered
            width += ceil((each.made * size.made + each.value * size.value) / tp)
            width += each.beside * size.beside
            width += copies * (each.arrived * split + each.returned)
            tokens = self.shared_tokens if each.shared else self.tokens
            total += tokens * each.numbers * max(4, self.bytes)
            total += self.tokens // tp * each.routed_numbers * max(4, self.bytes)
            total += tokens * (width * self.bytes + each.heads * size.heads // tp * 4)
            pairs = min(MOST_SCORES, self.tokens * self.seq)
            total += each.scores * size.heads // tp * pairs * max(4, self.bytes)
        return total

    def _ends(self) -> int:
        """Return the bytes kept by the layers around the blocks: patches, projector, head."""
        return self.kind.saved_at_ends(self.ends, self._held) * self.bytes

    @cached_property
    def _held(self) -> HeldAtEnds:
        """What the layers around the blocks are given."""
        cp = self.module.grid.size(Axis.CP)
        return HeldAtEnds(
            passes=self.passes,
            layers=tuple(each for each in self.path.layers if each in self.stage.layers),
            first_layer=self.stage.first_layer,
            tp=self.tp,
            tokens=self.tokens,
            patches=self.tokens - self.work.extra_tokens,
            positions=self._positions,
            stream_tokens=self.shared_tokens,
            sequence_parts=self.tp if self.module.sequence_parallel else 1,
            words=self.words,
            through_layers=self.path.after,
            through_embedding=self.path.before,
            rows=-(-self.work.rows // cp),
            projector_trains=self.projector_trains,
            reads=tuple(-(-rows // cp) for rows in self.work.reads),
            gathered=self.tp > 1 and not self.module.sequence_parallel,
        )

    @property
    def _positions(self) -> int:
        """The positions on a cp rank: sequences share theirs, unless they restart in documents."""
        kind = self.kind
        if not isinstance(kind, LanguageKind):
            return self.tokens
        restarts = kind.restarts_positions and self.work.has_documents(self.seq)
        return self.tokens if restarts else self.seq // self.module.grid.size(Axis.CP)


def _first_alike(own: ModuleSpec, numbers: Iterable[int]) -> dict[int, int]:
    """Return for each layer the first one that keeps the same tensors."""
    alike, found = alike_layers(own.model), dict[Hashable, int]()
    # Depths come after all layers.
    keys = {n: alike[n] if n < len(alike) else n for n in numbers}
    return {n: found.setdefault((key, n in own.frozen_layers), n) for n, key in keys.items()}


def _listed_keys(work: Workload, cp: int, seq: int, window: SlidingWindow | None) -> float:
    """Return how many keys a list of documents has on a cp rank for each of its tokens.

    A rank has two parts of each sequence. Each part also needs the keys of its first document that
    come before it: half a document on average, all tokens before it at most. A chunk of a `window`
    is a document; in a window that slides, keys are those of the whole document.
    """
    chunked = window is not None and window.chunked
    squares = (
        times * (2 * window.pairs(length) if window and chunked else length**2)
        for length, times in work.spans.items()
    )
    return min(cp + 0.5, 1 + cp * sum(squares) / work.tokens / seq)
