"""What the modules of a spec read of samples of shards.

Decides: the reader of each module.
Relies on: `member_readers`, `cut_reader` and `tile_reader`.
Leaves: the places of rows in a sample to `media_rows`.
"""

from collections.abc import Iterator

from mimo_launch.data.webdataset.cut_reader import CutReader
from mimo_launch.data.webdataset.member_readers import (
    ClipReader,
    CodesReader,
    ImageReader,
    MemberReader,
)
from mimo_launch.data.webdataset.tile_reader import tile_reader
from mimo_launch.hugging_face.image_processor import recipe_of
from mimo_launch.hugging_face.video_processor import video_recipe_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.spec import Spec, WebdatasetData


def readers_of(spec: Spec) -> Iterator[MemberReader]:
    """Yield what modules read, encoders first. Raises: ProcessorError."""
    for name in (*spec.encoders, *spec.generators):
        model, makes = spec.modules[name].model, name in spec.generators
        kind = kind_of(model)
        if (clips := kind.clips) is not None:
            yield ClipReader(name, makes, clips)
        elif (images := kind.images) is not None:
            recipe, videos, data = recipe_of(spec, name), video_recipe_of(spec, name), spec.data
            rate = data.video.rate if isinstance(data, WebdatasetData) else 1.0
            if (rule := kind.tile_rule) is not None:
                yield tile_reader(name, images, rule, recipe, videos, rate)
            elif (cut := recipe.cut) is not None:
                yield CutReader(name, makes, images, recipe, videos, rate, cut=cut)
            else:
                yield ImageReader(name, makes, images, recipe, videos, rate)
        elif (codes := kind.codes) is not None:
            yield CodesReader(name, makes, codes)
