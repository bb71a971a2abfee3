"""`mimo-launch inspect`: the contents of a folder of weights, and a spec for it.

Decides: the kind of the folder, and what to show.
Relies on: `hugging_face` and `checkpoint.folder`, neither of which reads a whole tensor;
`launcher.run_folder` for a run without a checkpoint.
Leaves: checking a spec against a folder to `validate`.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimo_launch.cli.shared.console import Console, console_of, wrapped
from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.wording import flow

if TYPE_CHECKING:
    from mimo_launch.checkpoint.index import Checkpoint
    from mimo_launch.hugging_face.contents import Contents, Module

HELP = """
\b
Examples:
  mimo-launch inspect models/Qwen3-0.6B
  mimo-launch inspect runs/quickstart
  mimo-launch inspect models/llava --json
  mimo-launch inspect --families
  mimo-launch inspect models/new --draft > new.py

Say which modules a folder holds, with sizes and types, and print the lines of a spec that start
from it. Reads config.json and the headers of safetensors files, or the index of a checkpoint, and
no tensors but samples of a tied output layer, so it is quick at any size. Exits with 0, with 2 when
the folder cannot be read, with 1 when it holds no module that can be trained here, or with 3 when
one of several modules cannot be.
"""


def inspect(
    ctx: typer.Context,
    *,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Hugging Face folder, run folder or checkpoint."),
    ] = None,
    families: Annotated[
        bool,
        typer.Option(
            "--families", help="List every model type, with what is read, written and refused."
        ),
    ] = False,
    draft: Annotated[
        bool,
        typer.Option(
            "--draft",
            help="For a type that is not read: print a first file for its family, from the nearest "
            "one, with what differs.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Say what a folder of weights holds, with the spec for it."""
    from mimo_launch.checkpoint.index import NoCheckpoint, open_checkpoint
    from mimo_launch.hugging_face.contents import read_contents
    from mimo_launch.hugging_face.folder import ConfigError, FilesError, is_hugging_face

    console = console_of(ctx)
    if families:
        if folder is not None or draft:
            help_ = "mimo-launch inspect --families, or mimo-launch inspect DIR"
            console.refuse("--families lists all types; it reads no folder", help_=help_)
        _answer(_Families(), console, as_json=as_json)
        return
    if folder is None:
        help_ = "mimo-launch inspect DIR, or mimo-launch inspect --families"
        console.refuse("no folder is named", help_=help_)
    if draft and as_json:
        help_ = f"mimo-launch inspect {shlex.quote(str(folder))} --draft"
        console.refuse("--draft prints Python, never JSON", help_=help_)
    try:
        if draft:
            _draft(folder, console)
        elif is_hugging_face(folder):
            found = read_contents(folder)
            _answer(_Model(found), console, as_json=as_json)
            if all(part.not_computed for part in found.modules):
                raise typer.Exit(1)
            if found.incomplete:
                raise typer.Exit(3)
        else:
            _answer(_Saved(open_checkpoint(folder, None), folder), console, as_json=as_json)
    except (ConfigError, FilesError) as error:
        console.note(f"error: {folder}: {error}")
        raise typer.Exit(2) from None
    except NoCheckpoint as error:
        console.note(f"error: {error}")
        _note_state(folder, console)
        raise typer.Exit(2) from None


def _note_state(folder: Path, console: Console) -> None:
    """Say how far the run of a folder without a checkpoint is, if it is a run, and what helps."""
    from mimo_launch.hugging_face.folder import CONFIG
    from mimo_launch.launcher.run_folder import State, is_run, status_of

    help_ = f"name a folder with {CONFIG}, a run folder or a checkpoint"
    if is_run(folder):
        status = status_of(folder)
        of = "" if status.steps is None else f" of {status.steps:,}"
        console.note(f"   = state: {status.state.value}, step {status.step:,}{of}")
        if status.state is State.RUNNING:
            watch = f"mimo-launch watch {shlex.quote(str(folder))}"
            help_ = f"wait for its first checkpoint: {watch}"
    console.note(f"   = help: {help_}")


def _draft(folder: Path, console: Console) -> None:
    """Print a first declaration of the types that are not read. Raises: ConfigError; FilesError."""
    from mimo_launch.hugging_face.draft import drafts_of
    from mimo_launch.hugging_face.draft_text import text_of
    from mimo_launch.hugging_face.folder import read_config

    config = read_config(folder)
    found = drafts_of(folder, config)
    if found:
        console.answer(text_of(found))
        return
    console.note(f"error: nothing to draft from {folder}")
    console.note("   = why:  all of its types are read, or no family reads settings such as these")
    console.note("   = help: `mimo-launch inspect --families` lists the types that are read")
    raise typer.Exit(1)


# What JSON says of a module as `hugging_face.contents` says it.
_OF_MODULE = (
    "parameters", "tensors", "not_computed", "placeholder", "video", "images", "clips", "depths",
    "untied", "missing",
)  # fmt: skip


def _answer(found: "_Families | _Model | _Saved", console: Console, *, as_json: bool) -> None:
    if as_json:
        import json

        console.answer(json.dumps({"version": 1, **found.record()}, indent=2, default=list))
        return
    # Make all lines before printing the first, so that a failure prints none.
    for line in list(found.lines()):
        console.answer(line)


class _Families:
    """All supported model types."""

    def record(self) -> dict[str, Any]:
        """Return whole models and modules, with everything known about each."""
        from mimo_launch.hugging_face.families_page import modules, wholes

        lists = {"wholes": wholes(), "modules": modules()}
        content = {name: list(map(asdict, each)) for name, each in lists.items()}
        return {"kind": "families", **content}

    def lines(self) -> Iterator[str]:
        """Yield for each type: read as, examples on the hub, written as, and what is refused."""
        from mimo_launch.hugging_face.families_page import modules, wholes

        for title, entries in (("whole models", wholes()), ("modules", modules())):
            yield f"{title}:"
            for each in entries:
                yield wrapped(f"  {each.model_type}: {each.read_as.replace('`', '')}", 6)
                if each.published:
                    yield wrapped(f"    such as {', '.join(each.published)}", 6)
                if each.written:
                    yield wrapped(f"    written as {each.written}", 6)
                if each.refused:
                    yield wrapped(f"    refused: {'; '.join(each.refused).replace('`', '')}", 6)


@frozen
class _Model:
    """A Hugging Face folder."""

    found: "Contents"

    def record(self) -> dict[str, Any]:
        """Return its modules, and the contents that no module uses."""
        found = self.found
        return {
            "kind": "hugging_face",
            "folder": str(found.folder),
            "model_type": found.model_type,
            "parameters": found.parameters,
            "dtypes": found.dtypes,
            "files": found.files,
            "modules": [
                {
                    "name": part.name,
                    "kind": part.kind,
                    "model_type": part.model_type,
                    "model": {"kind": part.kind, **part.keys},
                    **{key: getattr(part, key) for key in _OF_MODULE},
                }
                for part in found.modules
            ],
            "not_read": found.unread,
            "incomplete": found.incomplete,
            "left_out": found.left_out,
            "unknown": found.unknown,
            "yaml": self.fragment(),
        }

    def lines(self) -> Iterator[str]:
        """Yield its modules with their sizes, and the contents that no module uses."""
        from mimo_launch.hugging_face.folder import TYPES

        found = self.found
        types = ", ".join(TYPES.get(each, each) for each in found.dtypes) or "no weights"
        what = f"{types}, {len(found.files)} file" + "s" * (len(found.files) != 1)
        yield f"{found.folder}: {found.model_type}, {found.parameters:,} parameters, {what}"
        for part in found.modules:
            yield from _of_module(part)
        for why, names in found.left_out_by_reason.items():
            yield f"  left out: {_named(names)}: {why}"
        if found.unknown:
            yield (
                f"  unknown: {_named(found.unknown)}: no module has it, and `train` starts only "
                "with `init_partial: true`"
            )
        for each in found.unread:
            yield f"  not read: {each}"
        if fragment := self.fragment():
            yield f"\n{fragment}"
        if fragment and found.incomplete:
            are = "is" if len(found.incomplete) == 1 else "are"
            yield f"\nincomplete: {' and '.join(found.incomplete)} {are} missing"

    def fragment(self) -> str:
        """Return `modules:` for a spec that starts from the folder, on one rank."""
        found = self.found
        computed = [part for part in found.modules if not part.not_computed]
        return _fragment(
            {
                part.name: {
                    "model": {"kind": part.kind, **part.keys},
                    "ranks": 0,
                    "reads": list(part.reads) or None,
                    "placeholder": part.placeholder,
                    "init_from": str(found.folder) if found.files else None,
                }
                for part in computed
            }
        )


def _of_module(part: "Module") -> Iterator[str]:
    """Yield lines on a module of a folder: its size, what is refused, what it reads or lacks."""
    from mimo_launch.hugging_face.tensors import HEAD

    size = f", {part.parameters:,} parameters in {_tensors(part.tensors)}"
    known = "" if part.not_computed else size
    yield f"  {part.name}: {part.kind} ({part.model_type}){known}"
    for setting in part.not_computed:
        yield f"    not computed here: {setting}"
    if part.video is not None:
        said = {key: value for key, value in part.video.items() if value is not None}
        yield f"    reads videos, too, with `video: {flow(said)}` in `model`"
    for media in filter(None, (part.images, part.clips)):
        yield f"    {media}"
    if part.depths:
        keys = f"{{depth: {part.depths}}}"
        yield f"    left out without `mtp: {keys}` in `model`: multi-token prediction"
    if part.untied:
        yield (
            "    its output layer is not the embedding, though config.json has "
            "`tie_word_embeddings: true`: both are read"
        )
    if part.missing:
        tied = "`tied: true` in `model`, or with " if HEAD in part.missing else ""
        yield (
            f"    missing: {_named(part.missing)}: `train` starts only with {tied}"
            f"`init_partial: true` in `{part.name}`"
        )


@frozen
class _Saved:
    """A checkpoint of a run; `folder` is the run folder or the checkpoint itself."""

    found: "Checkpoint"
    folder: Path

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints."""
        from mimo_launch.checkpoint.folder import all_checkpoints, is_complete

        return sorted(int(p.name[5:]) for p in all_checkpoints(self.folder) if is_complete(p))

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return the number of parameters and the number of tensors of each module."""
        names = self.found.spec.modules
        shapes = {name: self.found.segments(name).values() for name in names}
        return {name: (sum(map(prod, each)), len(each)) for name, each in shapes.items()}

    def record(self) -> dict[str, Any]:
        """Return the run, the checkpoint and its modules."""
        from mimo_launch.layout.layout import world_size

        found, spec, sizes = self.found, self.found.spec, self.sizes()
        return {
            "kind": "checkpoint",
            "folder": str(found.path),
            "run": spec.name,
            "step": found.step,
            "steps": self.steps(),
            "ranks": world_size(spec),
            "bytes": found.num_bytes,
            "modules": [
                {
                    "name": name,
                    "model": module.model.model_dump(mode="json"),
                    "ranks": module.ranks,
                    "grid": module.grid.model_dump(),
                    "parameters": sizes[name][0],
                    "tensors": sizes[name][1],
                }
                for name, module in spec.modules.items()
            ],
            "yaml": self.fragment(),
        }

    def lines(self) -> Iterator[str]:
        """Yield the checkpoint, the run's other checkpoints, and the modules."""
        from mimo_launch.diag.quantities import bytes_text, counted, sizes_text
        from mimo_launch.layout.layout import world_size

        found, spec, sizes = self.found, self.found.spec, self.sizes()
        where = f"{found.path}: step {found.step} of {spec.train.steps} of `{spec.name}`"
        yield f"{where}, {counted(world_size(spec), 'rank')}, {bytes_text(found.num_bytes)}"
        others = [str(step) for step in self.steps() if step != found.step]
        if others:
            yield f"  other checkpoints: {', '.join(others)}"
        for name, module in spec.modules.items():
            grid = sizes_text(module.grid.model_dump())
            parameters, tensors = sizes[name]
            parts = f"{parameters:,} parameters in {_tensors(tensors)}"
            yield f"  {name}: {module.model.kind}, {parts}, ranks {module.ranks}, {grid}"
        yield f"\n{self.fragment()}"

    def fragment(self) -> str:
        """Return `modules:` for a spec that starts from the checkpoint, with its placement."""
        modules = {}
        for name, module in self.found.spec.modules.items():
            model = module.model.model_dump(mode="json", exclude_defaults=True)
            grid = {axis: size for axis, size in module.grid.model_dump().items() if size > 1}
            adapter = module.adapter
            modules[name] = {
                "model": {"kind": module.model.kind, **model},
                "adapter": adapter
                and adapter.model_dump(mode="json", exclude_defaults=True, exclude={"init_from"}),
                "ranks": int(module.ranks) if module.ranks.isdecimal() else module.ranks,
                "grid": grid or None,
                "placeholder": module.placeholder,
                "init_from": str(self.found.path),
            }
        return _fragment(modules)


def _fragment(modules: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the section `modules` of a spec, without keys that are None; "" if it has none."""
    lines = ["modules:"] if modules else []
    for name, module in modules.items():
        keys = (f"    {key}: {flow(value)}" for key, value in module.items() if value is not None)
        lines += [f"  {name}:", *keys]
    return "\n".join(lines)


def _tensors(number: int) -> str:
    return f"{number} tensor" + "s" * (number != 1)


def _named(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
