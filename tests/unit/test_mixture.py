"""Mixtures of sources: exact counts, any step from its place alone, epochs of each source."""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.specs import spec

from mimo_launch.checkpoint.folder import DataHasChanged, Marker
from mimo_launch.checkpoint.loading import refuse_other_mixture
from mimo_launch.checks.all_checks import check
from mimo_launch.checks.mixtures import names_differ, weights_mix
from mimo_launch.data.dataset import SourceSamples
from mimo_launch.data.order import block_counts, epochs, mixture, sample_order
from mimo_launch.data.order.block_counts import BLOCK, BadMixture
from mimo_launch.data.order.mixture import MixedOrder, Phase, schedule_of
from mimo_launch.data.order.sample_order import GlobalOrder, PackedOrder, record_order
from mimo_launch.data.random_draws import generator
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.spec import FilesData, Spec
from mimo_launch.survey.index_statistics import source_facts

SIZES = {"chats": 700, "charts": 90, "text": 5000}
# Mean tokens of a record of each source.
LENGTHS = {"chats": 40, "charts": 200, "text": 10}


def sources() -> tuple[SourceSamples, ...]:
    found, first = [], 0
    for name, number in SIZES.items():
        found.append(SourceSamples(name, first, number, number * LENGTHS[name]))
        first += number
    return tuple(found)


def mixed(weights: Sequence[float | None] = (3, 1, 2), batch: int = 8, **data: Any) -> Spec:
    given = [
        {"path": f"{name}.jsonl", "weight": weight}
        for name, weight in zip(SIZES, weights, strict=True)
    ]
    made = {"kind": "files", "sources": given, "tokenizer": "t", "template": "chat", **data}
    return spec({}, data=made, seq=512, mbs=batch)


def order_of(made: Spec) -> MixedOrder:
    found = record_order(made, sum(SIZES.values()), sources())
    assert isinstance(found, MixedOrder)
    return found


def source_of(index: int) -> str:
    ends = np.cumsum(list(SIZES.values()))
    return list(SIZES)[int(np.searchsorted(ends, index, side="right"))]


def counts_of(ids: Sequence[int]) -> dict[str, int]:
    return dict(Counter(map(source_of, ids)))


def blocks(order: MixedOrder, number: int) -> list[dict[str, int]]:
    return [counts_of(order.between(n * BLOCK, (n + 1) * BLOCK)) for n in range(number)]


def test_every_block_has_the_same_counts_in_another_order() -> None:
    order = order_of(mixed())
    assert blocks(order, 20) == [{"chats": 500, "charts": 167, "text": 333}] * 20
    first, second = ([*map(source_of, order.between(n * BLOCK, (n + 1) * BLOCK))] for n in range(2))
    assert first != second
    assert {source_of(each) for each in order.between(0, 12)} == {*SIZES}


def test_each_source_is_read_in_epochs_of_its_own() -> None:
    ids = order_of(mixed()).between(0, 10 * BLOCK).tolist()
    for name, number in SIZES.items():
        own = [each for each in ids if source_of(each) == name]
        whole = [own[at : at + number] for at in range(0, len(own) - number + 1, number)]
        assert all(len({*epoch}) == number for epoch in whole), name
        assert len({tuple(epoch) for epoch in whole}) == len(whole)
        assert len({*own[len(whole) * number :]}) == len(own) % number


def what_is_left(made: Callable[[int], MixedOrder]) -> None:
    """Stop at 20 random places; `made(place)` is the order of the run that goes on there."""
    whole = made(0).between(0, 12 * BLOCK).tolist()
    random.seed(4)
    for place in random.sample(range(12 * BLOCK), 20):
        left = made(place).between(place, 12 * BLOCK).tolist()
        assert left == whole[place:], place


def test_a_run_goes_on_with_the_samples_that_are_left_whatever_its_batch() -> None:
    what_is_left(lambda place: order_of(mixed(batch=1 + place % 7)))
    steps, place, order = list[int](), 0, order_of(mixed(batch=7))
    for _ in range(400):
        steps += order.take(place)
        place = order.after(place)
    assert steps == order.between(0, 2800).tolist()


class StartsAnew(MixedOrder):
    """A source begins again where a run goes on."""

    begin = 0

    def taken(self, block: int) -> list[int]:
        before = super().taken(self.begin // BLOCK)
        return [n - less for n, less in zip(super().taken(block), before, strict=True)]


def test_a_source_that_starts_anew_at_a_resume_is_found() -> None:
    def planted(place: int) -> MixedOrder:
        found = StartsAnew(sources(), [Phase(0, (500, 167, 333))], 8, 0)
        found.begin = place
        return found

    with pytest.raises(AssertionError):
        what_is_left(planted)


def goes_on(before: Spec, now: Spec, step: int) -> None:
    """Resume a run that was saved at a step with other settings."""
    counts = {"step": step, "samples": step * before.batch.global_}
    saved = Marker(
        format=1, counts=counts, updates={}, plan="", spec=dump_spec(before), torch="", files={}
    )

    class Sources:
        def sources(self) -> tuple[SourceSamples, ...]:
            return sources()

    found: Any = SimpleNamespace(marker=saved, path="step-3")
    refuse_other_mixture(found, now, Sources())  # type: ignore[arg-type]


def test_a_run_does_not_go_on_with_another_mixture_of_what_it_has_taken() -> None:
    """Samples would come twice or not at all: a weight, or the place of an earlier change."""
    change = [{"step": 300, "weights": {"text": 0}}]
    goes_on(mixed(), mixed(), 500)
    goes_on(mixed(), mixed(batch=16), 500)
    goes_on(mixed(), mixed(weight_changes=change), 300)
    goes_on(mixed((3, 1, 2)), mixed((6, 2, 4)), 300)
    # A step that ends a block: the weights after it have not counted yet.
    at_block = [{"step": 125, "weights": {"text": 0}}]
    goes_on(mixed(), mixed(weight_changes=at_block), 125)
    with pytest.raises(DataHasChanged, match="before step 126"):
        goes_on(mixed(), mixed(weight_changes=at_block), 126)
    for before, now in (
        (mixed(), mixed((3, 2, 2))),
        (mixed(), mixed(weigh="tokens")),
        (mixed(), mixed((None,) * 3)),
        (mixed(), mixed(weight_changes=change)),
        (mixed(weight_changes=change), mixed(weight_changes=change, batch=16)),
    ):
        with pytest.raises(DataHasChanged, match="before step 500 were mixed otherwise"):
            goes_on(before, now, 500)


def shares_of_tokens(order: MixedOrder) -> dict[str, float]:
    tokens = {n: count * LENGTHS[n] for n, count in counts_of(order.between(0, BLOCK)).items()}
    return {name: each / sum(tokens.values()) for name, each in tokens.items()}


def test_weights_of_tokens_share_out_tokens() -> None:
    found = shares_of_tokens(order_of(mixed((1, 1, 2), weigh="tokens")))
    assert found == pytest.approx({"chats": 0.25, "charts": 0.25, "text": 0.5}, abs=0.01)
    # Planted: the weights taken by samples.
    wrong = shares_of_tokens(order_of(mixed((1, 1, 2), weigh="samples")))
    assert wrong["charts"] > 0.7


def test_weights_change_with_the_first_block_after_a_step() -> None:
    change = [
        {"step": 300, "weights": {"text": 0, "charts": 5}},
        {"step": 600, "weights": {"text": 2}},
    ]
    made = mixed(weight_changes=change)
    order = order_of(made)
    assert isinstance(made.data, FilesData)
    batch = made.batch.global_
    found, first = blocks(order, 9), -(-300 * batch // BLOCK)
    assert found[:first] == [{"chats": 500, "charts": 167, "text": 333}] * first
    later = -(-600 * batch // BLOCK)
    assert found[first:later] == [{"chats": 375, "charts": 625}] * (later - first)
    assert found[later] == {"chats": 300, "charts": 500, "text": 200}
    what_is_left(lambda place: order_of(made))
    text = [each for each in order.between(0, 9 * BLOCK).tolist() if source_of(each) == "text"]
    assert len({*text}) == len(text), "it goes on where it was"


def test_packs_take_records_in_the_order_of_the_mixture() -> None:
    made = mixed(packing=True)
    records = order_of(made)

    def lengths(ids: Any) -> Any:
        return np.array([LENGTHS[source_of(each)] for each in ids])

    order = PackedOrder(records, lengths, made.batch.seq)
    place, packed = 0, list[int]()
    while len(packed) < 4096:
        packed += [index for pack in order.take(place) for index in pack]
        place = order.after(place)
    assert sorted(packed[:4096]) == sorted(records.between(0, 4096).tolist())


@pytest.mark.parametrize("is_mixed", [True, False])
def test_no_random_words_are_used_twice(is_mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By blocks, epochs of sources and chunks of packs: what has the same words is in one order."""
    drawn: list[tuple[Any, ...]] = []
    for module in (epochs, mixture, sample_order):
        monkeypatch.setattr(
            module, "generator", lambda *of: drawn.append((*of, 0)[:3]) or generator(*of)
        )
    records = order_of(mixed()) if is_mixed else GlobalOrder(2000, 8, 0)
    order, place = PackedOrder(records, lambda ids: 0 * ids + 200, 512, chunk=500), 0
    while place < 6000:
        place = order.after(place)
    assert len(drawn) > 12
    assert [each for each, times in Counter(drawn).items() if times > 1] == []


def test_packs_of_every_phase_hold_as_many_records_as_their_mixture_has_room_for() -> None:
    """After two changes, and at the end of the run."""
    change = [{"step": 100, "weights": {"text": 0}}, {"step": 200, "weights": {"text": 90}}]
    made = mixed(packing=True, weight_changes=change)
    assert isinstance(made.data, FilesData)
    made = made.replace(train=made.train.replace(steps=250))
    found = schedule_of(made, made.data, sources())
    place, ends = 0.0, [0]
    for phase, steps in zip(found.phases, (100, 100, 50), strict=True):
        tokens = np.dot(phase.counts, list(LENGTHS.values())) / BLOCK
        place += steps * made.batch.global_ * made.batch.seq / tokens
        ends.append(int(place))
    assert [phase.block for phase in found.phases] == [-(-end // BLOCK) for end in ends[:-1]]
    assert found.end == ends[-1]


def test_a_source_of_less_than_one_sample_in_a_block_is_refused() -> None:
    with pytest.raises(BadMixture, match="`charts` gives it less than one of 1,000"):
        order_of(mixed((1000, 0.1, 1000)))
    assert mixture.counts_of([1, 1, 1], "abc") == (334, 333, 333)
    assert sum(mixture.counts_of([0.3, 0.02, 2, 7.77], "abcd")) == BLOCK


def test_sources_have_the_names_of_their_files() -> None:
    paths = ["a/llava.jsonl", ["b/llava.json"], "data/{000..009}.tar", "x/*", "*"]
    data = {"kind": "files", "tokenizer": "t", "template": "chat", "sources": []}
    for path in paths:
        data["sources"].append({"path": path})
    data["sources"].append({"path": "y", "name": "own"})
    assert spec({}, data=data).data.source_names == (
        "llava", "llava-2", "data", "x", "source", "own"
    )  # fmt: skip


def test_a_name_that_is_written_is_kept_and_no_two_sources_have_the_same() -> None:
    """Names of files get numbers that no other source has."""
    given = ["a/data.jsonl", "data-2.jsonl", "b/data.jsonl", {"path": "c", "name": "data"}]
    made = spec({}, data={"kind": "files", "tokenizer": "t", "template": "chat", "sources": given})
    assert made.data.source_names == ("data-3", "data-2", "data-4", "data")
    assert not list(names_differ(made, made.data))


def test_sources_of_the_same_name_are_refused() -> None:
    """Their metrics and weights could not be told apart."""
    given = [{"path": path, "name": "web"} for path in ("a", "b", "c")]
    made = spec({}, data={"kind": "files", "tokenizer": "t", "template": "chat", "sources": given})
    second, third = (each for each in check(made) if each.code == "bad-value")
    assert (second.code, second.path) == ("bad-value", ("data", "sources", 1, "name"))
    assert second.headline == "two sources have the name `web`"
    assert third.path == ("data", "sources", 2, "name")
    assert second.help == "write another name, such as `name: web-2`"
    assert third.help == "write another name, such as `name: web-3`"
    assert [each.path for each in (*second.related, *third.related)] == 2 * [
        ("data", "sources", 0, "name")
    ]


def test_a_name_to_write_instead_may_be_written() -> None:
    """It is no longer than a name may be, and none that a file has."""
    for name, other in (("w" * 64, f"{'w' * 58}-2"), ("web", "web-3")):
        given = [{"path": "web-2.jsonl"}, *({"path": each, "name": name} for each in "ab")]
        files = {"kind": "files", "tokenizer": "t", "template": "chat"}
        made = spec({}, data=files | {"sources": given})
        [found] = names_differ(made, made.data)
        assert found.help == f"write another name, such as `name: {other}`"
        given[-1]["name"] = other
        again = spec({}, data=files | {"sources": given})
        assert not list(names_differ(again, again.data))


def test_data_tells_shares_and_epochs_of_a_run() -> None:
    """Over a change of weights, and by tokens as by samples."""

    class Sources:
        def sources(self) -> tuple[SourceSamples, ...]:
            return sources()

    made = mixed(weight_changes=[{"step": 500, "weights": {"text": 0}}])
    steps = 4 * BLOCK // made.batch.global_
    made = made.replace(train=made.train.replace(steps=steps))
    found: Any = source_facts(made, Sources())  # type: ignore[arg-type]
    ids = order_of(made).between(0, 4 * BLOCK)
    seen = counts_of(ids)
    tokens = {name: number * LENGTHS[name] for name, number in seen.items()}
    for name, facts in found.items():
        assert facts.share == pytest.approx(seen[name] / (4 * BLOCK))
        assert facts.token_share == pytest.approx(tokens[name] / sum(tokens.values()))
        assert facts.epochs == pytest.approx(seen[name] / SIZES[name])
    plain: Any = source_facts(mixed((None,) * 3), Sources())  # type: ignore[arg-type]
    assert [each.share for each in plain.values()] == [None] * 3


def faults(steps: int = 100, **data: Any) -> list[tuple[str, str]]:
    given = {"weights": data.pop("weights", (3, 1, 2)), **data}
    made = mixed(given.pop("weights"), **given)
    made = made.replace(train=made.train.replace(steps=steps))
    assert isinstance(made.data, FilesData)
    return [(each.code, each.headline) for each in weights_mix(made, made.data)]


CHANGE = {"step": 10, "weights": {"text": 1}}


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"weights": (3, None, 2)}, "mixture-not-usable", "`charts` has no weight"),
        ({"weights": (0, 0, 0)}, "mixture-not-usable", "from step 0 on, no source"),
        ({"weights": (None, None, None), "weigh": "tokens"}, "setting-without-effect", "`weigh`"),
        ({"weights": (None,) * 3, "weight_changes": [CHANGE]}, "setting-without-effect", "changes"),
        ({"weight_changes": [CHANGE, CHANGE]}, "mixture-not-usable", "step 10 comes after"),
        ({"weight_changes": [CHANGE], "steps": 10}, "setting-without-effect", "step 10 does"),
        (
            {"weight_changes": [{"step": 1, "weights": {"txt": 1}}]},
            "mixture-not-usable",
            "names `txt`, which is no source",
        ),
        (
            {"weight_changes": [{"step": 7, "weights": dict.fromkeys(SIZES, 0)}]},
            "mixture-not-usable",
            "from step 7 on, no source has a weight",
        ),
        ({"weights": (3, 0.001, 2)}, "mixture-not-usable", "the weight of `charts` gives it less"),
        (
            {"weight_changes": [{"step": 7, "weights": {"text": 0.001}}]},
            "mixture-not-usable",
            "the weight of `text` gives it less than one of 1,000",
        ),
    ],
)
def test_weights_that_do_not_mix_are_found(given: dict[str, Any], code: str, said: str) -> None:
    [(found, headline)] = faults(**given)
    assert found == code
    assert said in headline


@given(
    weights=st.lists(
        st.one_of(st.just(0.0), st.floats(1e-320, 1e6)), min_size=1, max_size=40
    ).filter(any)
)
def test_weights_that_help_names_for_rare_sources_mix(weights: list[float]) -> None:
    """All of them together, of any number of sources."""
    names = [f"s{number}" for number in range(len(weights))]

    def found(now: Sequence[float]) -> list[Diagnostic]:
        given = [{"path": f"{n}.jsonl", "weight": w} for n, w in zip(names, now, strict=True)]
        made = spec({}, data={"kind": "files", "sources": given, "tokenizer": "t"}, seq=512)
        assert isinstance(made.data, FilesData)
        return list(weights_mix(made, made.data))

    better = list(weights)
    for each in found(weights):
        said = re.fullmatch(r"write `weight: (\S+)`, or 0 to leave it out", each.help)
        assert said is not None
        assert each.path[:2] == ("data", "sources")
        better[int(each.path[2])] = float(said[1])
    assert found(better) == []


def test_numbers_of_samples_stay_those_of_earlier_runs() -> None:
    """A run that goes on with others would repeat samples."""
    assert block_counts.counts_of((0.1, 0.7, 0.5, 0.1), "abcd") == (72, 500, 357, 71)
    assert block_counts.counts_of((3, 1, 2), "abc") == (500, 167, 333)


def test_a_rare_source_of_a_change_is_found_once() -> None:
    change = {"step": 7, "weights": {"text": 1e-5}}
    later = {"step": 9, "weights": {"chats": 2}}
    changed = mixed(weight_changes=[change, later])
    changed = changed.replace(train=changed.train.replace(steps=100))
    assert isinstance(changed.data, FilesData)
    [found] = weights_mix(changed, changed.data)
    assert found.path == ("data", "weight_changes", 0, "weights", "text")
    assert found.help == "write `text: 0.00402`, or 0 to leave it out"
    assert faults(weight_changes=[change | {"weights": {"text": 0.00402}}]) == []


def test_more_sources_than_samples_of_a_block_are_one_finding() -> None:
    given = [{"path": f"{n}.jsonl", "weight": 1} for n in range(BLOCK + 1)]
    made = spec({}, data={"kind": "files", "sources": given, "tokenizer": "t"}, seq=512)
    assert isinstance(made.data, FilesData)
    [found] = weights_mix(made, made.data)
    assert found.headline == "1,001 sources have a weight, and a block has 1,000 samples"


def test_weights_that_mix_are_sound() -> None:
    assert faults(weights=(3, 0.001, 2), weigh="tokens") == []  # Depends on the lengths.
    assert faults(weight_changes=[CHANGE]) == []
    assert faults(weights=(None, None, None)) == []
    order = order_of(mixed((0, 1, 0)))
    assert blocks(order, 2) == [{"charts": 1000}] * 2
