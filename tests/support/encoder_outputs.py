"""What an encoder computes on each rank in a step, beside what it must be of each input alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tests.support.hugging_face import ids_of, started
from torch import Tensor, nn

from mimo_launch.data.build import build_dataset
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.step_views import StepViews
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import Event
from mimo_launch.train.loader import step_inputs


class Seen(NamedTuple):
    """States [n, D] of one group on one rank."""

    replica: int
    group: int
    shard: tuple[int, int]
    tokens: Tensor


def seen_on_rank(
    made: Spec, run: Path, name: str, watch: Callable[[nn.Module, Callable[[Tensor], None]], object]
) -> tuple[list[Seen], list[Event]]:
    """Run a step from the weights of `init_from`; return what this rank's last stage computed.

    `watch` has the last stage call a function with its states.
    """
    session, events = started(made, run)
    module, seen = session.modules.get(name), list[Seen]()
    last = None if module is None else module.stages.get(len(module.layout.stages) - 1)
    if module is not None and last is not None:
        replica = module.layout.grid.index("dp", session.rank)
        shard = module.context.cp.index, module.context.tp.index
        watch(last, lambda x: seen.append(Seen(replica, len(seen), shard, x.detach().clone())))
    session.gradients(step_inputs(build_dataset(made), "train", ids_of(made), 0))
    session.__exit__(None, None, None)
    return seen, events


def deviations_of(
    name: str, made: Spec, parts: list[list[Seen]], alone: Callable[[Any], Tensor]
) -> list[float]:
    """Return, per group and replica with an input, the largest difference by the largest output.

    `alone` returns the states [n, D] of one image or clip.
    """
    layout, inputs = build_layout(made), step_inputs(build_dataset(made), "train", ids_of(made), 0)
    views, module = StepViews(layout, inputs.data), layout[name]
    shards = sorted((seen for part in parts for seen in part), key=lambda seen: seen.shard)
    found = []
    for key in sorted({(seen.replica, seen.group) for seen in shards}):
        view = views.encoder(name, *key)
        read = [each for n in view.samples for each in view.own(n, inputs.images(n, name))]
        mine = [seen for seen in shards if (seen.replica, seen.group) == key]
        if not module.sequence_parallel:
            mine = [seen for seen in mine if seen.shard[1] == 0]
        if not read:
            continue
        with torch.no_grad():
            wanted = torch.cat([alone(each) for each in read])
        tokens = torch.cat([seen.tokens for seen in mine])[: len(wanted)]
        assert wanted.std() > 0.1
        found.append(float((tokens - wanted).abs().max() / wanted.abs().max()))
    return found
