"""Chat templates as programs: compiled and run in a sandbox, as transformers does.

Decides: what a template may call, and that it gets the date only from the spec.
Relies on: Jinja2's sandbox; the environment is the one that transformers documents
(https://huggingface.co/docs/transformers/chat_templating_writing).
Leaves: conversations to `chat_template`.
"""

import json
import re
from datetime import date
from functools import partial
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mimo_launch.data.dataset import BadSample

# What stands around blocks of `{% generation %}` where that is asked for. No text has these
# characters: the last two planes of Unicode are for private use.
BLOCK, END_BLOCK = "\U0010fffc", "\U0010fffd"
_PRIVATE = re.compile(r"\\udb[89a-f][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
_BLOCKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_MARKED = "_marks_blocks"
# What a program in a sandbox comes to: it may divide by zero, or call itself for ever.
_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class TemplateRefused(ValueError):
    """A chat template cannot be used; the message says why."""


class _Generation(Extension):
    """`{% generation %}`: what the assistant wrote, between marks if they are asked for."""

    tags = {"generation"}  # noqa: RUF012  # As Jinja declares it.

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_block", [nodes.ContextReference()])
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    @staticmethod
    def _block(context: Any, caller: Any) -> str:
        text = str(caller())
        return f"{BLOCK}{text}{END_BLOCK}" if context.get(_MARKED) else text


class Program:
    """A chat template, ready to run."""

    def __init__(self, source: str, variables: dict[str, Any], day: date | None) -> None:
        """Compile it.

        Args:
            source: The template.
            variables: What it finds in every conversation, such as `bos_token`.
            day: What it gets when it asks for the date; without, it finds none.

        Raises:
            TemplateRefused: It cannot be compiled.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        # transformers offers today's date. Here a sample must have the same tokens every day, and
        # most templates that ask for a date have a fixed one for where there is none.
        if day is not None:
            environment.globals["strftime_now"] = partial(_formatted, day)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise TemplateRefused(f"it cannot be compiled: {error}") from error
        self._variables = variables
        self.marks_answers = _BLOCKS.search(source) is not None
        self.lacks_date = day is None and "strftime_now" in source

    def run(self, *, marks_blocks: bool = False, **conversation: Any) -> str:
        """Return the text of a conversation. Raises: BadSample if the template refuses it."""
        marks = {_MARKED: True} if marks_blocks else {}
        try:
            return self._template.render(**{**self._variables, **conversation, **marks})
        except _FAILURES as error:
            raise BadSample(f"the chat template refuses it: {error}") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # As templates call it.
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the escapes for HTML that Jinja's own filter makes."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if not ensure_ascii:
        return text
    # Marks must be found again; no other text has characters of their planes.
    return _PRIVATE.sub(lambda found: str(json.loads(f'"{found[0]}"')), text)


def _formatted(day: date, form: str) -> str:
    return day.strftime(form)


def _raise(message: str) -> None:
    raise TemplateError(message)
