"""What a plan adds to computes and transfers: sums of gradients, norms, the update; decoding."""

import pytest
from tests.support.programs import texts, with_program
from tests.support.specs import box, spec

from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.actions import format_program, parse_action, parse_program
from mimo_launch.schedule.deadlock_proof import DeadlockError, proven
from mimo_launch.spec.spec import Spec

END = "step:NORM step:UPDATE"
SMALL = {"steps": 1, "precision": "fp64"}


def training(made: Spec) -> list[str]:
    return texts(Plan.of(made).training)


def test_gradients_are_summed_with_the_last_backward_of_a_stage() -> None:
    made = spec({"language": box(0, dp=2)}, microbatches=2)
    assert (
        training(made)
        == ["language.0F0 language.0B0 language.0F1 language.0B1+language.0REDUCE1 " + END] * 2
    )


def test_fully_sharded_gradients_are_summed_with_every_backward() -> None:
    made = spec({"language": box(0, dp=2, sharding="full")}, microbatches=2)
    assert training(made)[0] == (
        "language.0F0 language.0B0+language.0REDUCE0 "
        "language.0F1 language.0B1+language.0REDUCE1 " + END
    )


def test_sums_over_tp_and_of_a_tied_embedding_follow() -> None:
    made = spec({"language": box(0, tp=2, pp=2, model={"tied": True})})
    ends = [text.partition("REDUCE0 ")[2].partition("+")[0] for text in training(made)]
    first, last = training(made)[0], training(made)[2]
    assert first.endswith("language:SUM_TP language:SUM_TIED " + END), ends
    assert last.endswith("language:SUM_TP language:SUM_TIED " + END), ends
    untied = spec({"language": box(0, tp=2, pp=2)})
    assert not any("SUM_TIED" in text for text in training(untied))


def test_a_frozen_module_sums_nothing_and_an_idle_rank_takes_part_in_the_norms() -> None:
    modules = {"vision": box(0, tp=2, frozen=True), "language": box(2, tp=2)}
    plan = Plan.of(spec(modules, idle_ranks="4"))
    vision, _, language, _, idle = texts(plan.training)
    assert "REDUCE" not in vision
    assert "SUM_TP" not in vision
    assert "language:SUM_TP " + END in language
    assert idle == END


def test_a_norm_before_the_last_backward_is_a_fault_and_one_left_out_a_deadlock() -> None:
    plan = Plan.of(spec({"language": box(0, dp=2)}, microbatches=2))
    early = "language.0F0 language.0B0 step:NORM language.0F1 language.0B1 step:UPDATE"
    with pytest.raises(DeadlockError, match=r"comes to step:NORM before language\.0B1"):
        proven(plan.layout, with_program(plan.training, 0, early))
    without = texts(plan.training)[1].replace("step:NORM ", "")
    with pytest.raises(DeadlockError, match=r"rank 1 comes to step:UPDATE before step:NORM"):
        proven(plan.layout, with_program(plan.training, 1, without))


def test_decoding_runs_language_alone_and_shares_its_choices() -> None:
    modules = {"vision": box(0), "language": box(1, pp=2)}
    plan = Plan.of(spec(modules, eval={"every": 1, "samples": 1}))
    assert texts(plan.decoding) == [
        "",
        "language.0F0 language.0SEND_F0 language:SHARE",
        "language.1RECV_F0 language.1F0 language:SHARE",
    ]
    plan.prove()


def test_what_is_done_once_reads_back() -> None:
    for text in ("language:SUM_TP", "step:UPDATE", "language.0REDUCE3"):
        assert str(parse_action(text)) == text
    program = Plan.of(spec({"language": box(0, tp=2)})).training[0]
    assert parse_program(format_program(program)) == program
    with pytest.raises(ValueError, match="is not an action"):
        parse_action("step:NORM0")
