"""Layers of the oracle from their definition: norms, attention, rotary embeddings.

Decides: the position ids of a sample's tokens, from the tokens themselves and the images' sizes;
all else follows the formulas of the papers.
Relies on: weights by their full names. It shares no positions, runs or masks with the product.
Leaves: MLPs and experts to `oracle_blocks`, the models to `oracle_encoders` and `oracle_language`.

Legend: S tokens of a record, T tokens of a sample (of all its records), H heads, K head size.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.spec.layers import QueryScaling
from mimo_launch.spec.spec import RopeScaling
from mimo_launch.verify.oracle_dropout import Weights

Size = tuple[int, int]


def linear(weights: Weights, x: Tensor, name: str) -> Tensor:
    """Return a linear layer, with a bias and with clips where it has them."""
    x = _clipped(weights, x, f"{name}.input")
    out = F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
    return _clipped(weights, out + weights.change(x, name), f"{name}.output")


def _clipped(weights: Weights, x: Tensor, name: str) -> Tensor:
    """Return x between two bounds if the layer has them."""
    low, high = weights.get(f"{name}_min"), weights.get(f"{name}_max")
    if low is None or high is None:
        return x
    return torch.where(x < low, low, torch.where(x > high, high, x))


def layer_norm(weights: Weights, x: Tensor, name: str, eps: float) -> Tensor:
    """Return x with mean 0 and variance 1, times the weight, plus any bias."""
    centred = x - x.mean(dim=-1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return scaled * weights[f"{name}.weight"] + weights.get(f"{name}.bias", torch.zeros(()))


def rms_norm(weights: Weights, x: Tensor, name: str, eps: float, *, offset: bool = False) -> Tensor:
    """Return x over its root mean square, times the weight, or times 1 + weight."""
    scaled = x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return scaled * (weights[f"{name}.weight"] + int(offset))


def places_in(documents: Tensor) -> list[int]:
    """Return the place of each token in its document, from 0."""
    seen, found = Counter[int](), list[int]()
    for document in documents.tolist():
        found.append(seen[document])
        seen[document] += 1
    return found


def hidden_from(
    documents: Tensor,
    images: Tensor | None,
    window: int | None,
    *,
    chunked: bool = False,
    prompts: Tensor | None = None,
) -> Tensor:
    """Return [S, S], true where a token does not see another: later ones, other documents.

    Tokens with the same number in `images`, except 0, see each other. With `window`, tokens that
    are `window` or more places earlier are hidden; if `chunked`, those that are not in the same
    chunk of `window` tokens of their document. Tokens with the same number in `prompts`, except 0,
    see each other whatever the window is.
    """
    tokens = len(documents)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    if images is not None:
        hidden &= (images[:, None] != images) | (images == 0)
    hidden |= documents[:, None] != documents
    if window is not None and chunked:
        chunks = torch.tensor([place // window for place in places_in(documents)])
        hidden |= chunks[:, None] != chunks
    elif window is not None:
        for token in range(window, tokens):
            hidden[token, : token + 1 - window] = True
    if prompts is not None:
        hidden &= (prompts[:, None] != prompts) | (prompts == 0)
    return hidden


def softmax(scores_HST: Tensor) -> Tensor:
    """Return the weights of scores."""
    return scores_HST.softmax(dim=-1)


def attend(
    q_SHK: Tensor,
    k_SHK: Tensor,
    v_SHK: Tensor,
    hidden: Tensor | None = None,
    *,
    cap: float | None = None,
    weigh: Callable[[Tensor], Tensor] = softmax,
) -> Tensor:
    """Attend to all tokens that are not `hidden` (see `hidden_from`), with queries already scaled.

    `cap` caps scores (`capped`), and `weigh` makes weights of them, [H, S, T].
    """
    scores = capped(torch.einsum("shk,thk->hst", q_SHK, k_SHK), cap)
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("hst,thk->shk", weigh(scores), v_SHK).flatten(1)


def softmax_beside(scores_HST: Tensor, sinks_H: Tensor) -> Tensor:
    """Return the weights of scores in a softmax to whose denominator sinks are added."""
    found = scores_HST.exp()
    return found / (sinks_H.exp()[:, None, None] + found.sum(dim=-1, keepdim=True))


def capped(x: Tensor, cap: float | None) -> Tensor:
    """Return cap tanh(x / cap), written with exponentials (arXiv:2408.00118, section 2)."""
    return x if cap is None else cap * (2 / (1 + torch.exp(-2 * x / cap)) - 1)


def image_numbers(tokens: Tensor, images: Mapping[int, Sequence[Size]]) -> Tensor:
    """Return the number of the image of each token, counted from 1, and 0 for text.

    `images` holds, for each placeholder token, the heights and widths of its images in rows.
    """
    left = {token: list(sizes) for token, sizes in images.items()}
    found: list[int] = []
    while len(found) < len(tokens):
        token = int(tokens[len(found)])
        if token not in left:
            found.append(0)
            continue
        height, width = left[token].pop(0)
        found += [max(found, default=0) + 1] * (height * width)
    return torch.tensor(found)


def prompt_numbers(labels: Sequence[int], documents: Sequence[int]) -> Tensor:
    """Return 1 and more for the tokens of a document up to its first label, and 0 for others."""
    found = []
    for place, document in enumerate(documents):
        of_document = (at for at, each in enumerate(documents) if each == document)
        first = next((at for at in of_document if labels[at] != IGNORE_LABEL), -1)
        found.append(document + 1 if place <= first else 0)
    return torch.tensor(found)


def axis_ids(
    tokens: Tensor,
    documents: Tensor,
    images: Mapping[int, Sequence[Size]],
    later: Mapping[int, Sequence[int | None]],
    sounds: Mapping[int, int],
    *,
    holding: Collection[int] = (),
) -> list[tuple[int, int, int]]:
    """Return the position ids of each token: time, height and width.

    `images` holds, for each placeholder token, the heights and widths of its images in rows;
    `later` is how much later each image is than the first of its video, None for the first. After
    images of tokens in `holding`, text continues after the time of the image as well. `sounds`
    numbers the rows of the sound of a video, by place; -1 is for text with the position before it.
    """
    times = {token: list(each) for token, each in later.items()}
    corner = 0
    left = {token: list(sizes) for token, sizes in images.items()}
    ids: list[tuple[int, int, int]] = []
    now = 0
    while len(ids) < len(tokens):
        place = len(ids)
        if place and documents[place] != documents[place - 1]:
            now = 0
        if (row := sounds.get(place, -1)) >= 0:
            ids.append((corner + row,) * 3)
            now = corner + row + 1
            continue
        if int(tokens[place]) not in left:
            now -= place in sounds
            ids.append((now, now, now))
            now += 1
            continue
        height, width = left[int(tokens[place])].pop(0)
        time = times[int(tokens[place])].pop(0)
        if time is None:
            corner = now
        when = corner + (time or 0)
        ids += [(when, corner + y, corner + x) for y in range(height) for x in range(width)]
        now = corner + max(height, width)
        if int(tokens[place]) in holding:
            now = max(now, when + 1)
    return ids


def turned(x_SHK: Tensor, angle: Tensor, factor: float = 1.0) -> Tensor:
    """Return x, each pair (i, i + R/2) turned by its angle [S, R/2], times a factor; R may be K.

    Numbers after the first R do not change.
    """
    half = angle.shape[-1]
    turn = torch.polar(torch.full_like(angle, factor), angle)[:, None]
    pairs = torch.complex(x_SHK[..., :half], x_SHK[..., half : 2 * half]) * turn
    return torch.cat([pairs.real, pairs.imag, x_SHK[..., 2 * half :]], dim=-1)


def pairs_in_halves(x: Tensor, size: int) -> Tensor:
    """Return x with its first `size` / 2 pairs unzipped: first numbers, then second numbers."""
    order = [*range(0, size, 2), *range(1, size, 2), *range(size, x.shape[-1])]
    return x[..., order]


def frequencies(size: int, theta: float, scaling: RopeScaling | None = None) -> list[float]:
    """Return 1 / theta^(2i/K) for pair i of a head of `size` K, scaled by its wavelength."""
    frequencies = [theta ** (-2 * i / size) for i in range(size // 2)]
    if scaling is None:
        return frequencies
    if scaling.rope_type == "linear":
        return [frequency / scaling.factor for frequency in frequencies]
    if scaling.rope_type == "longrope":
        return [f / slower for f, slower in zip(frequencies, scaling.short_factor, strict=True)]
    if scaling.rope_type == "proportional":
        rest = size // 2 - int(scaling.partial_rotary_factor * size / 2)
        return [f / scaling.factor for f in frequencies[: size // 2 - rest]] + [0.0] * rest
    length, scaled = scaling.original_max_position_embeddings, list[float]()
    if scaling.rope_type == "yarn":
        # The pair that turns n times within the length: length * theta^(-2i/K) = 2 pi n.
        fast, slow = (
            size * math.log(length / (2 * math.pi * n), theta) / 2
            for n in (scaling.beta_fast, scaling.beta_slow)
        )
        if scaling.truncate:
            fast, slow = float(math.floor(fast)), float(math.ceil(slow))
        fast, slow = max(fast, 0.0), min(slow, size - 1.0)
        slow += 0.001 if fast == slow else 0.0
        for i, frequency in enumerate(frequencies):
            slowed = min(1.0, max(0.0, (i - fast) / (slow - fast)))
            scaled.append((1 - slowed) * frequency + slowed * frequency / scaling.factor)
        return scaled
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength > length / scaling.low_freq_factor:
            scaled.append(frequency / scaling.factor)
        elif wavelength <= length / scaling.high_freq_factor:
            scaled.append(frequency)
        else:
            width = scaling.high_freq_factor - scaling.low_freq_factor
            smooth = (length / wavelength - scaling.low_freq_factor) / width
            scaled.append((1 - smooth) * frequency / scaling.factor + smooth * frequency)
    return scaled


def attention_factor(scaling: RopeScaling | None) -> float:
    """Return the factor on rotated queries and keys."""
    if scaling is None or scaling.rope_type not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.rope_type == "longrope":
        length = scaling.original_max_position_embeddings
        return math.sqrt(1 + math.log(scaling.factor, length))
    grown = 0.1 * math.log(scaling.factor)
    if scaling.mscale and scaling.mscale_all_dim:
        return (grown * scaling.mscale + 1) / (grown * scaling.mscale_all_dim + 1)
    return grown + 1


def query_growth(scaling: QueryScaling | None, documents: Tensor) -> Tensor | None:
    """Return the factor on the query of each token, [S], from the document of each token."""
    if scaling is None:
        return None
    found = list[float]()
    for place in places_in(documents):
        steps = math.floor((place + scaling.first_position) / scaling.length)
        found.append(1 + scaling.beta * math.log(1 + steps))
    return torch.tensor(found, dtype=torch.float64)


def text_angles(places: Sequence[int], turns: Sequence[float]) -> Tensor:
    """Return place x frequency for each pair of a head, [S, K/2]."""
    return torch.tensor([[place * turn for turn in turns] for place in places], dtype=torch.float64)


def axis_angles(
    ids: Sequence[tuple[int, ...]],
    sections: Sequence[int],
    turns: Sequence[float],
    *,
    interleaved: bool,
) -> Tensor:
    """Return angles, [S, K/2]: the first `sections[0]` pairs turn with the first id, and so on.

    `interleaved`: of the pairs below 3 x `sections[1]`, every third from 1 on turns with the second
    id; of the pairs below 3 x `sections[2]`, every third from 2 on with the third id; all others
    turn with the first.
    """
    axis_of = [axis for axis, pairs in enumerate(sections) for _ in range(pairs)]
    if interleaved:
        axis_of = [0] * len(turns)
        for axis in (1, 2):
            for pair in range(axis, min(len(turns), 3 * sections[axis]), 3):
                axis_of[pair] = axis
    return torch.tensor(
        [[each[axis] * turn for axis, turn in zip(axis_of, turns, strict=True)] for each in ids],
        dtype=torch.float64,
    )


def image_angles(height: int, width: int, size: int, of_pairs: str = "shared") -> Tensor:
    """Return the angles of the patches of an image, row by row, for a head of `size` K, [N, K/2].

    The first K/4 pairs turn by the row, the others by the column. Both use the frequencies of the
    head with even numbers. If `of_pairs` is `in_turn`, columns use the frequencies with odd
    numbers; if it is `alternating`, each frequency turns one pair by the column, and the next by
    the row.
    """
    of_head = [10000.0 ** (-2 * i / size) for i in range(size // 2)]
    frequencies = (of_head[::2], of_head[1::2] if of_pairs == "in_turn" else of_head[::2])
    found = []
    for y in range(height):
        for x in range(width):
            if of_pairs == "alternating":
                found.append([place * each for each in of_head[::2] for place in (x, y)])
                continue
            axes = zip((y, x), frequencies, strict=True)
            found.append([place * each for place, of in axes for each in of])
    return torch.tensor(found, dtype=torch.float64)
