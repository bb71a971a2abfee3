"""Known ways to get multi-token prediction wrong; `planted` lists them as well."""

from typing import Any

import numpy as np
from tests.support.specs import behind_vision

from mimo_launch.data.step_of_records import StepOfRecords
from mimo_launch.models import language_input
from mimo_launch.optimizer import step_end
from mimo_launch.spec.spec import Spec

MTP: dict[str, Any] = {"mtp": {"depth": 2, "loss_weight": 0.7}}
EXPERTS = {"moe": {"experts": 4, "top_k": 2, "width": 16, "aux_loss": 0.1, "bias_update_rate": 0.1}}


def further(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language that predicts two further tokens behind vision, on ranks of its own."""
    return behind_vision({**MTP, "layers": 2}, data, **language)


def labels_one_too_near() -> None:
    """A depth learns the token that it reads."""
    correct = language_input.labels_ahead
    language_input.labels_ahead = lambda labels, has, depth: correct(labels, has, depth - 1)


def documents_see_each_other() -> None:
    """The last tokens of a document learn the first ones of the next."""
    correct = language_input.has_ahead
    language_input.has_ahead = lambda documents, depth: correct(np.zeros_like(documents), depth)


def moved_behind_the_cut() -> None:
    """Each cp rank takes what is ahead among its own tokens."""
    correct, read = language_input.to_device, language_input.read_ahead

    class Whole:
        def __init__(self, values: Any) -> None:
            self.values = values

        def __getitem__(self, key: Any) -> Any:
            return self.values[key].roll(-1, dims=-1)

    def late(values: np.ndarray, device: Any) -> Any:
        return Whole(correct(np.roll(values, 1, axis=-1), device))

    def with_late(*args: Any) -> Any:
        language_input.to_device = late  # type: ignore[assignment]
        found = list(read(*args))
        language_input.to_device = correct
        return found

    language_input.read_ahead = with_late


def divided_by_all_labels() -> None:
    """A depth is divided by the labels of the model, of which it has fewer."""
    correct = StepOfRecords.num_terms
    StepOfRecords.num_terms = lambda self, module, depth=0: correct(self, module)  # type: ignore[method-assign]


def embeddings_apart() -> None:
    """The embedding of the last stage learns alone."""
    step_end.sum_tied_gradients = lambda *_: None


MTP_BUGS = {
    "further labels one too near": (labels_one_too_near, further()),
    "further tokens of other documents": (
        documents_see_each_other, further({"max_documents": 3}),
    ),
    "further tokens behind the cut": (moved_behind_the_cut, further(cp=2)),
    "further tokens divided by all labels": (
        divided_by_all_labels, further({"max_documents": 3}),
    ),
    "embeddings of two stages apart": (embeddings_apart, further(pp=2)),
}  # fmt: skip
