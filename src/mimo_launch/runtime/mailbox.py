"""Activations and gradients that this rank holds between two actions of a step, by address.

Decides: how long a tensor is held.
Relies on: programs that have passed the simulator, so that nothing is taken before it is put.
Leaves: making tensors to `compute`, moving them to `stage_transfers` and `bridges`.

An *input* is a tensor that a stage received: a leaf that collects a gradient, which is sent back.
An *output* is a tensor that a stage made, with its graph; it stays until backward takes it with its
*gradient*.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mimo_launch.schedule.actions import Action


class Address(NamedTuple):
    """A stage of a module and one of its forwards; with stage None, rows on the bridge `module`."""

    module: str
    stage: int | None
    number: int

    @classmethod
    def of(cls, action: Action) -> "Address":
        """Return the address of the tensors of a forward, a backward or a transfer of a stage."""
        return cls(action.module, action.stage or 0, action.index)


class HeldTensors:
    """Tensors of one kind by address; each is put once, and taken once.

    Raises: RuntimeError if there is already a tensor, or none to take: both are errors of the
    schedule.
    """

    def __init__(self, kind: str) -> None:
        self._kind, self._held = kind, dict[Address, Tensor]()

    def put(self, at: Address, tensor: Tensor) -> None:
        """Hold a tensor until it is taken."""
        if at in self._held:
            raise RuntimeError(f"{at}: a second {self._kind} before the first is taken")
        self._held[at] = tensor

    def peek(self, at: Address) -> Tensor:
        """Return a tensor and keep it."""
        if at not in self._held:
            raise RuntimeError(f"{at}: there is no {self._kind} yet")
        return self._held[at]

    def take(self, at: Address) -> Tensor:
        """Return a tensor and release it."""
        found = self.peek(at)
        del self._held[at]
        return found

    def clear(self) -> None:
        """Release everything."""
        self._held.clear()


class Mailbox:
    """The inputs, outputs and gradients of this rank's stages during one step."""

    def __init__(self) -> None:
        self.inputs, self.outputs, self.gradients = (
            HeldTensors("input"),
            HeldTensors("output"),
            HeldTensors("gradient"),
        )

    def clear(self) -> None:
        """Forget the step."""
        for box in (self.inputs, self.outputs, self.gradients):
            box.clear()

    def take_input(self, at: Address) -> Tensor:
        """Return the tensor that a stage received; keep it if it will have a gradient."""
        received = self.inputs.peek(at)
        return received if received.requires_grad else self.inputs.take(at)

    def take_input_gradient(self, at: Address) -> Tensor:
        """Return the gradient that an input has collected, and release both.

        Raises: RuntimeError if its reader has not run backward.
        """
        gradient = self.inputs.take(at).grad
        if gradient is None:
            raise RuntimeError(f"{at}: its input has no gradient yet")
        return gradient

    def output_to_send(self, at: Address) -> Tensor:
        """Return an output without its graph; keep it if it has a backward."""
        output = self.outputs.peek(at)
        return output.detach() if output.requires_grad else self.outputs.take(at)

    def backward(self, outputs: Sequence[Address], loss: Address | None) -> None:
        """Run backward from outputs and their gradients, and from a loss; release all of them."""
        tensors = [self.outputs.take(at) for at in outputs]
        gradients: list[Tensor | None] = [self.gradients.take(at) for at in outputs]
        if loss is not None:
            tensors.append(self.outputs.take(loss))
            gradients.append(None)
        torch.autograd.backward(tensors, gradients)
