"""The parts of answers that are learnt where a template chooses some by regular expressions.

Decides: that `learn_only` comes before `learn_not`; that an expression sees one answer at a time.
Relies on: the spec, which has compiled both expressions once.
Leaves: where answers are to `answer_spans`, the limit of time to `template_program`.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Self

from mimo_launch.data.samples.template_program import Spans
from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.spec import ChatTemplate


@frozen
class ChosenParts:
    """The expressions of a template; without any, answers are learnt whole."""

    only: re.Pattern[str] | None = None
    never: re.Pattern[str] | None = None

    @classmethod
    def of(cls, template: ChatTemplate) -> Self:
        """Return the expressions of a template."""
        given = template.learn_only, template.learn_not
        return cls(*(None if each is None else re.compile(each) for each in given))

    @property
    def names(self) -> list[str]:
        """The keys of the expressions that there are."""
        named = (("`learn_only`", self.only), ("`learn_not`", self.never))
        return [name for name, regex in named if regex is not None]

    def inside(self, text: str, answers: Spans) -> Spans:
        """Return the parts of answers that are learnt."""
        if self.only is not None:
            answers = [part for span in answers for part in _matches(self.only, text, span)]
        if self.never is not None:
            answers = [
                left
                for span in answers
                for left in _without(span, _matches(self.never, text, span))
            ]
        return answers


def _matches(regex: re.Pattern[str], text: str, span: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a span that match; the expression sees nothing outside of it."""
    start, end = span
    for found in regex.finditer(text[start:end]):
        if found[0]:
            yield start + found.start(), start + found.end()


def _without(span: tuple[int, int], parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what is left of a span without some parts of it, which are in order."""
    start, end = span
    for first, last in parts:
        if start < first:
            yield start, first
        start = max(start, last)
    if start < end:
        yield start, end
