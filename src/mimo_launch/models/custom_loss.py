"""A user's loss of language: what it gets and returns, building it, and checking it before a run.

Decides: the protocol: a term for each learnt token, from that token alone; which losses are
refused.
Relies on: `diag.users_code` for importing, `layers.parameter_segments` for its plain parameters.
Leaves: states and logits to `language_model`; dividing by the count to the runtime.

Legend: M learnt tokens of one forward on this rank, D width, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from mimo_launch.diag.users_code import CustomClassError, failed, import_named, named_place
from mimo_launch.kinds.vocabulary import vocab_size
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import adopt_parameters
from mimo_launch.spec.custom_loss import CustomLoss
from mimo_launch.spec.spec import Spec

_TRIED = 6


@dataclass(frozen=True, slots=True)
class LabelledTokens:
    """The learnt tokens of one forward on this rank, M of them: what a loss gets.

    `labels` [M] are the tokens to predict, `columns` the values of the data for them, [M] or
    [M, width]. All else is computed when it is read.
    """

    labels: Tensor
    columns: Mapping[str, Tensor]
    make_hidden: Callable[[], Tensor]
    make_logits: Callable[[], Tensor]
    make_losses: Callable[[], Tensor]

    @property
    def hidden(self) -> Tensor:
        """The states after the last norm, from which the labels are predicted, [M, D]."""
        return self.make_hidden()

    @property
    def logits(self) -> Tensor:
        """The logits of the whole vocabulary, [M, V], in at least fp32; gathered over tp."""
        return self.make_logits()

    def cross_entropy(self) -> Tensor:
        """Return the usual loss of each label, [M], in at least fp32; no logits are gathered."""
        return self.make_losses()


class CustomTerms(nn.Module):
    """A user's function, or an object that is no module, as a module without parameters."""

    def __init__(self, function: Callable[[LabelledTokens], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, tokens: LabelledTokens) -> Any:
        """Return what the function returns."""
        return self.function(tokens)


def terms_of(loss: nn.Module, tokens: LabelledTokens) -> Tensor:
    """Return the term of each token, [M]. Raises: CustomClassError if the loss returns others."""
    made, number = loss(tokens), len(tokens.labels)
    if isinstance(made, Tensor) and made.shape == (number,) and made.is_floating_point():
        return made
    what = type(made).__name__
    if isinstance(made, Tensor):
        kind = "" if made.is_floating_point() else f" of {made.dtype}"
        what = f"a tensor {list(made.shape)}{kind} for {number} tokens, not [{number}]"
    raise CustomClassError(
        f"{_place(loss)} returned {what}: return one term for each token, neither their sum nor "
        "their mean; mimo-launch adds them up and divides by the count of the whole step"
    )


def _place(loss: nn.Module) -> str:
    function = loss.function if isinstance(loss, CustomTerms) else type(loss).forward
    while isinstance(function, partial):
        function = function.func
    return named_place(function)


def build_loss(spec: Spec, context: ParallelContext) -> nn.Module:
    """Return the loss that the spec names, with plain parameters that every tp rank holds whole.

    Raises: CustomClassError.
    """
    asked = spec.language.loss
    if asked is None:
        raise ValueError("the spec names no loss")
    where = _where(asked)
    named = import_named(asked.kind, where)
    made: Any = partial(named, **asked.options)
    if isinstance(named, type):
        try:
            made = named(spec.language.model, **asked.options)
        except Exception as error:
            raise CustomClassError(f"{where} calling it {failed(error)}") from error
        if not callable(made):
            raise CustomClassError(f"{where} {named_place(named)} has no method `__call__`")
    network = made if isinstance(made, nn.Module) else CustomTerms(made)
    saved = set(network.state_dict()) - {name for name, _ in network.named_parameters()}
    if saved:
        names = ", ".join(f"`{name}`" for name in sorted(saved)[:5])
        raise CustomClassError(
            f"{where} checkpoints hold parameters only, and it has saved buffers: {names}; "
            "register constants with `persistent=False`"
        )
    try:
        adopt_parameters(network, counted=context.counts)
    except ValueError as error:
        raise CustomClassError(f"{where} {error}") from error
    return network


@contextmanager
def without_memory() -> Iterator[None]:
    """Give modules that are built inside it parameters on the meta device, and buffers on CPU."""

    def on_meta(
        module: nn.Module, name: str, parameter: nn.Parameter | None
    ) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None
        return nn.Parameter(parameter.to("meta"), parameter.requires_grad)

    handle = register_module_parameter_registration_hook(cast(Any, on_meta))
    try:
        # Also inside `torch.device("meta")`: buffers are real.
        with torch.device("cpu"):
            yield
    finally:
        handle.remove()


def cast_network(network: nn.Module, context: ParallelContext) -> None:
    """Cast parameters to the type that is stored, and buffers to the type that computes."""
    network.to(context.dtype)
    for owner in network.modules():
        for name, buffer in list(owner.named_buffers(recurse=False)):
            if buffer.is_floating_point():
                setattr(owner, name, buffer.to(context.compute_dtype))


def check_loss(spec: Spec) -> None:
    """Call the loss of a spec, if any, with random tokens, together and in parts.

    Raises: CustomClassError if it fails, or if its terms depend on other tokens.
    """
    asked = spec.language.loss
    if asked is None:
        return
    where = _where(asked)
    context = ParallelContext(dtype=torch.float64, compute_dtype=torch.float64)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(spec.train.seed)
        network = build_loss(spec, context)
        cast_network(network, context)
        whole = _random_tokens(spec, asked, _TRIED)
        try:
            together = terms_of(network, whole)
            parts = (slice(2), slice(2, None), slice(0))
            apart = torch.cat([terms_of(network, _some(whole, part)) for part in parts])
        except CustomClassError as error:
            raise CustomClassError(f"{where} {error}") from None
        except Exception as error:
            raise CustomClassError(f"{where} calling it {failed(error)}{_hint(error)}") from error
    if not torch.allclose(together, apart, rtol=1e-9, atol=1e-12, equal_nan=True):
        raise CustomClassError(
            f"{where} {_place(network)} returned other terms for {_TRIED} tokens together than for "
            "2 and 4 of them: a term may depend on its own token alone; divide by no number of "
            "tokens, and draw no random numbers"
        )


def _hint(error: Exception) -> str:
    """Return what to write if a loss has asked for a column that its spec does not name."""
    if not isinstance(error, KeyError) or not error.args:
        return ""
    return f"; to read a column of the data, write `columns: {{{error.args[0]}: 1}}` in the loss"


def _where(loss: CustomLoss) -> str:
    return f"modules.language.loss, `{loss.kind}`:"


def _random_tokens(spec: Spec, loss: CustomLoss, number: int) -> LabelledTokens:
    words, exact = vocab_size(spec), torch.float64
    logits = torch.randn(number, words, dtype=exact)
    hidden = torch.randn(number, spec.language.model.hidden, dtype=exact)
    columns = {}
    for name, width in loss.columns.items():
        shape = (number, width) if width > 1 else (number,)
        is_ids = name in loss.token_columns
        columns[name] = torch.randint(words, shape) if is_ids else torch.rand(shape, dtype=exact)
    return given_tokens(torch.randint(words, (number,)), columns, hidden, logits)


def given_tokens(
    labels: Tensor, columns: Mapping[str, Tensor], hidden: Tensor, logits: Tensor
) -> LabelledTokens:
    """Return tokens with known states and logits of the whole vocabulary."""
    losses = partial(F.cross_entropy, logits, labels, reduction="none")
    return LabelledTokens(labels, columns, lambda: hidden, lambda: logits, losses)


def _some(tokens: LabelledTokens, part: slice) -> LabelledTokens:
    columns = {name: values[part] for name, values in tokens.columns.items()}
    return given_tokens(tokens.labels[part], columns, tokens.hidden[part], tokens.logits[part])
