"""What whole models of a tower, a projector and a decoder have in common.

Decides: the parts of their folders, and the layer of the tower whose states become rows.
Relies on: families of towers and decoders for the parts.
Leaves: names, settings and what is refused to one file per family.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mimo_launch.hugging_face.family import Family, NoSuchPart, Part, Place
from mimo_launch.hugging_face.folder import Config, ConfigError, number, section, short
from mimo_launch.hugging_face.refusals import Refusal, Refusals
from mimo_launch.spec.encoder_blocks import EncoderModel
from mimo_launch.spec.spec import DecoderModel, HybridModel

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

    `towers`, `text`: families by the `model_type` of their part, that of a part without one first.
    `tower_names`, `text_names`: prefixes as those of `Part`, as is `projector`.
    `fixed(config, tower_config)`: keys of `model` that the whole decides. Raises: ConfigError.
    `refusals`: its settings that we do not compute; they read the tower's section with its type.
    `tied(config, text_config)`: whether the output layer is the embedding.
    `settings(tower, token)`: its own settings, of our tower with this placeholder.
    `text_fixed`: keys of the decoder's `model` that the whole decides.
    `text_defaults`: settings of a decoder that does not say.
    `kind`, `section`: the kind of our tower, and the key of its configuration; `text_kind`: that of
    its language model. `beside`: prefixes of parts that are left out. `decides`: keys of the
    tower's `model` that the whole decides, whatever the tower alone has. `videos`: how it reads
    them, as `video` of ours.
    """

    model_type: str
    architecture: str
    towers: Mapping[str, Family[Any]]
    text: Mapping[str, Family[Any]]
    tower_names: Prefixes
    text_names: Prefixes
    projector: Mapping[str, Place]
    fixed: Callable[[Config, Config], dict[str, Any]]
    refusals: Refusals
    tied: Callable[[Config, Config], bool]
    settings: Callable[[Any, int], Config]
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
        return Part(
            family=tower,
            config=inner,
            prefixes=self.tower_names,
            elsewhere=(*(prefix for prefix, _ in self.text_names), *self.beside),
            projector=self.projector,
            fixed=self.fixed(config, inner),
            refused=tuple(self.refusals({**config, self.section: inner})),
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
        """Return the configuration of a whole made of two of our modules, of these families."""
        return {
            "model_type": self.model_type,
            self.section: tower.config(encoder),
            "text_config": words.config(text),
            **self.settings(encoder, token),
            "tie_word_embeddings": text.tied,
        }


def tied_by_default(default: bool) -> Callable[[Config, Config], bool]:
    """Return the rule of wholes whose own setting precedes that of their text part."""
    key = "tie_word_embeddings"
    return lambda config, text: bool(config.get(key, text.get(key, default)))


def layers_used(config: Config, inner: Config, *, default: int, layers: int) -> int:
    """Return the number of layers after which the hidden states of the tower become rows.

    A tower of N layers has N + 1 hidden states: the input of the first layer, then the output of
    each. Raises: ConfigError.
    """
    chosen = config.get("vision_feature_layer", default)
    layers = int(number(inner, "num_hidden_layers", layers))
    if isinstance(chosen, list):
        return layers  # `ONE_LAYER` says so.
    if isinstance(chosen, bool) or not isinstance(chosen, int) or not -layers <= chosen <= layers:
        raise ConfigError(
            f"`vision_feature_layer` is {short(chosen)}, but the tower has {layers} layers"
        )
    return chosen if chosen >= 0 else layers + 1 + chosen


def _no_layer(config: Config) -> Iterator[str]:
    if isinstance(chosen := config.get("vision_feature_layer"), list) or chosen == 0:
        yield f"vision_feature_layer: {short(chosen)}"


# The layer of a tower whose states no tower of ours gives.
ONE_LAYER = Refusal("`vision_feature_layer` that is a list, or 0", _no_layer)
