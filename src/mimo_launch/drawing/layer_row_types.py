"""What `plan.plan` says of the layers of modules, as frozen rows of plain values.

Decides: which facts there are; their names are keys of `plan --json` (docs/plan-json.md).
Relies on: nothing.
Leaves: finding the facts to `layer_rows` and `expert_rows`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """The layers of one kind of a module.

    `parameters` of one of them are those of a rank before it shares them out over dp x cp, its own
    experts among them. `tflop` are those of all of them in a step, forward and backward, on all
    ranks; `kept_bytes` what one of them keeps on a rank from a forward to its backward.
    """

    module: str
    kind: str
    layers: int
    has_experts: bool
    parameters: int
    tflop: float
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPlace:
    """Ranks that hold the same experts of their layers, from the first to the last."""

    first_expert: int
    last_expert: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsRow:
    """The experts of a module, and where they stand.

    `layers` of the module have `experts` each, of which a token goes to `top_k`. `ep`, `tp` and
    `dp` are sizes of their grid, a rank holds `per_rank` of a layer: those that `places` says.
    `parameters` are those of the whole module, `active_parameters` those that one token meets.
    `sent_bytes` are what a rank sends to others in the all-to-alls of a step, both ways, when the
    load is balanced.
    """

    module: str
    layers: int
    experts: int
    top_k: int
    ep: int
    tp: int
    dp: int
    per_rank: int
    parameters: int
    active_parameters: int
    sent_bytes: int
    places: tuple[ExpertPlace, ...]
