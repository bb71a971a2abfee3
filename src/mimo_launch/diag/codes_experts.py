"""Codes of mixtures of experts.

Decides: the explanations.
Relies on: `code`.
Leaves: finding the faults to `checks.experts`.
"""

from mimo_launch.diag.code import Code

EXPERT_CODES = (
    Code(
        "experts-over-ep",
        "The number of experts does not split over ep.",
        "Each ep rank holds whole experts, and equally many, so that all ranks hold as much and "
        "finish together when the load is balanced.",
        "model: {moe: {experts: 6, top_k: 2, width: 64}}\nexperts: {ep: 4}",
        "model: {moe: {experts: 8, top_k: 2, width: 64}}\nexperts: {ep: 4}",
    ),
    Code(
        "expert-width-over-tp",
        "The width of an expert does not split over the tp of the experts.",
        "Ranks along the tp of the experts hold equal parts of the width of each expert.",
        "model: {moe: {experts: 8, top_k: 2, width: 99}}\nexperts: {tp: 2}",
        "model: {moe: {experts: 8, top_k: 2, width: 96}}\nexperts: {tp: 2}",
    ),
    Code(
        "shared-expert-over-tp",
        "The width of the shared expert does not split over tp.",
        "All tokens go through the shared expert, so it is cut like the MLP of other layers: over "
        "the tp of the module, not over that of the experts.",
        "model: {moe: {experts: 8, top_k: 2, width: 64, shared: 99}}\ngrid: {tp: 2}",
        "model: {moe: {experts: 8, top_k: 2, width: 64, shared: 96}}\ngrid: {tp: 2}",
    ),
    Code(
        "expert-grid-over-stage",
        "ep * tp of the experts does not divide the ranks of a pipeline stage.",
        "The experts are laid out over the ranks of each pipeline stage, tp * cp * dp of the "
        "module: `ep * tp` of them hold all experts once, and the rest holds replicas, as many as "
        "that goes into the stage.",
        "grid: {tp: 2, dp: 2}\nexperts: {ep: 3}",
        "grid: {tp: 2, dp: 2}\nexperts: {ep: 4}",
    ),
    Code(
        "top-k-over-experts",
        "A token is to go to more experts than there are.",
        "`top_k` different experts are chosen for each token.",
        "model: {moe: {experts: 4, top_k: 8, width: 64}}",
        "model: {moe: {experts: 8, top_k: 4, width: 64}}",
    ),
    Code(
        "no-layer-has-experts",
        "Experts are described, and no layer has them.",
        "Layer i of a decoder, counted from 0, has experts if i + 1 is a multiple of `every` and i "
        "is not below `first_dense`. A layer of a hybrid has them if its letter in the pattern is "
        "`E`.",
        "model: {layers: 4, moe: {experts: 8, top_k: 2, width: 64, every: 8}}",
        "model: {layers: 4, moe: {experts: 8, top_k: 2, width: 64, every: 2}}",
    ),
    Code(
        "pattern-without-moe",
        "The pattern of a hybrid has layers of experts that nothing describes.",
        "`E` in a pattern is a mixture of experts; `moe` says how many there are, how large they "
        "are, and how a token chooses.",
        "model: {kind: hybrid, pattern: 'M*ME', mamba: {heads: 8}}",
        "model: {kind: hybrid, pattern: 'M*ME', mamba: {heads: 8},\n"
        "  moe: {experts: 8, top_k: 2, width: 64}}",
    ),
    Code(
        "router-without-gradient",
        "The router of a mixture of experts cannot learn from the loss.",
        "With one expert per token, `normalize` divides its score by itself: it counts 1 whatever "
        "the router says, and no gradient reaches the router. Switch Transformers, which choose "
        "one, do not normalise (arXiv:2101.03961). The softmax over a single expert is 1, too.",
        "model: {moe: {experts: 8, top_k: 1, width: 64}}",
        "model: {moe: {experts: 8, top_k: 1, width: 64, normalize: false}}",
    ),
    Code(
        "experts-without-moe",
        "A module lays out experts that its model does not have.",
        "`experts` of a module is the grid of those experts that `moe` of its model describes.",
        "language:\n  model: {kind: decoder, layers: 4}\n  experts: {ep: 4}",
        "language:\n  model: {kind: decoder, layers: 4, moe: {experts: 8, top_k: 2, width: 64}}\n"
        "  experts: {ep: 4}",
    ),
)
