"""MiniCPM-OCR and MiniCPM-V 4.6: a SigLIP on images of any size, a merger, and a Qwen3.5.

What halves the sides of images inside the tower (`16x`) is not computed: `4x` leaves it out.

Source: `transformers` 5.24, models/minicpm_ocr and models/minicpmv4_6.
"""

from dataclasses import replace

from mimo_launch.hugging_face.families import siglip_clip
from mimo_launch.hugging_face.families.qwen3_5 import ON_ONE_AXIS, QWEN3_5
from mimo_launch.hugging_face.refusals import only, refusals, where
from mimo_launch.hugging_face.tensors import Dropped, layers_at
from mimo_launch.hugging_face.towers import MERGER, PLAIN_PROJECTOR
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default

_TOWER, _MERGER, _SQUARE = "model.vision_tower.", "model.merger.", "merge_kernel_size"
_MODE, _FINE, _SIDES = "downsample_mode", "4x", (2, 2)
_SETTINGS = siglip_clip.settings(
    is_clip=False, patch=16, activation="gelu_pytorch_tanh", norm_eps=1e-6
)


def _whole(model_type: str, name: str, usual: str, *, tied: bool) -> TowerAndDecoder:
    """Return a family; `usual` is the `downsample_mode` of its class."""
    tower = replace(
        siglip_clip.SIGLIP,
        model_type=f"{model_type}_vision",
        architecture=f"{name}VisionModel",
        settings=replace(
            _SETTINGS, rest={**_SETTINGS.rest, "interpolation": "nearest", "final_norm": True}
        ),
        tensors=replace(
            siglip_clip.TENSORS,
            dropped=(*siglip_clip.TENSORS.dropped, Dropped("vit_merger.*")),
        ),
        prefixes=(("", ""),),
        elsewhere=(),
        may_end_early=False,
        rank=1,
    )
    return TowerAndDecoder(
        model_type=model_type,
        architecture=f"{name}ForConditionalGeneration",
        towers=(tower,),
        text=(replace(QWEN3_5.text, settings=ON_ONE_AXIS),),
        tower_names=((_TOWER, ""), (_MERGER, _MERGER)),
        text_names=(("model.language_model.", "model."), ("lm_head.", "lm_head.")),
        projector=layers_at({
            f"projector.{ours}": f"{_MERGER}mlp.0.{its}"
            for ours, its in (("norm", "pre_norm"), ("up", "linear_1"), ("down", "linear_2"))
        }),
        fixed={
            **MERGER, **PLAIN_PROJECTOR, "shuffle": _SIDES[0], "projector_norm": "layer",
            "projector_norm_eps": 1e-6,
        },
        refusals=refusals(
            where(
                _MODE,
                f"other than `{_FINE}`, or missing if that means `{usual}`",
                lambda config: config.get(_MODE, usual) != _FINE,
                usual,
            ),
            where(
                _SQUARE,
                "other than `[2, 2]`",
                lambda config: tuple(config.get(_SQUARE, _SIDES)) != _SIDES,
            ),
            only("merger_times", 1),
        ),
        tied=tied_by_default(tied),
        token="image_token_id",
        settings={_MODE: _FINE, _SQUARE: list(_SIDES), "merger_times": 1},
    )  # fmt: skip


MINICPM_OCR = replace(
    _whole("minicpm_ocr", "MiniCPMOcr", _FINE, tied=True),
    published=("openbmb/MiniCPM-OCR-1.0",),
    notes="Images keep their sides. Language counts tokens on one axis. The attention that joins "
    "patches inside the tower (`vit_merger`) is left out, as by `downsample_mode: 4x`. Videos "
    "are not read.",
)
MINICPMV4_6 = replace(
    _whole("minicpmv4_6", "MiniCPMV4_6", "16x", tied=False),
    published=("openbmb/MiniCPM-V-4.6",),
    notes="The same model as a MiniCPM-OCR where its folder says `downsample_mode: 4x`. Of other "
    "folders only language is read.",
    rank=1,
)
