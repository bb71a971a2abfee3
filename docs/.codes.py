"""A hook of mkdocs: puts the page of every code under `Codes`, so that no list is kept by hand."""

from pathlib import Path
from typing import Any


def on_config(config: Any) -> None:
    """Add what stands in `docs/errors` to the section that holds its index."""
    pages = sorted(path.name for path in (Path(config["docs_dir"]) / "errors").glob("*.md"))
    section = next(entry["Codes"] for entry in config["nav"] if "Codes" in entry)
    section.extend(f"errors/{name}" for name in pages if name != "index.md")
