"""The facts of a kind, grouped: what it reads, attends to and is cut by.

Each fact is read when it is asked for: where one key of a model is wrong, the others still answer.

Decides: the defaults, which hold for a kind that says nothing.
Relies on: the spec's types, `tiles` for images in tiles.
Leaves: their values to subclasses in the files of kinds.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.layer import ReadState
from mimo_launch.kinds.tiles import TileRule
from mimo_launch.spec.layers import SlidingWindow
from mimo_launch.spec.media import Windows
from mimo_launch.spec.spec import Clips, Codes, Images


@frozen(kw_only=True)
class TextFacts:
    """Facts about text, for a model that reads none; a language model has these facts itself.

    `vocab` is the size of the vocabulary, or the data set that defines it; it is padded to a
    multiple of `vocab_multiple`. `tied`: the head is the embedding. `mrope`: the pairs of a head
    that rotate with time, height and width, if tokens have all three.
    """

    vocab: int | Literal["digits"] = "digits"
    vocab_multiple: int = 1
    tied: bool = False
    mrope: tuple[int, int, int] | None = None


@frozen
class TokenFacts:
    """The tokens of one image or clip."""

    input: Images | Clips | Codes | None

    @property
    def per_row(self) -> int:
        """Number of tokens that become one row of language."""
        return 1 if self.input is None else self.input.patches_per_row

    @property
    def learned(self) -> int:
        """Number of learned tokens that each image has in addition to its patches."""
        return 0

    @property
    def table(self) -> tuple[int, int] | None:
        """Height and width, in patches, of the table of learned positions, if there is one."""
        return None

    @property
    def usual_size(self) -> tuple[int, int] | None:
        """Height and width, in patches, of the images that it is made for, if all are equal."""
        return None

    @property
    def tiles(self) -> TileRule | None:
        """How images in tiles become rows, if it cuts them."""
        return None


@frozen
class RowReading:
    """How a module takes rows of the modules that it names in `reads`; here not at all."""

    @property
    def takes_rows(self) -> bool:
        """Whether it takes any."""
        return False

    @property
    def beside(self) -> bool:
        """Whether these rows come beside its own tokens; otherwise they are its tokens."""
        return False

    @property
    def in_turn(self) -> bool:
        """Whether the rows of several modules are concatenated; otherwise they are added."""
        return True

    @property
    def of_language(self) -> ReadState:
        """What its rows of language are."""
        return ReadState()

    @property
    def rows_of_each(self) -> int | None:
        """Number of rows that it makes for each image, None if that depends on its input."""
        return None

    def rows_of(self, sources: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return height and width, in rows, of its output for one image of each module it reads."""
        if self.rows_of_each is not None:
            return 1, self.rows_of_each
        if self.in_turn and len(sources) > 1:
            return 1, sum(height * width for height, width in sources)
        return sources[0]


@frozen(kw_only=True)
class Attending:
    """Which tokens the tokens of layers attend to.

    `in_order`: own tokens attend only to earlier tokens, and to rows beside them.
    """

    in_order: bool = False

    @property
    def windows(self) -> Windows | None:
        """The windows of an image in which tokens of some layers attend, if any."""
        return None

    @property
    def sliding(self) -> SlidingWindow | None:
        """The last tokens that tokens of some layers attend to, if not all."""
        return None

    @property
    def whole_images(self) -> bool:
        """Whether the tokens of an image attend to each other in both directions."""
        return False

    @property
    def whole_prompts(self) -> bool:
        """Whether the tokens before the first that is learnt attend to each other."""
        return False

    def sees_later(self, number: int) -> bool:
        """Return whether tokens of a layer attend to later ones, in an image or a prompt."""
        return self.whole_images or self.whole_prompts

    def in_windows(self, number: int) -> bool:
        """Return whether the tokens of a layer attend in windows."""
        windows = self.windows or self.sliding
        return windows is not None and number not in windows.full


@frozen
class TpCuts:
    """The sizes that tp cuts; None where there is none."""

    @property
    def tokens(self) -> bool:
        """Whether the tokens of an image, a clip or a sequence may be cut over ranks."""
        return True

    @property
    def heads(self) -> int | None:
        """Number of query heads."""
        return None

    @property
    def kv_heads(self) -> Mapping[tuple[str, ...], int]:
        """Numbers of key/value heads that query heads may share, by their keys in the model."""
        return {}

    @property
    def heads_of_hidden(self) -> bool:
        """Whether a head is hidden / heads wide."""
        return False

    @property
    def mlp_width(self) -> int | None:
        """Width inside the MLPs, experts excluded."""
        return None
