"""Whether the output layer is the embedding, where a whole model and its text part both say so."""

from copy import deepcopy

import pytest
from tests.support.random_models import theirs

from mimo_launch.hugging_face.registry import WHOLES, part_of
from mimo_launch.spec.language_models import CausalModel
from mimo_launch.spec.module import MODELS

_KEY = "tie_word_embeddings"
# A class inside of theirs has the output layer, or none ties it, or the rows of language are not
# words: what the configuration of the whole says has no effect.
_OTHERS = {
    "audioflamingo3", "colqwen2", "cosmos3_edge", "llama4", "nemotron_h_omni", "qwen2_5_omni",
    "qwen2_audio", "qwen3_omni_moe", "voxtral",
}  # fmt: skip
_KINDS = {
    name: kinds[0]
    for name, whole in WHOLES.items()
    if name not in _OTHERS
    and (kinds := [x for x in whole.families if issubclass(MODELS[x.kind], CausalModel)])
}


@pytest.mark.parametrize("name", _KINDS)
@pytest.mark.parametrize(("whole", "text"), [(True, False), (False, True), (False, False)])
def test_a_tie_is_that_of_transformers(name: str, whole: bool, text: bool) -> None:
    family = _KINDS[name]
    said = {_KEY: whole, "text_config": {"model_type": family.model_type, _KEY: text}}
    config = theirs().CONFIG_MAPPING[name].from_dict(deepcopy(said))
    part = part_of({"model_type": name, "vision_config": {}, **said}, family.kind)
    assert bool(part.config[_KEY]) == bool(config.tie_word_embeddings)
