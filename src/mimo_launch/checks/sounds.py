"""Checks of the feature extractor in the folder of an encoder or generator of clips.

Decides: that a folder which makes other frames than ours is refused, and what to write instead.
Relies on: `processors.sounds` for frames, `processors.recipes` for folders.
Leaves: processors of images, and folders that are not there, to `shards`.
"""

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.kinds.registry import kind_of
from mimo_launch.processors.files import PREPROCESSOR, PROCESSOR, ProcessorError
from mimo_launch.processors.recipes import processor_folder
from mimo_launch.processors.sounds import other_frames, read_extractor
from mimo_launch.spec.spec import Spec, UserData


def frames_are_those_of_the_folder(spec: Spec, name: str) -> Findings:
    """The feature extractor of a module makes our frames, if its folder has one."""
    module, data = spec.modules[name], spec.data
    clips = kind_of(module.model).clips
    if clips is None or not isinstance(data, UserData):
        return
    folder, named, line = processor_folder(spec, name), name in data.processors, ""
    if folder is None:
        return
    try:
        if named and not read_extractor(folder)[1]:
            raise ProcessorError(f"it has no feature extractor in {PREPROCESSOR} or {PROCESSOR}")
        found = other_frames(folder, clips)
    except ProcessorError as error:
        why = str(error)
    else:
        if found is None:
            return
        why = str(found)
        # Weights have mel bands and a table of positions, of which chunks need only a part.
        begins = module.init_from is None
        is_limit = found.line.startswith("frames") and clips.chunk_frames is not None
        line = found.line if begins or is_limit else ""
    otherwise = (
        f"to train on our frames all the same, write `processors: {{{name}: FOLDER}}` in `data`, a "
        f"folder whose {PREPROCESSOR} asks for our frames"
    )
    yield Diagnostic(
        code="processor-not-supported",
        headline=f"the feature extractor of `{name}` in {folder} does not make our frames",
        path=("data", "processors", name) if named and not line else ("modules", name, "model"),
        why=why,
        help=f"write `{line}` in `model`" if line else otherwise,
    )
