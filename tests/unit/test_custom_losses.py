"""Losses of a user's own are refused with a reason; the columns that they read come with data."""

import inspect
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.support import custom_losses
from tests.support.graphs import flow
from tests.support.shards import image_bytes, write_shard
from tests.support.specs import box, spec
from tests.unit.test_shard_samples import opened
from tests.unit.test_sources import bad_of, files_spec

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import make_step_data
from mimo_launch.data.sources.record_shapes import shaped
from mimo_launch.diag.users_code import CustomClassError
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.launcher.forking import custom_class_fault
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.custom_loss import check_loss
from mimo_launch.models.language_input import TextForward, read_labelled
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.custom_loss import CustomLoss
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import UnreadStep

ALL = {"weight": 1, "teacher_logits": 3, "teacher_tokens": 3, "score": 3}


def of(name: str, **keys: Any) -> Spec:
    asked = {"kind": f"tests.support.custom_losses:{name}", **keys}
    return spec({"language": box(0, loss=asked)})


def test_losses_of_single_terms_are_taken() -> None:
    check_loss(spec({}))
    check_loss(of("weighted", columns={"weight": 1}))
    check_loss(of("All", columns=ALL, token_columns=["teacher_tokens"]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mean", "`mean` (FILE, line N) returned a tensor [] for 6 tokens, not [6]: return one"),
        ("whole", "`whole` (FILE, line N) returned int: return one term for each token, neither"),
        ("shared", "`shared` (FILE, line N) returned other terms for 6 tokens together than for"),
        (
            "failing",
            "calling it failed in FILE, line M: KeyError: 'nothing'; to read a column of the data, "
            "write `columns: {nothing: 1}` in the loss",
        ),
        ("Buffered", "checkpoints hold parameters only, and it has saved buffers: `seen`"),
        ("Uncalled", "`Uncalled` (FILE, line N) has no method `__call__`"),
        ("Scored", "calling it failed in FILE, line "),
    ],
)
def test_a_loss_that_cannot_be_used_is_refused_with_its_line(name: str, words: str) -> None:
    found = getattr(custom_losses, name)
    file, (_, line) = inspect.getsourcefile(found), inspect.getsourcelines(found)
    wanted = (
        words.replace("FILE", str(file)).replace("N)", f"{line})").replace("M:", f"{line + 1}:")
    )
    with pytest.raises(CustomClassError) as said:
        check_loss(of(name))
    assert str(said.value).startswith(
        f"modules.language.loss, `tests.support.custom_losses:{name}`: {wanted}"
    )


def test_a_plan_says_that_it_does_not_count_a_loss() -> None:
    found = Estimator.of(Plan.of(of("weighted", columns={"weight": 1}))).estimates()
    assert found.not_counted == {"language": ("loss",)}
    assert Estimator.of(Plan.of(spec({}))).estimates().not_counted == {}


def test_a_loss_is_checked_before_workers_start() -> None:
    assert custom_class_fault(of("weighted", columns={"weight": 1})) == ""
    assert "return one term for each token" in custom_class_fault(of("mean"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"counts": "wieght", "columns": {"weight": 1}}, "did you mean `weight`?"),
        ({"token_columns": ["words"]}, "write `words: 1` in `columns`"),
        ({"counts": "words", "columns": {"words": 2}}, "name a column of width 1, or delete"),
    ],
)
def test_columns_that_are_named_are_read(keys: dict[str, Any], words: str) -> None:
    [found] = [each for each in check(of("weighted", **keys)) if each.code == "loss-cannot"]
    assert found.help.startswith(words)


def test_a_shown_record_has_the_values_of_the_columns_that_a_loss_reads(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A bus."}]
    record = {"messages": said, "columns": {"weight": 0.5, "other": 2}, "id": 7}
    (tmp_path / "x.jsonl").write_text(json.dumps(record))
    made = files_spec(tmp_path, str(tmp_path / "x.jsonl"))
    asked = of("weighted", columns={"weight": 1}).language.loss
    language = made.language.replace(loss=asked)
    made = made.replace(modules={**made.modules, "language": language})
    dataset = opened(made)
    keys = dataset.keys("train", 0)
    number = dataset.describe("train", 0).num_labels
    assert number > 1
    assert keys.read["column weight"] == str([0.5] * number)[:60] + "..." * (number > 12)
    assert keys.ignored == {"id": "7"}


def test_a_loss_stands_in_language_and_its_data_have_columns() -> None:
    asked = {"kind": "tests.support.custom_losses:weighted", "columns": {"weight": 1}}
    vision = spec({"vision": box(0, loss=asked)})
    assert [each.headline for each in check(vision) if each.code == "loss-cannot"] == [
        "`vision` has a `loss`"
    ]
    digits = spec({"language": box(0, loss=asked)}, data={"kind": "digits"}, seq=64)
    assert "data of kind digits have no columns" in [each.headline for each in check(digits)]
    gone = of("nothing")
    assert [each.path[-1] for each in check(gone) if each.code == "class-not-found"] == ["kind"]


def chat(answer: str, **columns: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "columns": columns}


def with_loss(made: Spec, **keys: Any) -> Spec:
    asked = CustomLoss.model_validate({"kind": "mine:loss", **keys})
    language = made.modules["language"].replace(loss=asked)
    return made.replace(modules={**made.modules, "language": language})


def of_lines(folder: Path, *records: dict[str, Any], **keys: Any) -> Spec:
    (folder / "x.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return with_loss(files_spec(folder, str(folder / "x.jsonl")), **keys)


def learnt(folder: Path, answer: str) -> int:
    """The number of learnt tokens of an answer."""
    found = opened(of_lines(folder, chat(answer)))
    return int((found.text("train", 0)[1] != IGNORE_LABEL).sum())


def test_columns_lie_at_labels_and_are_counted(tmp_path: Path) -> None:
    number = learnt(tmp_path, "A dog.")
    weights, ids = list(range(1, number + 1)), [[n, 2] for n in range(number)]
    made = of_lines(
        tmp_path,
        chat("A dog.", weight=weights, ids=ids, other=["a"]),
        chat("A dog.", weight=0.5, ids=3),
        columns={"weight": 1, "ids": 2},
        token_columns=["ids"],
        counts="weight",
    )
    found = opened(made)
    assert bad_of(found) == {}
    labels = found.text("train", 0)[1]
    columns = found.columns("train", 0)
    assert columns["weight"][labels != IGNORE_LABEL].tolist() == weights
    assert columns["ids"][labels != IGNORE_LABEL].tolist() == ids
    assert (columns["weight"].dtype, columns["ids"].dtype) == (np.float64, np.int64)
    assert not columns["weight"][labels == IGNORE_LABEL].any()
    assert found.describe("train", 0).counted == sum(weights)
    assert found.columns("train", 1)["ids"].max() == 3
    step = make_step_data(found, "train", [(0, 1), 1], 0)
    assert step.num_terms("language") == sum(weights) + 2 * number / 2
    assert step.num_labels == 3 * number
    # Both records of a pack have their columns, one after the other.
    packed = UnreadStep(found, "train", step).columns(0)["weight"]
    assert packed.sum() == sum(weights) + number / 2
    assert packed[packed != 0].tolist() == [*map(float, weights), *[0.5] * number]


def test_a_tar_shard_has_columns_as_members(tmp_path: Path) -> None:
    number = learnt(tmp_path, "A dog.")
    file = io.BytesIO()
    np.save(file, np.arange(number, dtype=np.float32))
    record = {"json": json.dumps(chat("A dog.")).encode(), "column.weight.npy": file.getvalue()}
    write_shard(tmp_path / "x.tar", [("a", record)])
    made = with_loss(files_spec(tmp_path, str(tmp_path / "x.tar")), columns={"weight": 1})
    assert opened(made).columns("train", 0)["weight"].sum() == sum(range(number))


def test_a_sample_with_a_target_and_nothing_to_learn_has_empty_columns(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, 0.5)
    record = {"target.png": image_bytes(8, 8), "json": json.dumps(chat("A dog.")).encode()}
    write_shard(tmp_path / "x.tar", [("a", {**record, "column.weight.npy": file.getvalue()})])
    drawer = flow()
    drawer["model"] = {**drawer["model"], "patch": 4, "channels": 3}
    modules = spec({"language": box(0, model={"vocab": 400}), "drawer": box(**drawer)}).modules
    template = {"kind": "chat", "learn_not": "(?s).+"}
    made = files_spec(tmp_path, str(tmp_path / "x.tar"), template=template)
    made = with_loss(made.replace(modules=modules), columns={"weight": 1})
    found = opened(made)
    assert bad_of(found) == {}
    assert not found.columns("train", 0)["weight"].any()


@pytest.mark.parametrize("readable", [(True, False), (False, False)])
def test_columns_beside_an_unreadable_sample_keep_their_types(readable: tuple[bool, ...]) -> None:
    made = of("All", columns=ALL, token_columns=["teacher_tokens"])
    dataset, seq = build_dataset(made), made.batch.seq
    blank = np.zeros(seq, np.int64), np.full(seq, IGNORE_LABEL)
    samples = SimpleNamespace(
        text=lambda n: dataset.text("train", n) if readable[n] else blank,
        columns=lambda n: dataset.columns("train", n) if readable[n] else {},
    )
    view = SimpleNamespace(layout=SimpleNamespace(seq=seq), samples=(0, 1))
    forward = SimpleNamespace(view=view, samples=samples, context=ParallelContext())
    loss = made.language.loss
    assert loss is not None
    found = read_labelled(cast(TextForward, forward), loss)
    assert (len(found.places) > 0) == any(readable)
    kinds = {name: each.is_floating_point() for name, each in found.columns.items()}
    assert kinds == {name: name != "teacher_tokens" for name in ALL}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "it has no column `ids` of numbers, which the loss reads"),
        ({"ids": "text"}, "it has no column `ids` of numbers, which the loss reads"),
        ({"ids": [[1, 2], [3]]}, "it has no column `ids` of numbers, which the loss reads"),
        (
            {"ids": [1, 2]},
            r"its column `ids` has the shape [2], and its N learnt tokens need [N, 2]",
        ),
        ({"ids": 1e9}, "its column `ids` has a value that is no token: they are 0 to "),
        ({"ids": 0.5}, "its column `ids` has a value that is no token: they are 0 to "),
        ({"ids": float("nan")}, "its column `ids` has values that are no finite numbers"),
    ],
)
def test_a_sample_with_other_columns_is_bad(
    tmp_path: Path, columns: dict[str, Any], words: str
) -> None:
    number = learnt(tmp_path, "A dog.")
    good = chat("A dog.", ids=1)
    asked: dict[str, Any] = {"columns": {"ids": 2}, "token_columns": ["ids"]}
    found = opened(of_lines(tmp_path, good, chat("A dog.", **columns), **asked))
    assert bad_of(found)["line 2"].startswith(words.replace("N", str(number)))


def test_a_count_below_0_is_bad(tmp_path: Path) -> None:
    """The loss is divided by the sum, which would turn its sign."""
    records = chat("A dog.", weight=0), chat("A dog.", weight=-1)
    for counts in (None, "weight"):
        found = opened(of_lines(tmp_path, *records, columns={"weight": 1}, counts=counts))
        assert len(bad_of(found)) == (counts is not None)


def test_columns_that_no_loss_reads_change_nothing(tmp_path: Path) -> None:
    one, other = opened(of_lines(tmp_path, chat("A dog.", weight=1))), shaped({"columns": "x"})
    assert one.columns("train", 0) == {}
    assert json.loads(other.text) == {"columns": "x"}


def test_synthetic_samples_have_random_columns() -> None:
    made = of("All", columns=ALL, token_columns=["teacher_tokens"], counts="weight")
    found = build_dataset(made)
    columns, labels = found.columns("train", 3), found.text("train", 3)[1]
    assert [each.shape[1:] for each in columns.values()] == [(), (3,), (3,), (3,)]
    assert found.describe("train", 3).counted == columns["weight"].sum() > 0
    assert not columns["score"][labels == IGNORE_LABEL].any()
    assert columns["teacher_tokens"].dtype == np.int64
