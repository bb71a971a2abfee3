"""Codes about schedule kinds: interleaving, virtual stages, bubble filling.

Decides: the explanations of these codes.
Relies on: `code`.
Leaves: codes about grids and samples to `codes_layout`.
"""

from mimo_launch.diag.code import Code

SCHEDULE_CODES = (
    Code(
        "virtual-stages-without-interleaved",
        "`virtual_stages` is above 1 with another schedule than `interleaved`.",
        "With v virtual stages each rank of the language pipeline holds v separate runs of "
        "layers, and a microbatch passes every rank v times. Only interleaved 1F1B has an order "
        "for that.",
        "schedule: {kind: 1f1b, virtual_stages: 2}",
        "schedule: {kind: interleaved, virtual_stages: 2}",
    ),
    Code(
        "interleaved-without-stages",
        "`kind: interleaved` with one rank in the language pipeline, or one stage on each.",
        "Interleaving shortens the wait for the first and the last microbatch, because a stage "
        "is 1/v of what a rank holds. With pp 1 there is no wait, and with v 1 it is 1F1B.",
        "schedule: {kind: interleaved, virtual_stages: 1}",
        "schedule: {kind: interleaved, virtual_stages: 2}   # language pp 2 or more",
    ),
    Code(
        "interleaved-microbatches-uneven",
        "Under `interleaved`, the microbatches in work together are no multiple of language pp.",
        "Each rank runs pp microbatches through one of its stages, then the same ones through the "
        "next. A last run of fewer would leave ranks waiting for each other. With encoders that "
        "share ranks with language, the pipeline drains after each group of "
        "`encoder_microbatches`, which must then be the multiple.",
        "schedule: {kind: interleaved, virtual_stages: 2, microbatches: 6}   # language pp 4",
        "schedule: {kind: interleaved, virtual_stages: 2, microbatches: 8}   # language pp 4",
    ),
    Code(
        "full-sharding-in-bubbles",
        "An encoder with `sharding: full` shares the ranks of a pipeline with its bubbles filled.",
        "Under `bubble_filling` every rank runs its share of the encoder when it would wait for "
        "the pipeline, and ranks wait at different times. Full sharding gathers the weights at "
        "every forward, which all replicas must do at the same time.",
        "schedule: {kind: bubble_filling}\nvision:\n  grid: {dp: 4}\n  sharding: full",
        "schedule: {kind: bubble_filling}\nvision:\n  grid: {dp: 4}\n  sharding: optimizer",
    ),
)
