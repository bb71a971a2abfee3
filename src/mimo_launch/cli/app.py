"""The table of commands, and what all commands share: options, usage errors, exit codes.

Decides: the exit code (`diag.exit_codes`) of an end that no command handles, and the report of an
internal error.
Relies on: one module per command with its function or class and, for examples, HELP.
Leaves: heavy imports to the command functions, so that `--help` stays fast.
"""

import gc
import importlib
import inspect
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from mimo_launch import __version__
from mimo_launch.cli.shared.console import Color, Console, open_closed_streams, wrapped
from mimo_launch.spec.near_words import did_you_mean

EXIT_OK, EXIT_RUN_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

# In the order of `--help`. Each is a module of `mimo_launch.cli` with a function of its name or,
# for many options, a class such as `PlanCommand`; both have typer annotations.
COMMANDS = (
    "init", "validate", "plan", "tune", "train", "verify", "bench", "sample", "data", "watch",
    "runs", "logs", "report", "export", "inspect", "explain", "schema", "doctor",
)  # fmt: skip

HELP = """
\b
Examples:
  mimo-launch validate topologies/quickstart.yaml
  mimo-launch plan topologies/quickstart.yaml
  mimo-launch train topologies/quickstart.yaml --nproc 8
  mimo-launch explain grid-size-mismatch

Train multimodal models in which every module has its own grid and its own ranks.
"""


class _Group(TyperGroup):
    """Offers close matches for a misspelt command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            guess = did_you_mean(name, known) or f"the commands are {', '.join(known)}"
            ctx.fail(f"there is no command `{name}`; {guess}")
        return super().resolve_command(ctx, args)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mimo-launch {__version__}")
        raise typer.Exit


def _options(
    ctx: typer.Context,
    color: Annotated[Color, typer.Option(help="When to colour messages.")] = Color.AUTO,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, help="Print more; show tracebacks of internal errors."
        ),
    ] = 0,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    console = ctx.ensure_object(Console)
    console.color, console.verbosity = color, verbose


def build_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the application with some commands of the table."""
    app = typer.Typer(
        cls=_Group,
        help=HELP,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_options)
    for name in names:
        module = importlib.import_module(f"mimo_launch.cli.{name}")
        function = _function_of(module, name)
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        app.command(name, help=getattr(module, "HELP", None), short_help=summary)(function)
    return app


def _function_of(module: ModuleType, name: str) -> Callable[..., None]:
    """Return the function of a command; that of a class makes a value of it and calls this."""
    kind = getattr(module, f"{name.title()}Command", None)
    if kind is None:
        function: Callable[..., None] = getattr(module, name)
        return function

    def function_of_class(**options: Any) -> None:
        kind(**options)()

    options = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=each.type,
        )
        for each in fields(kind)
    ]
    function_of_class.__doc__ = kind.__doc__
    function_of_class.__annotations__ = {each.name: each.annotation for each in options}
    vars(function_of_class)["__signature__"] = inspect.Signature(options)
    return function_of_class


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    # Imports and plans make many objects and little garbage. Python would collect it every 700
    # objects, and walk over all of them again and again: 5 % of the time of `validate`. Workers
    # collect as usual, because their reference cycles may hold tensors (`launcher.worker`).
    gc.set_threshold(200_000)
    # pydantic would read what each installed package offers, to find plug-ins: 3 % of `validate`.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    open_closed_streams()
    code = run(args)
    # Python would collect garbage once more before it exits: 15 % of the time of `plan`.
    gc.freeze()
    sys.exit(code)


def run(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    args = (sys.argv[1:] if args is None else args) or ["--help"]
    console = Console()
    try:
        # A command that comes first needs no other.
        result = get_command(build_app(args[:1] if args[0] in COMMANDS else COMMANDS)).main(
            args=args, prog_name="mimo-launch", standalone_mode=False, obj=console
        )
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has left; a second error at interpreter exit would be noise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_RUN_FAILED
    except Exception as error:
        if _was_interrupted(error):
            return EXIT_INTERRUPTED
        return _report(error, args, console)
    return result if isinstance(result, int) else EXIT_OK


def _was_interrupted(error: BaseException) -> bool:
    """Return whether Ctrl-C caused an error; packages may hide that while they are imported."""
    seen: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if isinstance(link, KeyboardInterrupt):
            return True
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            links += [link.__cause__, link.__context__]
    return False


def _meant(args: list[str]) -> str:
    """Return what to write in place of a wrong command line; "" if unknown."""
    from mimo_launch.cli.shared.wrong_usage import help_for

    group: Any = get_command(build_app())
    return help_for(args, group.commands)


def _report(error: Exception, args: list[str], console: Console) -> int:
    # typer contains click or depends on it, by version; both mark usage errors like this.
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        # typer may pass on words of pydantic.
        message = str(error.format_message()).replace("Value error, ", "")
        context = getattr(error, "ctx", None)
        help_ = f"{context.command_path if context else 'mimo-launch'} --help"
        if meant := _meant(args):
            # Drop guesses of names that are only spelt alike.
            message, help_ = re.split(r"; | \(Possible", message, maxsplit=1)[0], meant
        console.note(f"error[usage]: {message[:1].lower()}{message[1:]}")
        console.note(wrapped(f"   = help: {help_}", indent=11))
        return EXIT_USAGE
    console.note(f"internal error: {type(error).__name__}: {error}")
    console.note(f"   = version: {__version__}")
    console.note(f"   = command: mimo-launch {shlex.join(args)}")
    console.note(
        "   = report:  this is a bug in mimo-launch, not in your spec; please open an issue"
    )
    console.note("              with these lines, the spec, and the output of `mimo-launch -v ...`")
    if console.verbosity:
        console.note("".join(traceback.format_exception(error)).rstrip())
    return EXIT_RUN_FAILED
