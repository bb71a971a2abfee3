"""`mimo-launch schema`: the JSON Schema of a spec, for editors.

Decides: the form of the schema on stdout.
Relies on: `spec.reference`.
Leaves: checks that a schema cannot express to `validate`.
"""

import typer

from mimo_launch.cli.shared.console import console_of

HELP = """
\b
Examples:
  mimo-launch schema > spec.schema.json
  # then, as the first line of a spec, for editors with a YAML language server:
  # yaml-language-server: $schema=spec.schema.json

Print the JSON Schema of a spec, with a description of every key.
"""


def schema(ctx: typer.Context) -> None:
    """Print the JSON Schema of a spec, for editors."""
    import json

    from mimo_launch.spec.reference import spec_schema

    console_of(ctx).answer(json.dumps(spec_schema(), indent=2))
