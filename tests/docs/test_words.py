"""One word per idea: names in the sources do not use words that the glossary has replaced."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.files_page import ROOT, SOURCES

# A pattern of old names, and the word of the glossary in its place.
REPLACED = {
    r"[Tt]otals": "metrics",
    r"^kept_by_": "saved activations",
    r"added_loss|LossMeter": "aux loss",
    r"[Ee]vidence": "non-finite",
    r"[Ww]hereabouts|^[Bb]oard$|^[Ss]eat$": "progress",
    r"^[Ll]ooker$|[Ii]ntake": "indexer",
    r"learnt": "loss mask",
    r"Gathering": "rendezvous",
    r"CausalMask|ImageMask": "attention context",
    r"^[Tt]rip$|PlannedTrip": "dispatch",
    r"^course$": "simulation",
    r"[Oo]wn_?([Mm]odule|[Ss]tage)": "custom",
    r"DataPlan|StepPlan": "step data",
}


def names(file: Path) -> Iterator[str]:
    """Yield what a file defines: functions, classes, arguments, variables and attributes."""
    yield file.stem
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_no_name_uses_a_word_that_was_replaced() -> None:
    found = [
        f"{file.relative_to(SOURCES)}: {name} (say: {word})"
        for file in sorted(SOURCES.rglob("*.py"))
        for name in names(file)
        for pattern, word in REPLACED.items()
        if re.search(pattern, name)
    ]
    assert not found, "\n".join(found)


def test_the_words_in_place_of_them_are_in_the_glossary() -> None:
    glossary = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE)
    words = [word.strip() for row in rows for word in re.split("[,;]", row)]
    assert len(words) == len(set(words))
    known = {"non-finite", "indexer", "rendezvous", "attention context", "custom"}
    assert set(REPLACED.values()) - known <= set(words)
