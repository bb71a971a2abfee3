"""One verdict over all steps of a proof."""

from mimo_launch.verify.compare import ModuleVerdict, merge


def verdict(by_floor: int) -> ModuleVerdict:
    return ModuleVerdict("vision", "gradients", tensors=10, judged=10, by_floor=by_floor)


def test_the_floor_may_judge_few_tensors_of_all_steps() -> None:
    """One small tensor of ten in one of two steps is 5 %; in both it is 10 %."""
    assert merge([verdict(0), verdict(1)])[0].passed
    [found] = merge([verdict(1), verdict(1)])
    assert found.failures == ["2 of 20 tensors are too small to be judged"]


def test_the_worst_of_all_steps_is_kept() -> None:
    near, far = verdict(0), verdict(0)
    near.worst, far.worst, far.worst_name = 1e-12, 1e-11, "far"
    [found] = merge([near, far])
    assert (found.worst, found.worst_name, found.tensors) == (1e-11, "far", 20)


def test_the_floor_is_a_share_of_the_tensors_that_count() -> None:
    found = ModuleVerdict("vision", "gradients", tensors=100, judged=10, by_floor=1)
    assert not merge([found])[0].passed
