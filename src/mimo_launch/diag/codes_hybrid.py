"""Codes of hybrid models.

Decides: the explanations.
Relies on: nothing.
Leaves: finding the faults to `checks.hybrid`.
"""

from mimo_launch.diag.code import Code

HYBRID_CODES = (
    Code(
        "mamba-without-sizes",
        "A hybrid model has Mamba layers, and nothing says how large they are.",
        "Heads, state and groups of Mamba-2 do not follow from the width of the model. The rest of "
        "`mamba` has the sizes of published models by default.",
        'model: {kind: hybrid, pattern: "M-M*-"}',
        'model: {kind: hybrid, pattern: "M-M*-", mamba: {heads: 8, groups: 2}}',
    ),
    Code(
        "mamba-heads-over-groups",
        "The number of Mamba groups does not divide the number of Mamba heads.",
        "The heads of a group share its B and C, as query heads share keys and values, and every "
        "group has equally many heads. The gated norm behind them is over a group, too.",
        "mamba: {heads: 8, groups: 3}",
        "mamba: {heads: 8, groups: 4}",
    ),
    Code(
        "mamba-heads-over-grid",
        "The number of Mamba heads is not a multiple of tp x cp.",
        "tp cuts the heads. Inside a Mamba layer cp cuts them further: ranks that hold parts of "
        "the sequence trade their tokens of all heads for all tokens of some heads, since state "
        "and convolution run along the sequence.",
        "mamba: {heads: 6, groups: 2}\ngrid: {tp: 2, cp: 2}",
        "mamba: {heads: 8, groups: 2}\ngrid: {tp: 2, cp: 2}",
    ),
    Code(
        "mamba-groups-over-grid",
        "The Mamba groups do not split over tp and cp.",
        "Each tp rank holds whole groups, or equally many tp ranks share a group and hold a copy "
        "of its B and C. The groups of a tp rank are shared out over cp in the same way.",
        "mamba: {heads: 12, groups: 3}\ngrid: {tp: 2}",
        "mamba: {heads: 12, groups: 6}\ngrid: {tp: 2}",
    ),
)
