"""The best layout that is known of each poor spec, as a wide search found it."""

from tests.support.wide_search import Layout

BEST = {
    "8, 1B: half of the GPUs for a small encoder, tp where dp would do": Layout(
        sharding="full", encoder_sharding="full"
    ),
    "16, 8B: as many microbatches as stages, needless recomputing": Layout(
        at_once=1, encoder_tp=2, encoder_sharding="full"
    ),
    "32, 8B: two encoders on ranks of their own, tp over a whole host": Layout(
        tp=2, sharding="full", encoder_tp=2
    ),
    "64, 7B: half of the GPUs for an encoder, a pipeline without need": Layout(
        tp=2, microbatches=2, sharding="full", encoder_tp=2
    ),
    "64, 8B: full sharding with the smallest microbatches": Layout(
        tp=2, microbatches=4, sharding="full"
    ),
    "64, 30B of experts: recomputing and a pipeline, experts split over 4": Layout(
        tp=2,
        microbatches=2,
        sequence_parallel=True,
        ep=8,
        sharding="full",
        encoder_tp=2,
        encoder_sharding="full",
    ),
    "128, 8B: tp over two hosts, recomputing": Layout(
        tp=2, microbatches=2, sharding="full", encoder_tp=2
    ),
    "256, 32B: half of the GPUs for an encoder, tp over a whole host": Layout(
        tp=4, microbatches=4, sequence_parallel=True, sharding="full", encoder_tp=2
    ),
    "256, 70B: a deep pipeline with few microbatches, everything recomputed": Layout(
        tp=4,
        pp=4,
        microbatches=16,
        schedule=("interleaved", 5),
        sequence_parallel=True,
        encoder_tp=4,
        encoder_recompute="full",
        encoder_sharding="full",
    ),
    "512, 8B: full sharding over all hosts and a slow network": Layout(
        tp=4, sequence_parallel=True, encoder_tp=4
    ),
    "512, 70B: a deep pipeline with few microbatches, recomputing": Layout(
        tp=2,
        at_once=1,
        sequence_parallel=True,
        recompute="full",
        sharding="full",
        encoder_tp=2,
        encoder_recompute="full",
    ),
    "1,024, 70B, 32,768 tokens: recomputing, no sequence parallelism": Layout(
        tp=8,
        cp=4,
        pp=4,
        microbatches=32,
        schedule=("interleaved", 5),
        sequence_parallel=True,
        encoder_tp=8,
    ),
}
