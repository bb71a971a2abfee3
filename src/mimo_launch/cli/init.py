"""`mimo-launch init`: a first spec, from model folders and a number of GPUs.

Decides: the questions, the meaning of the flags, and when to write a file; how many more GPUs to
try if nothing fits.
Relies on: `init_draft` for the spec, `search.first_spec` for its layout.
Leaves: later changes of the file to its owner.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.shared.console import Console, console_of
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from mimo_launch.cli.init_draft import Answers, CannotDraft

HELP = """
\b
Examples:
  mimo-launch init
  mimo-launch init spec.yaml --gpus 8
  mimo-launch init llava.yaml --model models/llava --gpus 8 --gpu h200-141gb
  mimo-launch init vlm.yaml --language models/Qwen3-0.6B --vision models/siglip --gpus 16 \\
      --gpu-memory 80GB --data 'shards/{000..099}.tar' --tokenizer models/Qwen3-0.6B

Write a commented spec that validates. Models come from Hugging Face folders, with their weights if
there are any: config.json is enough for a plan, and may be named itself. Without a folder, a small
model reads the handwritten digits of this package. All modules share all ranks, and the language
model gets the smallest tp * pp. With --gpu or --gpu-memory, other grids, settings and placements
are estimated too, also with encoders on separate ranks, and the fastest that fits is written.
On a terminal, without flags, it asks. Exits with 0, or with 2 when a folder cannot be used or
nothing fits.
"""

Folder = Path | None
# If nothing fits, try up to this many doublings of the GPUs: 64 times as many.
_DOUBLINGS = 6


def _gpus(incomplete: str) -> list[str]:
    """Return shell completions for the beginning of a GPU's name."""
    from mimo_launch.spec.values import GPUS

    return [name for name in GPUS if name.startswith(incomplete)]


@frozen(kw_only=True)
class InitCommand:
    """Write a first spec, from model folders and a number of GPUs."""

    ctx: typer.Context
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Spec to write.")] = Path("spec.yaml")
    model: Annotated[
        Folder, typer.Option(metavar="DIR", help="Folder of a whole model, such as a LLaVA.")
    ] = None
    language: Annotated[
        Folder, typer.Option(metavar="DIR", help="Folder with a language model.")
    ] = None
    vision: Annotated[Folder, typer.Option(metavar="DIR", help="Folder with a vision encoder.")] = (
        None
    )
    audio: Annotated[Folder, typer.Option(metavar="DIR", help="Folder with an audio encoder.")] = (
        None
    )
    gpus: Annotated[int, typer.Option(min=1, help="GPUs, or workers, in total.")] = 8
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs per host; default: all, but at most 8.")
    ] = None
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="GPU of every rank, as h100-80gb.", autocompletion=_gpus),
    ] = None
    gpu_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of a GPU, as 80GB; default: that of --gpu."),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILES",
            help="Tar shards, JSON lines or a folder of these to train on; quote patterns. "
            "Default: made-up samples.",
        ),
    ] = None
    tokenizer: Annotated[
        Folder, typer.Option(metavar="DIR", help="Default: the folder of the language model.")
    ] = None
    template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="How a sample becomes text: chat, the default, or caption."
        ),
    ] = None
    seq: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens per sample; default: 2048 with model folders, or more if an image or clip "
            "needs it.",
        ),
    ] = None
    global_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Samples per step; default: 32, or the next multiple of --gpus."),
    ] = None
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the run; default: 500.")] = None
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False
    yes: Annotated[bool, typer.Option("--yes", help="Ask no questions.")] = False

    def __call__(self) -> None:
        """Write the spec. Raises: typer.Exit; typer.BadParameter."""
        from mimo_launch.cli.init_draft import Answers, CannotDraft, draft
        from mimo_launch.hugging_face.folder import is_hugging_face

        console = console_of(self.ctx)
        folders = {"language": self.language, "vision": self.vision, "audio": self.audio}
        answers = Answers(
            name=self.file.stem,
            model=_folder(self.model, console),
            folders={name: _folder(each, console) for name, each in folders.items()},
            gpus=self.gpus,
            gpus_per_node=self.gpus_per_node,
            gpu=self.gpu,
            gpu_memory=self.gpu_memory,
            data=self.data,
            tokenizer=self.tokenizer,
            template=self.template,
            seq=self.seq,
            global_batch=self.global_batch,
            steps=self.steps,
        )
        if is_hugging_face(self.file):
            help_ = f"mimo-launch init spec.yaml --model {self.file}"
            console.refuse(f"{self.file} is a model folder, not a spec to write", help_=help_)
        if self.file.exists() and not self.force:
            console.refuse(f"{self.file} exists", help_="--force replaces it; or name another file")
        console.check_file(self.file)
        if answers.are_defaults and not self.yes and sys.stdin.isatty():
            answers = _asked(answers, console)
        try:
            text = draft(answers)
        except CannotDraft as error:
            console.refuse(str(error), help_=_more_gpus(answers, error) or error.help)
        console.write_file(self.file, text)
        console.answer(f"wrote {self.file}")
        console.answer("next:")
        for command in ("validate", "plan", "train"):
            console.answer(f"  mimo-launch {command} {self.file}")


def _folder(path: Folder, console: Console) -> Folder:
    """Return the folder that a path means: itself, or the folder of a config.json."""
    from mimo_launch.hugging_face.folder import CONFIG

    if path is None or not path.is_file():
        return path
    if path.name != CONFIG:
        help_ = f"name a folder with {CONFIG}, or that file"
        console.refuse(f"{path} is no folder", help_=help_)
    return path.parent


def _more_gpus(answers: "Answers", error: "CannotDraft") -> str:
    """Return help with the smallest number of GPUs for which a layout fits; "" for other errors.

    It tries the given number times powers of two.
    """
    from dataclasses import replace

    from mimo_launch.cli.init_draft import CannotDraft, draft
    from mimo_launch.search.first_spec import NothingFits

    cause = error.__cause__
    if not isinstance(cause, NothingFits) or cause.too_large is None:
        return ""
    for doubling in range(1, _DOUBLINGS + 1):
        gpus = answers.gpus << doubling
        try:
            draft(replace(answers, gpus=gpus))
        except CannotDraft:
            continue
        return f"--gpus {gpus}, for which a layout fits"
    return (
        f"no layout fits on up to {answers.gpus << _DOUBLINGS} GPUs either: take GPUs with more "
        "memory, or a smaller --seq"
    )


def _asked(answers: "Answers", console: Console) -> "Answers":
    """Ask on the terminal and return the answers; an empty one means the value in brackets."""
    from dataclasses import replace

    def folder(question: str) -> Path | None:
        text = typer.prompt(question, default="", show_default=False, err=True).strip()
        return _folder(Path(text) if text else None, console)

    def text(question: str) -> str | None:
        return typer.prompt(question, default="", show_default=False, err=True).strip() or None

    language = folder("Folder of the language model, or of a whole model [handwritten digits]")
    gpus = typer.prompt("GPUs in all", default=answers.gpus, type=int, err=True)
    memory = text("Memory of a GPU, as 80GB [not known]")
    answers = replace(answers, gpus=gpus, gpu_memory=memory)
    if language is None:
        return answers
    vision = folder("Folder of the vision encoder [none, or in the same folder]")
    audio = folder("Folder of the audio encoder [none]")
    shards = text("Tar files, JSON lines or a folder to train on [random data]")
    if vision is None and audio is None:
        return replace(answers, model=language, data=shards)
    folders = {"language": language, "vision": vision, "audio": audio}
    return replace(answers, folders=folders, data=shards)
