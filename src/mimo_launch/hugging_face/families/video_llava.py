"""Video-LLaVA: a LLaVA with a second tower for videos, which is left out.

Sources: arXiv:2311.10122; `transformers` 5.24, models/video_llava.
"""

from dataclasses import replace

from mimo_launch.hugging_face.families import llava, siglip_clip
from mimo_launch.hugging_face.refusals import left_out, refusals
from mimo_launch.hugging_face.wholes import tied_by_default

VIDEO_LLAVA = replace(
    llava.LLAVA,
    model_type="video_llava",
    architecture="VideoLlavaForConditionalGeneration",
    published=("LanguageBind/Video-LLaVA-7B-hf",),
    towers=(siglip_clip.CLIP, siglip_clip.SIGLIP),
    tower_names=tuple(
        (theirs.replace("vision_tower", "image_tower"), ours) for theirs, ours in llava.VISION_NAMES
    ),
    beside=("video_tower.", "model.video_tower."),
    refusals=llava.REFUSED + refusals(left_out("the tower of videos")),
    tied=tied_by_default(False),
    rank=1,
    notes="The same model as a LLaVA for images. Its videos, which have a tower apart, are not "
    "read.",
)
