"""Checks of the library that provides a module's layers.

Decides: what Transformer Engine cannot do.
Relies on: its sources (2.20): 16-bit attention kernels, heads in steps of 8 numbers up to 256.
Leaves: products in 8 bits to `eight_bits`, whether it is installed to `packages`, whether it works
on a host to the workers.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.installed import ENGINE
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.conformer_shapes import ConformerBlockShape
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.mlp_shapes import MlpShape
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.spec import Spec

HEAD_STEP, LARGEST_HEAD = 8, 256


def backend_can(spec: Spec, name: str) -> Findings:
    """The backend computes in this type, with these heads and blocks."""
    module = spec.modules[name]
    if module.backend != ENGINE:
        return
    precision = spec.train.precision
    if not spec.train.numbers.is_mixed:
        yield _cannot(
            name,
            f"compute in {precision}",
            "its attention kernels compute in 16 bits",
            "write `precision: bf16` under `train`",
            Related(("train", "precision"), precision),
        )
    kind = kind_of(module.model)
    if kind.is_custom:
        yield _cannot(
            name,
            "provide the layers of a class of your own",
            "it replaces only the blocks of the built-in kinds",
            "delete the line",
            Related(("modules", name, "model", "kind"), "your class"),
        )
        return
    if kind.torch_only is None:
        yield _cannot(
            name,
            "provide the layers of a hybrid model",
            "it has no Mamba layers, and its attention is used only in the blocks of other kinds",
            "keep the layers of torch, whose Mamba uses the kernels of mamba-ssm where installed",
            Related(("modules", name, "model", "kind"), "hybrid"),
        )
        return
    yield from _in_blocks(name, kind, kind.torch_only)


S = TypeVar("S", bound=LayerShape)


@frozen
class _Lack:
    """A feature that blocks of Transformer Engine lack: `of` says whether a model needs it.

    `key` is the key of the model that asks for it, and `label` describes the value there.
    """

    of: Callable[[ModelKind], bool]
    key: str
    what: str
    why: str
    label: str
    help: str = "keep the layers of torch for this module"


def _inside(kind: ModelKind, layer: type[S]) -> list[S]:
    """Return the layers of a class in the model's first layer."""
    return [part for part in kind.layer(0).parts().values() if isinstance(part, layer)]


_LACKS = (
    *(
        _Lack(
            lambda kind, key=key: getattr(kind.model, key, 0) > 0,  # type: ignore[misc]
            key,
            f"attend to {tokens}",
            f"its kernels need the tokens of an image next to each other, and {tokens} come after "
            "the patches of all images",
            label,
            f"delete `{key}`",
        )
        for key, tokens, label in (
            ("class_token", "class tokens", "a class token"),
            ("registers", "registers", "registers"),
        )
    ),
    _Lack(
        lambda kind: kind.attending.windows is not None and kind.clips is None,
        "windows",
        "attend in windows",
        "its attention takes tokens in the order in which its projection makes them",
        "windows",
    ),
    _Lack(
        lambda kind: (
            not kind.reads_tokens and any(x.gate and x.bias for x in _inside(kind, MlpShape))
        ),
        "activation",
        "compute a gated MLP with biases",
        "its SwiGLU is used without biases only",
        "a gate, with biases",
    ),
    _Lack(
        lambda kind: not kind.reads_tokens and getattr(kind.layer(0), "post_norms", False),
        "kind",
        "normalise what layers add to the stream",
        "its blocks have a norm before attention and one before the MLP",
        "norms on both sides",
    ),
    _Lack(
        lambda kind: (
            not kind.reads_tokens
            and any(x.interleaved or x.by_halves for x in _inside(kind, AttentionShape))
        ),
        "rope_frequencies",
        "rotate queries and keys as this tower does",
        "it rotates pairs of numbers that are half a head apart",
        "rotates other pairs",
    ),
    _Lack(
        lambda kind: kind.reading.beside and not kind.reads_tokens,
        "kind",
        "attend to rows beside tokens of its own",
        "its kernels need the tokens of an image next to each other, and rows come after those of "
        "all images",
        "tokens of its own",
    ),
    _Lack(
        lambda kind: isinstance(kind.layer(0), ConformerBlockShape),
        "kind",
        "provide the blocks of a conformer",
        "its blocks have one attention, without scores of distances, and no convolution",
        "a conformer",
    ),
    _Lack(
        lambda kind: kind.moe is not None,
        "moe",
        "provide experts",
        "it replaces only the dense block",
        "experts",
    ),
    _Lack(
        lambda kind: any(not each.key_bias for each in _inside(kind, AttentionShape)),
        "kind",
        "leave out the bias of keys alone",
        "its fused projection has one bias for queries, keys and values, but Whisper's keys have "
        "none",
        "an audio encoder",
    ),
)


def _in_blocks(name: str, kind: ModelKind, torch_only: Iterable[str]) -> Findings:
    """Yield findings about features of a model's blocks that Transformer Engine lacks."""
    path = ("modules", name, "model")
    for lack in _LACKS:
        if lack.of(kind):
            at = Related((*path, lack.key), lack.label)
            yield _cannot(name, lack.what, lack.why, lack.help, at)
    for key in torch_only:
        yield _cannot(
            name,
            f"provide blocks with `{key}`",
            "its blocks are used as in Llama and Qwen: SwiGLU, two norms, whole sequences",
            "keep the layers of torch for this module",
            Related((*path, key), f"`{key}`"),
        )
    size = kind.layer_widths(0).unit
    if size % HEAD_STEP or size > LARGEST_HEAD:
        given = "heads" if kind.cuts.heads_of_hidden else "head_dim"
        yield _cannot(
            name,
            f"attend with heads of size {size}",
            f"its kernels take head sizes of {HEAD_STEP}, {2 * HEAD_STEP}, ... {LARGEST_HEAD}",
            "choose such a head size",
            Related((*path, given), f"head size {size}"),
        )


def _cannot(name: str, what: str, why: str, help_: str, related: Related) -> Diagnostic:
    return Diagnostic(
        code="backend-cannot",
        headline=f"`{name}`: {ENGINE} cannot {what}",
        path=("modules", name, "backend"),
        why=why,
        help=f"{help_}, or `backend: torch`",
        related=(related,),
    )
