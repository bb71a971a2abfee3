"""The shape of attention, plain or latent.

Decides: the layers inside it, by name, and the tensors that it saves.
Relies on: `shapes` for the weights of these.
Leaves: which model has which attention to its kind, what it computes to the class that it names.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.clipped_shapes import columns, row, saved_by_clips
from mimo_launch.kinds.layer import Widths
from mimo_launch.kinds.saved_activations import AttentionPattern, Mask, Passes, Saved
from mimo_launch.kinds.shapes import (
    EPSILON,
    NORMS,
    ColumnShape,
    NormShape,
    OneShape,
    Output,
    RowShape,
    WholeShape,
    WideNormShape,
)
from mimo_launch.kinds.weights import LayerShape, Weight, of_key
from mimo_launch.spec.layers import Mla

# Which numbers of a head rotate together: `apart` by half of the head, neighbours, or, in each half
# of the head by itself, those apart by half of it.
Pairs = Literal["apart", "neighbours", "in_halves"]
# The largest heads of which attention over cp takes chunks of a sequence (`chunk_attention`): those
# for which cuDNN's kernels were compared with float64.
MOST_HEAD = 128
# With keys and values of this rank alone, or of each cp rank.
LATENT_ALONE = (
    # Values are a view of this tensor.
    Saved(name="keys and values without what rotates", made=1),
    Saved(name="rotated keys", query=1),
)
# Where attention over cp pads values to the size of keys.
LATENT_OUTPUT = Saved(name="attention output, padded", query=1)
# Where attention writes tokens in another order.
IN_ORDER = Saved(name="attention output, in the order of tokens", query=1, for_weights=True)


@frozen(kw_only=True)
class LatentShape(LayerShape):
    """The maps of latent attention from narrow widths to queries, keys and values."""

    layer = "mimo_launch.layers.latent_attention:LatentInputs"

    sizes: Mla
    width: int
    heads: int
    head_size: int

    @property
    def query_width(self) -> int:
        """The width that queries are made of."""
        return self.sizes.q_rank or self.width

    @property
    def made(self) -> int:
        """The width of all keys, without what rotates, and values."""
        head = self.head_size - self.sizes.rope_head_dim + self.sizes.v_head_dim
        return self.heads * head

    def widths(self) -> Widths:
        """Return the narrow widths, and the width of keys and values made from them."""
        narrow = self.sizes.kv_rank + self.sizes.rope_head_dim
        entered = narrow + self.query_width
        narrow += self.sizes.q_rank or 0
        return LayerShape.widths(self) + Widths(narrow=narrow, entered=entered, made=self.made)

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return maps to narrow widths, norms of these, and maps from them."""
        sizes, heads, rank = self.sizes, self.heads, self.sizes.q_rank
        narrow = sizes.kv_rank + sizes.rope_head_dim
        return {
            "q_down": None if rank is None else WholeShape(self.width, rank, bias=False),
            "q_norm": None if rank is None else NormShape(rank, "rms", sizes.norm_eps),
            "kv_down": WholeShape(self.width, narrow, bias=False),
            "kv_norm": NormShape(sizes.kv_rank, "rms", sizes.norm_eps),
            "queries": ColumnShape(self.query_width, (Output("q_up", heads * self.head_size),)),
            "keys": ColumnShape(sizes.kv_rank, (Output("kv_up", self.made),)),
        }

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return narrow widths, and queries, keys and values."""
        found = (
            Saved(name="narrow widths, before their norms", narrow=1, shared=True),
            Saved(name="narrow widths, in the region", entered=1, for_weights=True),
            Saved(name="rotated queries", query=1),
        )
        # The width that rotates has no norm, and is not kept beside copies of the others.
        kept = passes.of_norm("rms")
        others = self.sizes.rope_head_dim * (kept + (passes.wide > 1)) // passes.wide
        name = "inputs of norms of narrow widths in fp32, and results"
        beside = Saved(name=name, narrow=kept, numbers=-others, shared=True)
        return found if passes.are_compiled else (*found, beside)

    def gathered(self, keys: float, *, pads: bool) -> tuple[Saved, ...]:
        """Return so many gathered keys and values for each token.

        If attention pads values to the size of keys, it also keeps a wider output.
        """
        name = "gathered keys and values"
        if pads and self.sizes.v_head_dim < self.head_size:
            return (Saved(name=f"{name}, padded", query=2 * keys), LATENT_OUTPUT)
        return (Saved(name=name, query=keys, value=keys),)


@frozen(kw_only=True)
class AttentionShape(LayerShape):
    """Multi-head, grouped-query or latent attention.

    `qkv_bias` gives queries, keys and values biases, except keys without `key_bias` (Whisper);
    `bias` gives the output one. `qk_norm` normalises each head of queries and keys, `l2_norm`
    without weights, `wide_norm` all of them together; `norm_last`: each head after its rotation.
    Queries, keys and values stay within `clip`, if given, before norms of single heads.
    `value_norm` normalises each head of values, without weights. Without `own_values` values are
    what keys are made of: their projection. A layer that `gives` its keys and values has later ones
    attend to them; one that `takes` them has none of its own.
    Scores are divided by the square root of `score_size` (None: of the head size), and stay below
    `score_cap`; learned `sinks` join their softmax. If `gated`, each head's output is multiplied by
    the sigmoid of a gate, which follows the query of the head. `interleaved`: numbers of a head
    that rotate together are neighbours; `by_halves`: they are in the same half. `latent` makes
    queries, keys and values of narrow widths. Its maps may clip what they read and give
    (`clipped`).
    """

    layer = "mimo_launch.layers.attention:Attention"

    width: int
    heads: int
    kv_heads: int
    head_size: int
    bias: bool = of_key("output_bias", False)
    qkv_bias: bool = of_key("qkv_bias", False)
    key_bias: bool = True
    qk_norm: bool = of_key("qk_norm", False)
    l2_norm: bool = of_key("l2_qk_norm", False)
    norm_last: bool = of_key("rotated_qk_norm", False)
    wide_norm: bool = of_key("wide_qk_norm", False)
    clip: float | None = of_key("clip_qkv", None)
    value_norm: bool = of_key("value_norm", False)
    own_values: bool = True
    sharing: Literal["gives", "takes"] | None = None
    eps: float = of_key("norm_eps", EPSILON)
    norm_offset: float = of_key("norm_offset", 0.0)
    score_size: float | None = of_key("query_pre_attn_scalar", None)
    score_cap: float | None = of_key("attention_softcap", None)
    sinks: bool = of_key("attention_sinks", False)
    gated: bool = of_key("gated_attention", False)
    interleaved: bool = of_key("rotary_interleaved", False)
    by_halves: bool = False
    latent: Mla | None = of_key("mla", None)
    out_scale: float = 1.0
    clipped: bool = False

    @property
    def pairs(self) -> Pairs:
        """Which numbers of a head rotate together."""
        if self.by_halves:
            return "in_halves"
        return "neighbours" if self.interleaved else "apart"

    @property
    def query_parts(self) -> int:
        """Vectors of a query head: the query, and perhaps a gate."""
        return 1 + self.gated

    @property
    def key_parts(self) -> int:
        """Vectors that are projected for a key/value head: the key, and perhaps the value."""
        return 0 if self.sharing == "takes" else 1 + self.own_values

    @property
    def value_size(self) -> int:
        """The size of a head of values."""
        return self.head_size if self.latent is None else self.latent.v_head_dim

    @property
    def output(self) -> RowShape:
        """The map to the stream, without clips."""
        return RowShape("o", self.heads * self.value_size, self.width, self.bias, self.out_scale)

    def mask(self, given: Mask, cp: int) -> Mask:
        """Return the mask that kernels apply to sequences with the mask `given`.

        "causal": whole sequences, over cp in chunks; "documents": lists, of whole sequences too;
        "masked": a mask for each pair, as capped scores need it. Kernels pad values to the size of
        keys, but not keys to that of values.
        """
        if given == "masked" or self.score_cap is not None or self.value_size > self.head_size:
            return "masked"
        listed = self.sinks or (cp > 1 and self.head_size > MOST_HEAD)
        return "documents" if listed else given

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return maps, sinks, and norms of heads."""
        width, heads, head = self.width, self.heads, self.head_size
        narrow, inputs = None, None
        if self.latent is not None:
            narrow = LatentShape(sizes=self.latent, width=width, heads=heads, head_size=head)
        else:
            query, bias = head * self.query_parts, self.qkv_bias
            outputs = (
                Output("q", heads * query, query, bias),
                Output("k", self.kv_heads * head, head, bias and self.key_bias),
                Output("v", self.kv_heads * head, head, bias),
            )
            inputs = columns(width, outputs[: 1 + self.key_parts], clipped=self.clipped)
        logits = Weight(name="weight", shape=(heads,), axis=0, init="zeros", decay=False)
        return {
            "latent": narrow,
            "inputs": inputs,
            "sinks": OneShape(f"{NORMS}:Sinks", logits) if self.sinks else None,
            "output": row(self.output, clipped=self.clipped),
            "q_norm": self._norm(heads),
            "k_norm": None if self.sharing == "takes" else self._norm(self.kv_heads),
        }

    def widths(self) -> Widths:
        """Return the widths of heads, and of latent attention."""
        query, key, value = (
            self.heads * self.head_size,
            self.kv_heads * self.head_size,
            self.output.features,
        )
        own = Widths(
            query=query,
            key=key,
            value=value,
            unit=self.head_size,
            heads=self.heads,
            gathers=self._gathers(key, value),
            scored=query + value,
            regions=1,
        )
        return own + LayerShape.widths(self)

    def _gathers(self, key: int, value: int) -> int:
        """Return how many numbers of keys and values of a token cp ranks gather."""
        if self.sharing == "takes":
            return 0
        return 2 * key if self.latent is None else key + value

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return queries, keys and values, what their norms and gates keep, and the output."""
        # Over cp keys are gathered, so larger queries alone are all that is kept.
        copied = pattern.rotates or (pattern.grows and passes.cp > 1) or self.clip is not None
        latent = self.parts()["latent"]
        if latent is not None:
            found = (*latent.saved(passes, pattern), *self._latent_keys(latent, passes))
            found += (Saved(name="attention output", value=1),)
        else:
            found = self._saved_heads(passes, pattern, copied=copied)
            found += (Saved(name="attention output", query=1),)
            if pattern.grows and not copied and not self.qk_norm:
                found += (Saved(name="queries that grow", query=1),)
        if self.score_cap is None:
            found += (Saved(name="log-sum-exp of scores", heads=1),)
        if self.gated and latent is None:
            found += (Saved(name="gated attention output", query=1, for_weights=True),)
        if self.gated and not passes.are_compiled:
            found += (Saved(name="sigmoid of the gate of attention", query=1),)
        if not self.clipped:
            return found
        # A clip reads what the last product would keep for its weights alone.
        found = tuple(replace(each, for_weights=False) for each in found)
        return (*found, *self._saved_by_clips(passes))

    def _saved_by_clips(self, passes: Passes) -> tuple[Saved, ...]:
        """Return what clips keep around its maps."""
        heads, keys = self.query_parts, self.key_parts
        return (
            Saved(name="queries, keys and values, before clips", query=heads, key=keys),
            Saved(name="attention output, clipped", query=1, for_weights=True),
            *saved_by_clips("attention", 1 + keys, passes),
        )

    def _gathered_keys(self, passes: Passes) -> float:
        """Return how many keys attention of sequences over cp keeps for each token of a rank."""
        listed = self.mask(passes.mask, passes.cp) == "documents"
        return passes.listed_keys if listed else passes.cp

    def _latent_keys(self, latent: LayerShape, passes: Passes) -> tuple[Saved, ...]:
        """Return keys and values that are made of narrow widths, as attention reads them."""
        if passes.cp == 1 or not isinstance(latent, LatentShape):
            return LATENT_ALONE
        pads = self.mask(passes.mask, passes.cp) != "masked"
        return latent.gathered(self._gathered_keys(passes), pads=pads)

    def _saved_heads(
        self, passes: Passes, pattern: AttentionPattern, *, copied: bool
    ) -> tuple[Saved, ...]:
        """Return what projections and norms of heads keep; attention may read `copied` heads."""
        normed = self.qk_norm or self.l2_norm
        found = self._read(passes, pattern, copied=copied or normed)
        by_head = not self.wide_norm
        if normed and by_head:
            found += (Saved(name="root mean squares of query heads", heads=1),)
        # A norm reads, or makes, another tensor than projections do.
        reads_copies = by_head and (passes.are_compiled or passes.wide == 1)
        rotates_first = self.norm_last and pattern.rotates
        if (self.qk_norm and rotates_first and reads_copies) or (
            normed and self.clip is not None and (reads_copies or self.wide_norm)
        ):
            name = "rotated or clipped queries and keys, before their norms"
            found += (Saved(name=name, query=1, key=1),)
        if normed and not passes.are_compiled:
            of_heads = passes.of_head_norms(weighted=self.qk_norm)
            found += (of_heads if by_head else passes.of_wide_norm(),)
        if self.value_norm and not passes.are_compiled:
            found += (passes.of_value_norm(),)
        if self.sharing == "takes":
            # Keys and values stay where they were made.
            found = tuple(replace(each, key=0) for each in found)
        return found

    def _read(
        self, passes: Passes, pattern: AttentionPattern, *, copied: bool
    ) -> tuple[Saved, ...]:
        """Return queries, keys and values, as far as they are kept, and copies of the output.

        Queries (with their gates, if they have any), keys and values are one tensor. It is kept if
        something reads a view of it: norms of heads, gates, clips, or attention, unless it reads
        copies, which are normed, rotated or clipped, in another order (by window, or from two
        lists) or gathered.
        """
        reorders = passes.reorders or pattern.in_windows
        gathers = passes.cp > 1 and not pattern.in_windows
        clips, found = self.clip is not None, []
        # Without norms of values, attention on one rank reads a view of these.
        takes, gives = self.sharing == "takes", self.sharing == "gives"
        copies_values = reorders or self.value_norm or takes
        of_norms = self.qk_norm or self.l2_norm or (self.value_norm and not takes)
        if (self.value_norm or takes) and passes.wide > 1 and not passes.are_compiled:
            of_norms = False
        reads_views = of_norms or self.gated or clips
        if reads_views or not (reorders or (copied and (gathers or copies_values))):
            name = "queries, keys and values, fused"
            is_read = gives and not (gathers or copies_values)
            found.append(
                Saved(name=name, query=self.query_parts, key=self.key_parts, stays=is_read)
            )
        if gathers:
            keys = self._gathered_keys(passes) if pattern.causal else passes.cp
            found.append(Saved(name="queries", query=1 if copied or reorders else 0))
            found.append(Saved(name="gathered keys and values", key=2 * keys, stays=gives))
        elif copied or reorders:
            key = 2 if copies_values or clips else 1
            found.append(Saved(name="copies of queries for attention", query=1))
            found.append(Saved(name="copies of keys for attention", key=key, stays=gives))
        return (*found, IN_ORDER) if reorders or passes.pads else tuple(found)

    def _norm(self, heads: int) -> NormShape | WideNormShape | None:
        if not self.qk_norm:
            return None
        offset = float(self.norm_offset)
        if self.wide_norm:
            width = heads * self.head_size
            return WideNormShape(width, self.eps, self.head_size, offset)
        return NormShape(self.head_size, "rms", self.eps, inside=True, offset=offset)
