"""Known ways to get per-layer embeddings wrong; `planted` lists them."""

from types import SimpleNamespace
from typing import Any

from tests.support.specs import behind_vision, box, spec

from mimo_launch.kinds.decoder import DecoderKind
from mimo_launch.layers.vocab_parallel import VocabEmbedding
from mimo_launch.models import language_input
from mimo_launch.models.per_layer import PerLayerInputs
from mimo_launch.models.transformer_block import Block
from mimo_launch.spec.spec import Spec

MODEL: dict[str, Any] = {
    "layers": 3, "heads": 4, "kv_heads": 2, "qk_norm": True, "post_norms": True,
    "activation": "gelu_tanh", "layer_scalar": 0.5, "embedding_scale": 3.0,
    "per_layer_embeddings": {"width": 6, "padding": 1},
}  # fmt: skip


def with_vectors(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with per-layer embeddings after vision, on ranks of its own."""
    return behind_vision(MODEL, data, **language)


def beside_sound(**language: Any) -> Spec:
    """The same after vision and audio; words are on both halves of the vocabulary."""
    modules = {"vision": box(0), "audio": box(1, model={"kind": "audio"})}
    own = MODEL | {"vocab": 14}
    return spec({**modules, "language": box(2, model=own, **language)}, microbatches=2, mbs=2)


def vectors_of_placeholders() -> None:
    """Tokens that stand for rows have vectors of their own."""
    DecoderKind.padding = property(lambda _: -1)  # type: ignore[method-assign, assignment]


def vectors_of_the_next_layer() -> None:
    """Each layer has the vectors of the layer after it."""
    correct = PerLayerInputs.forward

    def shifted(self: Any, *given: Any) -> Any:
        first, *others = correct(self, *given)
        return (*others, first)

    PerLayerInputs.forward = shifted  # type: ignore[method-assign]


def vectors_after_the_number() -> None:
    """Vectors are added after the number of the layer has multiplied the stream."""
    correct = Block._of_vectors

    def late(self: Any, *given: Any) -> Any:
        return correct(self, *given) / self.shape.scalar

    Block._of_vectors = late  # type: ignore[method-assign]


def padding_trains() -> None:
    """The vectors of tokens for rows train, too."""
    correct = PerLayerInputs.__init__

    def made(self: Any, *given: Any) -> None:
        correct(self, *given)
        rows = self.table.own_rows
        self.table.own_rows = lambda tokens, still: rows(tokens)

    PerLayerInputs.__init__ = made  # type: ignore[method-assign]


def vectors_of_sound() -> None:
    """Tokens that stand for rows of sound have vectors of their own."""
    correct = language_input.read_is_row

    def seen(view: Any, device: Any) -> Any:
        layout, samples, data = view.layout, view.samples, view.data
        language = SimpleNamespace(reads=layout.language.image_sources)
        less: Any = SimpleNamespace(seq=layout.seq, language=language)
        return correct(SimpleNamespace(layout=less, samples=samples, data=data), device)

    language_input.read_is_row = seen


def another_word_is_still() -> None:
    """Each rank keeps the vectors of its word at the place of padding."""
    correct = VocabEmbedding.own_rows

    def kept(self: Any, ids_N: Any, *, still: int | None = None) -> Any:
        return correct(self, ids_N, still=still and self.part.start + still)

    VocabEmbedding.own_rows = kept  # type: ignore[method-assign]


PER_LAYER_BUGS = {
    "vectors of sound": (vectors_of_sound, beside_sound()),
    "another word is still": (another_word_is_still, beside_sound(tp=2)),
    "vectors of placeholders": (vectors_of_placeholders, with_vectors(tp=2)),
    "vectors of the next layer": (vectors_of_the_next_layer, with_vectors(cp=2)),
    "vectors after the number": (vectors_after_the_number, with_vectors(dp=2, sharding="full")),
    "vectors of padding that train": (padding_trains, with_vectors(tp=2)),
}
