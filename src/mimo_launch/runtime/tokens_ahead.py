"""The text that each depth of multi-token prediction reads from a microbatch.

Decides: that text is shifted before it is cut over cp, so that no rank needs another rank's tokens;
that a token counts in the balance of experts only if there is a token that far ahead.
Relies on: `data.tokens_ahead` for documents.
Leaves: the loss to `models.language_model`.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.data.packing import has_ahead, labels_ahead, tokens_ahead
from mimo_launch.layers.router import AuxLoss, RoutingContext
from mimo_launch.layout.replica_views import LanguageView
from mimo_launch.models.language_model import TextAhead
from mimo_launch.runtime.model_inputs import StepInputs, is_token


def read_ahead(
    view: LanguageView,
    inputs: StepInputs,
    depths: int,
    held: Tensor,
    aux_loss: AuxLoss | None,
    device: torch.device,
) -> Iterator[TextAhead]:
    """Yield the text of each depth, from 1 on, at the positions `held` of each sequence."""
    texts = [inputs.text(sample) for sample in view.samples]
    tokens, labels = (np.stack(part) for part in zip(*texts, strict=True))
    documents = np.stack([inputs.documents(sample) for sample in view.samples])
    is_real = is_token(view)
    for depth in range(1, depths + 1):
        has = has_ahead(documents, depth)
        routing = None
        if aux_loss is not None:
            counts = is_real & has & np.roll(is_real, -depth, axis=1)
            shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
            routing = RoutingContext(to_device(shares, device)[:, held], aux_loss)
        yield TextAhead(
            to_device(tokens_ahead(tokens, has, depth), device)[:, held],
            to_device(labels_ahead(labels, has, depth), device)[:, held],
            routing,
        )
