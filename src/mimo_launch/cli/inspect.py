"""`mimo-launch inspect`: what a folder of weights holds, and the spec for it.

Decides: the kind of the folder, and what is shown.
Relies on: `hugging_face.contents`, `checkpoint.folder`; neither reads a tensor;
`hugging_face.families_page`.
Leaves: checking a spec against a folder to `validate`.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimo_launch.cli.shared.console import Console, console_of
from mimo_launch.cli.shared.console import wrapped
from mimo_launch.spec.wording import flow

if TYPE_CHECKING:
    from mimo_launch.checkpoint.index import Checkpoint
    from mimo_launch.hugging_face.contents import Contents

HELP = """
\b
Examples:
  mimo-launch inspect models/Qwen3-0.6B
  mimo-launch inspect runs/quickstart
  mimo-launch inspect models/llava --json
  mimo-launch inspect --families

Say which modules a folder holds, with sizes and types, and print the lines of a spec that start
from it. Reads config.json and the headers of safetensors files, or the index of a checkpoint, but
no tensors, so it is quick at any size. Exits with 0, with 2 when the folder cannot be read, or
with 1 when it holds no module that can be trained here.
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
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Say what a folder of weights holds, with the spec for it."""
    from mimo_launch.checkpoint.index import NoCheckpoint, open_checkpoint
    from mimo_launch.hugging_face.contents import read_contents
    from mimo_launch.hugging_face.folder import ConfigError, FilesError, is_hugging_face

    console = console_of(ctx)
    if families:
        _show_families(console, as_json=as_json)
        return
    if folder is None:
        console.note("error: no folder is named")
        console.note("   = help: mimo-launch inspect DIR, or mimo-launch inspect --families")
        raise typer.Exit(2)
    try:
        if is_hugging_face(folder):
            found = read_contents(folder)
            _show_model(found, console, as_json=as_json)
            if all(part.not_computed for part in found.modules):
                raise typer.Exit(1)
        else:
            _show_run(open_checkpoint(folder, None), folder, console, as_json=as_json)
    except (ConfigError, FilesError) as error:
        console.note(f"error: {folder}: {error}")
        raise typer.Exit(2) from None
    except NoCheckpoint as error:
        console.note(f"error: {error}")
        for line in _without_checkpoint(folder):
            console.note(f"   = {line}")
        raise typer.Exit(2) from None


def _without_checkpoint(folder: Path) -> Iterator[str]:
    """Yield how a run without a checkpoint stands, and what to do."""
    from mimo_launch.hugging_face.folder import CONFIG
    from mimo_launch.launcher.run_folder import State, is_run, status_of

    status = status_of(folder) if is_run(folder) else None
    if status is not None:
        of = "" if status.steps is None else f" of {status.steps:,}"
        yield f"state: {status.state.value}, step {status.step:,}{of}"
    if status is not None and status.state is State.RUNNING:
        yield f"help: wait for its first checkpoint: mimo-launch watch {shlex.quote(str(folder))}"
    else:
        yield f"help: name a folder with {CONFIG}, a run folder or a checkpoint"


def _show_families(console: Console, *, as_json: bool) -> None:
    from dataclasses import asdict

    from mimo_launch.hugging_face.families_page import modules, wholes

    if as_json:
        lists = {"wholes": wholes(), "modules": modules()}
        content = {name: [asdict(each) for each in entries] for name, entries in lists.items()}
        _answer_json(console, kind="families", **content)
        return
    for title, entries in (("whole models", wholes()), ("modules", modules())):
        console.answer(f"{title}:")
        for each in entries:
            lines = [f"  {each.model_type}: {each.read_as.replace('`', '')}"]
            if each.written:
                lines.append(f"    written as {each.written}")
            if each.refused:
                lines.append(f"    refused: {'; '.join(each.refused).replace('`', '')}")
            for line in lines:
                console.answer(wrapped(line, 6))


def _show_model(found: "Contents", console: Console, *, as_json: bool) -> None:
    from mimo_launch.hugging_face.folder import TYPES

    fragment = _fragment(found)
    if as_json:
        _answer_json(
            console,
            kind="hugging_face",
            folder=str(found.folder),
            model_type=found.model_type,
            parameters=found.parameters,
            dtypes=found.dtypes,
            files=found.files,
            modules=[
                {
                    "name": part.name,
                    "kind": part.kind,
                    "model_type": part.model_type,
                    "model": {"kind": part.kind, **part.keys},
                    "parameters": part.parameters,
                    "tensors": part.tensors,
                    "not_computed": part.not_computed,
                    "placeholder": part.placeholder,
                    "video": part.video,
                    "images": part.images,
                    "depths": part.depths,
                }
                for part in found.modules
            ],
            not_read=found.unread,
            left_out=found.left_out,
            unknown=found.unknown,
            yaml=fragment,
        )
        return
    types = ", ".join(TYPES.get(each, each) for each in found.dtypes) or "no weights"
    files = f"{len(found.files)} file" + "s" * (len(found.files) != 1)
    console.answer(
        f"{found.folder}: {found.model_type}, {found.parameters:,} parameters, {types}, {files}"
    )
    for part in found.modules:
        size = f", {part.parameters:,} parameters in {_tensors(part.tensors)}"
        known = "" if part.not_computed else size
        console.answer(f"  {part.name}: {part.kind} ({part.model_type}){known}")
        for setting in part.not_computed:
            console.answer(f"    not computed here: {setting}")
        if part.video is not None:
            said = {key: value for key, value in part.video.items() if value is not None}
            console.answer(f"    reads videos, too, with `video: {flow(said)}` in `model`")
        if part.images is not None:
            console.answer(f"    {part.images}")
        if part.depths:
            said = {"depth": part.depths}
            console.answer(f"    left out without `mtp: {flow(said)}` in `model`: further tokens")
    for why, names in found.left_out_by_reason.items():
        console.answer(f"  left out: {_named(names)}: {why}")
    if found.unknown:
        console.answer(
            f"  nobody's: {_named(found.unknown)}: no module takes it, and `train` starts only "
            "with `init_partial: true`"
        )
    for each in found.unread:
        console.answer(f"  not read: {each}")
    if fragment:
        console.answer(f"\n{fragment}")


def _fragment(found: "Contents") -> str:
    """Return `modules:` for a spec that starts from a folder, on one rank."""
    computed = [part for part in found.modules if not part.not_computed]
    lines = ["modules:"] if computed else []
    for part in computed:
        keys = {"kind": part.kind, **part.keys}
        lines += [f"  {part.name}:", f"    model: {flow(keys)}", "    ranks: 0"]
        if part.reads:
            lines.append(f"    reads: {flow(list(part.reads))}")
        if part.placeholder is not None:
            lines.append(f"    placeholder: {part.placeholder}")
        if found.files:
            lines.append(f"    init_from: {flow(str(found.folder))}")
    return "\n".join(lines)


def _show_run(found: "Checkpoint", folder: Path, console: Console, *, as_json: bool) -> None:
    from math import prod

    from mimo_launch.checkpoint.folder import all_checkpoints, is_complete
    from mimo_launch.diag.quantities import bytes_text, num_ranks_text, sizes_text
    from mimo_launch.layout.layout import world_size

    spec = found.spec
    steps = sorted(int(p.name[5:]) for p in all_checkpoints(folder) if is_complete(p))
    sizes = {name: found.segments(name) for name in spec.modules}
    numbers = {name: sum(map(prod, shapes.values())) for name, shapes in sizes.items()}
    fragment = _run_fragment(found)
    if as_json:
        _answer_json(
            console,
            kind="checkpoint",
            folder=str(found.path),
            run=spec.name,
            step=found.step,
            steps=steps,
            ranks=world_size(spec),
            bytes=found.num_bytes,
            modules=[
                {
                    "name": name,
                    "model": module.model.model_dump(mode="json"),
                    "ranks": module.ranks,
                    "grid": module.grid.model_dump(),
                    "parameters": numbers[name],
                    "tensors": len(sizes[name]),
                }
                for name, module in spec.modules.items()
            ],
            yaml=fragment,
        )
        return
    console.answer(
        f"{found.path}: step {found.step} of {spec.train.steps} of `{spec.name}`, "
        f"{num_ranks_text(world_size(spec))}, {bytes_text(found.num_bytes)}"
    )
    others = [str(step) for step in steps if step != found.step]
    if others:
        console.answer(f"  other checkpoints: {', '.join(others)}")
    for name, module in spec.modules.items():
        grid = sizes_text(module.grid.model_dump())
        parts = f"{numbers[name]:,} parameters in {_tensors(len(sizes[name]))}"
        console.answer(f"  {name}: {module.model.kind}, {parts}, ranks {module.ranks}, {grid}")
    console.answer(f"\n{fragment}")


def _tensors(number: int) -> str:
    return f"{number} tensor" + "s" * (number != 1)


def _named(names: Sequence[str]) -> str:
    """Return the first name of tensors and how many there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _run_fragment(found: "Checkpoint") -> str:
    """Return `modules:` for a spec that starts from a checkpoint, with its placement."""
    lines = ["modules:"]
    for name, module in found.spec.modules.items():
        model = module.model.model_dump(mode="json", exclude_defaults=True)
        grid = {axis: size for axis, size in module.grid.model_dump().items() if size > 1}
        lines += [f"  {name}:", f"    model: {flow({'kind': module.model.kind, **model})}"]
        lines.append(f"    ranks: {module.ranks}")
        lines += [f"    grid: {flow(grid)}"] if grid else []
        if module.placeholder is not None:
            lines.append(f"    placeholder: {module.placeholder}")
        lines.append(f"    init_from: {flow(str(found.path))}")
    return "\n".join(lines)


def _answer_json(console: Console, **content: Any) -> None:
    import json

    console.answer(json.dumps({"version": 1, **content}, indent=2, default=list))
