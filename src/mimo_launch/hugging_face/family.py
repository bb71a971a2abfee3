"""A family: one architecture as transformers writes it, as data.

Decides: what a family says: its settings, its tensors, what is refused, how it reads videos.
Relies on: `settings`, `tensors` and `refusals` for the tables; `folder` for configurations.
Leaves: the tables to one file per family in `families`, finding them to `registry`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, Protocol

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import NOTHING, Refusals, off
from mimo_launch.hugging_face.settings import NO_SETTINGS, InnerSettings, Settings, value_of
from mimo_launch.hugging_face.tensors import Place, Tensors
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.module import MODELS
from mimo_launch.spec.spec import VitModel
from mimo_launch.spec.wording import text_of

Prefixes = tuple[tuple[str, str], ...]
OURS_OF_MTP = "mtp."


@frozen
class Video:
    """How language gets the time of a video, as `video` of our model.

    `per_second` is the setting for the positions of a second, with its default.
    """

    time: str
    per_second: tuple[str, float] | None = None

    def read(self, config: Config) -> dict[str, Any]:
        """Return `video` of our model. Raises: ConfigError."""
        each = None if self.per_second is None else float(number(config, *self.per_second))
        return {"time": self.time, "per_second": each}

    def write(self, model: Any) -> Config:
        """Return the setting for the positions of a second; an integer, if they are whole."""
        each = None if model.video is None else model.video.per_second
        if self.per_second is None or each is None:
            return {}
        return {self.per_second[0]: int(each) if each == int(each) else each}


class Depths(Protocol):
    """Where files hold multi-token prediction."""

    def place(self, name: str, model: Any, tensors: Tensors) -> Place | None:
        """Return the place of our tensor, None for a depth that files do not hold."""

    def copies(self, model: Any) -> Mapping[str, str]:
        """Return the tensors of files that repeat another one, with our name of the latter."""


@frozen
class DepthsAfterLayers:
    """A layer after the last one for each depth; it repeats the embedding and the output layer.

    The files show the number of depths: transformers drops these tensors and keeps the setting.
    Source: the published weights of DeepSeek-V3 and of GLM-4.5.
    """

    around: Mapping[str, str]
    # The setting for the number of depths.
    key: str = "num_nextn_predict_layers"

    def place(self, name: str, model: Any, tensors: Tensors) -> Place:
        """Return the place of our tensor. Raises: KeyError for a name that no depth has."""
        _, depth, rest = name.split(".", 2)
        layer = f"layers.{model.layers + int(depth)}"
        if rest.startswith("block."):
            return tensors.place(f"{layer}.{rest.removeprefix('block.')}", model)
        return Place(f"model.{layer}.{self.around[rest]}")

    def copies(self, model: Any) -> Mapping[str, str]:
        """Return the tensors of files that repeat another one, with our name of the latter."""
        found = {}
        for depth in range(kind_of(model).depths):
            layer = f"model.layers.{model.layers + depth}"
            found[f"{layer}.embed_tokens.weight"] = "embedding.weight"
            head = "embedding.weight" if model.tied else "head.weight"
            found[f"{layer}.shared_head.head.weight"] = head
        return found


@frozen
class OneDepthApart:
    """Tensors of one depth under a separate name; a block is a layer of the hybrid model."""

    table: Tensors

    def place(self, name: str, model: Any, tensors: Tensors) -> Place | None:
        """Return the place of our tensor. Raises: KeyError for a name that the depth lacks."""
        del tensors
        return self.table.place(name, model) if name.startswith(f"{OURS_OF_MTP}0.") else None

    def copies(self, model: Any) -> Mapping[str, str]:
        """Return nothing: no tensor repeats another one."""
        del model
        return {}


@frozen(kw_only=True)
class Family:
    """One architecture as transformers writes it, for our models of a kind.

    `model_type`: as in the (sub-)configuration that describes the module.
    `kind`: the kind of our model.
    `architecture`: the class of transformers that loads it.
    `settings`, `tensors`: the tables; `other_tensors`: names in files of other versions;
    `loaded`: names in a model that transformers loads, for adapters, if its files have others.
    `aliases`: other names of settings, which `transformers` reads as well and prefers.
    `defaults`: the defaults of its configuration class, where they are not in the table.
    `prepared`: brings a configuration with its defaults to the form that the table reads.
    `refused`: settings that our model does not have.
    `random`: settings that, if not 0, change numbers at random in training, such as dropout.
    `training`: a table of training settings, as keys of `moe`.
    `row_width`: the setting for the width of the rows that it makes, or reads.
    `video`: how it reads videos; None if we do not know.
    `depths`: where its files may hold multi-token prediction.
    `norms_patches`: whether the patches of an image pass the last norm of a tower; in some towers
    only the pooling uses it. Applies to a folder of the tower alone, unless the table decides.
    `prefixes`, `elsewhere`, `may_end_early`: as in `Part`, for a folder of nothing else.
    `rank`: where several families equal a model, the lowest is written.
    `published`, `notes`: names on the hub of models with this type, and what readers should know.
    """

    model_type: str
    kind: str
    settings: Settings
    tensors: Tensors
    architecture: str = ""
    other_tensors: Tensors | None = None
    loaded: Tensors | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Config = field(default_factory=dict)
    prepared: Callable[[Config], Config] = lambda config: config
    refused: Refusals = NOTHING
    random: tuple[str, ...] = ("attention_dropout",)
    training: Settings = NO_SETTINGS
    row_width: str | None = None
    video: Video | None = None
    depths: Depths | None = None
    norms_patches: bool = True
    prefixes: Prefixes = (("", ""),)
    elsewhere: tuple[str, ...] = ()
    may_end_early: bool = False
    rank: int = 0
    published: tuple[str, ...] = ()
    notes: str = ""

    @property
    def refusals(self) -> Refusals:
        """All settings of its configurations that are refused."""
        random = Refusals(tuple(map(off, self.random)))
        return self.refused.after(self.whole) + random.after(self._with_defaults)

    @property
    def random_by_default(self) -> tuple[str, ...]:
        """The settings that change numbers at random where a configuration leaves them out."""
        return tuple(key for key in self.random if self.defaults.get(key))

    @property
    def is_vision(self) -> bool:
        """Whether its models are vision transformers."""
        return issubclass(MODELS[self.kind], VitModel)

    def is_of(self, *, experts: bool) -> bool:
        """Return whether some of its models have experts, or have none."""
        moe = self.settings.table.get("moe")
        if moe is None:
            return not experts
        return experts or (isinstance(moe, InnerSettings) and moe.is_there is not None)

    @property
    def stands_alone(self) -> bool:
        """Whether a folder may hold this family and nothing else."""
        is_language = self.kind in ("decoder", "hybrid")
        return not is_language or self.architecture.endswith("ForCausalLM")

    def whole(self, config: Config) -> Config:
        """Return a configuration with its defaults, in the form that the tables read."""
        return self.prepared(self._with_defaults(config))

    def _with_defaults(self, config: Config) -> Config:
        aliases = self.aliases.items()
        named = {name: x for each, name in aliases if (x := config.get(each)) is not None}
        return self.defaults | config | named

    def keys(self, config: Config) -> dict[str, Any]:
        """Return a configuration as keys of `model`. Raises: ConfigError."""
        return self.settings.keys(self.whole(config))

    def config(self, model: Any) -> Config:
        """Return the configuration of our model; `vocab` must be a number."""
        video = {} if self.video is None else self.video.write(model)
        return {
            "model_type": self.model_type,
            **dict.fromkeys(self.random_by_default, 0.0),
            **self.settings.config(model),
            **video,
        }

    def differences(self, model: Any, but: Mapping[str, Any] | None = None) -> Iterator[str]:
        """Yield the settings of a model that the family does not have, as "`key: value`".

        `but` holds keys that the model around it decides.
        """
        found, config = False, self.config(model)
        for key, there in {**self.keys(config), **(but or {})}.items():
            if (here := value_of(model, key)) != there:
                found = True
                if isinstance(here, dict) and isinstance(there, dict):
                    here = {each: value for each, value in here.items() if value != there[each]}
                yield f"`{key}: {text_of(here)}`"
        if not found:
            yield from (f"`{each}`" for each in self.refusals(config))

    def may_have(self, name: str) -> bool:
        """Return whether our tensor, by its name without the module, is in files of any version."""
        tables = (self.tensors, self.other_tensors)
        return any(each is not None and each.may_have(name) for each in tables)

    def other_place(self, name: str, model: Any) -> Place | None:
        """Return the place of a segment in files of other versions; None if it is the same."""
        try:
            return None if self.other_tensors is None else self.other_tensors.place(name, model)
        except KeyError:
            return None
