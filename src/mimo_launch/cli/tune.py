"""`mimo-launch tune`: finds the fastest layouts of given models, data and batch.

Decides: the options, and how many plans a second stands for.
Relies on: `tune_files` for what is tuned, `search.tune` for the search.
Leaves: the table to `tune_screen`.
"""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimo_launch.cli.shared.console import console_of, table_width
from mimo_launch.cli.shared.options import (
    CalibrationFile,
    Device,
    Overrides,
    ResultAsJson,
    Where,
    constants_of,
)
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from mimo_launch.cli.shared.console import Console
    from mimo_launch.cli.tune_files import Source
    from mimo_launch.estimate.device_constants import Calibration
    from mimo_launch.search.layout_rows import LayoutRow
    from mimo_launch.search.tune import Layouts, Wish
    from mimo_launch.spec.spec import Spec

HELP = """
\b
Examples:
  mimo-launch tune spec.yaml
  mimo-launch tune spec.yaml --gpus 64 --gpu h100-80gb --to layouts
  mimo-launch tune spec.yaml --keep modules.language.grid.tp=4
  mimo-launch tune models/llava --gpus 16 --gpu h200-141gb
  mimo-launch tune spec.yaml --explain 1 2
  mimo-launch tune spec.yaml --gpus 64 --fewer
  mimo-launch tune spec.yaml --bench 4 --to layouts
  mimo-launch tune spec.yaml --json > layouts.json

Find the fastest layouts of the models, data and global batch of a spec, or of a model folder: where
modules run, their grids, microbatches, schedule, sharding and recomputing. Nothing else changes.
The answer is a table of estimates; --to writes specs that are ready to run. The same input and
--seconds give the same answer on every machine, because plans are counted, not time. Without
--bench it starts nothing and needs no GPU.
Exits with 0, with 2 when the spec has a mistake or no layout fits, or with 1 when a file cannot be
written or no layout of --bench runs.
"""


@frozen(kw_only=True)
class TuneCommand:
    """Find the fastest layouts of given models, data and batch."""

    ctx: typer.Context
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Spec, or a folder of a model.")]
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs in total; default: the ranks of the spec.")
    ] = None
    per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs per host; default: as the spec says, or 8.")
    ] = None
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU of every rank, as h100-80gb.")
    ] = None
    data: Annotated[
        str | None, typer.Option(metavar="SHARDS", help="What to train on, if FILE is a folder.")
    ] = None
    overrides: Overrides = None
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=VALUE", help="A setting of every layout; may be repeated."),
    ] = None
    top: Annotated[int, typer.Option(min=1, help="Layouts to list.")] = 10
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a spec for each layout here.")
    ] = None
    seconds: Annotated[
        float, typer.Option(min=1, help="How long to search, about, on two cores.")
    ] = 30
    explain: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Say why layout A is faster than B: numbers, or specs."),
    ] = None
    fewer: Annotated[
        bool, typer.Option("--fewer", help="Show the speed on fewer GPUs instead.")
    ] = False
    bench: Annotated[
        int | None,
        typer.Option(metavar="K", min=1, help="Run the first K here, and rank all again."),
    ] = None
    device: Where = Device.AUTO
    as_json: ResultAsJson = False
    calibration: CalibrationFile = None

    def __call__(self) -> None:
        """Search and answer. Raises: typer.Exit; typer.BadParameter."""
        from mimo_launch.cli.tune_bench import Runs, ranked_again
        from mimo_launch.cli.tune_files import Hardware, estimated_specs, source_of
        from mimo_launch.cli.tune_screen import record_of, table_of
        from mimo_launch.estimate.accuracy import accuracy_for
        from mimo_launch.search.layout_rows import layout_rows

        console = console_of(self.ctx)
        if self.explain and not all(each.isdecimal() for each in self.explain):
            constants = constants_of(self.calibration)
            specs = estimated_specs(self.explain, self.overrides or (), constants, console)
            self._explain([*layout_rows(specs)], console)
            return
        self._check_options()
        console.check_folder(self._folder if self.bench is not None else self.to, "--to")
        hardware = Hardware(gpus=self.gpus, per_node=self.per_node, gpu=self.gpu)
        source = source_of(self.file, self.overrides or (), hardware, self.data, console)
        wish = self._wish(source.spec)
        if self.fewer:
            self._show_fewer(source.spec, wish, console)
            return
        constants = constants_of(self.calibration)
        found = self._found(source, wish, constants, console)
        rows, files = self._written(source, found, console)
        if self.bench is not None:
            runs = Runs(folder=self._folder, device=self.device.value, calibration=self.calibration)
            if constants is None:
                runs = replace(runs, calibration=runs.calibrate(files[0], console))
                found = self._found(source, wish, constants_of(runs.calibration), console)
                rows, files = self._written(source, found, console)
            rows = ranked_again(rows, files, self.bench, runs, console)
        if self.explain:
            self._explain(_chosen(rows, self.explain), console)
            return
        fastest, estimator = found.found[0]
        accuracy = accuracy_for(estimator.spec, fastest.estimates)
        counts = {"planned": found.planned, "compared": found.compared}
        self._answer(
            console, record_of(rows, accuracy, **counts), table_of(rows, accuracy, table_width())
        )

    def _check_options(self) -> None:
        """Refuse options that would do nothing, or harm. Raises: typer.BadParameter."""
        others = {"--to": self.to, "--bench": self.bench, "--explain": self.explain}
        for option, given in others.items():
            if self.fewer and given is not None:
                message = "--fewer shows speeds alone; leave it out"
                raise typer.BadParameter(message, param_hint=option)
        writes = self.to is not None or self.bench is not None
        if writes and self.file.resolve().parent == self._folder.resolve():
            is_layout = self.file.suffix == ".yaml" and self.file.stem.isdecimal()
            if is_layout:
                message = f"{self.file} would be overwritten; name another folder"
                raise typer.BadParameter(message, param_hint="--to")

    @property
    def _folder(self) -> Path:
        """The folder for specs and runs."""
        return self.to or Path("runs/tune")

    def _written(
        self, source: "Source", found: "Layouts", console: "Console"
    ) -> "tuple[list[LayoutRow], list[Path]]":
        """Return the rows of layouts, and the files of their specs if some are written."""
        from mimo_launch.cli.tune_files import write_specs
        from mimo_launch.search.layout_rows import layout_rows

        rows = list(layout_rows(found.found))
        if self.to is None and self.bench is None:
            return rows, []
        command = shlex.join(["mimo-launch", *sys.argv[1:]])
        specs = [(row, each.spec) for row, (_, each) in zip(rows, found.found, strict=True)]
        return rows, write_specs(self._folder, source, specs, command, console)

    def _wish(self, spec: "Spec") -> "Wish":
        """Return what is sought. Raises: typer.BadParameter."""
        from mimo_launch.layout.layout import world_size
        from mimo_launch.search.pins import CannotPin, Pins
        from mimo_launch.search.team import processes_here
        from mimo_launch.search.tune import PLANS_PER_SECOND, Wish

        try:
            pins = Pins.of(spec, dict(_kept(each) for each in self.keep or ()))
        except CannotPin as error:
            raise typer.BadParameter(str(error), param_hint="--keep") from None
        return Wish(
            gpus=self.gpus or world_size(spec),
            pins=pins,
            top=max(self.top, *map(int, self.explain)) if self.explain else self.top,
            plans=self.seconds * PLANS_PER_SECOND,
            processes=processes_here(),
        )

    def _found(
        self,
        source: "Source",
        wish: "Wish",
        constants: "Calibration | None",
        console: "Console",
    ) -> "Layouts":
        """Return the layouts. Raises: typer.Exit."""
        from mimo_launch.cli.tune_screen import TuneScreen
        from mimo_launch.search.tune import NoLayout, tune

        try:
            with TuneScreen(console, self.as_json, wish.gpus) as screen:
                found = tune(source.spec, wish, constants, screen.say)
        except NoLayout as error:
            console.refuse(str(error), help_=error.help)
        if not found.found:
            help_ = "take more GPUs, or GPUs with more memory"
            fits = f"none of {found.compared:,} layouts fits into {counted(wish.gpus, 'GPU')}"
            console.refuse(fits, help_=help_)
        return found

    def _explain(self, rows: "list[LayoutRow]", console: "Console") -> None:
        from mimo_launch.cli.tune_screen import explained, terms_record
        from mimo_launch.search.layout_rows import terms_between

        one, other = rows
        record = {"version": 1, "terms": terms_record(terms_between(one.time, other.time))}
        self._answer(console, record, explained(one, other, table_width()))

    def _show_fewer(self, spec: "Spec", wish: "Wish", console: "Console") -> None:
        from mimo_launch.cli.tune_screen import curve_of, curve_record
        from mimo_launch.search.fewer_gpus import speeds

        def say(gpus: int) -> None:
            if not self.as_json:
                console.note(f"layouts on {counted(gpus, 'GPU')}")

        found = speeds(spec, wish, constants_of(self.calibration), say)
        self._answer(console, curve_record(found), curve_of(found))

    def _answer(
        self, console: "Console", record: dict[str, Any], parts: "Iterable[RenderableType]"
    ) -> None:
        from mimo_launch.cli.shared.styled import printed

        if self.as_json:
            console.answer(json.dumps(record, indent=2))
            return
        colors = console.colors(sys.stdout)
        console.answer(printed(parts, table_width(), colors=colors), painted=colors)


def _kept(text: str) -> tuple[str, Any]:
    """Return the path and the value of a --keep. Raises: typer.BadParameter."""
    from mimo_launch.spec.yaml_source import parse_value

    path, equals, value = text.partition("=")
    found, fault = parse_value(value)
    if not equals or fault:
        message = f"write a path and a value: --keep {path or 'modules.language.grid.tp'}=4"
        raise typer.BadParameter(message, param_hint="--keep")
    return path.strip(), found


def _chosen(rows: "list[LayoutRow]", numbers: tuple[str, str]) -> "list[LayoutRow]":
    """Return two rows of the table by number. Raises: typer.BadParameter."""
    known = {str(row.number): row for row in rows}
    if missing := [each for each in numbers if each not in known]:
        message = f"there is no layout {missing[0]}; the last one is {len(rows)}"
        raise typer.BadParameter(message, param_hint="--explain")
    return [known[each] for each in numbers]
