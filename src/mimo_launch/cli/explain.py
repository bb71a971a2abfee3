"""`mimo-launch explain`: what a code means, with an example.

Decides: nothing; the text is that of the page in the docs.
Relies on: `diag.pages`.
Leaves: findings to `validate`.
"""

from typing import Annotated

import typer

from mimo_launch.cli.shared.console import console_of

HELP = """
\b
Examples:
  mimo-launch explain grid-size-mismatch
  mimo-launch explain

Explain a code: what is wrong, why it matters, and how it is written right. Without a code, list
all codes.
"""


def explain(
    ctx: typer.Context,
    code: Annotated[str | None, typer.Argument(help="The word in brackets of a finding.")] = None,
) -> None:
    """Explain a code, with an example."""
    from mimo_launch.diag.codes import CODES
    from mimo_launch.diag.pages import page
    from mimo_launch.spec.wording import did_you_mean

    console = console_of(ctx)
    if code is None:
        width = max(map(len, CODES))
        for name in sorted(CODES):
            console.answer(f"{name:<{width}}  {CODES[name].summary}")
        return
    if code not in CODES:
        guess = did_you_mean(code, CODES) or "`mimo-launch explain` lists all codes"
        console.note(f"error[usage]: there is no code `{code}`; {guess}")
        raise typer.Exit(2)
    console.answer(page(CODES[code]).rstrip())
