"""Multi-token prediction of the oracle, one record at a time.

Decides: from the definition, which token each depth reads and which it predicts (arXiv:2412.19437,
equations 21 to 24).
Relies on: `oracle_language` for the block, `oracle` for embedding and output layer.
Leaves: dividing by the number of labels to `oracle`.

Legend: S tokens, D width.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.spec.spec import DecoderModel, HybridModel, LanguageModel
from mimo_launch.verify.oracle_blocks import RecordText
from mimo_launch.verify.oracle_language import decoder_block, hybrid_block
from mimo_launch.verify.oracle_layers import Weights, linear, rms_norm


def losses_ahead(
    weights: Weights,
    model: LanguageModel,
    x_SD: Tensor,
    tokens: Tensor,
    labels: Tensor,
    text: RecordText,
    angles: tuple[Tensor | None, Tensor | None],
    embedded: Callable[[Tensor], Tensor],
    words: Callable[[Tensor], Tensor],
) -> Iterator[tuple[Tensor, int]]:
    """Yield the summed loss of each depth and the number of its labels.

    `x_SD` is the stream after the last norm; `angles` are as for `decoder_block`.
    """
    everywhere, local = angles
    for depth in range(1, 1 + (model.mtp.depth if model.mtp else 0)):
        name, there = f"language.mtp.{depth - 1}", []
        for place, document in enumerate(text.documents.tolist()):
            inside = place + depth < len(tokens) and document == text.documents[place + depth]
            there.append(place + depth if inside else None)
        has = torch.tensor([each is not None for each in there])
        # Where there is no such token, use any: there is no loss here or later in the document.
        at = torch.tensor([place if each is None else each for place, each in enumerate(there)])

        def norm(x: Tensor, part: str, name: str = name) -> Tensor:
            offset = model.norm_offset
            return rms_norm(weights, x, f"{name}.{part}", model.norm_eps, offset=offset)

        pair = norm(embedded(tokens[at]), "token_norm"), norm(x_SD, "hidden_norm")
        x_SD = linear(weights, torch.cat(pair, dim=1), f"{name}.project")
        seen = replace(text, counts=text.counts & text.counts[at] & has)
        block = f"{name}.block"
        if isinstance(model, DecoderModel) and everywhere is not None:
            last = model.layers - 1
            x_SD = decoder_block(weights, x_SD, model, seen, everywhere, last, block, local)
        elif isinstance(model, HybridModel):
            x_SD = hybrid_block(weights, x_SD, model, seen, everywhere, block)
        x_SD = norm(x_SD, "norm")
        said = torch.where(has, labels[at], IGNORE_LABEL)
        loss = F.cross_entropy(words(x_SD), said, ignore_index=IGNORE_LABEL, reduction="sum")
        yield loss, int((said != IGNORE_LABEL).sum())
