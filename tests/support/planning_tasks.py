"""Twelve planning tasks on 8 to 4,096 GPUs: models, data and a first layout that is not good."""

from tests.support.poor_specs import (
    B7,
    B8,
    B30,
    B32,
    B70,
    IMAGES,
    TEXT,
    VIT_H,
    VIT_L,
    decoder,
    job,
    module,
)

MOE_OF_235 = {"experts": 128, "top_k": 8, "width": 1536, "aux_loss": 0.001}
B235 = decoder(94, 4096, 64, 12288, kv_heads=4, head_dim=128, moe=MOE_OF_235)
B405 = decoder(126, 16384, 128, 53248)
B4 = decoder(36, 2560, 32, 9728)
LONG = {**IMAGES, "min_images": 8, "max_images": 8}

TASKS = {
    "8, 4B: an encoder on half of the GPUs": job(
        {"vision": module(VIT_L, 0, 3, dp=4), "language": module(B4, 4, 7, tp=2, dp=2)}, 64, 16
    ),
    "16, 8B: recomputing, a pipeline": job(
        {
            "vision": module(VIT_H, 0, 15, dp=16),
            "language": module(B8, 0, 15, tp=2, pp=4, dp=2, recompute="full"),
        },
        96,
        12,
    ),
    "24, 8B: an encoder on 8 GPUs": job(
        {"vision": module(VIT_L, 0, 7, dp=8), "language": module(B8, 8, 23, tp=4, dp=4)}, 128, 16
    ),
    "32, 4B, two encoders on their own ranks": job(
        {
            "vision": module(VIT_H, 0, 7, dp=8),
            "hearing": module(VIT_L, 8, 15, dp=8),
            "language": module(B4, 16, 31, tp=4, dp=4),
        },
        128,
        8,
    ),
    "48, 8B, 32,768 tokens, many images": job(
        {"vision": module(VIT_H, 0, 15, dp=16), "language": module(B8, 16, 47, tp=8, cp=2, dp=2)},
        48,
        12,
        seq=32768,
        data=LONG,
        encoder_microbatches=12,
    ),
    "64, 30B of experts": job(
        {"language": module(B30, 0, 63, tp=2, pp=8, dp=4, experts={"ep": 4})}, 256, 32, data=TEXT
    ),
    "128, 32B: an encoder on half of the GPUs": job(
        {"vision": module(VIT_H, 0, 63, dp=64), "language": module(B32, 64, 127, tp=8, dp=8)},
        512,
        16,
        encoder_microbatches=2,
    ),
    "256, 32B: a deep pipeline": job(
        {
            "vision": module(VIT_H, 0, 255, dp=256),
            "language": module(B32, 0, 255, tp=4, pp=8, dp=8, recompute="full"),
        },
        512,
        32,
    ),
    "40, 7B: five hosts, an odd batch": job(
        {"vision": module(VIT_H, 0, 7, dp=8), "language": module(B7, 8, 39, tp=4, dp=8)}, 120, 15
    ),
    "768, 70B: an encoder on a third of the hosts": job(
        {
            "vision": module(VIT_H, 0, 255, dp=256),
            "language": module(B70, 256, 767, tp=8, pp=4, dp=16),
        },
        1536,
        32,
        encoder_microbatches=16,
    ),
    "1,024, 235B of experts": job(
        {"language": module(B235, 0, 1023, tp=4, pp=8, dp=32, experts={"ep": 8})},
        1024,
        16,
        data=TEXT,
    ),
    "4,096, 405B": job(
        {"language": module(B405, 0, 4095, tp=8, pp=16, dp=32, recompute="full")},
        2048,
        64,
        seq=8192,
        data=TEXT,
    ),
}
