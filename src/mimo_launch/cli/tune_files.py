"""What `tune` reads and writes: the models, data and GPUs of a search, and specs of its layouts.

Decides: what a spec, or a model folder, and the options of GPUs mean; the names of the written
files and their comments.
Relies on: `init_draft` for model folders, `spec.editing` for texts that keep their comments.
Leaves: the search to `search.tune`, the table to `tune_screen`.
"""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import typer

from mimo_launch.checks.load_and_check import Checked, load_and_check
from mimo_launch.cli.init_draft import GPUS_PER_NODE, Answers, CannotDraft, undecided
from mimo_launch.cli.init_text import text_with_comments
from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.readiness import show_findings
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import percent, seconds_text
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import OF_MODULE, Point
from mimo_launch.plan.plan import Plan
from mimo_launch.search.changes import Change, changed
from mimo_launch.search.first_spec import on_all_ranks, placed
from mimo_launch.search.judge import Planned
from mimo_launch.search.layout_rows import LayoutRow
from mimo_launch.spec.editing import edit, merge, tree_of
from mimo_launch.spec.load import dump_spec, load_text, spec_from_data
from mimo_launch.spec.near_words import did_you_mean
from mimo_launch.spec.overrides import apply_overrides
from mimo_launch.spec.spec import Grid, Spec
from mimo_launch.spec.values import GPUS
from mimo_launch.spec.yaml_source import read_text

_WIDTH = 96


@frozen(kw_only=True)
class Source:
    """What is tuned: a spec on its GPUs, and the text and `--set` that it was `written` as."""

    spec: Spec
    text: str
    overrides: Sequence[str]
    written: Spec

    def text_of(self, spec: Spec) -> str:
        """Return the text of a spec of another layout, with the comments of this one."""
        change = changed(self.written, "", {**_layout_of(spec), **_nodes_of(spec)})
        settings = {} if change is None else change.settings
        document = apply_overrides(read_text(self.text), self.overrides)
        return edit(self.text, merge(document.data, tree_of(settings)))


@frozen(kw_only=True)
class Hardware:
    """GPUs of a search; None is as the spec says."""

    gpus: int | None
    per_node: int | None
    gpu: str | None


def source_of(
    file: Path, overrides: Sequence[str], hardware: Hardware, data: str | None, console: Console
) -> Source:
    """Return what a file or folder and the options mean. Raises: typer.Exit; typer.BadParameter."""
    if hardware.gpu is not None and hardware.gpu not in GPUS:
        likely = did_you_mean(hardware.gpu, GPUS) or f"the names are {', '.join(GPUS)}"
        raise typer.BadParameter(
            f"no GPU has the name {hardware.gpu}; {likely}", param_hint="--gpu"
        )
    if file.is_dir() or file.name == "config.json":
        folder = file if file.is_dir() else file.parent
        text = _drafted(folder, hardware, data, console)
        loaded = load_text(text, str(folder), overrides)
        if loaded.spec is None:
            show_findings(Checked(None, loaded.diagnostics, loaded.source), console)
            raise typer.Exit(2)
        return Source(spec=loaded.spec, text=text, overrides=overrides, written=loaded.spec)
    if data is not None:
        help_ = f"--set data.shards={data}"
        console.refuse("--data is for model folders; a spec says what it trains on", help_=help_)
    checked = load_and_check(file, overrides, on_gpus=False, only_plans=True)
    show_findings(checked, console)
    if checked.spec is None:
        raise typer.Exit(2)
    return Source(
        spec=_on(checked.spec, hardware),
        text=checked.source.text,
        overrides=overrides,
        written=checked.spec,
    )


def estimated_specs(
    files: Sequence[str],
    overrides: Sequence[str],
    constants: Calibration | None,
    console: Console,
) -> list[tuple[Planned, Estimator]]:
    """Return the estimates of specs. Raises: typer.Exit."""
    found = []
    for file in files:
        checked = load_and_check(Path(file), overrides, on_gpus=False, only_plans=True)
        show_findings(checked, console)
        if checked.spec is None:
            raise typer.Exit(2)
        estimator = Estimator.of(Plan.of(checked.spec), constants)
        found.append((Planned(Change("", {}, checked.spec), estimator.estimates()), estimator))
    return found


def _on(spec: Spec, hardware: Hardware) -> Spec:
    """Return a spec on other hosts."""
    if hardware == Hardware(gpus=hardware.gpus, per_node=None, gpu=None) and (
        hardware.gpus is None or spec.nodes is not None
    ):
        return spec
    nodes: dict[str, Any] = {} if spec.nodes is None else dump_spec(spec)["nodes"]
    gpus = hardware.gpus or world_size(spec)
    nodes["gpus"] = hardware.per_node or nodes.get("gpus") or min(gpus, GPUS_PER_NODE)
    if hardware.gpu is not None:
        nodes |= {"gpu": hardware.gpu, "gpu_memory": None}
    return spec_from_data({**dump_spec(spec), "nodes": nodes})


def _drafted(folder: Path, hardware: Hardware, data: str | None, console: Console) -> str:
    """Return the text of a spec of a model folder, with a layout that may be illegal."""
    gpus = hardware.gpus or GPUS_PER_NODE
    answers = Answers(
        name=folder.name,
        model=folder,
        gpus=gpus,
        gpus_per_node=hardware.per_node or min(gpus, GPUS_PER_NODE),
        gpu=hardware.gpu,
        data=data,
    )
    try:
        parts, of_data = undecided(answers)
    except CannotDraft as error:
        console.refuse(str(error), help_=error.help)
    layout = on_all_ranks(parts["modules"], Grid(dp=gpus))
    return text_with_comments(placed(parts, layout), of_data)


def _layout_of(spec: Spec) -> dict[str, Any]:
    """Return all settings of a layout; None for those that a spec leaves out."""
    settings = Point.of(spec).settings()
    left_out = {f"modules.{name}.{key}": None for name in spec.modules for key in OF_MODULE}
    return left_out | settings


def _nodes_of(spec: Spec) -> dict[str, Any]:
    return {} if spec.nodes is None else {"nodes": dump_spec(spec)["nodes"]}


def write_specs(
    folder: Path, source: Source, found: Sequence[tuple[LayoutRow, Spec]], command: str,
    console: Console,
) -> list[Path]:  # fmt: skip
    """Write a spec for each layout, with the reason in a comment; return the files.

    Raises: typer.Exit.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        help_ = "give --to a folder that is yours"
        console.refuse(f"cannot make {folder}: {error.strerror or error}", help_=help_, code=1)
    digits, files = len(str(len(found))), []
    for row, spec in found:
        path = folder / f"{row.number:0{max(2, digits)}}.yaml"
        lines = [*wrap(_reason(row, len(found), command), _WIDTH), ""]
        comment = "\n".join(f"# {line}".rstrip() for line in lines)
        console.write_file(path, f"{comment}\n{source.text_of(spec)}", "--to")
        files.append(path)
    console.note(f"wrote {len(found)} specs to {folder}")
    return files


def _reason(row: LayoutRow, number: int, command: str) -> str:
    place = "The fastest" if row.number == 1 else f"Number {row.number}"
    slower = f", {percent(row.slower)} slower than the fastest" if row.number > 1 else ""
    many = f"{place} of {number} layouts" if number > 1 else "The layout"
    return (
        f"{many} that `{command}` lists: {seconds_text(row.step_seconds)} a "
        f"step, {row.tokens_per_second:,.0f} tokens/s, MFU {percent(row.mfu)}{slower}. "
        f"{row.words}. Limit: {row.limited_by}."
    )
