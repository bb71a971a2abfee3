"""The first placement of given models on a number of GPUs: by a simple rule, or a better one.

Decides: the rule. All modules share all ranks. The language model gets the smallest tp * pp that
fits into memory, tp before pp, and dp for the rest; an encoder is data parallel. A step has the
fewest microbatches that fit, four per pipeline stage at least; encoders work on all of them
together if that fits. If nothing fits, activations are recomputed; then experts are split over the
ranks of a host; then the weights of language are fully sharded. Another placement is better if the
memory of a GPU is known and the estimates say so, or if nothing fits by the rule.
Relies on: `checks` for what is legal and fits, `advice` for other placements, settings and their
estimates.
Leaves: the models and the data of a spec to `cli.init_draft`.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

from mimo_launch.checks.all_checks import check, is_legal
from mimo_launch.checks.memory import fits, memory_findings
from mimo_launch.checks.rule import divisors
from mimo_launch.estimate.device_constants import constants_for
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.search.advice import Search
from mimo_launch.search.changes import setting_at
from mimo_launch.search.setting_changes import MICROBATCHES_PER_STAGE
from mimo_launch.spec.load import spec_from_data
from mimo_launch.spec.spec import Spec

# A spec that is not the simplest must be faster by more than estimates are wrong.
LEAST_GAIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLayout:
    """The choices of the rule; `encoder_microbatches` None: all of a step together.

    `ep` is the expert-parallel size of the language model.
    """

    num_ranks: int
    tp: int
    pp: int
    microbatches: int
    encoder_microbatches: int | None
    recompute: bool
    ep: int = 1
    full_sharding: bool = False

    @property
    def dp(self) -> int:
        """Replicas of the language model."""
        return self.num_ranks // (self.tp * self.pp)

    def applied(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data of a spec with this layout."""
        modules = {}
        for name, module in data["modules"].items():
            grid = {"dp": self.num_ranks}
            if name == "language":
                grid = {"tp": self.tp, "pp": self.pp, "dp": self.dp}
            ranks = f"0-{self.num_ranks - 1}" if self.num_ranks > 1 else "0"
            placed = {**module, "ranks": ranks, "grid": grid}
            if name == "language" and self.ep > 1:
                placed["experts"] = {"ep": self.ep}
            if name == "language" and self.full_sharding:
                placed["sharding"] = "full"
            modules[name] = placed | ({"recompute": "full"} if self.recompute else {})
        schedule = {"microbatches": self.microbatches}
        if self.encoder_microbatches is not None:
            schedule["encoder_microbatches"] = self.encoder_microbatches
        return {**data, "modules": modules, "schedule": schedule}


class NothingFits(Exception):
    """No layout of the rule is legal and small enough.

    The message is about the last layout that is only too large, or else about the rule that the
    first one breaks; `help` says what to do. `too_large` is that last layout.
    """

    def __init__(self, message: str, help_: str, too_large: FirstLayout | None = None) -> None:
        super().__init__(message)
        self.help, self.too_large = help_, too_large


def choose(data: dict[str, Any], num_ranks: int) -> FirstLayout:
    """Return the first layout that fits, for the data of a spec without any placement.

    Its section `nodes` gives the ranks per host and the memory of a GPU. Raises: NothingFits;
    ValueError if the data are no spec, whatever the layout.
    """
    # Weights to start from do not change what fits, and looking at them takes time.
    bare = {name: {**each, "init_from": None} for name, each in data["modules"].items()}
    illegal: Spec | None = None
    too_large: FirstLayout | None = None
    for layout in _layouts(data, num_ranks):
        spec = spec_from_data(layout.applied({**data, "modules": bare}))
        if not is_legal(spec):
            illegal = illegal or spec
        elif fits(spec, constants_for(spec.nodes)):
            return layout
        else:
            too_large, large = layout, spec
    if too_large is not None:
        last = next(memory_findings(Plan.of(large), constants_for(large.nodes)))
    elif illegal is not None:
        last = next(found for found in check(illegal) if found.is_error)
    else:
        raise NothingFits(
            f"no number of replicas divides {data['batch']['global']} samples",
            f"take a batch that {num_ranks} ranks divide",
        )
    raise NothingFits(f"{last.headline}: {last.why}", last.help, too_large)


def _layouts(data: dict[str, Any], num_ranks: int) -> Iterator[FirstLayout]:
    """Yield layouts in the order of preference, legal or not.

    A smaller tp * pp comes first, then a larger tp; tp and ep stay on a host.
    """
    has_encoders = len(data["modules"]) > 1
    per_host = (data.get("nodes") or {}).get("gpus", num_ranks)
    model = data["modules"]["language"]["model"]
    layers = len(model["pattern"]) if "pattern" in model else model["layers"]
    splits = [
        (tp, pp)
        for tp in divisors(num_ranks)
        for pp in divisors(num_ranks // tp)
        if per_host % tp == 0 and layers % pp == 0
    ]
    splits.sort(key=lambda split: (split[0] * split[1], -split[0]))
    experts = (model.get("moe") or {}).get("experts", 1)
    ways = [each for each in divisors(experts) if per_host % each == 0]
    for full, ep, recompute in product((False, True), ways, (False, True)):
        for tp, pp in splits:
            dp = num_ranks // (tp * pp)
            if data["batch"]["global"] % dp:
                continue
            share = data["batch"]["global"] // dp
            least = min(share, MICROBATCHES_PER_STAGE * pp if pp > 1 else 1)
            for microbatches in (each for each in divisors(share) if each >= least):
                groups: list[int | None] = [None]
                if has_encoders and microbatches > 1:
                    groups += divisors(microbatches)[-2::-1]
                for group in groups:
                    yield FirstLayout(
                        num_ranks=num_ranks,
                        tp=tp,
                        pp=pp,
                        microbatches=microbatches,
                        encoder_microbatches=group,
                        recompute=recompute,
                        ep=ep,
                        full_sharding=full,
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSpec:
    """The data of a spec, the best of `planned` ones.

    `changes` says in words what differs from the rule, and is empty if nothing does. `gain` is how
    much faster that is, None if nothing fits by the rule.
    """

    data: dict[str, Any]
    planned: int
    changes: str = ""
    gain: float | None = None


def first_spec(data: Mapping[str, Any], num_ranks: int) -> FirstSpec:
    """Return the data of a spec with ranks, grids and a schedule.

    `data` have none of them. Encoders may get ranks of their own, or all modules share all ranks.
    Raises: NothingFits; ValueError if the data are no spec, whatever the layout.
    """
    try:
        layout = choose(dict(data), num_ranks)
    except NothingFits as error:
        fitting = _better(data, error.too_large, rule_fits=False) if error.too_large else None
        if fitting is None:
            raise
        return fitting
    knows_memory = not {"gpu", "gpu_memory"}.isdisjoint(data.get("nodes") or {})
    found = _better(data, layout, rule_fits=True) if num_ranks > 1 and knows_memory else None
    return found or FirstSpec(data=layout.applied(dict(data)), planned=1)


def _better(data: Mapping[str, Any], layout: FirstLayout, *, rule_fits: bool) -> FirstSpec | None:
    """Return a spec that is faster than a layout, or that fits if the layout does not."""
    placed = layout.applied(dict(data))
    estimator = Estimator.of(Plan.of(spec_from_data(placed)))
    estimates = estimator.estimates()
    if estimates.gpu_memory is None:
        return None
    search = Search.of(estimator, estimates, estimates.gpu_memory)
    # A layout must not choose what is computed, such as its precision.
    found = [
        each
        for each in (search.run() if rule_fits else search.that_fit())
        if not any(path.startswith("train.") for path in each.change.settings)
    ]
    if not found or (rule_fits and search.gain(found[0]) < LEAST_GAIN):
        return None
    best = search.simplest(found[0])
    better = deepcopy(placed)
    for path, value in best.change.settings.items():
        place, last = setting_at(better, path)
        if value is None:
            place.pop(last, None)  # The default, which needs no line.
        else:
            place[last] = value
    return FirstSpec(
        data=better,
        changes=best.change.text,
        gain=search.gain(best) if rule_fits else None,
        planned=1 + len(search.seen),
    )
