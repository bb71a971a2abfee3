"""Encoders and connectors of the oracle: one image or clip at a time, whole.

Decides: the rows of an image or a clip.
Relies on: `oracle_blocks` and `oracle_layers`.
Leaves: where rows go, and what language computes from them, to `oracle`; generators to
`oracle_generators`; users' own encoders to `oracle_parts`.

Legend: N patches of an image or tokens of a clip, F frames, D width, r rows, L width of language.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.tiles import Frame, Shown, Tiling
from mimo_launch.spec.aut import AutModel
from mimo_launch.spec.encoders import ConnectorModel
from mimo_launch.spec.media import FRAMES_PER_TOKEN
from mimo_launch.spec.ovis2_vision import Ovis2VisionModel
from mimo_launch.spec.spec import AudioModel, Model, VitModel
from mimo_launch.verify.oracle_blocks import NORMS, activated, block, blocks, project
from mimo_launch.verify.oracle_conformer import encode_conformer
from mimo_launch.verify.oracle_dropout import EXTRA, IMAGE, Weights
from mimo_launch.verify.oracle_layers import layer_norm, linear
from mimo_launch.verify.oracle_towers import TOWERS


def encode(
    weights: Weights,
    encoder: str,
    model: Model,
    array: np.ndarray,
    shown: Shown = None,
    *,
    first: int = 0,
) -> Tensor:
    """Return the rows [r, L] of one image or clip; `shown` says how tiles show an image.

    It is image `first` of its record, or its first tile is. Raises: TypeError for another model.
    """
    if isinstance(model, VitModel) and model.tiles is not None:
        return _encode_tiles(weights, encoder, model, array, shown, first)
    if model.kind not in ENCODERS:
        raise TypeError(f"no oracle for encoder {encoder} of kind {model.kind}")
    return ENCODERS[model.kind](weights, encoder, model, array, first)


def _encode_clip(
    weights: Weights, encoder: str, model: AudioModel, clip: np.ndarray, first: int
) -> Tensor:
    """Return the rows of a whole log-mel clip: [mels, frames] -> [r, L]."""
    frames, groups = torch.from_numpy(clip).double(), None
    if model.chunk is None:
        # The convolution sees a frame of silence after the last token, but it makes no token.
        x_ND = _convolved(weights, encoder, frames)[: clip.shape[1] // FRAMES_PER_TOKEN]
        x_ND = x_ND + weights[f"{encoder}.positions.weight"][: len(x_ND)]
    else:
        parts = torch.split(frames, model.chunk, dim=1)
        if isinstance(model, AutModel):
            chunks = [_convolved_in_2d(weights, encoder, each, model.chunk) for each in parts]
        else:
            chunks = [_convolved(weights, encoder, each) for each in parts]
        x_ND = torch.cat([each + _sines(len(each), model.hidden) for each in chunks])
        together = len(chunks[0]) * (model.window if isinstance(model, AutModel) else 1)
        places = list(range(len(x_ND)))
        groups = [places[i : i + together] for i in range(0, len(places), together)]
    tokens = range(len(x_ND) // model.stack * model.stack)
    loose = range(EXTRA, EXTRA + len(x_ND) - len(tokens))
    weights.name_tokens([IMAGE * first + place for place in (*tokens, *loose)])
    x_ND = blocks(weights, x_ND, encoder, model, groups)
    # Consecutive tokens become a row; the last tokens make none if they do not fill one.
    starts = range(0, len(x_ND) - model.stack + 1, model.stack)
    stacks = [x_ND[i : i + model.stack] for i in starts]
    name = f"{encoder}.norm"
    if model.pooling == "mean":
        means = torch.stack([each.sum(dim=0) / model.stack for each in stacks])
        return project(weights, layer_norm(weights, means, name, 1e-5), encoder, model)
    joined = [layer_norm(weights, each, name, 1e-5).flatten() for each in stacks]
    return project(weights, torch.stack(joined), encoder, model)


def _convolved(weights: Weights, encoder: str, frames: Tensor) -> Tensor:
    """Return the tokens of frames [mels, F] after both convolutions of Whisper."""
    for name, stride in (("conv1", 1), ("conv2", 2)):
        weight, bias = (weights[f"{encoder}.{name}.{x}"] for x in ("weight", "bias"))
        frames = F.gelu(F.conv1d(frames, weight, bias, stride=stride, padding=1))
    return frames.T


def _convolved_in_2d(weights: Weights, encoder: str, frames: Tensor, chunk: int) -> Tensor:
    """Return the tokens of a chunk [mels, F]; zeros pad the last chunk of a clip."""
    x = F.pad(frames, (0, chunk - frames.shape[1]))[None]
    for name in ("conv1", "conv2", "conv3"):
        weight, bias = (weights[f"{encoder}.{name}.{each}"] for each in ("weight", "bias"))
        x = F.gelu(F.conv2d(x, weight, bias, stride=2, padding=1))
    tokens = x.permute(2, 0, 1).flatten(1)[: -(-frames.shape[1] // 8)]
    return linear(weights, tokens, f"{encoder}.joined")


def _sines(number: int, width: int) -> Tensor:
    """Return sines, then cosines, of the first places in time."""
    half = width // 2
    waves = [10000.0 ** (-i / max(1, half - 1)) for i in range(half)]
    rows = [[f(place * x) for f in (math.sin, math.cos) for x in waves] for place in range(number)]
    return torch.tensor(rows, dtype=torch.float64)


def _encode_image(
    weights: Weights, encoder: str, model: VitModel, image: np.ndarray, first: int
) -> Tensor:
    """Return the rows of an image: [channels, height, width] -> [r, L].

    Rows of other layers are appended to the rows of the last layer: [r, layers * L].
    """
    tower = TOWERS[model.kind]
    x_ND, (height, width) = _embedded(weights, encoder, model, image)
    # The class token comes after registers here, and has the first number.
    number, first_of = len(x_ND) - height * width, int(model.class_token)
    learned = [EXTRA + (place + first_of) % number for place in range(number)]
    patches = _in_squares(height, width, model.shuffle)
    weights.name_tokens([IMAGE * first + place for place in (*learned, *patches)])
    turn = None
    if model.turns_patches:
        turn = tower.angles(model, height, width)
        # Learned tokens come first, and do not rotate.
        turn = torch.cat([turn.new_zeros(len(x_ND) - len(turn), turn.shape[1]), turn])
    norm, parts, deep, states = NORMS[model.norm], tower.parts(model), [], {}
    if model.pre_norm:
        x_ND = norm(weights, x_ND, f"{encoder}.pre_norm", model.norm_eps)
    for i in range(model.layers):
        groups = None
        if model.windows is not None and i not in model.windows.full:
            groups = _windows(height, width, model.windows.side * model.shuffle)
        x_ND = block(weights, x_ND, f"{encoder}.layers.{i}", parts, turn, groups)
        if i in model.deepstack:
            deep.append(x_ND)
        states[i] = x_ND
    if model.final_norm:
        x_ND = norm(weights, x_ND, f"{encoder}.norm", model.norm_eps)
    if model.features:
        states[model.layers - 1] = x_ND
        x_ND = torch.cat([states[each] for each in model.features], dim=1)
    if model.norms_each_patch:
        last = _joined(weights, tower.normed(weights, x_ND, encoder, model), encoder, model, width)
    else:
        joined = _joined(weights, x_ND, encoder, model, width)
        last = tower.normed(weights, joined, encoder, model)
    rows = [_projected(weights, last, encoder, model)]
    for place, each in enumerate(deep):
        layer = f"{encoder}.projector.deepstack.{place}"
        y = _joined(weights, each, encoder, model, width)
        y = layer_norm(weights, y, f"{layer}.norm", model.norm_eps)
        y = activated(linear(weights, y, f"{layer}.mlp.up"), "gelu")
        rows.append(linear(weights, y, f"{layer}.mlp.down"))
    return torch.cat(rows, dim=1)


def _projected(weights: Weights, x_RW: Tensor, encoder: str, model: VitModel) -> Tensor:
    """Return rows [R, W] after the projector, and after the map behind it if there is one."""
    rows = project(weights, x_RW, encoder, model, model.projector_activation)
    if model.projector_out is None:
        return rows
    if TOWERS[model.kind].activates_rows:
        rows = activated(rows, model.projector_activation)
    return linear(weights, rows, f"{encoder}.projector.after")


def _in_squares(height: int, width: int, side: int) -> list[int]:
    """Return the number of each patch, row after row, if those of a square come together."""
    across, size = width // side, side * side
    return [
        (y // side * across + x // side) * size + y % side * side + x % side
        for y in range(height)
        for x in range(width)
    ]


def _encode_tiles(
    weights: Weights, encoder: str, model: VitModel, array: np.ndarray, shown: Shown, first: int
) -> Tensor:
    """Return the rows of an image in tiles: [tiles, channels, height, width] -> [r, L]."""
    if model.image is None or model.tiles is None:
        raise TypeError(f"no tiles for encoder {encoder}")
    (tall, wide), most = (side // model.shuffle for side in model.image), model.tiles.most
    whole, *tiles = (
        _encode_image(weights, encoder, model, each, first + place)
        for place, each in enumerate(array)
    )
    if isinstance(model, Ovis2VisionModel):
        learned = weights[f"{encoder}.projector.indicators.weight"]
        return _between_indicators(learned, whole, tiles, shown)
    end = weights[f"{encoder}.projector.newline.weight"][None]
    if model.tiles_before_projector:
        between = weights[f"{encoder}.projector.separator.weight"][None]
        end, between = (_projected(weights, each, encoder, model) for each in (end, between))
        found = []
        for line in range(0, len(tiles), _columns(shown)):
            beside = tiles[line : line + _columns(shown)]
            for y in range(tall):
                found += [*(each[y * wide : (y + 1) * wide] for each in beside), end]
        found.append(between)
        for y in range(tall):
            found += [whole[y * wide : (y + 1) * wide], end]
        return torch.cat(found)
    if shown is None:
        return torch.cat([whole, end])
    if isinstance(shown, Frame):
        half = -(-tall // 2), -(-wide // 2)
        pooled = _resized(whole.view(tall, wide, -1), half).flatten(0, 1)
        return torch.cat([pooled, end]) if shown.is_last else pooled
    across = [
        torch.cat([each.view(tall, wide, -1) for each in tiles[i : i + shown.wide]], dim=1)
        for i in range(0, len(tiles), shown.wide)
    ]
    grid = torch.cat(across)
    top, left = (len(grid) - shown.height) // 2, (grid.shape[1] - shown.width) // 2
    grid = grid[top : top + shown.height, left : left + shown.width]
    over = 0.0 if most is None else (grid.shape[0] * grid.shape[1] / (most * tall * wide)) ** 0.5
    if over > 1.1:
        grid = _resized(grid, (int(grid.shape[0] // over), int(grid.shape[1] // over)))
    return torch.cat([whole, *(torch.cat([line, end]) for line in grid)])


def _between_indicators(
    learned: Tensor, whole: Tensor, tiles: list[Tensor], shown: Shown
) -> Tensor:
    """Return the rows of an Ovis2: of the whole image, then of its tiles, line by line."""
    start, after_whole, column, line, end = torch.split(learned, 1)
    found = [start, whole, after_whole]
    wide = shown.wide if isinstance(shown, Tiling) else 1
    for number, rows in enumerate(tiles):
        if number:
            found.append(column if number % wide else line)
        found.append(rows)
    return torch.cat([*found, end])


def _columns(shown: Shown) -> int:
    """Return how many tiles are beside each other. Raises: TypeError."""
    if not isinstance(shown, Tiling):
        raise TypeError("the whole image is last, but there are no tiles")
    return shown.wide


def _resized(grid: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a grid of vectors [height, width, L], resized."""
    found = F.interpolate(grid.permute(2, 0, 1)[None], size, mode="bilinear")
    return found[0].permute(1, 2, 0)


def _embedded(
    weights: Weights, encoder: str, model: VitModel, image: np.ndarray
) -> tuple[Tensor, tuple[int, int]]:
    """Return the tokens before the first layer, and height and width in patches."""
    patches, (height, width) = patches_of(image, model.patch, frames=model.temporal_patch)
    x_ND = linear(weights, patches, f"{encoder}.patch")
    if model.patch_norm:
        x_ND = NORMS[model.norm](weights, x_ND, f"{encoder}.patch_norm", model.norm_eps)
    x_ND = TOWERS[model.kind].placed(weights, encoder, model, x_ND, (height, width))
    if model.class_token:
        token = weights[f"{encoder}.class_token.weight"]
        if model.has_table:
            token = token + weights[f"{encoder}.positions.weight"][TOWERS[model.kind].class_row]
        x_ND = torch.cat([token.unsqueeze(0), x_ND])
    if model.registers:
        x_ND = torch.cat([weights[f"{encoder}.registers.weight"], x_ND])
    return x_ND, (height, width)


def _joined(weights: Weights, x_ND: Tensor, encoder: str, model: VitModel, width: int) -> Tensor:
    """Return the patches of each row side by side, their mean, or a convolution over the grid.

    A class token and registers are left out.
    """
    x_ND = x_ND[int(model.class_token) + model.registers :]
    if model.pooling == "linear":
        side, size = model.shuffle, model.patch_width
        kernel = weights[f"{encoder}.projector.merge.weight"].view(size, size, side, side)
        grid = x_ND.T.reshape(1, size, -1, width)
        return F.conv2d(grid, kernel, stride=side)[0].flatten(1).T
    if model.shuffle == 1:
        return x_ND
    rows = _pixel_shuffle(x_ND, width, model.shuffle)
    if model.pooling is None:
        return rows
    patches = torch.split(rows, x_ND.shape[1], dim=1)
    return torch.stack(patches).sum(dim=0) / len(patches)


def connect(
    weights: Weights, name: str, model: ConnectorModel, read: Mapping[str, Tensor]
) -> Tensor:
    """Return the rows of a connector from the rows [r, W] of each encoder for one image."""
    mapped = [linear(weights, rows, f"{name}.reads.{source}") for source, rows in read.items()]
    x_ND = torch.cat(mapped) if model.merge == "rows" else torch.stack(mapped).sum(dim=0)
    if model.queries is not None:
        x_ND = torch.cat([x_ND, weights[f"{name}.queries.weight"]])
    x_ND = blocks(weights, x_ND, name, model)
    made = x_ND if model.queries is None else x_ND[-model.queries :]
    return project(weights, layer_norm(weights, made, f"{name}.norm", 1e-5), name, model)


ENCODERS: dict[str, Callable[..., Tensor]] = {
    "audio": _encode_clip, "aut": _encode_clip, "conformer": encode_conformer,
    **dict.fromkeys(TOWERS, _encode_image),
}  # fmt: skip


def patches_of(image: np.ndarray, side: int, frames: int = 1) -> tuple[Tensor, tuple[int, int]]:
    """Return the patches of an image, row after row, and their number along height and width.

    Each patch has `frames` frames. The image is [channels, frames, height, width], or [channels,
    height, width], which is repeated `frames` times.
    """
    pixels = torch.from_numpy(image).double()
    if pixels.dim() == 3:
        pixels = torch.stack([pixels] * frames, dim=1)
    height, width = pixels.shape[2] // side, pixels.shape[3] // side
    patches = [
        pixels[:, :, y * side : (y + 1) * side, x * side : (x + 1) * side].flatten()
        for y in range(height)
        for x in range(width)
    ]
    return torch.stack(patches), (height, width)


def _windows(height: int, width: int, side: int) -> list[list[int]]:
    """Return the patches of each window of `side` x `side`; windows at the edges are smaller."""
    return [
        [
            y * width + x
            for y in range(top, min(height, top + side))
            for x in range(left, min(width, left + side))
        ]
        for top in range(0, height, side)
        for left in range(0, width, side)
    ]


def _pixel_shuffle(x_ND: Tensor, width: int, side: int) -> Tensor:
    """Join the patches of each square, row by row, as Idefics3 and InternVL do.

    The image is `width` patches wide: [N, D] -> [N / side^2, side^2 * D].
    """
    height, joined = len(x_ND) // width, []
    for top in range(0, height, side):
        for left in range(0, width, side):
            square = [
                x_ND[y * width + x]
                for y in range(top, top + side)
                for x in range(left, left + side)
            ]
            joined.append(torch.cat(square))
    return torch.stack(joined)
