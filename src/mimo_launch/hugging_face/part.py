"""A part of a folder: one module of it, of one family; and the interface of whole models.

Decides: the prefixes of names in the files of a part, and the settings of the whole model for it.
Relies on: `family` for the tables.
Leaves: finding parts to `registry`.
"""

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from itertools import count, takewhile
from typing import Any, Protocol, runtime_checkable

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.family import OURS_OF_MTP, Family, Prefixes
from mimo_launch.hugging_face.folder import Config, ConfigError, reading_config
from mimo_launch.hugging_face.refusals import Refusals
from mimo_launch.hugging_face.rotary import longest_of
from mimo_launch.hugging_face.tensors import Place, Reshaped, Rows, placed
from mimo_launch.spec.spec import Model

PROJECTOR = "projector."
# The divisor for quantized inputs of a matrix in FP8; inputs are not quantized here.
SCALE_OF_INPUTS = ".activation_scale"


class NoSuchPart(ConfigError):
    """A folder holds no module of a kind; `setting` is why, such as `model_type: gpt2`."""

    def __init__(self, setting: str) -> None:
        super().__init__(setting)
        self.setting = setting


@frozen(kw_only=True)
class Part:
    """One module of a folder, of one family.

    `prefixes`: pairs of a prefix in the files and the prefix that replaces it in the family's
    names; transformers writes the first pair today. `elsewhere`: prefixes of other parts.
    `projector`: the places of the projector in the files, by our tensor; if empty, ours keeps its
    initial values. `fixed`: keys of `model` that the whole model decides; `refused`: settings of
    the whole model that we cannot compute. `may_end_early`: a module may take only the first
    layers. `reads_videos`: how the whole model reads videos, as `video` of our model. `untied`: the
    files hold an output layer that differs from the embedding, though the configuration ties both.
    """

    family: Family
    config: Config
    prefixes: tuple[tuple[str, str], ...] = (("", ""),)
    elsewhere: tuple[str, ...] = ()
    projector: Mapping[str, Place | Rows | Reshaped] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    may_end_early: bool = False
    reads_videos: Mapping[str, Any] | None = None
    untied: bool = False

    def not_computed(self) -> tuple[str, ...]:
        """Return the settings that our model does not have, as `key: value`.

        Raises: ConfigError.
        """
        with reading_config():
            return (*self.refused, *self.family.refusals(self.config))

    def keys(self) -> dict[str, Any]:
        """Return the settings of the folder as keys of `model`. Raises: ConfigError."""
        with reading_config():
            keys = {**self.family.keys(self.config), **self.fixed}
        return keys | {"tied": False} if self.untied else keys

    def longest(self) -> int | None:
        """Return up to how many tokens the folder's positions equal ours; None: any number."""
        return longest_of(self.family.whole(self.config))

    def training(self) -> dict[str, Any]:
        """Return the training settings of the folder, as keys of `moe`. Raises: ConfigError.

        They are not part of the model, so a spec may have other values.
        """
        with reading_config():
            return self.family.training.keys(self.family.whole(self.config))

    def video(self) -> dict[str, Any] | None:
        """Return how the folder's model reads videos, as our `video`. Raises: ConfigError.

        A spec may omit `video`; then no video is read.
        """
        if self.reads_videos is not None:
            return dict(self.reads_videos)
        if self.family.video is None:
            return None
        with reading_config():
            return self.family.video.read(self.config)

    def place(self, name: str, model: Any) -> Place | None:
        """Return the place of our segment, None if it keeps its initial values by rule.

        `name` excludes the module. Raises: KeyError for a name that the family does not have.
        """
        if name in self.projector:
            return placed(self.projector[name], model)
        if name.startswith(OURS_OF_MTP):
            return self._place_of_depth(name, model)
        try:
            return self.family.tensors.place(name, model)
        except KeyError:
            if name.startswith(PROJECTOR):
                return None
            raise

    def _place_of_depth(self, name: str, model: Any) -> Place | None:
        """Return the place of a tensor of multi-token prediction, None if files lack it."""
        depths = self.family.depths
        return None if depths is None else depths.place(name, model, self.family.tensors)

    def copies(self, model: Any) -> Mapping[str, str]:
        """Return the tensors of files that repeat another one, with our name of the latter."""
        return {} if self.family.depths is None else self.family.depths.copies(model)

    def depths_among(self, names: Collection[str], model: Any) -> int:
        """Return how many depths of multi-token prediction `names`, of the family, contain."""
        ours = (f"{OURS_OF_MTP}{depth}.project.weight" for depth in count())
        places = takewhile(bool, (self._place_of_depth(each, model) for each in ours))
        return sum(1 for _ in takewhile(lambda at: at is not None and at.name in names, places))

    def inner_name(self, name: str) -> str | None:
        """Return the family's name for a tensor of the files; None if it is of another part."""
        for prefix, inner in sorted(self.prefixes, key=lambda pair: -len(pair[0])):
            if name.startswith(prefix) and not name.startswith(self.elsewhere):
                return inner + name.removeprefix(prefix)
        return None

    def file_name(self, inner: str) -> str:
        """Return the name in files written today for a name of the family, or of the projector."""
        found = [pair for pair in self.prefixes if inner.startswith(pair[1])]
        prefix, stands_for = max(found, key=lambda pair: len(pair[1]))
        return prefix + inner.removeprefix(stands_for)

    def file_names(self, inner: str) -> list[str]:
        """Return all names that versions of transformers have given a tensor."""
        found = (pair for pair in self.prefixes if inner.startswith(pair[1]))
        return [theirs + inner.removeprefix(ours) for theirs, ours in found]

    def module_name(self, inner: str) -> str:
        """Return the name of a tensor in a loaded model, which keeps its parts in `model` today."""
        nested = [
            (theirs, ours)
            for theirs, ours in self.prefixes
            if theirs.startswith("model.") and theirs.count(".") > 1 and theirs != ours
            if inner.startswith(ours)
        ]
        if not nested:
            return self.file_name(inner)
        prefix, stands_for = max(nested, key=lambda pair: len(pair[1]))
        return prefix + inner.removeprefix(stands_for)

    def loaded(self, name: str, place: Place, model: Any) -> Place:
        """Return the place of our segment in a loaded model; `place` is that in the files."""
        if self.family.loaded is not None:
            return self.family.loaded.place(name, model)
        return replace(place, name=self.module_name(place.name))

    def is_ignored(self, name: str, model: Any) -> bool:
        """Return whether a tensor of the files is left out by rule."""
        inner = self.inner_name(name)
        if inner is None:
            return name.startswith(self.elsewhere)
        if inner.endswith(SCALE_OF_INPUTS):
            return True
        return self.family.tensors.is_dropped(inner, model) or inner in self.copies(model)


@runtime_checkable
class Whole(Protocol):
    """A model of transformers that holds several parts, or one part under different names.

    `families` are the families of its parts, `refusals` the refused settings around them;
    `architecture` is the class of transformers that `export` writes, empty if it writes none.
    `rank`, `published`, `notes` are as in `Family`.
    """

    model_type: str
    architecture: str
    rank: int
    published: tuple[str, ...]
    notes: str

    @property
    def families(self) -> tuple[Family, ...]:
        """Return the families of its parts."""

    @property
    def names(self) -> tuple[Prefixes, ...]:
        """Return the prefixes of names in the files, of each part."""

    @property
    def refusals(self) -> Refusals:
        """Return the refused settings around the parts."""

    def part(self, config: Config, kind: str) -> Part:
        """Return the part for a kind of module. Raises: NoSuchPart, ConfigError."""

    def made_of(
        self, models: Mapping[str, Model], tokens: Mapping[str, int | None]
    ) -> tuple[Config, dict[str, tuple[str, ...]]] | None:
        """Return the configuration of a whole made of our modules, and the keys to its parts.

        Models and tokens of rows are given by kind. None if it is not made of such modules.
        """


def alone(family: Family, config: Config, kind: str) -> Part:
    """Return the only part of a folder. Raises: NoSuchPart."""
    if kind != family.kind:
        raise NoSuchPart(f"model_type: {family.model_type}")
    return Part(
        family=family,
        config=config,
        prefixes=family.prefixes,
        elsewhere=family.elsewhere,
        may_end_early=family.may_end_early,
    )
