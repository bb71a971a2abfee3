"""`mimo-launch data`: reads the data as training would, and reports on them.

Decides: the options and the exit code. It writes an index of shards if there is none, and other
files only on request.
Relies on: `survey` for the facts.
Leaves: the words to `data_tables`.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.shared.console import console_of
from mimo_launch.cli.shared.options import Overrides
from mimo_launch.cli.shared.readiness import custom_classes_fail, ready_shards, sound_spec
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from mimo_launch.cli.shared.console import Console
    from mimo_launch.data.dataset import Dataset
    from mimo_launch.survey.reading_speed import Survey

HELP = """
\b
Examples:
  mimo-launch data spec.yaml
  mimo-launch data spec.yaml --tokens-per-second 40000
  mimo-launch data spec.yaml --set data.packing=true --records 100000
  mimo-launch data spec.yaml --show 3
  mimo-launch data spec.yaml --show 8 --html samples.html
  mimo-launch data spec.yaml --stats stats.json
  mimo-launch data spec.yaml --index-to /shared/index
  mimo-launch data spec.yaml --json

Read the data of a spec as training would, and show what is there: records, tokens and rows,
lengths, how full sequences are with and without packing, how even the replicas of encoders are
before and after balancing, records that cannot be read, a few samples as the model gets them, with
what is learnt in green (in a file or a pipe between [[ and ]]), and how many tokens per second this
machine can read. Starts no ranks and needs no GPU. Exits with 0, with 2 when the spec is wrong, or
with 1 when its data cannot be used, when they are read more slowly than --tokens-per-second asks
for, or when the HTML page cannot be written.
"""


@frozen(kw_only=True)
class DataCommand:
    """Say what the data of a spec are like, and how fast they are read."""

    ctx: typer.Context
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Spec with the data to read.")]
    overrides: Overrides = None
    records: Annotated[
        int, typer.Option(min=1, metavar="N", help="Look at the index of at most N records.")
    ] = 10_000
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Read the records of the first N steps.")
    ] = 2
    tokens_per_second: Annotated[
        float | None,
        typer.Option(
            min=1, metavar="T", help="Tokens that all ranks compute together, to compare."
        ),
    ] = None
    show: Annotated[
        int, typer.Option(min=0, metavar="N", help="Show the first N samples of the run.")
    ] = 2
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write the samples, with their images, as a page."),
    ] = None
    stats: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Write the sizes of samples, which `data.expect` takes where shards are not.",
        ),
    ] = None
    index_to: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Copy the index to a folder, which `data.index` names on other hosts.",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False

    def __call__(self) -> None:
        """Read and answer. Raises: typer.Exit; typer.BadParameter."""
        console = console_of(self.ctx)
        console.check_files(self.file, ((self.stats, "--stats"), (self.html, "--html")))
        console.check_folder(self.index_to, "--index-to")
        spec = sound_spec(self.file, self.overrides, console)
        # One thread per process, as in ranks; more would compete while reading is timed.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        ended = custom_classes_fail(spec, console)
        if ended is not None:
            raise typer.Exit(ended)
        ready_shards(spec, console, speaks=True)
        from mimo_launch.cli.data_tables import as_json_text, as_text, page
        from mimo_launch.data.build import build_dataset
        from mimo_launch.survey.reading_speed import survey

        dataset = build_dataset(spec)
        if self.stats is not None:
            from mimo_launch.data.sample_statistics import statistics_text

            console.write_file(self.stats, statistics_text(spec, dataset), "--stats")
            console.note(
                f"wrote {self.stats}: in a spec for plans, `expect: {self.stats}` in `data`"
            )
        if self.index_to is not None:
            self._ship(dataset, self.index_to, console)
        found = survey(spec, dataset, records=self.records, steps=self.steps, show=self.show)
        if self.as_json:
            console.answer(as_json_text(found, self.tokens_per_second))
        else:
            colors = console.colors(sys.stdout)
            text = as_text(found, self.tokens_per_second, colors=colors)
            console.answer(text, painted=colors)
        if self.html is not None:
            console.write_file(self.html, page(found), "--html")
            console.note(f"wrote {self.html}")
        if self.tokens_per_second is not None and not keeps_up(found, self.tokens_per_second):
            raise typer.Exit(1)

    def _ship(self, dataset: "Dataset", folder: Path, console: "Console") -> None:
        """Copy the indexes. Raises: typer.Exit; typer.BadParameter if there are none."""
        from mimo_launch.data.shard_samples import ShardSamples

        if not isinstance(dataset, ShardSamples):
            raise typer.BadParameter("generated data have no index", param_hint="--index-to")
        try:
            dataset.copy_index(folder)
        except OSError as error:
            console.note(f"error: the index cannot be copied to {folder}: {error}")
            raise typer.Exit(1) from error
        console.note(f"wrote {folder}: on other hosts, write `index: {folder}` in `data`")


def keeps_up(found: "Survey", tokens_per_second: float) -> bool:
    """Return whether reading is at least as fast as computing."""
    return found.read.speed.tokens_per_s >= tokens_per_second
