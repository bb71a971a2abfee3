"""Broken programs: each must be reported, with the rank and the action."""

import pytest
from tests.support.graphs import flow
from tests.support.programs import chain, layout_of, peaks, texts, with_program, with_words
from tests.support.specs import box

from mimo_launch.schedule import pipeline
from mimo_launch.schedule.deadlock_proof import simulate
from mimo_launch.schedule.generate import generate


def test_a_send_before_its_forward_is_reported_with_those_that_miss_it():
    layout = chain(4, language=3)
    broken = with_words(
        generate(layout), 0,
        ("language.0SEND_F0", "language.0SEND_F1"),
        ("language.0SEND_F1", "language.0SEND_F0"),
    )  # fmt: skip
    assert simulate(layout, broken).stuck == (
        "rank 0 comes to language.0SEND_F1 before language.0F1",
        "rank 1 waits in language.1RECV_F0",
        "rank 2 waits in language.2RECV_F0",
    )


def test_receives_in_another_order_than_the_sends_are_reported():
    """Messages between two ranks stay in order: a transport need not look for a later one."""
    layout = chain(2, language=2)
    broken = with_program(
        generate(layout), 1,
        "language.1RECV_F1 language.1F1 language.1RECV_F0 language.1F0 "
        "language.1B0 language.1SEND_B0 language.1B1 language.1SEND_B1",
    )  # fmt: skip
    assert simulate(layout, broken).stuck == (
        "rank 0 waits in language.0SEND_F1+language.0RECV_B0",
        "rank 1 waits in language.1RECV_F1",
    )


@pytest.mark.parametrize(
    ("rank", "word", "report"),
    [
        (2, "vision>RECV_F1", "rank 2 comes to language.0F1 before vision>RECV_F1"),
        (3, "language.1RECV_F1", "rank 3 comes to language.1F1 before language.1RECV_F1"),
        (3, "language.1F1", "rank 3 comes to language.1B1 before language.1F1"),
        (1, "vision>RECV_B1", "rank 1 comes to vision.0B1 before vision>RECV_B1"),
        (2, "language.0B1", "rank 2 comes to audio>SEND_B1 before language.0B1"),
        (0, "audio.0F0", "rank 0 comes to audio>SEND_F0 before audio.0F0"),
    ],
)
def test_an_action_without_its_input_is_reported_with_what_it_misses(rank, word, report):
    layout = layout_of(2, audio=box(0), vision=box(1), language=box(2, pp=2))
    programs = [text.replace("+", " ").split() for text in texts(generate(layout))]
    programs[rank].remove(word)
    broken = with_program(generate(layout), rank, " ".join(programs[rank]))
    assert report in simulate(layout, broken).stuck


@pytest.mark.parametrize(
    ("rank", "word", "instead", "report"),
    [
        (1, "language>drawer>RECV_F0", "", "drawer.0F0 before language>drawer>RECV_F0"),
        (
            0,
            "language>drawer>RECV_B1+language>painter>RECV_B1",
            "language>drawer>RECV_B1",
            "language.0B1 before language>painter>RECV_B1",
        ),
    ],
    ids=["a generator before its rows", "language before the answers of all its readers"],
)
def test_a_module_that_does_not_wait_for_another_is_reported(rank, word, instead, report):
    layout = layout_of(2, language=box(0), drawer=box(1, **flow()), painter=box(2, **flow()))
    broken = with_words(generate(layout), rank, (word, instead))
    assert f"rank {rank} comes to {report}" in simulate(layout, broken).stuck


def test_an_exchange_before_its_rows_exist_is_reported():
    layout = layout_of(1, vision=box(0), language=box(0))
    broken = with_words(
        generate(layout), 0,
        ("vision.0F0", "vision>EXCHANGE_F0"),
        ("vision>EXCHANGE_F0", "vision.0F0"),
    )  # fmt: skip
    report = "rank 0 comes to vision>EXCHANGE_F0 before vision.0F0"
    assert simulate(layout, broken).stuck == (report,)


def test_an_action_that_runs_twice_is_reported():
    layout = chain(1, language=1)
    broken = with_program(generate(layout), 0, "language.0F0 language.0B0 language.0B0")
    assert simulate(layout, broken).stuck == ("rank 0 runs language.0B0 a second time",)


def test_a_send_that_is_never_received_is_reported():
    layout = chain(1, vision=1, language=1)
    broken = with_words(generate(layout), 0, ("vision>SEND_F0+vision>RECV_B0", "vision>SEND_F0"))
    broken = with_words(broken, 0, ("vision.0B0", ""))
    assert simulate(layout, broken).stuck == (
        "rank 1 posts vision>SEND_B0, which rank 0 never receives",
    )


def test_a_send_and_a_receive_that_wait_for_each_other_are_a_deadlock_under_rendezvous():
    """Where sends hold a rank up, opposite transfers must be posted together."""
    layout = chain(3, language=2)
    broken = with_words(
        generate(layout), 0,
        ("language.0SEND_F1+language.0RECV_B0", "language.0SEND_F1 language.0RECV_B0"),
    )  # fmt: skip
    broken = with_words(
        broken, 1, ("language.1SEND_B0+language.1RECV_F1", "language.1SEND_B0 language.1RECV_F1")
    )
    assert simulate(layout, broken).stuck == ()
    assert simulate(layout, broken, rendezvous=True).stuck == (
        "rank 0 waits in language.0SEND_F1",
        "rank 1 waits in language.1SEND_B0",
    )


def test_exchanges_in_another_order_are_reported_with_both_ranks():
    layout = layout_of(2, vision=box(0, dp=2), audio=box(0, dp=2), language=box(0, tp=2))
    wanted = "vision.0F0 vision>EXCHANGE_F0 audio.0F0 audio>EXCHANGE_F0 language.0F0 "
    text = texts(generate(layout))[1]
    assert text.startswith(wanted)
    broken = with_program(generate(layout), 1, text.replace(
        wanted, "vision.0F0 audio.0F0 audio>EXCHANGE_F0 vision>EXCHANGE_F0 language.0F0 ",
    ))  # fmt: skip
    assert simulate(layout, broken).stuck == (
        "rank 0 waits in vision>EXCHANGE_F0",
        "rank 1 waits in audio.0F0",
    )


def test_ranks_that_compute_together_in_another_order_are_reported():
    layout = layout_of(1, vision=box(0, tp=2), audio=box(0, tp=2), language=box(2))
    broken = with_words(
        generate(layout), 1, ("vision.0F0", "audio.0F0"), ("audio.0F0", "vision.0F0")
    )
    assert simulate(layout, broken).stuck[:2] == (
        "rank 0 waits in vision.0F0",
        "rank 1 waits in audio.0F0",
    )


def test_an_exchange_that_one_rank_skips_is_reported_on_the_others():
    layout = layout_of(1, vision=box(0), language=box(0, tp=2))
    broken = with_words(generate(layout), 1, ("vision>EXCHANGE_B0", ""))
    assert simulate(layout, broken).stuck == ("rank 0 waits in vision>EXCHANGE_B0",)


def test_warm_up_counted_from_the_head_is_noticed(monkeypatch):
    """With encoders of 1 and 4 stages the shallow one then runs ahead of what language takes."""
    monkeypatch.setattr(pipeline, "distance_to_language", lambda _module, stage: 4 - stage)
    layout = chain(8, vision=1, audio=4, language=1)
    simulation = simulate(layout, generate(layout))
    assert peaks(layout, simulation, "vision") == [5]  # 2 are enough.
    stuck = simulate(layout, generate(layout), rendezvous=True).stuck
    assert stuck[0] == "rank 0 waits in vision>SEND_F2"
    assert len(stuck) == 6


def test_a_program_cut_short_is_reported_where_it_is_missed():
    """A rank that ends early is not stuck itself: those that wait for it are."""
    layout = chain(2, vision=1, language=1)
    broken = with_program(generate(layout), 1, "vision>RECV_F0 language.0F0 language.0B0")
    assert simulate(layout, broken).stuck == ("rank 0 waits in vision>SEND_F1+vision>RECV_B0",)
