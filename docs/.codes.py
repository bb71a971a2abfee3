"""A hook of mkdocs: the table of all codes, so that no list is kept by hand."""

from typing import Any

from mimo_launch.diag.diagnostic import all_codes


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add the table of all codes to their index."""
    if page.file.src_uri != "errors/index.md":
        return markdown
    rows = [
        f"| [{code.name}]({code.name}.md) | {'warning' if code.is_warning else 'error'} "
        f"| {code.summary} |"
        for code in all_codes().values()
    ]
    return "\n".join([markdown, "| code | kind | what |", "| --- | --- | --- |", *rows, ""])
