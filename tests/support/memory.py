"""Specs of small models whose estimated memory tests look at."""

from tests.support.specs import box, spec
from tests.support.works import nominal_work

from mimo_launch.estimate.memory import StageMemory, stage_memory
from mimo_launch.layout.layout import build_layout
from mimo_launch.spec.spec import Spec

TOKENS, WIDTH, INNER = 512, 256, 1024
DECODER = {
    "kind": "decoder",
    "layers": 4,
    "hidden": WIDTH,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 32,
    "mlp": INNER,
    "vocab": 512,
}
VIT = {
    "kind": "vit",
    "layers": 4,
    "hidden": WIDTH,
    "heads": 8,
    "patch": 2,
    "mlp": INNER,
    "shuffle": 2,
}


def model(
    *,
    compiled: bool = True,
    precision: str = "bf16",
    vocab: int = 512,
    vision: dict[str, object] | None = None,
    decoder: dict[str, object] | None = None,
    **language: object,
) -> Spec:
    """A microbatch of two sequences, or two images, of 256 tokens each.

    `vision` and `decoder` are more keys of the two models.
    """
    return spec(
        {
            "vision": box(0, model=VIT | (vision or {}), compile=compiled),
            "language": box(
                1,
                model={**DECODER, "vocab": vocab, **(decoder or {})},
                compile=compiled,
                **language,
            ),
        },
        mbs=2,
        seq=256,
        data={"kind": "synthetic", "image": [16, 16], "text_only": 0.0},
        train={"steps": 1, "precision": precision},
    )


def memory_of(made: Spec, name: str, stage: int = 0) -> StageMemory:
    layout = build_layout(made)
    module = layout[name]
    work = nominal_work(layout, module, made)
    return stage_memory(made, layout, module, module.stages[stage], work, 0)


def per_block(made: Spec, name: str) -> int:
    """Return what a block keeps, as the difference that two blocks make."""
    fewer = made.model_copy(deep=True)
    object.__setattr__(fewer.modules[name].model, "layers", 2)
    return (memory_of(made, name).kept - memory_of(fewer, name).kept) // 2
