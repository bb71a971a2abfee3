"""Data sets of a user's own: read like files, and refused with the line that is to blame."""

import base64
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_shard_samples import VIT, opened
from tests.unit.test_sources import as_lines, bad_of, chats, everything, files_spec

from mimo_launch.checks.all_checks import check
from mimo_launch.data.known_shards import records_of_shards
from mimo_launch.data.order.sample_order import global_order, steps_of
from mimo_launch.data.sources.custom_records import check_custom_data
from mimo_launch.data.sources.file_formats import split_files
from mimo_launch.diag.users_code import CustomClassError
from mimo_launch.launcher.forking import custom_class_fault
from mimo_launch.spec.sections import EvalSpec
from mimo_launch.spec.spec import CustomData, Spec, UserData

CHATS = """
import base64, json
from pathlib import Path

class Chats:
    version = "1"

    def __init__(self, path, first=0):
        self.rows = [json.loads(line) for line in Path(path).read_text().splitlines()][first:]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        messages, images = self.rows[number]
        return {"messages": messages, "images": [base64.b64decode(each) for each in images]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, for modules that no other test sees, with the class `mine:Chats`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(CHATS)
    write_chats(tmp_path, 24)
    yield tmp_path
    sys.modules.pop("mine", None)


def write_chats(folder: Path, number: int) -> None:
    rows = [(m, [base64.b64encode(i).decode() for i in images]) for m, images in chats(number)]
    (folder / "rows").write_text("".join(json.dumps(each) + "\n" for each in rows))


def custom_spec(folder: Path, kind: str = "mine:Chats", **data: Any) -> Spec:
    """A spec over a class of one's own, which takes the place of `kind: files`."""
    made = files_spec(folder, "x")
    given = made.data.model_dump(mode="json", exclude_unset=True, exclude={"sources"})
    given |= {"kind": kind, "options": {"path": "rows"}, **data}
    return made.replace(data=CustomData.model_validate(given, strict=False))


def write_class(folder: Path, body: str) -> Path:
    """Write the class `mine:Own`, with a line for each method."""
    path = folder / "mine.py"
    sys.modules.pop("mine", None)
    path.write_text("class Own:\n" + body)
    return path


def test_a_class_gives_the_same_samples_as_a_file_of_the_same_records(folder: Path) -> None:
    assert VIT
    lines = files_spec(folder, str(as_lines(folder, chats(24))))
    own = custom_spec(folder)
    of_file, of_class = opened(lines), opened(own)
    assert everything(of_class) == everything(of_file)
    order = [steps_of(global_order(a, b), 20) for a, b in ((lines, of_file), (own, of_class))]
    assert order[0] == order[1]
    assert of_class.name("train", 3) == "mine.py sample 3"
    (left,), (right,) = (each.contents("train") for each in (of_file, of_class))
    assert (left.samples, left.name, right.name) == (right.samples, "x.jsonl", "mine.py")


def test_a_class_is_a_source_among_others(folder: Path) -> None:
    lines = str(as_lines(folder, chats(4)))
    own = {"kind": "mine:Chats", "options": {"path": "rows", "first": 20}, "epochs": 2}
    again = {"kind": "mine:Chats", "options": {"path": "rows", "first": 23}, "name": "last"}
    made = files_spec(folder, lines, own, again)
    assert made.data.source_names == ("x", "Chats", "last")
    found = opened(made)
    assert [each.number for each in found.sources()] == [4, 8, 1]
    # The only record of `last` is the last one of `Chats`, though both are in `mine.py`.
    assert [each.tobytes() for each in found.text("train", 12)] == [
        each.tobytes() for each in found.text("train", 11)
    ]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("return {'messages': [][number]}", r"in FILE, line 3: IndexError: list index out of"),
        ("return [number]", r"`Own.__getitem__` \(FILE, line 3\) returned list; a sample is a"),
        ("return {'messages': 5}", "`messages` of its JSON is a number, not a list of messages"),
        ("return {'images': 5}", "its image is int, not a path or bytes"),
        ("return {'x': {(1, 2): 3}}", "it cannot be written as JSON: keys must be str"),
        ("import numpy; return {'image': {'x': numpy.ones(2)}}", "ValueError: The truth value"),
    ],
)
def test_a_sample_that_fails_is_bad_and_its_line_is_named(
    folder: Path, method: str, words: str
) -> None:
    path = write_class(
        folder,
        "    def __len__(self): return 2\n"
        f"    def __getitem__(self, number): {method} if number else ANSWERED\n"
        "ANSWERED = {'messages': [{'role': 'user', 'content': 'a'},"
        "{'role': 'assistant', 'content': 'b'}]}\n",
    )
    found = opened(custom_spec(folder, "mine:Own", options={}))
    assert found.num_samples("train") == 1
    [(key, why)] = bad_of(found).items()
    assert key == "sample 1"
    assert re.search(words.replace("FILE", re.escape(str(path))), why), why


LENGTH = "    def __len__(self): return 2\n"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (LENGTH, r"`Own` \(FILE, line 1\) has no method `__getitem__`"),
        ("    def __getitem__(self, n): ...\n", r"`Own` \(FILE, line 1\) has no method `__len__`"),
        ("    def __init__(self): 1 / 0\n", "calling it failed in FILE, line 2: ZeroDivisionError"),
        ("    def __init__(self, path): ...\n", "calling it failed: TypeError: Own.__init__"),
        (
            "    def __len__(self): return 'x'\n    def __getitem__(self, n): ...\n",
            "its `__len__` failed: TypeError: 'str'",
        ),
        (
            LENGTH + "    def __getitem__(self, n): return {'a': id(object()), 'b': [LOG, "
            "LOG.append(n)]}\nLOG = []\n",
            r"`Own.__getitem__` \(FILE, line 3\) returned another sample .* sample 0 again",
        ),
        ("    raise KeyError('x')\n", "importing `mine` failed in FILE, line 2: KeyError: 'x'"),
        (LENGTH + "def Own(): return 5\n", r"`Own` \(FILE, line 3\) has no method `__len__`"),
        (LENGTH + "Own = None\n", "`mine` has no class or function `Own`"),
    ],
)
def test_a_class_that_cannot_be_used_is_named_with_its_line(
    folder: Path, body: str, words: str
) -> None:
    path = write_class(folder, body)
    made = custom_spec(folder, "mine:Own", options={})
    with pytest.raises(CustomClassError, match=words.replace("FILE", re.escape(str(path)))) as said:
        check_custom_data(made.data)
    assert str(said.value).startswith("the data set `mine:Own`: ")
    assert custom_class_fault(made).startswith("the data set `mine:Own`: ")


def test_a_class_is_looked_for_without_being_run(folder: Path) -> None:
    (folder / "mine.py").write_text("raise SystemExit('was run')\nclass Here: ...")

    def said(made: Spec) -> list[tuple[str, tuple[Any, ...]]]:
        return [(each.headline, each.path) for each in check(made) if "class" in each.code]

    assert said(custom_spec(folder, "mine:Here")) == []
    there = "`mine` defines no `There`"
    assert said(custom_spec(folder, "mine:There")) == [(there, ("data", "kind"))]
    source = {"kind": "mine:There"}
    assert said(files_spec(folder, source)) == [(there, ("data", "sources", 0, "kind"))]
    assert isinstance((made := custom_spec(folder, "mine:Here")).data, UserData)
    assert records_of_shards(made, made.data) is None


def test_an_evaluation_needs_options_of_its_own(folder: Path) -> None:
    made = custom_spec(folder)
    judged = made.replace(eval=EvalSpec(samples=4))
    [finding] = [each for each in check(judged) if each.code == "eval-without-shards"]
    assert finding.help == "write `eval_options: {...}` in `data`, or delete `eval`"
    held = custom_spec(folder, eval_options={"path": "rows", "first": 21})
    [idle] = [each for each in check(held) if each.code == "setting-without-effect"]
    assert idle.path == ("data", "eval_options")
    judged = held.replace(eval=judged.eval)
    assert not [each for each in check(judged) if each.code == "eval-without-shards"]
    found = opened(judged)
    assert (found.num_samples("train"), found.num_samples("heldout")) == (24, 3)
    assert found.text("heldout", 0)[0].tolist() == found.text("train", 21)[0].tolist()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "a source has no `path`"),
        ({"path": "rows", "kind": "mine:Chats"}, "a source has both `path` and `kind`"),
        ({"path": "x", "options": {"n": 1}}, "`options` of a source of files does nothing"),
    ],
)
def test_a_source_is_files_or_a_class(folder: Path, source: dict[str, Any], words: str) -> None:
    found = [each.headline for each in check(files_spec(folder, source))]
    assert words in found


def test_the_index_is_made_anew_if_the_class_says_that_its_samples_changed(folder: Path) -> None:
    made = custom_spec(folder)
    assert isinstance(made.data, UserData)

    def states() -> list[str]:
        said: list[str] = []
        from mimo_launch.data.shard_samples import ShardSamples

        assert isinstance(made.data, UserData)
        ShardSamples(made, made.data, lambda now: said.append(now.why))
        return [*dict.fromkeys(said)]

    assert states() == ["no index yet"]
    assert states() == []
    # A plan knows the samples from the index, and does not run the class.
    known = records_of_shards(made, made.data)
    assert known is not None
    assert known.number == 24
    assert all(each.custom and not each.custom.runs for each in split_files(made.data, "train"))
    write_chats(folder, 25)
    sys.modules.pop("mine")  # As in a new process.
    assert states() == ["mine.py has changed"]
    (folder / "mine.py").write_text(CHATS.replace('"1"', '"version 2"'))
    sys.modules.pop("mine")
    assert states() == ["mine.py has changed"]


def test_a_class_is_called_once_in_a_process(folder: Path) -> None:
    write_class(
        folder,
        "    def __init__(self): CALLS.append(1)\n"
        "    def __len__(self): return 1\n"
        "    def __getitem__(self, number): return ANSWERED\n"
        "ANSWERED = {'messages': [{'role': 'user', 'content': 'a'},"
        "{'role': 'assistant', 'content': 'b'}]}\nCALLS = []\n",
    )
    made = custom_spec(folder, "mine:Own", options={})
    opened(made).text("train", 0)
    opened(made).text("train", 0)
    assert sys.modules["mine"].CALLS == [1]
