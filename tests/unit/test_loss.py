"""Cross-entropy over a part of the vocabulary, against torch's over all of it."""

import pytest
import torch
import torch.nn.functional as F

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.vocab_parallel import vocab_cross_entropy

TOKENS, VOCAB = 256, 64


def test_a_step_in_bf16_divides_its_gradient_by_the_exact_number_of_labels() -> None:
    """1/491 rounded to bf16 is 0.36 % off. Roundings of small elements by themselves are even."""
    torch.manual_seed(0)
    logits = torch.randn(TOKENS, VOCAB).to(torch.bfloat16).requires_grad_()
    labels = torch.randint(VOCAB, (TOKENS,))
    losses = vocab_cross_entropy(logits, labels, range(VOCAB), ParallelContext())
    (losses.sum() / 491).backward()
    probabilities = logits.detach().double().softmax(dim=1)
    others = F.one_hot(labels, VOCAB) == 0
    assert logits.grad is not None
    total = logits.grad[others].double().sum() * 491
    assert float(total) == pytest.approx(float(probabilities[others].sum()), rel=3e-4)
