"""Values as one line of YAML, for specs that commands print or write.

Decides: the form; `spec` reads every number back as the same number.
Relies on: PyYAML for words that need quotes.
Leaves: lines and comments to the commands.
"""


def flow(value: object) -> str:
    """Return a value, a list or a mapping as one line of YAML."""
    # Here, so that `--help` does not import the reader of specs.
    import yaml

    from mimo_launch.hugging_face.architectures import text_of

    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str):
        # In a list, so that a word that needs quotes inside one gets them.
        return str(yaml.safe_dump([value], default_flow_style=True, width=1 << 16)).strip()[1:-1]
    return text_of(value)
