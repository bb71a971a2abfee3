"""How long this rank holds the tensors of a step."""

import pytest
import torch

from mimo_launch.runtime.mailbox import Address, Mailbox

AT = Address("vision", 0, 3)


@pytest.mark.parametrize("trains", [True, False])
def test_an_output_is_held_after_it_is_sent_only_for_its_backward(trains: bool) -> None:
    mail, weight = Mailbox(), torch.ones(2, requires_grad=trains)
    mail.outputs.put(AT, weight * 3)
    sent = mail.output_to_send(AT)
    assert (sent.tolist(), sent.requires_grad) == ([3, 3], False)
    if trains:
        mail.gradients.put(AT, torch.tensor([5.0, 7.0]))
        mail.backward([AT], None)
        assert weight.grad is not None
        assert weight.grad.tolist() == [15, 21]
    with pytest.raises(RuntimeError, match="there is no output yet"):
        mail.outputs.peek(AT)


@pytest.mark.parametrize("trains", [True, False])
def test_an_input_is_held_after_it_is_read_only_for_its_gradient(trains: bool) -> None:
    mail = Mailbox()
    mail.inputs.put(AT, torch.ones(2, requires_grad=trains))
    read = mail.take_input(AT)
    if trains:
        (read * torch.tensor([5.0, 7.0])).sum().backward()
        assert mail.take_input_gradient(AT).tolist() == [5, 7]
    with pytest.raises(RuntimeError, match="there is no input yet"):
        mail.inputs.peek(AT)
