"""Settings that a folder leaves out, or calls by another name, mean what `transformers` takes."""

import re
from typing import Any

import pytest
import transformers
from transformers.configuration_utils import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import ConfigError
from mimo_launch.hugging_face.registry import FAMILIES, WHOLES, part_of

# A whole decides these, whatever its text says.
OF_WHOLES = {"qwen2_5_omni_text": {"tied"}, "qwen3_vl_moe_text": {"tied"}}


def classes() -> dict[str, type[PretrainedConfig]]:
    """Return the configuration classes by type, also those of parts, which are not registered."""
    for each in CONFIG_MAPPING.values():
        assert each.model_type is not None  # Loads the module, with the classes of its parts.
    found, new = {}, [PretrainedConfig]
    while new:
        cls = new.pop()
        new += cls.__subclasses__()
        if cls.__module__.startswith("transformers.models."):
            found[cls.model_type] = cls
    return found


CLASSES = classes()
READ = sorted(FAMILIES.keys() & CLASSES.keys())


def meaning(family: Family, config: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return what a family reads, without what the whole around it decides, or that it refuses."""
    keys = family.keys(config)
    dropped = OF_WHOLES.get(family.model_type, set())
    is_refused = any(True for _ in family.refusals(config))
    return {key: x for key, x in keys.items() if key not in dropped}, is_refused


def with_required(family: Family, full: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a folder must hold, from those of the class."""
    config = {"model_type": family.model_type}
    while True:
        try:
            family.keys(config)
        except ConfigError as error:
            missing = re.findall(r"`(\w+)`", str(error))
            if not missing or missing[0] in config or missing[0] not in full:
                raise
            config[missing[0]] = full[missing[0]]
        else:
            return config


# The class of a dots1 has null as the number of experts, which a folder must say.
@pytest.mark.parametrize("model_type", sorted({*READ} - {"dots1"}))
def test_what_is_left_out_is_the_default_of_the_class(model_type: str) -> None:
    family, full = FAMILIES[model_type], CLASSES[model_type]().to_dict()
    assert meaning(family, with_required(family, full)) == meaning(family, full)


@pytest.mark.parametrize(
    ("model_type", "alias"),
    [
        (each, alias)
        for each in READ
        for alias, name in CLASSES[each].attribute_map.items()
        if isinstance(CLASSES[each]().to_dict()[name], int | float)
    ],
)
def test_another_name_of_a_setting_means_the_same(model_type: str, alias: str) -> None:
    family, cls = FAMILIES[model_type], CLASSES[model_type]
    name, full = cls.attribute_map[alias], cls().to_dict()
    value = full[name]
    other = not value if isinstance(value, bool) else 2 * value or 0.5
    wanted = meaning(family, full | {name: other})
    assert meaning(family, full | {alias: other}) == wanted
    alone = {key: each for key, each in full.items() if key != name}
    assert meaning(family, alone | {alias: other}) == wanted


@pytest.mark.parametrize("model_type", ["audioflamingo3", "cosmos3_edge", "qwen2_audio", "voxtral"])
def test_a_class_that_ties_nothing_has_an_output_layer_of_its_own(model_type: str) -> None:
    # No name of it, nor of a part of it, leads from the output layer to the embedding.
    assert not getattr(transformers, WHOLES[model_type].architecture)._tied_weights_keys
    full = CLASSES[model_type]().to_dict() | {"tie_word_embeddings": True}
    full["text_config"]["tie_word_embeddings"] = True
    assert part_of(full, "decoder").keys()["tied"] is False


def test_layers_under_another_name_are_not_ignored() -> None:
    config = {"model_type": "vipllava", "vision_config": {"num_hidden_layers": 24}}
    assert "vipllava" in WHOLES
    said = part_of(config | {"vision_feature_layers": [-2, -5, -8, -11, 6]}, "vit")
    assert said.not_computed() == ()
    other = part_of(config | {"vision_feature_layers": [-2]}, "vit")
    assert other.not_computed() == ("vision_feature_layers: [-2]",)
