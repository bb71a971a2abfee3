"""`mimo-launch export`: the weights of a run as folders that transformers loads.

Decides: the meaning of the options, the messages, and the exit code. It uses one process and no
GPU.
Relies on: `export`.
Leaves: the tensors and files to `export`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.shared.console import Console, console_of
from mimo_launch.cli.shared.options import CheckpointStep, RunPath, Target
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from mimo_launch.checkpoint.index import Checkpoint
    from mimo_launch.export.export import ExportProgress
    from mimo_launch.export.export_plan import FolderPlan

HELP = """
\b
Examples:
  mimo-launch export runs/llava --to exported
  mimo-launch export runs/llava --to llava-tuned --checkpoint 2000 --dtype bf16
  mimo-launch export runs/llava --to only-language --module language
  mimo-launch export runs/lora --to lora-adapter --adapter

Write the weights of a checkpoint, saved on any layout, as Hugging Face folders: safetensors and
config.json, with the tokenizer and processor files of the folder that the weights came from. The
result is a whole model if transformers has one of this shape, otherwise one folder per module. It
appears only once it is complete. The updates of adapters are added to their weights. Exits with 0,
with 2 when the run cannot be read or transformers has no such model, or with 1 when the files
cannot be written.
"""


class DType(StrEnum):
    """The type of exported tensors."""

    AUTO = "auto"
    SOURCE = "source"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP64 = "fp64"


@frozen(kw_only=True)
class ExportCommand:
    """Write the weights of a run as Hugging Face folders."""

    ctx: typer.Context
    run: RunPath
    to: Target
    checkpoint: CheckpointStep = None
    dtype: Annotated[
        DType,
        typer.Option(
            help="`source`: the type in the folder that the weights came from; `auto`: `source` if "
            "there is such a folder, else the type of training."
        ),
    ] = DType.AUTO
    modules: Annotated[
        list[str] | None,
        typer.Option("--module", metavar="NAME", help="Only this module; may be repeated."),
    ] = None
    max_shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest size of a file of weights.")
    ] = "5GB"
    adapter: Annotated[
        bool,
        typer.Option("--adapter", help="Only the adapters, as a folder that peft loads."),
    ] = False
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False

    def __call__(self) -> None:
        """Write the folders. Raises: typer.Exit; typer.BadParameter."""
        max_bytes = _bytes(self.max_shard_size)
        from mimo_launch.checkpoint.index import NoCheckpoint, open_checkpoint
        from mimo_launch.checkpoint.storage import CheckpointError
        from mimo_launch.diag.quantities import bytes_text
        from mimo_launch.export.adapter_folder import adapter_plan, write_adapter
        from mimo_launch.export.export import InTheWay, check_place, write_export
        from mimo_launch.export.export_plan import CannotExport, Exporter

        console = console_of(self.ctx)
        try:
            found = open_checkpoint(self.run, self.checkpoint)
            check_place(self.to, force=self.force)
            console.check_folder(self.to, "--to")
            plans = Exporter(found, self.dtype.value, in_memory=self.adapter).folders(
                self.modules or ()
            )
            if self.adapter:
                made = adapter_plan(found.spec, plans)
                write_adapter(found, made, self.to, force=self.force)
                console.answer(f"wrote {self.to}: updates of {len(made.maps)} maps, for peft")
                return
            with _progress(found, plans, console) as progress:
                write_export(
                    found, plans, self.to, max_bytes=max_bytes, force=self.force, progress=progress
                )
        except NoCheckpoint as error:
            console.refuse(str(error), help_=error.help)
        except InTheWay as error:
            console.refuse(str(error), help_="give --to a path where nothing is yet")
        except CannotExport as error:
            console.refuse(*error.reasons, help_=error.instead)
        except (OSError, CheckpointError) as error:
            help_ = "no file is left; free some space, or choose another place"
            console.refuse(f"cannot write {self.to}: {error}", help_=help_, code=1)
        for plan in plans:
            types = sorted({str(each.dtype).removeprefix("torch.") for each in plan.tensors})
            what = plan.config.get("architectures", [plan.config["model_type"]])[0]
            projector = " and its projector" if plan.projector else ""
            console.answer(
                f"wrote {self.to / plan.where}: {what}{projector}, {len(plan.tensors)} tensors, "
                f"{', '.join(types)}, {bytes_text(plan.num_bytes)}"
            )
            for note in plan.beside.notes:
                console.note(f"note: {note}")


@contextmanager
def _progress(
    checkpoint: "Checkpoint", plans: "list[FolderPlan]", console: Console
) -> "Iterator[ExportProgress]":
    """Show bars on a terminal and two lines elsewhere."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bar

    from mimo_launch.cli.shared.bars import Bars, rich_on
    from mimo_launch.diag.quantities import bytes_text
    from mimo_launch.export.export import ExportProgress

    to_write = sum(plan.num_bytes for plan in plans)
    screen = rich_on(sys.stderr, console)
    if not screen.is_terminal:
        console.note(f"reads {checkpoint.path} ({bytes_text(checkpoint.num_bytes)})")
        yield ExportProgress(lambda _: None, lambda _: None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    bar = Bar(*columns, console=screen)
    checks = bar.add_task("checks the checkpoint", total=checkpoint.num_bytes)
    writes = bar.add_task("writes", total=to_write)
    with Bars(bar, screen, console):
        yield ExportProgress(lambda n: bar.advance(checks, n), lambda n: bar.advance(writes, n))


def _bytes(size: str) -> int:
    """Return the value of `--max-shard-size` in bytes. Raises: typer.BadParameter."""
    from mimo_launch.spec.base import size_in_bytes

    try:
        return size_in_bytes(size)
    except ValueError as error:
        raise typer.BadParameter(f"{size}: {error}", param_hint="--max-shard-size") from None
