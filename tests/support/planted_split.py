"""Known ways to get samples wrong of which several replicas encode images; `planted` lists them."""

from typing import Any

from tests.support.specs import box, spec

from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.models import token_numbers
from mimo_launch.spec.spec import Spec


def split_apart(data: dict[str, Any] | None = None, **vision: Any) -> Spec:
    """Vision dp 4 on the ranks of language tp 4: each replica has one sample of several images."""
    return spec(
        {"vision": box(0, dp=4, **vision), "language": box(0, tp=4)},
        **{"microbatches": 2, "mbs": 2, "max_images": 4, "max_patches": 12, **(data or {})},
    )


def parts_from_the_start() -> None:
    """The rows of some images of a sample are taken for its first ones."""
    correct = EncoderView._stretches

    def moved(self: Any) -> Any:
        ends: dict[int, int] = {}
        for sample, rows in correct(self):
            first = ends.get(sample, 0)
            ends[sample] = first + len(rows)
            yield sample, range(first, ends[sample])

    EncoderView._stretches = moved  # type: ignore[method-assign]


def draws_of_other_images() -> None:
    """Dropout numbers the images that a replica has of a sample, not all images of the sample."""
    correct = token_numbers._named

    def counted(view: Any) -> Any:
        numbers: dict[int, int] = {}
        for record, _ in correct(view):
            numbers[record] = numbers.get(record, -1) + 1
            yield record, numbers[record]

    token_numbers._named = counted  # type: ignore[assignment]


SPLIT_BUGS = {
    "parts of a sample from its start": (parts_from_the_start, split_apart()),
    "draws of other images": (draws_of_other_images, split_apart(dropout=0.2)),
}
