"""Codes about the text of a spec: the file, its keys and single values.

Decides: the explanations of these codes.
Relies on: `code`.
Leaves: codes that need two keys at once to `codes_layout` and `codes_model`.
"""

from mimo_launch.diag.code import Code

TEXT_CODES = (
    Code(
        "unreadable-file",
        "The file does not exist, may not be read, or is far too large for a spec.",
        "Nothing was checked. The path is taken from the current folder unless it is "
        "absolute. A folder, a missing file, a file without read permission and a file of more "
        "than 1 MB all end here.",
        "mimo-launch validate topologies/no-such-file.yaml",
        "mimo-launch validate topologies/quickstart.yaml",
    ),
    Code(
        "not-utf8",
        "The file holds bytes that are not UTF-8 text.",
        "YAML is read as UTF-8. Another encoding would turn names and comments into different "
        "text on different machines, so it is refused rather than guessed. A binary file ends "
        "here, too.",
        "# café, written in Latin-1",
        "iconv -f latin1 -t utf-8 old.yaml > new.yaml",
    ),
    Code(
        "yaml-syntax",
        "The text is not YAML, or uses a part of YAML that specs do not need.",
        "The parser cannot tell what belongs to what past the marked place, so the rest of "
        "the file is not checked in this run. Common causes are a tab in the indentation, a "
        "bracket that is never closed, and a `: ` inside unquoted text. Tags such as "
        "`!!python/object`, and aliases that contain themselves, are refused as well.",
        "batch: {global: 32, seq: 64",
        "batch: {global: 32, seq: 64}",
    ),
    Code(
        "empty-file",
        "The file holds nothing but white space or comments.",
        "A spec needs at least `version`, `name`, `modules`, `batch` and `data`; there is no "
        "spec made of defaults alone.",
        "# version: 1",
        "version: 1",
    ),
    Code(
        "several-documents",
        "The file holds more than one YAML document.",
        "A line `---` starts another document. Only one spec can be run, and choosing the "
        "first would silently drop the others.",
        "name: first\n---\nname: second",
        "name: first",
    ),
    Code(
        "top-level-not-mapping",
        "The file is a list or a single value.",
        "A spec is a mapping: lines of `key: value`, such as `modules:` and `batch:`. A list "
        "usually comes from a dash in front of the first key.",
        "- version: 1",
        "version: 1",
    ),
    Code(
        "duplicate-key",
        "A key is written twice in one mapping.",
        "Most YAML readers keep the last of the two and say nothing, which has trained many "
        "models with a learning rate that nobody meant. Both places are shown.",
        "batch: {global: 32, seq: 64, global: 64}",
        "batch: {global: 64, seq: 64}",
    ),
    Code(
        "key-not-text",
        "A number, a boolean, a list or nothing is used as a key.",
        "All keys of a spec are words. Where a name of yours looks like a number, quote it; "
        "module names have to start with a letter anyway.",
        "modules:\n  1: {ranks: 0-3}",
        "modules:\n  vision: {ranks: 0-3}",
    ),
    Code(
        "bad-override",
        "A `--set` has no `=`, no path, or a path that leads nowhere.",
        "`--set path=value` replaces one value of the spec. The path is made of keys joined "
        "by dots, with numbers for items of a list; the value follows the rules of the file. "
        "Sections that the file leaves out may be set; modules that it does not have may not.",
        "mimo-launch validate spec.yaml --set modules.visoin.grid.tp=2",
        "mimo-launch validate spec.yaml --set modules.vision.grid.tp=2",
    ),
    Code(
        "unknown-key",
        "A section has a key that it does not know.",
        "A misspelt key would leave its setting at the default without a word. Every known "
        "key that is close is offered. `mimo-launch schema` prints all keys for your editor.",
        "grid: {tp: 2, dpp: 4}",
        "grid: {tp: 2, dp: 4}",
    ),
    Code(
        "missing-key",
        "A required key is not there.",
        "The key has no default, because no value is right for most specs. The place shown is "
        "the section that lacks it.",
        "batch: {global: 32}",
        "batch: {global: 32, seq: 64}",
    ),
    Code(
        "wrong-type",
        "A value has another type than its key asks for.",
        'Values are never converted: `2.0` is no whole number, `"4"` is text, `yes` is text '
        "(the booleans are `true` and `false`), and an empty value is nothing. Conversions "
        "hide mistakes, such as a version number that loses its last zero.",
        "sequence_parallel: yes",
        "sequence_parallel: true",
    ),
    Code(
        "bad-value",
        "A value has the right type and is not allowed.",
        "The value is outside the range of its key, or none of its choices. The message says "
        "what is allowed.",
        "grid: {tp: 0}",
        "grid: {tp: 1}",
    ),
    Code(
        "unknown-kind",
        "A `kind` names nothing that exists here.",
        "The kind decides which other keys a section has, so the section is not checked "
        "further until the kind is right. A model may also be an encoder class of your own, "
        "written `package.module:Name`.",
        "model: {kind: decodr, layers: 4, hidden: 256, heads: 8, vocab: digits}",
        "model: {kind: decoder, layers: 4, hidden: 256, heads: 8, vocab: digits}",
    ),
    Code(
        "not-supported-yet",
        "The spec asks for something that this release cannot do.",
        "The format has a place for it, so that specs stay valid when a later release brings "
        "it. Today's limit: a class of your own is an encoder, not the language model.",
        'language:\n  model: {kind: "my_package:Decoder", layers: 2, hidden: 64}',
        "language:\n  model: {kind: decoder, layers: 2, hidden: 64, heads: 4, vocab: digits}",
    ),
)
