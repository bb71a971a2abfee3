"""The most bytes of tensors that are alive in a step on this rank, as the profiler sees them."""

import gc

import torch
from tests.support.kept_steps import kernels_of_gpus
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession


def most_alive(spec: Spec) -> int:
    """Return the peak of a step after the first one, which makes the moments."""
    dataset = build_dataset(spec)
    inputs = step_inputs(dataset, "train", global_order(spec, dataset).take(0), 0)
    with kernels_of_gpus(), RankSession(Plan.of(spec), randomise=True) as session:
        session.step(inputs).read()
        session.updates.clear()
        gc.collect()
        tensors = (each for each in gc.get_objects() if isinstance(each, torch.Tensor))
        # A DTensor reports the storage of the tensor in it as another one.
        storages = {
            each.untyped_storage()._cdata: each.untyped_storage().nbytes()
            for each in tensors
            if not isinstance(each, DTensor)
        }
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            session.step(inputs).read()
    events = (each for each in found.profiler.kineto_results.events() if each.name() == "[memory]")
    now = most = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return sum(storages.values()) + most
