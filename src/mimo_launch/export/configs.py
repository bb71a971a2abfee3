"""`config.json` of an export: what the models say, and what their sources say besides.

Decides: what is kept of a source, such as ids of tokens, and what would contradict the weights.
Relies on: `hugging_face.architectures` for what the models say.
Leaves: writing it to `export`.
"""

from collections.abc import Mapping

from mimo_launch.export.sources import Source
from mimo_launch.hugging_face.architectures import Architecture
from mimo_launch.hugging_face.folder import Config

# Names by which older versions of transformers say the same, and what is said layer by layer.
_OUTDATED = {
    "architectures", "torch_dtype", "rope_theta", "rope_scaling", "layer_types",
    "transformers_version",
}  # fmt: skip
# Without a source no token is known to begin or end a text; transformers would take ids of Llama.
_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
# Where a whole model says what its parts are.
PARTS = {"decoder": "text_config", "vit": "vision_config"}


def whole_config(
    found: Architecture, sources: Mapping[str, Source | None], dtype: str, seq: int
) -> Config:
    """Return what is written for an architecture whose tensors have mainly one type."""
    config = dict(found.config)
    inner = {name: PARTS.get(part.family.kind, "") for name, part in found.parts.items()}
    nested = {name: key for name, key in inner.items() if key in config}
    for name, part in found.parts.items():
        source, key = sources[name], nested.get(name)
        ours = config if key is None else config[key]
        defaults = {}
        if part.family.kind in ("decoder", "hybrid"):
            defaults = {"max_position_embeddings": seq, **_NO_TOKENS}
        made = defaults | merged(ours, None if source is None else source.part.config)
        config = made if key is None else {**config, key: {**made, "dtype": dtype}}
    if nested and (source := sources["language"]) is not None:
        said = {key: value for key, value in source.config.items() if key not in _all(config)}
        config = merged(config, said)
    return {"architectures": [found.name], **config, "dtype": dtype}


def merged(config: Config, base: Config | None) -> Config:
    """Return a configuration with what else one of the same type says."""
    if base is None or base.get("model_type") != config["model_type"]:
        return config
    return {key: value for key, value in base.items() if key not in _OUTDATED} | config


def _all(config: Config) -> set[str]:
    """Return the keys of the parts: beside them, old versions said the same."""
    return {key for part in PARTS.values() for key in config.get(part, {})} - {"model_type"}
