"""What there is to know of one architecture of transformers, and where a tensor of ours lies in it.

Decides: the questions that each family answers.
Relies on: `folder` for what a configuration is.
Leaves: the answers to one file per architecture, finding the family to `registry`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mimo_launch.hugging_face.folder import Config

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of a file, or consecutive rows of one, that holds a segment of ours.

    `num_rows` from `first_row` on are ours (None: all of the tensor), as of a fused q, k and v.
    `shape` is that of the whole tensor there, where it is not ours: the same elements in the same
    order, as of a convolution [D, C, p, p] that is our linear map [D, C * p * p]. What is written
    `at_least_fp32` is no weight of a product, and transformers keeps it in fp32.
    """

    name: str
    first_row: int = 0
    num_rows: int | None = None
    shape: tuple[int, ...] | None = None
    at_least_fp32: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Generic[M]):
    """One architecture as transformers writes it, for our models of type M.

    `model_type`: that of the (sub-)configuration that describes the module.
    `kind`: of our model.
    `not_computed(config)`: settings that our model does not have, as `key: value`.
    `keys(config)`: what a configuration says, in keys of `model`. Raises: ConfigError.
    `place(name, model)`: where a segment of ours is; `name` is less the module. Raises: KeyError.
    `is_ignored(name, model)`: whether a tensor of a file is left out by rule.
    `fits(model)`: whether the architecture can say what our model is.
    `config(model)`: the configuration that says it; `vocab` must be a number.
    `architecture`: the class of transformers that loads it.
    `training(config)`: what a configuration says of how it is trained, in keys of `moe`.
    """

    model_type: str
    kind: str
    not_computed: Callable[[Config], Iterator[str]]
    keys: Callable[[Config], dict[str, Any]]
    place: Callable[[str, M], Place]
    is_ignored: Callable[[str, M], bool]
    fits: Callable[[M], bool]
    config: Callable[[M], Config]
    architecture: str = ""
    training: Callable[[Config], dict[str, Any]] = lambda _: {}


def differs(config: Config, key: str, only: object) -> bool:
    """Return whether a configuration says another value than the one that is computed."""
    return bool(config.get(key, only) != only)
