"""Measures the rates of a device's kernels at a grid of sizes, for `estimate.kernel_table`.

Decides: which sizes are measured and on what; a kernel is repeated long enough that the device runs
as fast as it does in training, not as fast as when it is cool.
Relies on: the functions with which `layers` compute, so that the same kernels are measured.
Leaves: the form of the table to `kernel_table`, whole layers and links to `calibrate`.

Legend: N rows or tokens, D inputs, F outputs; B sequences of S tokens, h heads of size K.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.step_clock import Section, StepClock
from mimo_launch.comm.torch_internals import (
    add_product_,
    hold_back,
    keep_for_second_backwards,
    scaled_product,
)
from mimo_launch.estimate.kernel_table import COMPUTE, KERNELS, Grid, KernelTable
from mimo_launch.kinds.recurrent import RECURRENT_LAYERS, RecurrentShape
from mimo_launch.kinds.weights import widths_of
from mimo_launch.layers.delta_rule import DeltaInputs
from mimo_launch.layers.delta_rule_kernels import delta_rule
from mimo_launch.layers.experts import ExpertRuns, grouped_linear
from mimo_launch.layers.image_contexts import image_context
from mimo_launch.layers.parallel_context import SINGLE, ParallelContext
from mimo_launch.layers.pointwise import add_rms_norm
from mimo_launch.layers.sequence_contexts import SequenceContext
from mimo_launch.layers.ssd import SsdInputs
from mimo_launch.layers.ssd_kernels import causal_conv, ssd
from mimo_launch.layers.varlen_attention import inside_documents, inside_images, takes_lists
from mimo_launch.layers.vocab_parallel import vocab_cross_entropy
from mimo_launch.spec.hybrid import DELTANET, MAMBA, DeltaNetSizes, MambaSizes, RecurrentSizes

# Cp ranks among which the queries of a sequence are cut where a mask is measured.
_CP = 2
# Tokens of a small image.
_SMALL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The grid that is measured, and for how many seconds each kernel is repeated.

    `tokens` are those of attention; it has `width` numbers in all heads.
    """

    rows: tuple[int, ...]
    widths: tuple[int, ...]
    lengths: tuple[int, ...]
    head_sizes: tuple[int, ...]
    tokens: int
    width: int
    experts: int
    expert_rows: tuple[int, ...]
    expert_widths: tuple[int, ...]
    recurrent: tuple[int, ...]
    delta_net: DeltaNetSizes
    mamba: MambaSizes
    megabytes: tuple[int, ...]
    stream: int
    vocab: int
    seconds: float


GPU = Sizes(
    rows=(128, 512, 2048, 8192, 32768),
    widths=(256, 1024, 4096, 16384),
    lengths=(256, 1024, 4096, 16384),
    head_sizes=(64, 80, 128, 256),
    tokens=16384,
    width=2048,
    experts=16,
    expert_rows=(32, 128, 512, 2048),
    expert_widths=(512, 2048, 8192),
    recurrent=(1024, 4096, 16384),
    delta_net=DeltaNetSizes(heads=32, key_heads=16),
    mamba=MambaSizes(heads=64),
    megabytes=(1, 8, 64, 512),
    stream=4096,
    vocab=131072,
    seconds=0.06,
)
# Small enough for tests.
CPU = Sizes(
    rows=(32, 256),
    widths=(32, 256),
    lengths=(32, 128),
    head_sizes=(8, 32),
    tokens=256,
    width=64,
    experts=2,
    expert_rows=(8, 16),
    expert_widths=(16, 32),
    recurrent=(32, 64),
    delta_net=DeltaNetSizes(heads=2, head_dim=8, key_dim=8, chunk=16),
    mamba=MambaSizes(heads=2, head_dim=8, state=8, groups=1, chunk=16),
    megabytes=(1,),
    stream=256,
    vocab=256,
    seconds=1e-4,
)

# A kernel, its work (FLOPs, bytes, logits), and a call that does it.
_Call = tuple[str, float, Callable[[], object]]


def measured_table(
    device: torch.device, name: str, date: str, beat: Callable[[], object]
) -> KernelTable:
    """Return the table of a device by its name; `beat` is called after each measurement.

    Ranks: local. Kernels that the device lacks are left out, and so are those that fail, which
    `source` then tells.
    """
    sizes = GPU if device.type == "cuda" else CPU
    found: dict[str, dict[tuple[float, ...], float]] = {}
    failures: list[str] = []
    for place, calls in _all_calls(_Bench(device, sizes)):
        try:
            for kernel, amount, run in calls:
                scale = 1e12 if KERNELS[kernel][1] == COMPUTE else 1e9
                seconds = sustained(run, device, sizes.seconds)
                found.setdefault(kernel, {})[place] = amount / scale / seconds
                beat()
        except Exception as error:
            # Packages of kernels raise errors of their own; the other rates are worth keeping.
            failures.append(f"{error}".partition("\n")[0])
    grids = {}
    for kernel, rates in found.items():
        axes = tuple(tuple(sorted(set(axis))) for axis in zip(*rates, strict=True))
        if all(place in rates for place in product(*axes)):
            grids[kernel] = Grid(axes, tuple(rates[place] for place in product(*axes)))
    source = f"measured on {date} with torch {torch.__version__}"
    if failures:
        source += f"; {len(failures)} measurements failed, the first with: {failures[0]}"
    return KernelTable(device=name, source=source, grids=grids)


def sustained(run: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the time of a call that is repeated for about so many seconds, without its host."""
    run()
    clock, number, spent = StepClock(device), 1, 0.0
    for _ in range(2):
        began = clock.start()
        if device.type == "cuda":
            # The host starts one call meanwhile, so that it stays ahead of the device.
            hold_back(min(0.1, 1.5 * number * spent))
        with clock.span(Section.STEP):
            for _ in range(number):
                run()
        spent = (time.perf_counter() - began) / number
        [(_, start, end)] = clock.stop()
        took = (end - start) / number
        number = max(3, min(100, int(seconds / max(took, 1e-7))))
    return took


def _all_calls(bench: "_Bench") -> Iterator[tuple[tuple[float, ...], Iterator[_Call]]]:
    """Yield the sizes of each measurement with its calls."""
    sizes = bench.sizes
    for rows, inputs, outputs in product(sizes.rows, sizes.widths, sizes.widths):
        yield (rows, inputs, outputs), bench.products(rows, inputs, outputs)
    for rows, inputs, outputs in product(
        sizes.expert_rows, sizes.expert_widths, sizes.expert_widths
    ):
        yield (rows, inputs, outputs), bench.grouped(rows, inputs, outputs)
    for length, head in product(sizes.lengths, sizes.head_sizes):
        yield (length, head), bench.attention(length, head)
    for tokens in sizes.recurrent:
        yield (tokens,), bench.recurrences(tokens)
    for megabytes in sizes.megabytes:
        yield (megabytes,), bench.passes(megabytes)
    for rows in sizes.rows[1:-1] or sizes.rows:
        yield (rows * sizes.vocab / 1e6,), bench.loss(rows)


class _Bench:
    """Makes the inputs of each kernel, and the calls to time."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.device, self.sizes, self.on_gpu = device, sizes, device.type == "cuda"
        self.context = ParallelContext(device=device, compiled=self.on_gpu, owner="kernels")
        if self.on_gpu:
            keep_for_second_backwards()

    def noise(self, *shape: int) -> Tensor:
        """Return random numbers that can have a gradient: zeros would save power."""
        made = torch.randn(*shape, dtype=torch.bfloat16, device=self.device)
        return made.requires_grad_()

    def both_ways(
        self, name: str, flops: float, run: Callable[[], Tensor], inputs: tuple[Tensor, ...]
    ) -> Iterator[_Call]:
        """Yield a forward, and the backward, counted as twice the work."""

        def forward() -> Tensor:
            with torch.no_grad():
                return run()

        yield f"{name} forward", flops, forward
        made = run()
        again = partial(
            torch.autograd.grad, made, inputs, torch.randn_like(made), retain_graph=True
        )
        yield f"{name} backward", 2 * flops, again

    def products(self, rows: int, inputs: int, outputs: int) -> Iterator[_Call]:
        """Yield the products of a linear layer, [N, D] x [D, F], in bf16 and in FP8."""
        x, weight, grad = (
            self.noise(*shape).detach()
            for shape in ((rows, inputs), (outputs, inputs), (rows, outputs))
        )
        total = torch.zeros(outputs, inputs, device=self.device)
        flops = 2.0 * rows * inputs * outputs
        yield "product", flops, lambda: F.linear(x, weight)
        yield "product, gradient of inputs", flops, lambda: grad @ weight
        yield "product, gradient of weights", flops, lambda: add_product_(total, grad.t(), x)
        if self.on_gpu and torch.cuda.get_device_capability(self.device) >= (8, 9):
            left, right = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
            for name, is_fast in (("fp8 product", True), ("fp8 product, gradients", False)):
                yield name, flops, partial(scaled_product, left, right, is_fast=is_fast)

    def grouped(self, rows: int, inputs: int, outputs: int) -> Iterator[_Call]:
        """Yield the products of experts, each with so many rows."""
        experts = self.sizes.experts
        x, weights = self.noise(experts * rows, inputs), self.noise(experts, outputs, inputs)
        runs = ExpertRuns.of((rows,) * experts, self.device)
        run = partial(grouped_linear, x, weights, runs)
        flops = 2.0 * experts * rows * inputs * outputs
        yield from self.both_ways("grouped product", flops, run, (x, weights))

    def attention(self, length: int, size: int) -> Iterator[_Call]:
        """Yield attention over sequences of one length: 4 query heads for each key head if causal.

        With a mask, queries are the last chunk of a sequence that a cp rank holds.
        """
        batch, shared = max(1, self.sizes.tokens // length), max(1, self.sizes.width // size // 4)
        heads = 4 * shared
        width = heads * size
        q, k, v = (self.noise(batch, length, n, size) for n in (heads, shared, shared))
        whole = 4.0 * batch * length**2 * width
        turned = partial(_sdpa, q, k, v, is_causal=True)
        yield from self.both_ways("causal attention", whole / 2, turned, (q, k, v))
        queries, batch_mask = length // (2 * _CP), max(1, batch // 4)
        mask = SequenceContext(batch, self.device, None, None, None).lower_right(queries, length)
        last = self.noise(batch_mask, queries, heads, size)
        keys, values = (self.noise(batch_mask, length, shared, size) for _ in range(2))
        pairs = batch_mask * queries * (length - queries / 2)
        run = partial(_sdpa, last, keys, values, attn_mask=mask)
        yield from self.both_ways(
            "masked attention", 4.0 * pairs * width, run, (last, keys, values)
        )
        lengths, has_lists = (length,) * batch, takes_lists(q.flatten(0, 1))
        if has_lists:
            run = partial(inside_documents, q, k, v, lengths, SINGLE)
            yield from self.both_ways("documents attention", whole / 2, run, (q, k, v))
        k, v = (self.noise(batch, length, heads, size) for _ in range(2))
        run = partial(_sdpa, q, k, v, is_causal=False)
        yield from self.both_ways("whole attention", whole, run, (q, k, v))
        if has_lists:
            # A small image besides: images of one length take no list.
            number = batch * length + _SMALL
            images = image_context([*lengths, _SMALL], range(number), self.device, alone=True)
            q, k, v = (self.noise(number, heads, size) for _ in range(3))
            run = partial(inside_images, q, k, v, images)
            yield from self.both_ways("images attention", whole, run, (q, k, v))

    def recurrences(self, tokens: int) -> Iterator[_Call]:
        """Yield both recurrences over one sequence, without projections, and a convolution."""
        for key, sizes in ((MAMBA, self.sizes.mamba), (DELTANET, self.sizes.delta_net)):
            heads = self.noise(1, tokens, sizes.heads, sizes.head_dim)
            b, c = (self.noise(1, tokens, sizes.groups, sizes.state) for _ in range(2))
            step = torch.rand(1, tokens, sizes.heads, device=self.device)
            given = DeltaInputs(c, b, heads, -step, step)
            run: Callable[[], Tensor] = partial(
                delta_rule, given, chunk=sizes.chunk, fused=self.context.fused
            )
            if key == MAMBA:
                run = partial(_state_space, heads, step, b, c, chunk=sizes.chunk)
            name, flops = RECURRENT_LAYERS[key].kind.value, tokens * _between(key, sizes)
            yield from self.both_ways(name, flops, run, (heads, b, c))
        yield from self._convolution(tokens, self.sizes.delta_net)

    def _convolution(self, tokens: int, sizes: DeltaNetSizes) -> Iterator[_Call]:
        """Yield the short convolution before a Gated DeltaNet, over two packed documents."""
        channels = sizes.inner + 2 * sizes.shared
        x, weight = self.noise(1, tokens, channels), self.noise(channels, sizes.conv)
        documents = (torch.arange(tokens, device=self.device) * 2 // tokens).unsqueeze(0)
        run = partial(
            causal_conv, x, weight, None, documents_BS=documents, fused=self.context.fused
        )
        yield from self.both_ways("convolution", float(tokens * channels), run, (x, weight))

    def passes(self, megabytes: int) -> Iterator[_Call]:
        """Yield a sum and its norm, which read and write four tensors in each direction."""
        width = self.sizes.stream
        x, change = (self.noise(megabytes * 1_000_000 // 2 // width, width) for _ in range(2))
        weight = torch.ones(width, device=self.device)
        grads = [torch.randn_like(x) for _ in range(2)]
        moved = 4.0 * x.numel() * x.element_size()

        def run() -> None:
            made = self.context.fused(add_rms_norm, x, change, weight)
            torch.autograd.grad(made, (x, change), grads)

        yield "pass", 2 * moved, run

    def loss(self, rows: int) -> Iterator[_Call]:
        """Yield the loss over logits [N, vocabulary], there and back."""
        vocab = self.sizes.vocab
        logits = self.noise(rows, vocab)
        labels = torch.randint(vocab, (rows,), device=self.device)
        grad = torch.ones(rows, device=self.device)

        def run() -> None:
            made = vocab_cross_entropy(logits, labels, range(vocab), self.context)
            torch.autograd.grad(made, logits, grad)

        yield "loss", float(rows * vocab), run


def _sdpa(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    """Return attention as `layers.attention` calls it, [B, S, h, K] to [B, h, S, K]."""
    shared = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=shared, **how)


def _state_space(x: Tensor, step: Tensor, b: Tensor, c: Tensor, *, chunk: int) -> Tensor:
    heads = torch.ones(x.shape[2], device=x.device)
    return ssd(SsdInputs(x, step, -heads, b, c, heads), chunk=chunk)[0]


def _between(key: str, sizes: RecurrentSizes) -> float:
    """Return the operations of a recurrence for one token."""
    facts = RECURRENT_LAYERS[key]
    shape = RecurrentShape(facts=facts, width=sizes.inner, sizes=sizes, eps=1e-5, out_scale=1.0)
    return widths_of(shape).between
