"""Whole models: a tower and a decoder, or a tower with a merger and a language model.

Decides: the parts of their folders, and that each tensor belongs to one part; the layer of a tower
that supplies rows; the configuration of a whole made of our modules.
Relies on: families of modules for the parts.
Leaves: names, sections, settings and what is refused to one file per family.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.family import Family, Prefixes
from mimo_launch.hugging_face.folder import Config, ConfigError, number, section, short
from mimo_launch.hugging_face.part import NoSuchPart, Part
from mimo_launch.hugging_face.refusals import NOTHING, Refusal, Refusals, refusals, where
from mimo_launch.hugging_face.settings import applied, value_of
from mimo_launch.hugging_face.tensors import Place, Reshaped, Rows
from mimo_launch.spec.encoders import EncoderModel
from mimo_launch.spec.spec import DecoderModel, HybridModel, LanguageModel, Model, VitModel

Keys = tuple[str, ...]
# Our models by kind, and the tokens of the rows of encoders by kind.
Models = Mapping[str, Model]
Tokens = Mapping[str, int | None]
# Versions below 5 left out settings that equal the defaults of the decoder's own class.
_COMMON = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_DEFAULTS: dict[str, Config] = {
    "llama": {**_COMMON, "intermediate_size": 11008, "vocab_size": 32000},
    "qwen2": {**_COMMON, "intermediate_size": 22016, "vocab_size": 151936},
    "mistral": {**_COMMON, "intermediate_size": 14336, "vocab_size": 32000},
    "qwen3": {**_COMMON, "intermediate_size": 22016, "vocab_size": 151936},
}


@frozen(kw_only=True)
class TowerAndDecoder:
    """A family of whole models, and the class of transformers that loads them.

    `towers`, `text`: families of the parts; the first is for parts without a type. `old_types`:
    towers by types that older versions wrote. `tower_names`, `text_names`, `projector`: prefixes
    and places as in `Part`. `fixed`: keys of the tower's `model` that the whole decides, each a
    value or a function of the configuration; `refusals`: its settings that we do not compute. Both
    read the tower's section with its type. `feature_layer`: the default of `vision_feature_layer`,
    where it is a setting; `joins_layers`: it may be a list. `tied(config, text_config)`: whether
    the output layer is the embedding.
    `token`: the setting for the placeholder. `settings`: the other settings of the whole, each a
    value or a function of our tower. `text_fixed`: keys of the decoder's `model` that the whole
    decides. `text_defaults`: default settings of the decoder. `section`: the key of the tower's
    configuration. `beside`: prefixes of parts that are left out. `decides`: keys of the tower's
    `model` that the whole decides, whatever the tower alone has. `text_beside`: the settings of the
    text may also be beside those of the tower. `text_ignores`: settings of the text that mean
    nothing inside of the whole. `row_width`: its setting for the width of rows. `videos`: how it
    reads videos, as `video` of our model. `copies`: a folder is only written if what is left out
    can be copied from one of this type.
    """

    model_type: str
    architecture: str
    towers: tuple[Family, ...]
    text: tuple[Family, ...]
    tower_names: Prefixes
    text_names: Prefixes
    projector: Mapping[str, Place | Rows | Reshaped]
    fixed: Mapping[str, Any]
    refusals: Refusals
    tied: Callable[[Config, Config], bool]
    token: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    old_types: Mapping[str, Family] = field(default_factory=dict)
    feature_layer: int | tuple[int, ...] | None = None
    joins_layers: bool = False
    text_fixed: Mapping[str, Any] = field(default_factory=dict)
    text_defaults: Config = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    decides: tuple[str, ...] = ()
    text_beside: bool = False
    text_ignores: tuple[str, ...] = ()
    row_width: str | None = None
    section: str = "vision_config"
    videos: Mapping[str, Any] | None = None
    copies: bool = False
    rank: int = 0
    published: tuple[str, ...] = ()
    notes: str = ""

    def lacks(self, _models: Models) -> bool:
        """Return whether a folder of our modules alone is not complete."""
        return self.copies

    @property
    def families(self) -> tuple[Family, ...]:
        """The families of towers and of decoders."""
        return *self.towers, *self.text

    @property
    def names(self) -> tuple[Prefixes, ...]:
        """The prefixes of the tower and of the decoder."""
        return self.tower_names, self.text_names

    def part(self, config: Config, kind: str) -> Part:
        """Return the tower with the projector, or the decoder. Raises: NoSuchPart, ConfigError."""
        if self.text_beside and not section(config, "text_config"):
            # The setting that ties both ends is then of the whole alone.
            other = ("model_type", self.section, "tie_word_embeddings")
            beside = {key: each for key, each in config.items() if key not in other}
            config = {**config, "text_config": beside}
        if kind == self.text[0].kind:
            words, inner = _inner(config, "text_config", self.text)
            inner = {key: each for key, each in inner.items() if key not in self.text_ignores}
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
        if kind != self.towers[0].kind:
            raise NoSuchPart(f"model_type: {self.model_type}")
        tower, inner = _inner(config, self.section, self.towers, self.old_types)
        config = {**config, self.section: inner}
        layers: dict[str, Any] = {}
        if self.feature_layer is not None:
            # The default of its class.
            usual = int(tower.keys({})["layers"])
            used = _layers_used(config, inner, default=self.feature_layer, layers=usual)
            layers = {"layers": max(used, default=usual)}
            if self.joins_layers:
                layers["features"] = tuple(x - 1 for x in used) if len(used) > 1 else ()
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

    def made_of(self, models: Models, tokens: Tokens) -> tuple[Config, dict[str, Keys]] | None:
        """Return the configuration of a whole made of our modules, and the keys to its parts."""
        kind = self.towers[0].kind
        pair, token = _pair(models, kind), tokens.get(kind)
        if pair is None or token is None:
            return None
        encoder, text = pair
        decides = (*self.decides, *(("features",) if self.joins_layers else ()))
        decided = {key: value_of(encoder, key) for key in decides}
        tower, words = (
            equal(self.towers, encoder, decided),
            equal(self.text, text, self.text_fixed),
        )
        if tower is None or words is None:
            return None
        where: dict[str, Keys] = {text.kind: ("text_config",), kind: (self.section,)}
        return self.config_of(tower, encoder, words, text, token), where

    def config_of(
        self,
        tower: Family,
        encoder: EncoderModel,
        words: Family,
        text: DecoderModel | HybridModel,
        token: int,
    ) -> Config:
        """Return the configuration of a whole model made of two of our modules and families."""
        rows = getattr(encoder, "projector_out", None) or text.hidden
        width = {} if tower.row_width is None else {tower.row_width: rows}
        # A folder keeps what it says of keys that the whole decides anyway.
        alone = replace(words, settings=words.settings.but(dict.fromkeys(self.text_fixed)))
        return {
            "model_type": self.model_type,
            self.section: tower.config(encoder) | width,
            "text_config": alone.config(text),
            self.token: token,
            **({} if self.row_width is None else {self.row_width: text.hidden}),
            **applied(self.settings, encoder),
            "tie_word_embeddings": text.tied,
        }


def _inner(
    config: Config,
    key: str,
    families: tuple[Family, ...],
    old_types: Mapping[str, Family] | None = None,
) -> tuple[Family, Config]:
    """Return the family and the configuration of a part. Raises: NoSuchPart."""
    by_type = {each.model_type: each for each in families} | dict(old_types or {})
    inner = {"model_type": families[0].model_type, **section(config, key)}
    found = by_type.get(str(inner["model_type"]))
    if found is None:
        raise NoSuchPart(f"{key}.model_type: {short(inner['model_type'])}")
    return found, inner


def _pair(models: Models, kind: str) -> tuple[Any, Any] | None:
    """Return an encoder of a kind and the language model beside it, if there is nothing else."""
    text = next((x for x in models.values() if isinstance(x, DecoderModel | HybridModel)), None)
    is_pair = len(models) == 2 and text is not None and kind in models
    return (models[kind], text) if is_pair else None


def equal(
    families: tuple[Family, ...], model: Model, but: Mapping[str, Any] | None = None
) -> Family | None:
    """Return the first family that equals a model; `but` holds keys that the whole decides."""
    alike = (each for each in families if each.kind == model.kind)
    return next((each for each in alike if not list(each.differences(model, but))), None)


def width_refused(
    tower: Family, part: str = "vision_config", text_defaults: Config | None = None
) -> Refusal:
    """Return the rule for the setting of a tower, in `part`, that is the width of its rows."""
    key = tower.row_width or ""

    def found(config: Config) -> Iterator[str]:
        text = section(config, "text_config") or config
        usual = text_defaults or _DEFAULTS.get(str(text.get("model_type")), {})
        width = {**usual, **text}.get("hidden_size")
        rows = {**tower.defaults, **section(config, part)}.get(key, width)
        if rows != width:
            yield f"{key}: {short(rows)}"

    return Refusal(f"`{key}` other than the width of language", found)


def tied_by_default(default: bool) -> Callable[[Config, Config], bool]:
    """Return the rule of whole models with a setting that overrides their text part's."""
    key = "tie_word_embeddings"
    return lambda config, text: bool(config.get(key, text.get(key, default)))


_FEATURES = "vision_feature_layer"


def _layers_used(
    config: Config, inner: Config, *, default: int | tuple[int, ...], layers: int
) -> list[int]:
    """Return the number of layers that precede each of the hidden states that become rows.

    A tower of N layers has N + 1 hidden states: the input of the first layer, then the output of
    each. Raises: ConfigError.
    """
    layers = int(number(inner, "num_hidden_layers", layers))
    said = config.get(_FEATURES, default)
    found = []
    for chosen in said if isinstance(said, list | tuple) else [said]:
        if type(chosen) is not int or not -layers <= chosen <= layers:
            raise ConfigError(
                f"`{_FEATURES}` is {short(chosen)}, but the tower has {layers} layers"
            )
        found.append(chosen if chosen >= 0 else layers + 1 + chosen)
    return found


# The rules for layers with states that our towers do not give.
ONE_LAYER = where(
    _FEATURES,
    "that is a list, or 0",
    lambda config: isinstance(chosen := config.get(_FEATURES), list) or chosen == 0,
)


def _is_odd(config: Config) -> bool:
    """Return whether the input of the first layer is chosen, no layer, or one twice."""
    said = config.get(_FEATURES)
    chosen = said if isinstance(said, list) else [said]
    return 0 in chosen or not chosen or len({*chosen}) < len(chosen)


LAYERS = where(_FEATURES, "of 0, of none, or of a layer twice", _is_odd)


def features_as_written(vision: Any) -> Any:
    """Return the states that become rows, for a tower of which all layers are used."""
    return [each + 1 for each in vision.features] or -1


# transformers writes Qwen2-VL and Qwen2.5-VL with the first prefixes, and Qwen3-VL with the others;
# versions from 4.52 to 5 write all three with the others.
_VISION_NAMES = (("visual.", ""), ("model.visual.", ""))
_TEXT_NAMES = (
    ("model.", "model."),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
)
_LANGUAGE = ("embed_tokens", "layers", "norm")
_BESIDE_VISION = ("model.language_model.", *(f"model.{x}." for x in _LANGUAGE), "lm_head.")


@frozen(kw_only=True)
class VisionAndText:
    """A family of whole models of a tower with a merger and a language model, as a Qwen2-VL.

    `nested`: it writes the names of both inside `model`. `beside`: prefixes of tensors of the text
    part outside `model`. `either_ties`: the setting of the text part ties the output layer, too,
    whatever that of the whole says. `refused`: refused settings besides a width of rows that
    language lacks. `reads_videos`: whether it is known how the whole reads videos.
    """

    model_type: str
    architecture: str
    vision: Family
    text: Family
    nested: bool = False
    beside: tuple[str, ...] = ()
    either_ties: bool = False
    refused: Refusals = NOTHING
    reads_videos: bool = True
    rank: int = 0
    published: tuple[str, ...] = ()
    notes: str = ""

    @property
    def families(self) -> tuple[Family, ...]:
        """The families of both parts."""
        return self.text, self.vision

    @property
    def names(self) -> tuple[Prefixes, ...]:
        """The prefixes of both parts."""
        return self._ordered(_VISION_NAMES), self._ordered(_TEXT_NAMES)

    @property
    def refusals(self) -> Refusals:
        """Rows must be as wide as language."""
        return refusals(width_refused(self.vision)) + self.refused

    def part(self, config: Config, kind: str) -> Part:
        """Return the vision part with its merger, or the text part. Raises: NoSuchPart."""
        # Before 4.52 the settings of the text part were beside `vision_config`.
        text, vision = section(config, "text_config") or config, section(config, "vision_config")
        if kind == "vit":
            tower = self.vision if self.reads_videos else replace(self.vision, video=None)
            return Part(
                family=tower,
                config=vision,
                prefixes=self._ordered(_VISION_NAMES),
                elsewhere=(*_BESIDE_VISION, *self.beside),
                refused=tuple(self.refusals(config)),
            )
        if kind != self.text.kind:
            raise NoSuchPart(f"model_type: {self.model_type}")
        said = [each.get("tie_word_embeddings") for each in (config, text)]
        tied = any(said) if self.either_ties or said[0] is None else bool(said[0])
        return Part(
            family=self.text,
            config={**text, "tie_word_embeddings": tied},
            prefixes=(*self._ordered(_TEXT_NAMES), *((each, each) for each in self.beside)),
            elsewhere=tuple(prefix for prefix, _ in _VISION_NAMES),
            refused=tuple(self.refused(config)),
        )

    def _ordered(self, names: Prefixes) -> Prefixes:
        """Return prefixes, with those written today first."""
        return names[::-1] if self.nested else names

    def made_of(self, models: Models, tokens: Tokens) -> tuple[Config, dict[str, Keys]] | None:
        """Return the configuration of a whole made of our modules, and the keys to its parts."""
        pair, token = _pair(models, "vit"), tokens.get("vit")
        if pair is None or token is None:
            return None
        encoder, text = pair
        if not (equal((self.vision,), encoder) and equal((self.text,), text)):
            return None
        where: dict[str, Keys] = {text.kind: ("text_config",), "vit": ("vision_config",)}
        return self.config_of(encoder, text, token), where

    def config_of(self, vision: VitModel, text: LanguageModel, token: int) -> Config:
        """Return the configuration of a whole model made of two of our modules.

        `token` is the placeholder of the vision part.
        """
        tower = self.vision.config(vision)
        if self.vision.row_width is not None:
            tower[self.vision.row_width] = text.hidden
        return {
            "model_type": self.model_type,
            "vision_config": tower,
            "text_config": self.text.config(text),
            "image_token_id": token,
            "tie_word_embeddings": text.tied,
        }
