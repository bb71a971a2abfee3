"""Makes encoders and flow generators small, but keeps all that can go wrong when a grid cuts them.

Decides: their sizes in proofs.
Relies on: the spec only.
Leaves: all else to `shrink`.
"""

from typing import TypeVar

from mimo_launch.spec.encoder_blocks import EncoderBlocks
from mimo_launch.spec.spec import (
    AudioModel,
    ModuleSpec,
    Tiles,
    TransformerEncoder,
    VitModel,
    Windows,
)
from mimo_launch.verify.shrink_language import HEAD_SIZE, full_layers

MAX_CLIP_ROWS = 4

Blocks = TypeVar("Blocks", bound=EncoderBlocks)
Encoder = TypeVar("Encoder", bound=TransformerEncoder)


def shrink_blocks(model: Blocks, module: ModuleSpec, layers: int) -> Blocks:
    """Return a model with small blocks; a rank that has several heads keeps two."""
    heads = module.grid.tp * min(2, model.heads // module.grid.tp)
    hidden = HEAD_SIZE * heads
    sizes = {"layers": layers, "heads": heads, "hidden": hidden, "mlp": 2 * hidden}
    return model.model_copy(update=sizes)


def shrink_encoder(model: Encoder, module: ModuleSpec, layers: int) -> Encoder:
    """Return a model with small blocks and a small projector."""
    small = shrink_blocks(model, module, layers)
    if model.projector_mlp is None:
        return small
    return small.model_copy(update={"projector_mlp": 3 * small.hidden})


def shrink_vit(model: VitModel, module: ModuleSpec, layers: int) -> VitModel:
    """Return a small ViT with a small table of positions, small tiles and small windows."""
    update: dict[str, object] = {}
    if model.image is not None:
        update["image"] = min(3, model.image[0]), min(4, model.image[1])
    if model.tiles is not None:
        # If grids were averaged before, one grid is.
        most = None if model.tiles.most is None else 2
        update["tiles"] = Tiles(grids=((1, 2), (2, 2)), most=most)
    if model.windows is not None:
        # A small image has several windows; a window of one patch has nothing to attend to.
        side = 2 if model.shuffle == 1 else min(2, model.windows.side)
        full = full_layers(model.windows.full, model.layers, layers)
        update["windows"] = Windows(side=side, full=full)
    return shrink_encoder(model, module, layers).model_copy(update=update)


def shrink_audio(model: AudioModel, module: ModuleSpec, layers: int) -> AudioModel:
    """Return a small encoder of short clips with few mel bands."""
    frames = min(MAX_CLIP_ROWS, model.max_rows) * model.frames_per_row
    sizes = {"mels": min(3, model.mels), "frames": frames}
    return shrink_encoder(model, module, layers).model_copy(update=sizes)
