"""The program of a chat template: its sandbox, its bounds, and the marks that its text keeps.

Decides: which functions a template may call, and that it gets the date only from the spec; which
parts of a message are marked, and with which characters; how much memory and time a template may
take for one conversation.
Relies on: Jinja2's sandbox, with the environment that transformers documents
(https://huggingface.co/docs/transformers/chat_templating_writing); limits and timers of this
process, which belong to its main thread. Samples are indexed there; threads that read them later
see only samples that passed.
Leaves: the form of messages to `chat_template`, finding answers by their marks to `answer_spans`.
"""

import json
import re
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from types import FrameType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.messages import REASONING
from mimo_launch.diag.frozen import frozen

# The marks around blocks of `{% generation %}`, if they are requested. No text has these
# characters: the last two planes of Unicode are for private use.
BLOCK, END_BLOCK = "\U0010fffc", "\U0010fffd"
_ESCAPED_MARK = re.compile(r"\\udb[89a-f][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
_BLOCKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_MARKED = "_marks_blocks"
# Errors of a program in the sandbox, which may divide by zero or recurse forever.
_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_MOST_BITS = 1 << 16
# Piece n is marked by character n of these two planes.
_OPEN, _CLOSE = 0xF0000, 0x100000
MOST = 0xFFF0
PRIVATE = re.compile("[\U000f0000-\U0010ffff]")
Spans = list[tuple[int, int]]


class TemplateRefused(ValueError):
    """A chat template cannot be used; the message says why."""


class _Generation(Extension):
    """`{% generation %}`: the assistant's text, between marks if they are requested."""

    tags = {"generation"}  # noqa: RUF012  # Declared as in Jinja.

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_block", [nodes.ContextReference()])
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    @staticmethod
    def _block(context: Any, caller: Any) -> str:
        text = str(caller())
        return f"{BLOCK}{text}{END_BLOCK}" if context.get(_MARKED) else text


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox without products of huge numbers, which no timer can interrupt."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length()
            bits = bits * abs(right) if operator == "**" else bits + right.bit_length()
            if bits > _MOST_BITS:
                raise SecurityError(f"a product of more than {_MOST_BITS:,} bits")
        return super().call_binop(context, operator, left, right)


class Program:
    """A chat template, ready to run."""

    def __init__(
        self,
        source: str,
        variables: dict[str, Any],
        day: date | None,
        images: tuple[str, str] | None = None,
    ) -> None:
        """Compile the template.

        Args:
            source: The template.
            variables: Its variables in every conversation, such as `bos_token`.
            day: The date that it gets; if None, there is no `strftime_now`.
            images: The text that it writes for an image, and the replacement, if there is one.

        Raises:
            TemplateRefused: It cannot be compiled.
        """
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
        )
        environment.filters["tojson"] = _to_json

        def raise_exception(message: str) -> None:
            raise TemplateError(message)

        environment.globals["raise_exception"] = raise_exception
        # transformers passes today's date. Here a sample must have the same tokens every day, and
        # most templates that use a date have a fixed one as a fallback.
        if day is not None:
            environment.globals["strftime_now"] = day.strftime
        try:
            self._template = environment.from_string(source)
        except (*_FAILURES, SyntaxError) as error:  # Python compiles the code that Jinja writes.
            raise TemplateRefused(f"it cannot be compiled: {error}") from error
        self.source, self._variables, self._images = source, variables, images
        self.marks_answers = _BLOCKS.search(source) is not None
        self.lacks_date = day is None and "strftime_now" in source

    def run(self, *, marks_blocks: bool = False, **conversation: Any) -> str:
        """Return the text of a conversation. Raises: BadSample if the template refuses it."""
        marks = {_MARKED: True} if marks_blocks else {}
        try:
            text = self._template.render(**{**self._variables, **conversation, **marks})
        except _FAILURES as error:
            raise BadSample(f"the chat template refuses it: {error}") from error
        return text if self._images is None else text.replace(*self._images)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # The name that templates use.
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the HTML escapes of Jinja's own filter."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if not ensure_ascii:
        return text
    # Marks must not be escaped; no other text has characters in their planes.
    return _ESCAPED_MARK.sub(lambda found: str(json.loads(f'"{found[0]}"')), text)


@frozen
class Marked:
    """A text without its marks; start and end of each piece; and blocks of answers."""

    text: str
    places: dict[int, tuple[int, int]]
    blocks: Spans


def start_mark(number: int) -> str:
    """Return the mark before a piece."""
    return chr(_OPEN + number)


def mark_message(message: dict[str, Any], number: Callable[[str], int | None]) -> dict[str, Any]:
    """Return a message with marks around its pieces.

    `number` is called for each piece, and returns None for a piece without marks.
    """
    found = dict(message)
    if _has_text(message.get("content")):
        found["content"] = _with_marks(message["content"], number("content"))
    reasoning = message.get(REASONING[0])
    if _has_text(reasoning):
        mark = number(REASONING[0])
        for key in REASONING:
            if message.get(key) == reasoning:
                found[key] = _with_marks(reasoning, mark)
    calls = message.get("tool_calls") or ()
    if calls:
        found["tool_calls"] = [
            _mark_call(call, number(f"tool_calls[{n}]" if len(calls) > 1 else "tool_calls"))
            for n, call in enumerate(calls)
        ]
    return found


def _mark_call(call: dict[str, Any], number: int | None) -> dict[str, Any]:
    """Return a tool call with marks around its name."""
    if isinstance(function := call.get("function"), dict):
        return {**call, "function": _mark_call(function, number)}
    return {**call, "name": _with_marks(call["name"], number)}


def _with_marks(value: Any, number: int | None) -> Any:
    """Return a JSON value with marks in its texts, inside blanks that a template may trim."""
    if number is None:
        return value
    if isinstance(value, dict):
        return {
            key: each if key == "type" else _with_marks(each, number) for key, each in value.items()
        }
    if isinstance(value, list):
        return [_with_marks(each, number) for each in value]
    if not isinstance(value, str) or not (body := value.strip()):
        return value
    if len(body) == len(value):
        return f"{start_mark(number)}{value}{chr(_CLOSE + number)}"
    indent, rest = value[: len(value) - len(value.lstrip())], value[len(value.rstrip()) :]
    return f"{indent}{start_mark(number)}{body}{chr(_CLOSE + number)}{rest}"


def _has_text(value: Any) -> bool:
    """Return whether a JSON value has a text that can have marks."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, dict):
        return any(_has_text(each) for key, each in value.items() if key != "type")
    return isinstance(value, list) and any(map(_has_text, value))


def read_marks(text: str) -> Marked:
    """Return a text without its marks, and their positions. Raises: BadSample."""
    pieces: list[str] = []
    places: dict[int, tuple[int, int]] = {}
    blocks: Spans = []
    length = at = 0
    begun: int | None = None
    for found in PRIVATE.finditer(text):
        pieces.append(text[at : found.start()])
        length, at = length + found.start() - at, found.end()
        mark = found[0]
        if mark == BLOCK and begun is None:
            begun = length
        elif mark == END_BLOCK and begun is not None:
            blocks.append((begun, length))
            begun = None
        elif mark in (BLOCK, END_BLOCK):
            raise BadSample("blocks of `{% generation %}` are nested")
        else:
            number = ord(mark) & 0xFFFF
            places[number] = (places.get(number, (length, 0))[0], length)
    return Marked("".join([*pieces, text[at:]]), places, blocks)


# Templates need a few milliseconds, and a few copies of a text of at most `data.max_characters`.
MEMORY, SECONDS = 1 << 30, 10.0


class TooMuch(Exception):
    """A program exceeds a bound; the message says which."""


@contextmanager
def bounds() -> Iterator[None]:
    """Bound the memory and the processor time of a block. Raises: TooMuch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooMuch(f"takes more than {SECONDS:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", "rb", buffering=0) as file:
        pages = int(file.read().split()[0])
    others = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    most = min([pages * resource.getpagesize() + MEMORY, *others])
    before = signal.signal(signal.SIGVTALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except MemoryError as error:
        raise TooMuch(f"takes more than {MEMORY >> 30} GiB of memory") from error
    finally:  # Runs even if the timer fires at the last moment.
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)
