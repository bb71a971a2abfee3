"""Losses of a user's own, right ones and wrong ones."""

from typing import Any

import torch
from torch import Tensor, nn

from mimo_launch.custom import LabelledTokens


def weighted(tokens: LabelledTokens) -> Tensor:
    return tokens.cross_entropy() * tokens.columns["weight"]


def with_small_sums(tokens: LabelledTokens) -> Tensor:
    return tokens.cross_entropy() + 0.1 * torch.logsumexp(tokens.logits, dim=1).square()


def distilled(tokens: LabelledTokens, temperature: float = 1.0) -> Tensor:
    teacher = torch.log_softmax(tokens.columns["teacher_logits"] / temperature, dim=1)
    student = torch.log_softmax(tokens.logits / temperature, dim=1)
    student = student.gather(1, tokens.columns["teacher_tokens"])
    return (teacher.exp() * (teacher - student)).sum(dim=1)


class Scored(nn.Module):
    """Numbers from states alone: no logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.head = nn.Linear(model.hidden, 3)

    def forward(self, tokens: LabelledTokens) -> Tensor:
        return (self.head(tokens.hidden) - tokens.columns["score"]).square().mean(dim=1)


class All(nn.Module):
    """Everything that tokens have, with a weight that is not in a layer of torch."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.scored, self.gain = Scored(model), nn.Parameter(torch.ones(1))

    def forward(self, tokens: LabelledTokens) -> Tensor:
        found = weighted(tokens) + distilled(tokens) + self.scored(tokens)
        return found * self.gain + 0.1 * torch.logsumexp(tokens.logits, dim=1).square()


def mean(tokens: LabelledTokens) -> Tensor:
    return tokens.cross_entropy().mean()


def shared(tokens: LabelledTokens) -> Tensor:
    """Terms, each divided by the number of tokens that this rank happens to have."""
    return tokens.cross_entropy() / max(1, len(tokens.labels))


def whole(tokens: LabelledTokens) -> int:
    return len(tokens.labels)


def failing(tokens: LabelledTokens) -> Tensor:
    return tokens.columns["nothing"]


class Buffered(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, tokens: LabelledTokens) -> Tensor:
        return tokens.cross_entropy()


class Uncalled:
    def __init__(self, model: Any) -> None:
        del model
