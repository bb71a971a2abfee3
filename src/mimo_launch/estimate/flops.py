"""Floating-point operations of one forward and one backward of a stage.

Decides: what counts: 2 m n k for every matmul, scores and values of attention among them (half
where it is causal), and the matmuls that Mamba-2 is; nothing else. docs/estimates.md says so to
users.
Relies on: `workload` for sizes.
Leaves: seconds to `cost_model`.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from mimo_launch.estimate.workload import LayerKind, Widths, Workload, layer_widths, patch_work
from mimo_launch.kinds.vocabulary import padded_vocab_size
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.stages import Stage
from mimo_launch.schedule.roles import needs_backward
from mimo_launch.spec.model import CustomModel, LanguageModel, Spec, TransformerEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """Operations by kind of work, over all tp and cp ranks of a replica.

    `linear` and `attention` (or what Mamba has in its place) are those of blocks, `head` is that of
    the vocabulary.
    """

    linear: float = 0.0
    attention: float = 0.0
    head: float = 0.0
    patch: float = 0.0
    projector: float = 0.0

    @property
    def total(self) -> float:
        """All operations."""
        return self.linear + self.attention + self.head + self.patch + self.projector

    def __add__(self, other: "Flops") -> "Flops":
        """Return the operations of both."""
        names = Flops.__dataclass_fields__
        both = zip(names, astuple(self), astuple(other), strict=True)
        return Flops(**{name: mine + theirs for name, mine, theirs in both})


def forward_flops(spec: Spec, stage: Stage, work: Workload) -> Flops:
    """Return the operations of one forward of a stage."""
    return sum(forward_by_kind(spec, stage, work).values(), Flops())


def forward_by_kind(spec: Spec, stage: Stage, work: Workload) -> Mapping[LayerKind, Flops]:
    """Return the operations of one forward by kinds of layers.

    What stands around the layers is with blocks.
    """
    model = spec.modules[stage.module].model
    if isinstance(model, CustomModel):
        weights = (model.parameters or 0) * stage.num_layers / model.layers
        return {LayerKind.BLOCK: Flops(linear=2.0 * work.tokens * weights)}
    found: dict[LayerKind, Flops] = defaultdict(Flops, {LayerKind.BLOCK: _ends(spec, stage, work)})
    for size in layer_widths(model, stage):
        linear = 2.0 * work.tokens * size.stream * _features(size)
        found[size.kind] += Flops(linear=linear, attention=_mixing(size, work))
    return found


def _ends(spec: Spec, stage: Stage, work: Workload) -> Flops:
    """Return the operations in front of the layers of a module and behind them."""
    model, head, patch, projector = spec.modules[stage.module].model, 0.0, 0.0, 0.0
    if isinstance(model, TransformerEncoder):
        if stage.is_first:
            patch = 2.0 * work.rows * model.patches_per_row * patch_work(model).products
        if stage.is_last:
            row, out = model.row_width, spec.language.model.hidden
            inner = model.projector_width(out)
            projector = 2.0 * work.rows * (inner * (row + out) if inner else row * out)
    elif stage.is_last and isinstance(model, LanguageModel):
        head = 2.0 * work.tokens * model.hidden * padded_vocab_size(spec)
    return Flops(head=head, patch=patch, projector=projector)


def _features(size: Widths) -> int:
    """Return the features that the linear layers of a layer take and make, but for the stream's."""
    if size.mamba is not None:  # z, x, B, C, time steps; and the output.
        return 3 * size.query + 2 * size.key + size.heads
    router = size.experts.experts if size.experts else 0
    return 2 * size.query + 2 * size.key + (size.ups + 1) * size.inner + router


def _mixing(size: Widths, work: Workload) -> float:
    """Return the operations between tokens: attention, or the recurrence of Mamba-2 by chunks.

    Inside a chunk that is C B^T and its product with x, half of each; then the states of all chunks
    are made of x and B, and read with C (arXiv:2405.21060, section 6).
    """
    if size.mamba is None:
        pairs = sum(span**2 for span in work.spans) / (2 if size.causal else 1)
        return 4 * pairs * size.query
    within = size.mamba.chunk * (size.key + size.query)
    return work.tokens * (within + 4.0 * size.query * size.mamba.state)


def backward_flops(
    spec: Spec, layout: Layout, module: ModuleLayout, stage: Stage, forward: Flops
) -> Flops:
    """Return the operations of one backward of a stage whose forward has these.

    Twice the forward: gradients of inputs and of weights. A frozen language model has only those of
    inputs (and all of attention, which has no weights); recomputing is not counted.
    """
    if not needs_backward(layout, module, stage.index):
        return Flops()
    if spec.modules[module.name].frozen == "except_projector":
        return Flops(projector=2 * forward.projector)
    weights = 1 if module.frozen else 2
    return Flops(
        linear=weights * forward.linear,
        attention=2 * forward.attention,
        head=weights * forward.head,
        patch=2 * forward.patch,
        projector=2 * forward.projector,
    )
