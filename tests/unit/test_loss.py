"""Cross-entropy and look-ups over parts of the vocabulary, against torch's over all of it."""

import pytest
import torch
import torch.nn.functional as F

from mimo_launch.comm.process_groups import Group
from mimo_launch.kinds.shapes import VocabShape
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.vocab_parallel import VocabEmbedding, vocab_cross_entropy

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


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("still", [None, 0, 3, 4, 9, 12])
def test_terms_of_ranks_are_a_whole_look_up_and_one_word_may_get_no_gradient(
    ranks: int, still: int | None
) -> None:
    """Whichever rank has the word; 13 words, so that parts are uneven."""
    torch.manual_seed(0)
    whole = torch.randn(13, 5, dtype=torch.float64, requires_grad=True)
    ids, grad = torch.randint(13, (400,)), torch.randn(400, 5, dtype=torch.float64)
    wanted = F.embedding(ids, whole, padding_idx=still)
    wanted.backward(grad)
    terms, gradients = [], []
    for rank in range(ranks):
        context = ParallelContext(Group(tuple(range(ranks)), rank, None), dtype=torch.float64)
        table = VocabEmbedding(context, VocabShape(13, 5))
        with torch.no_grad():
            table.weight.copy_(whole[table.part.start : table.part.stop])
        terms.append(table.own_rows(ids, still=still))
        terms[-1].backward(grad)
        gradients.append(table.weight.grad)
    torch.testing.assert_close(torch.stack(terms).sum(dim=0), wanted)
    torch.testing.assert_close(torch.cat(gradients), whole.grad)
