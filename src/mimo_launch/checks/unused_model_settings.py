"""Checks of settings of models that do nothing, because of other settings (warnings).

Decides: which keys of a model have no effect because of which others.
Relies on: which keys the user wrote; a default never counts.
Leaves: settings of training and data to `training_settings`.
"""

from mimo_launch.checks.rule import Findings, idle_key, set_keys
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.base import LANGUAGE, Effective, Strict
from mimo_launch.spec.language_models import CausalModel, DecoderBlocks
from mimo_launch.spec.spec import (
    AudioModel,
    DecoderModel,
    Spec,
    TalkerModel,
    VitModel,
)


def text_is_read(spec: Spec, name: str, model: TalkerModel) -> Findings:
    """A talker after a connector gets the connector's rows, without embeddings of tokens."""
    sources = spec.sources_of(name)
    for key in ("reads_text", "reads_layer"):
        if getattr(model, key) and LANGUAGE not in sources and sources:
            why = (
                f"`{name}` reads `{sources[0]}`; embeddings of tokens and states of layers come "
                f"with rows of `{LANGUAGE}` that a talker reads itself"
            )
            yield idle_key(name, key, why)
    if model.predictor is not None and model.codebooks == 1:
        yield idle_key(name, "predictor", "a frame has one code: `codebooks` is 1")


def vision_settings_used(spec: Spec, name: str, model: VitModel) -> Findings:
    """Settings of parts that a vision transformer lacks have no effect."""
    for key, default in (("image", None), ("interpolation", "bicubic")):
        if getattr(model, key) != default and not model.has_table:
            yield idle_key(name, key, f"`positions: {model.positions}` need no table")
    if model.rope_frequencies != "shared" and not model.turns_patches:
        yield idle_key(name, "rope_frequencies", f"`positions: {model.positions}` rotate nothing")
    always_pools = type(model).model_fields["pooling"].default == "mean"
    if model.pooling == "mean" and model.shuffle == 1 and not always_pools:
        yield idle_key(name, "pooling", "a row is one patch: `shuffle` is 1")
    has_norm = model.projector_norm_eps is not None
    for key, used, why in (
        ("projector_norm", has_norm, "without `projector_norm_eps` there is no norm"),
        (
            "projector_norm_of",
            has_norm and model.shuffle > 1,
            "there is no norm, or one patch a row",
        ),
        ("projector_norm_offset", has_norm and model.projector_norm == "rms", "it is of RMSNorms"),
    ):
        if getattr(model, key) != VitModel.model_fields[key].default and not used:
            yield idle_key(name, key, why)
    if model.projector not in ("gated", "mlp", "swiglu") and model.projector_mlp is not None:
        why = f"`projector: {model.projector}` has no width of its own inside"
        yield idle_key(name, "projector_mlp", why)
    idle = {
        "linear": "is one linear map",
        "swiglu": "has a gate instead",
        "vocabulary": "has a softmax instead",
    }.get(model.projector)
    if idle is not None and model.projector_activation != "gelu":
        yield idle_key(name, "projector_activation", f"`projector: {model.projector}` {idle}")


def clip_settings_used(spec: Spec, name: str, model: AudioModel) -> Findings:
    """`fixed_length` has no effect without silence, nor has a mean over one token."""
    why = "`chunk` leaves out the silence after a clip"
    if model.chunk is None:
        why = "`unpadded` leaves out the tokens of silence"
    elif model.unpadded != type(model).model_fields["unpadded"].default:
        yield idle_key(name, "unpadded", why)
    if model.fixed_length and model.drops_silence:
        yield idle_key(name, "fixed_length", why)
    if model.pooling == "mean" and model.stack == 1:
        yield idle_key(name, "pooling", "a row is one token: `stack` is 1")


def settings_used(spec: Spec, name: str, model: Strict) -> Findings:
    """Keys that need another one, or nothing beside them (`Effective`), have an effect."""
    for key, effective in set_keys(model, Effective):
        if not effective.is_in(model):
            yield idle_key(name, key, effective.why)


def bidirectional_images_used(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """Tokens of images attend in both directions where language reads encoders of images."""
    sources = (spec.modules[source].model for source in spec.sources_of(name))
    if spec.modules[name].init_from is not None:
        return  # The model of a folder may be trained on text alone.
    if model.bidirectional_images and not any(kind_of(each).images for each in sources):
        yield idle_key(name, "bidirectional_images", f"`{name}` reads no encoder of images")
    if model.bidirectional_images and model.bidirectional_prompts:
        why = "with `bidirectional_prompts` images are part of prompts, or causal after them"
        yield idle_key(name, "bidirectional_images", why)
    elif model.bidirectional_images == "in_windows" and model.sliding_window is None:
        yield idle_key(name, "bidirectional_images", "no layer has a window")


def norm_settings_used(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """`norm_offset` needs RMSNorms, and `scaled_rows` a factor."""
    if model.norm_offset and model.norm != "rms" and not model.qk_norm:
        yield idle_key(name, "norm_offset", f"`norm: {model.norm}` has none")
    if model.scaled_rows and model.embedding_scale is None and not spec.modules[name].init_from:
        yield idle_key(name, "scaled_rows", "without `embedding_scale` there is no factor")


def values_from_keys_used(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """`values_from_keys` needs a layer without a window."""
    window = model.sliding_window
    if model.values_from_keys and window is not None and not window.full:
        yield idle_key(name, "values_from_keys", "every layer has a window: `full` is empty")


def mlp_bias_used(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """`mlp_bias` needs MLPs."""
    if model.mlp_bias and not model.has_mlps and not (model.moe and model.moe.shared):
        why = "every layer has experts, the biases of which are `moe.bias`"
        yield idle_key(name, "mlp_bias", why)


def moe_settings_used(spec: Spec, name: str, model: CausalModel) -> Findings:
    """Keys of `moe` need the other keys of it that they change."""
    if model.moe is None:
        return
    for key, effective in set_keys(model.moe, Effective):
        if not effective.is_in(model.moe):
            yield idle_key(name, key, effective.why, "moe")


def scaling_settings_used(spec: Spec, name: str, model: DecoderBlocks) -> Findings:
    """Each scaling of rotary embeddings uses a factor and its own keys."""
    scaling = model.rope_scaling
    if scaling is None:
        return
    used = scaling.USED[scaling.rope_type]
    why = "divides every frequency by `factor`"
    if used:
        why = f"uses {', '.join(f'`{key}`' for key in sorted({'factor', *used}))}"
    for key in sorted(scaling.model_fields_set - used - {"rope_type", "factor"}):
        if getattr(scaling, key) != type(scaling).model_fields[key].default:
            yield idle_key(name, key, f"`rope_type: {scaling.rope_type}` {why}", "rope_scaling")
