"""LLaVA-NeXT and LLaVA-NeXT-Video: a LLaVA that cuts each image into tiles.

Sources: arXiv:2407.07895; `transformers` 5.24, models/llava_next and models/llava_next_video.
"""

from dataclasses import replace

from mimo_launch.hugging_face.families import llama, llava, mistral, qwen, siglip_clip
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default

# The defaults of their configuration classes, in pixels.
_USUAL = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
LLAVA_NEXT = TowerAndDecoder(
    model_type="llava_next",
    architecture="LlavaNextForConditionalGeneration",
    published=("llava-hf/llava-v1.6-mistral-7b-hf",),
    towers=(siglip_clip.CLIP, siglip_clip.SIGLIP),
    text=(llama.LLAMA, mistral.MISTRAL, qwen.QWEN2),
    tower_names=llava.NAMES_IN_TILES,
    text_names=llava.TEXT_NAMES,
    projector=llava.PROJECTOR_IN_TILES,
    feature_layer=-2,
    joins_layers=True,
    fixed={**llava.FIXED, "tiles": lambda x: llava.tiles_of(x, _USUAL, each=True)},
    refusals=llava.REFUSED + refusals(llava.grids_refused(_USUAL)),
    tied=tied_by_default(False),
    token="image_token_index",
    settings={**llava.SETTINGS, "image_grid_pinpoints": llava.pins_of},
    notes="`tiles.grids` are `image_grid_pinpoints` over `vision_config.image_size`; each of "
    "several images of a sample is cut, too (`tiles.each`).",
)
LLAVA_NEXT_VIDEO = replace(
    LLAVA_NEXT,
    model_type="llava_next_video",
    architecture="LlavaNextVideoForConditionalGeneration",
    published=("llava-hf/LLaVA-NeXT-Video-7B-hf",),
    tied=llava.tied_if_said,
    rank=1,
    notes="The same model as a LLaVA-NeXT for images. Its videos, whose patches are averaged "
    "before the projector, are not read.",
)
