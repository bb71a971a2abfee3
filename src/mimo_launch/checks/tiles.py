"""Checks of encoders and of processors that cut images into tiles.

Decides: what tiles cannot be combined with; that all encoders see the same number of images, where
processors make several of one.
Relies on: `kinds` for what language does with images; `processors.recipes`.
Leaves: whether a processor makes the same tiles to `data.webdataset.readers`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related, YamlPath
from mimo_launch.kinds.registry import kind_of
from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.recipes import recipe_of
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import DigitsData, Spec, VitModel, WebdatasetData

if TYPE_CHECKING:
    from mimo_launch.processors.cut_rules import Cut


def tiles_fit(spec: Spec, name: str, model: VitModel) -> Findings:
    """A tile is an image with the grid of learned positions; each of its patches may be a row."""
    if model.tiles is None:
        return
    # All, or none if a part is missing.
    for path, why, remedy in list(_misfits(spec, name, model)):
        yield Diagnostic(
            code="tiles-do-not-fit",
            headline=f"`{name}` cuts images into tiles, which do not fit to "
            f"`{'.'.join(map(str, path[-2:]))}`",
            path=path,
            why=why,
            help=f"{remedy}, or delete `tiles` of `{name}`",
            related=(Related(path=("modules", name, "model", "tiles"), label="tiles"),),
        )


def _misfits(spec: Spec, name: str, model: VitModel) -> Iterator[tuple[YamlPath, str, str]]:
    """Yield the keys that do not fit tiles, why, and what to write instead."""
    path: YamlPath = ("modules", name, "model")
    if model.positions != "learned" or model.image is None:
        why = "`image`, the grid of learned positions, is the size of a tile"
        yield (*path, "positions"), why, "write `positions: learned, image: [27, 27]`"
    if model.image is not None and model.tiles is not None and model.tiles.side is not None:
        least = model.patch * max(model.image)
        if model.tiles.side < least:
            why = f"{max(model.image)} patches of {model.patch} pixels are {least} pixels"
            yield (*path, "tiles", "side"), why, f"write `side: {least}`"
    if model.shuffle > 1:
        yield (*path, "shuffle"), "every patch of a tile may become a row", "write `shuffle: 1`"
    if model.video is not None and model.temporal_patch > 1:
        why = "each frame of a video is a tile"
        yield (*path, "temporal_patch"), why, "write `temporal_patch: 1`, or delete `video`"
    if model.video is not None and model.video.time != "none":
        why = "frames of a video follow each other without their time"
        yield (*path, "video", "time"), why, "write `time: none`"
    if model.windows is not None:
        yield (*path, "windows"), "patches attend to those of their tile", "delete `windows`"
    if model.deepstack:
        why = "rows of several layers are not averaged"
        yield (*path, "deepstack"), why, "delete `deepstack`"
    if isinstance(spec.data, DigitsData):
        yield ("data", "kind"), "strips of digits have no tiles", "write `kind: synthetic`"
    language = kind_of(spec.language.model)
    path = ("modules", LANGUAGE, "model")
    if language.text.mrope is not None:
        why = "lines of rows and learned rows have no place on the axes"
        yield (*path, "mrope"), why, "delete `mrope`"
    if language.attending.whole_images:
        why = "tiles are images of their own"
        yield (*path, "bidirectional_images"), why, "write `bidirectional_images: false`"


def processors_cut_alike(spec: Spec) -> Findings:
    """If an image becomes several, each encoder sees the same number; a generator makes one."""
    if not isinstance(spec.data, WebdatasetData):
        return
    cuts: dict[str, Cut | None] = {}
    for name, module in spec.modules.items():
        if kind_of(module.model).images is not None:
            try:
                cuts[name] = recipe_of(spec, name).cut
            except ProcessorError:  # Another check reports it for this module.
                return
    first = next((name for name in spec.encoders if cuts.get(name) is not None), None)
    for name, cut in cuts.items():
        alone = f"name the folder of a processor that makes one in `data.processors` for `{name}`"
        if cut is not None and name in spec.generators:
            why, remedy = "a generator learns to make one image", alone
        elif cut is not None and kind_of(spec.modules[name].model).tokens.tiles is not None:
            why, remedy = f"the `tiles` of `{name}` are rows of one image", alone
        elif name in spec.encoders and first is not None and cut != cuts[first]:
            why = f"each of them is an image in the text, of which `{first}` makes rows, too"
            remedy = f"name one folder for `{first}` and `{name}` in `data.processors`"
        else:
            continue
        yield Diagnostic(
            code="processor-not-supported",
            headline=f"the image processor of `{name if cut else first}` makes several images of "
            f"one, but `{name}` does not take them",
            path=("modules", name, "model"),
            why=why,
            help=remedy,
        )
