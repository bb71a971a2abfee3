"""What whole models have in common: a tower and a decoder, or parts in separate sections.

Decides: the parts of their folders, and that each tensor belongs to one part; the layer of a tower
that supplies rows.
Relies on: families of modules for the parts.
Leaves: names, sections, settings and what is refused to one file per family.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mimo_launch.hugging_face.family import Family, NoSuchPart, Part, Place
from mimo_launch.hugging_face.folder import Config, ConfigError, number, section, short
from mimo_launch.hugging_face.refusals import Refusals, where
from mimo_launch.hugging_face.settings import applied
from mimo_launch.spec.encoders import EncoderModel
from mimo_launch.spec.spec import DecoderModel, HybridModel

Keys = tuple[str, ...]
Prefixes = tuple[tuple[str, str], ...]
# Versions below 5 left out settings that equal the defaults of the decoder's own class.
_COMMON = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_DEFAULTS: dict[str, Config] = {
    "llama": {**_COMMON, "intermediate_size": 11008, "vocab_size": 32000},
    "qwen2": {**_COMMON, "intermediate_size": 22016, "vocab_size": 151936},
    "mistral": {**_COMMON, "intermediate_size": 14336, "vocab_size": 32000},
    "qwen3": {**_COMMON, "intermediate_size": 22016, "vocab_size": 151936},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerAndDecoder:
    """A family of whole models, and the class of transformers that loads them.

    `towers`, `text`: families by the `model_type` of their part; the first is for parts without a
    type. `tower_names`, `text_names`, `projector`: prefixes and places as in `Part`.
    `fixed`: keys of the tower's `model` that the whole decides, each a value or a function of the
    configuration; `refusals`: its settings that we do not compute. Both read the tower's section
    with its type. `feature_layer`: the default of `vision_feature_layer`, where it is a setting.
    `tied(config, text_config)`: whether the output layer is the embedding.
    `token`: the setting for the placeholder. `settings`: the other settings of the whole, each a
    value or a function of our tower.
    `text_fixed`: keys of the decoder's `model` that the whole decides.
    `text_defaults`: default settings of the decoder.
    `kind`, `section`: the kind of our tower, and the key of its configuration; `text_kind`: the
    kind of its language model. `beside`: prefixes of parts that are left out. `decides`: keys of
    the tower's `model` that the whole decides, whatever the tower alone has. `videos`: how it reads
    videos, as `video` of our model.
    """

    model_type: str
    architecture: str
    towers: Mapping[str, Family[Any]]
    text: Mapping[str, Family[Any]]
    tower_names: Prefixes
    text_names: Prefixes
    projector: Mapping[str, Place]
    fixed: Mapping[str, Any]
    refusals: Refusals
    tied: Callable[[Config, Config], bool]
    token: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    feature_layer: int | None = None
    text_fixed: Mapping[str, Any] = field(default_factory=dict)
    text_defaults: Config = field(default_factory=dict)
    kind: str = "vit"
    text_kind: str = "decoder"
    beside: tuple[str, ...] = ()
    decides: tuple[str, ...] = ()
    section: str = "vision_config"
    videos: Mapping[str, Any] | None = None

    def part(self, config: Config, kind: str) -> Part[Any]:
        """Return the tower with the projector, or the decoder. Raises: NoSuchPart, ConfigError."""
        if kind == self.text_kind:
            words, inner = self._inner(config, "text_config", self.text)
            return Part(
                family=words,
                config={
                    **_DEFAULTS.get(words.model_type, {}),
                    **self.text_defaults,
                    **inner,
                    "tie_word_embeddings": self.tied(config, inner),
                },
                prefixes=self.text_names,
                elsewhere=(*(prefix for prefix, _ in self.tower_names), *self.beside),
                fixed=self.text_fixed,
            )
        if kind != self.kind:
            raise NoSuchPart(f"model_type: {self.model_type}")
        tower, inner = self._inner(config, self.section, self.towers)
        config = {**config, self.section: inner}
        layers: dict[str, Any] = {}
        if self.feature_layer is not None:
            # The default of its class.
            usual = int(tower.keys({})["layers"])
            used = layers_used(config, inner, default=self.feature_layer, layers=usual)
            layers = {"layers": used}
        return Part(
            family=tower,
            config=inner,
            prefixes=self.tower_names,
            elsewhere=(*(prefix for prefix, _ in self.text_names), *self.beside),
            projector=self.projector,
            fixed={**layers, **applied(self.fixed, config)},
            refused=tuple(self.refusals(config)),
            reads_videos=self.videos,
        )

    def _inner(
        self, config: Config, key: str, families: Mapping[str, Family[Any]]
    ) -> tuple[Family[Any], Config]:
        """Return the family and the configuration of a part. Raises: NoSuchPart."""
        inner = {"model_type": next(iter(families)), **section(config, key)}
        found = families.get(str(inner["model_type"]))
        if found is None:
            raise NoSuchPart(f"{key}.model_type: {short(inner['model_type'])}")
        return found, inner

    @property
    def families(self) -> tuple[Family[Any], ...]:
        """The families of towers and of decoders."""
        return *self.towers.values(), *self.text.values()

    def config_of(
        self,
        tower: Family[Any],
        encoder: EncoderModel,
        words: Family[Any],
        text: DecoderModel | HybridModel,
        token: int,
    ) -> Config:
        """Return the configuration of a whole model made of two of our modules and families."""
        return {
            "model_type": self.model_type,
            self.section: tower.config(encoder),
            "text_config": words.config(text),
            self.token: token,
            **applied(self.settings, encoder),
            "tie_word_embeddings": text.tied,
        }


def tied_by_default(default: bool) -> Callable[[Config, Config], bool]:
    """Return the rule of whole models with a setting that overrides their text part's."""
    key = "tie_word_embeddings"
    return lambda config, text: bool(config.get(key, text.get(key, default)))


def layers_used(config: Config, inner: Config, *, default: int, layers: int) -> int:
    """Return the number of layers that precede the hidden states that become rows.

    A tower of N layers has N + 1 hidden states: the input of the first layer, then the output of
    each. Raises: ConfigError.
    """
    chosen = config.get("vision_feature_layer", default)
    layers = int(number(inner, "num_hidden_layers", layers))
    if isinstance(chosen, list):
        return layers  # `ONE_LAYER` refuses it.
    if isinstance(chosen, bool) or not isinstance(chosen, int) or not -layers <= chosen <= layers:
        raise ConfigError(
            f"`vision_feature_layer` is {short(chosen)}, but the tower has {layers} layers"
        )
    return chosen if chosen >= 0 else layers + 1 + chosen


# The rule for layers with states that our towers do not give.
ONE_LAYER = where(
    "vision_feature_layer",
    "that is a list, or 0",
    lambda config: isinstance(chosen := config.get("vision_feature_layer"), list) or chosen == 0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedPart:
    """A module of a whole model: its family, the keys to its configuration, and its prefixes.

    `around(config)` are settings that the enclosing section decides, `videos(config)` how the model
    of that section reads videos, as `video` of our model.
    """

    family: Family[Any]
    where: Keys
    prefixes: Prefixes
    around: Callable[[Config], Config] = lambda _: {}
    videos: Callable[[Config], Mapping[str, Any] | None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedParts:
    """A family of whole models: its parts, and the class of transformers that loads them.

    `left_out` are prefixes of parts that are not our modules, `others` the types of such parts by
    kind of module.
    """

    model_type: str
    architecture: str
    parts: tuple[NestedPart, ...]
    refusals: Refusals
    left_out: Keys = ()
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def families(self) -> tuple[Family[Any], ...]:
        """The families of its parts."""
        return tuple(each.family for each in self.parts)

    @property
    def where(self) -> dict[str, Keys]:
        """The keys that lead to the configuration of each part, by its kind."""
        return {each.family.kind: each.where for each in self.parts}

    def part(self, config: Config, kind: str) -> Part[Any]:
        """Return the part of a kind. Raises: NoSuchPart."""
        found = next((each for each in self.parts if each.family.kind == kind), None)
        if found is None:
            raise NoSuchPart(self.others.get(kind, f"model_type: {self.model_type}"))
        *outer, last = found.where
        for key in outer:
            config = section(config, key)
        others = (prefix for each in self.parts if each != found for prefix, _ in each.prefixes)
        return Part(
            family=found.family,
            config={**section(config, last), **found.around(config)},
            prefixes=found.prefixes,
            elsewhere=(*others, *self.left_out),
            reads_videos=found.videos(config),
        )
