"""`mimo-launch explain`: the meaning of a code, with an example.

Decides: nothing; the text is the page of the docs.
Relies on: `diag.diagnostic`.
Leaves: findings to `validate`.
"""

from typing import Annotated

import typer

from mimo_launch.cli.shared.console import console_of, reflowed, wrapped

HELP = """
\b
Examples:
  mimo-launch explain grid-size-mismatch
  mimo-launch explain

Explain a code: what is wrong, why it matters, and how to write it correctly. Without a code, list
all codes.
"""


def _codes(incomplete: str) -> list[str]:
    """Return shell completions for the beginning of a code."""
    from mimo_launch.diag.diagnostic import all_codes

    return [code for code in all_codes() if code.startswith(incomplete)]


def explain(
    ctx: typer.Context,
    code: Annotated[
        str | None,
        typer.Argument(help="The code in brackets of a finding.", autocompletion=_codes),
    ] = None,
) -> None:
    """Explain a code, with an example."""
    from mimo_launch.diag.diagnostic import all_codes
    from mimo_launch.spec.near_words import did_you_mean

    console, codes = console_of(ctx), all_codes()
    if code is None:
        width = max(map(len, codes))
        for name in codes:
            console.answer(wrapped(f"{name:<{width}}  {codes[name].summary}", width + 2))
        return
    if code not in codes:
        guess = did_you_mean(code, codes) or "`mimo-launch explain` lists all codes"
        console.note(f"error[usage]: there is no code `{code}`; {guess}")
        raise typer.Exit(2)
    console.answer(reflowed(codes[code].page.rstrip()))
