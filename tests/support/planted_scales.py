"""Known ways to get weights per channel of a tower wrong; `planted` lists them with the others."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from tests.support.planted_norms import norms_of_heads_exchanged
from tests.support.shapes import plant
from tests.support.specs import box, spec

from mimo_launch.kinds.shapes import NormShape, OneShape, WholeShape
from mimo_launch.layers import norms
from mimo_launch.layers.attention import Attention
from mimo_launch.layers.pointwise import swiglu
from mimo_launch.models import positions, projector, vision_encoder
from mimo_launch.models.vision_encoder import VisionStage
from mimo_launch.spec.spec import Spec

# As an InternVL, with the norms of its large towers.
MODEL: dict[str, Any] = {
    "layers": 2, "positions": "learned", "image": [3, 4], "class_token": True, "layer_scale": 0.5,
    "qk_norm": True, "qkv_bias": False, "norm": "rms", "projector_norm_eps": 1e-5, "shuffle": 2,
    "final_norm": False,
}  # fmt: skip
# As an Idefics3, on tables of fewer places than patches and of more.
NEAREST: dict[str, Any] = {
    "layers": 2, "positions": "learned", "image": [5, 3], "interpolation": "nearest",
    "projector": "linear", "projector_bias": False, "shuffle": 2, "layer_scale": 2.0,
}  # fmt: skip
# As a Gemma 3.
POOLED: dict[str, Any] = {
    "layers": 2, "positions": "learned", "image": [4, 4], "projector": "linear", "pooling": "mean",
    "projector_bias": False, "projector_norm_eps": 1e-3, "projector_norm": "rms",
    "projector_norm_offset": True, "shuffle": 2,
}  # fmt: skip

# As a Mistral 3.
MERGED: dict[str, Any] = {
    "layers": 2, "positions": "rope2d", "rope_frequencies": "in_turn", "norm": "rms",
    "activation": "swiglu", "qkv_bias": False, "block_bias": False, "patch_bias": False,
    "pre_norm": True, "final_norm": False, "pooling": "linear", "shuffle": 2,
    "projector_norm_eps": 1e-3, "projector_norm": "rms", "projector_bias": False,
}  # fmt: skip
# As a GLM-4.1V.
GATED: dict[str, Any] = {
    "layers": 2, "positions": "learned+rope2d", "image": [3, 4], "patch_norm": True, "norm": "rms",
    "activation": "swiglu", "qkv_bias": False, "block_bias": False, "projector": "gated",
    "projector_mlp": 20, "shuffle": 2,
}  # fmt: skip
# As a GLM-OCR, with the key heads of an EXAONE 4.5.
GROUPED: dict[str, Any] = {
    "layers": 3, "heads": 4, "hidden": 32, "kv_heads": 2, "qk_norm": True, "head_qk_norm": True,
    "positions": "rope2d", "norm": "rms", "activation": "swiglu", "projector": "merger",
    "windows": {"side": 2, "full": [1]}, "shuffle": 2,
}  # fmt: skip

# As a ViP-LLaVA.
LISTED: dict[str, Any] = {
    "layers": 3, "features": [1, 2, 0], "class_token": True, "pre_norm": True, "final_norm": False,
    "positions": "learned", "image": [3, 4], "projector_norm_eps": 1e-3, "shuffle": 2,
}  # fmt: skip
# As a HyperCLOVA X SEED Think.
MAPPED_TWICE: dict[str, Any] = {
    "layers": 2, "positions": "rope2d", "norm": "rms", "activation": "swiglu", "shuffle": 2,
    "projector": "merger", "projector_out": 12,
}  # fmt: skip
# As an Aya Vision.
ALIGNED: dict[str, Any] = {
    "layers": 2, "positions": "learned", "image": [4, 4], "projector": "swiglu",
    "projector_mlp": 12, "projector_norm_eps": 1e-3, "shuffle": 2, "final_norm": False,
}  # fmt: skip
# As a PaddleOCR-VL.
EACH: dict[str, Any] = {
    "layers": 2, "positions": "learned+rope2d", "image": [3, 4], "interpolation": "linear",
    "shuffle": 2, "projector_norm_eps": 1e-3, "projector_norm_of": "patch",
}  # fmt: skip

# As a Cosmos 3 Edge.
AVERAGED: dict[str, Any] = EACH | {
    "positions": "learned", "image": [9, 9], "interpolation": "averaged",
}  # fmt: skip
# As a native AIMv2.
SINES: dict[str, Any] = EACH | {
    "positions": "sincos_mae", "image": None, "interpolation": "bicubic",
}  # fmt: skip
# As a Kimi K2.5.
ALTERNATING: dict[str, Any] = {
    "layers": 2, "hidden": 32, "heads": 4, "positions": "learned+rope2d", "image": [4, 4],
    "rope_frequencies": "alternating", "projector": "merger", "projector_norm_eps": 1e-3,
    "projector_norm_of": "patch", "shuffle": 2,
}  # fmt: skip


def scaled(vision: dict[str, Any], model: dict[str, Any] = MODEL) -> Spec:
    """A tower with layer scale in front of a decoder on the ranks behind it."""
    ranks = 1
    for axis in ("tp", "cp", "pp", "dp"):
        ranks *= vision.get(axis, 1)
    modules = {"vision": box(0, model=model, **vision), "language": box(ranks)}
    return spec(modules, microbatches=2, mbs=2, max_images=2, max_patches=24, text_only=0.2)


def scale_taken_for_complete() -> None:
    """Under sequence parallelism a tp rank keeps the gradient of its own tokens."""
    plant(OneShape, "LayerScale", terms="complete")


def squares_of_own_heads() -> None:
    """A tp rank normalises its heads by themselves."""
    norms.exit_tp = lambda x, group: x * group.size


def squares_not_summed_back() -> None:
    """The gradient of the sum of squares is that of one tp rank."""
    norms.enter_tp = lambda x, group: x


def neighbours_in_the_list() -> None:
    """A row is the mean of every n-th token of the list, not of those that stand together."""

    def strided(self: Any, x_nD: Any) -> Any:
        rows = len(x_nD) // self.model.patches_per_row
        return x_nD.view(-1, rows, x_nD.shape[1]).mean(dim=0)

    VisionStage._rows = strided


def merged_patch_after_patch() -> None:
    """The map of the patches of a row reads them one after another, not by channel."""

    def plain(self: Any, x_nD: Any) -> Any:
        return self.projector.merge(x_nD.reshape(-1, self.model.merge_width))

    VisionStage._rows = plain


def rows_turn_as_columns() -> None:
    """Rows and columns of patches rotate at the same frequencies."""
    correct = vision_encoder.turned_by_place

    def shared(*given: Any, frequencies: str, theta: float) -> Any:
        return correct(*given, theta=theta)

    vision_encoder.turned_by_place = shared


def convolved_patch_after_patch() -> None:
    """The convolution of a gated projector reads the patches of a row one after another."""
    correct = projector.GatedProjector.__init__

    def one(self: Any, *given: Any, **options: Any) -> None:
        correct(self, *given, **options)
        self.shape = replace(self.shape, patches=1)

    projector.GatedProjector.__init__ = one


def patches_normed_behind_positions() -> None:
    """The norm of patches stands behind their positions."""
    correct = VisionStage.embed

    def behind(self: Any, packed: Any) -> Any:
        norm, self.patch_norm = self.patch_norm, None
        found = correct(self, packed)
        self.patch_norm = norm
        return norm(found)

    VisionStage.embed = behind


def gate_taken_for_up() -> None:
    """The projector gates by what its gate should be multiplied by."""
    correct = projector.projector

    def exchanged(*given: Any) -> Any:
        made = correct(*given)
        made.between = lambda both: swiglu(both.roll(both.shape[1] // 2, dims=1))
        return made

    projector.projector = exchanged


def merge_taken_for_complete() -> None:
    """Under sequence parallelism a tp rank keeps the gradient of its own rows."""
    plant(WholeShape, terms="complete")


def table_to_its_corners() -> None:
    """The first and last place of an image read the first and last place of the table."""
    positions._WEIGHTS["linear"] = positions._WEIGHTS["bilinear"]


def norm_taken_for_complete() -> None:
    """Under sequence parallelism a tp rank keeps the gradient of its own patches."""
    plant(NormShape, terms="complete")


def key_heads_in_turn() -> None:
    """Query head i attends to key head i modulo their number, not to that of its group."""
    correct = Attention._attend

    def in_turn(self: Any, q: Any, k: Any, v: Any, *given: Any, **more: Any) -> Any:
        repeats = 1, q.shape[1] // k.shape[1], 1, 1
        return correct(self, q, k.repeat(repeats), v.repeat(repeats), *given, **more)

    Attention._attend = in_turn  # type: ignore[method-assign]


def rows_turn_first() -> None:
    """Of pairs that alternate the first one rotates with rows."""
    correct = vision_encoder.turned_by_place

    def exchanged(mask: Any, places: Any, *given: Any, **named: Any) -> Any:
        return correct(mask, places.flip(-1), *given, **named)

    vision_encoder.turned_by_place = exchanged


def table_not_averaged() -> None:
    """A patch of a small image reads two places of the table in each direction."""
    positions._WEIGHTS["averaged"] = positions._WEIGHTS["linear"]


def cubic_of_tables_not_averaged() -> None:
    """An averaged cubic has the parameter of one that is not averaged."""
    cubic = partial(positions._cubic_weights, parameter=positions.CUBIC)
    positions._WEIGHTS["bicubic_averaged"] = partial(positions._averaged, weigh=cubic)


def wavelengths_to_the_end() -> None:
    """The sines of MAE have the wavelengths of others."""
    correct = vision_encoder.sincos_positions

    def longer(places: Any, width: int, dtype: Any, *, as_mae: bool) -> Any:
        found = correct(places, width, dtype)
        return found.roll(width // 2, dims=1) if as_mae else found

    vision_encoder.sincos_positions = longer


def states_in_the_order_of_layers() -> None:
    """The states of several layers stand side by side as they were computed."""
    VisionStage._side_by_side = lambda self, x_nD, kept: torch.cat([*kept, x_nD], dim=1)


SCALE_BUGS = {
    "rows turn first": (rows_turn_first, scaled({"cp": 2}, ALTERNATING)),
    "states in the order of layers": (states_in_the_order_of_layers, scaled({"pp": 2}, LISTED)),
    "gate taken for up": (gate_taken_for_up, scaled({"tp": 2}, ALIGNED)),
    "table to its corners": (table_to_its_corners, scaled({}, EACH)),
    "table not averaged": (table_not_averaged, scaled({"tp": 2}, AVERAGED)),
    "cubic of tables not averaged": (
        cubic_of_tables_not_averaged,
        scaled({"tp": 2}, AVERAGED | {"interpolation": "bicubic_averaged"}),
    ),
    "wavelengths to the end": (
        wavelengths_to_the_end,
        scaled({"cp": 2}, SINES),
    ),
    "norm of own patches": (
        norm_taken_for_complete,
        scaled({"tp": 2, "sequence_parallel": True}, EACH),
    ),
    "key heads in turn": (key_heads_in_turn, scaled({}, GROUPED)),
    "norms of a tower's heads exchanged": (
        norms_of_heads_exchanged,
        scaled({"tp": 2}, GROUPED),
    ),
    "patches merged in another order": (merged_patch_after_patch, scaled({}, MERGED)),
    "patches convolved in another order": (convolved_patch_after_patch, scaled({}, GATED)),
    "norm behind positions": (patches_normed_behind_positions, scaled({}, GATED)),
    "convolution of own rows": (
        merge_taken_for_complete,
        scaled({"tp": 2, "sequence_parallel": True}, GATED),
    ),
    "frequencies of both axes": (rows_turn_as_columns, scaled({}, MERGED)),
    "merge of own rows": (
        merge_taken_for_complete,
        scaled({"tp": 2, "sequence_parallel": True}, MERGED),
    ),
    "mean of other patches": (neighbours_in_the_list, scaled({"cp": 2}, POOLED)),
    "layer scale of own tokens": (
        scale_taken_for_complete,
        scaled({"tp": 2, "sequence_parallel": True}),
    ),
    "norm over own heads": (squares_of_own_heads, scaled({"tp": 2})),
    "squares of heads not summed back": (squares_not_summed_back, scaled({"tp": 2})),
}
