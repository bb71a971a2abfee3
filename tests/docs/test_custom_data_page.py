"""The data set on the page about data sets of one's own is read, and its errors are those shown."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.test_custom_modules import read, train
from tests.docs.test_docs import ROOT, write_files

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.data.shard_samples import ShardSamples
from mimo_launch.launcher.forking import custom_class_fault
from mimo_launch.spec.spec import UserData

PAGE = ROOT / "docs" / "custom-data.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the page, and what its programs make, in the current folder."""
    write_files(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_data", raising=False)
    for program in ("make_questions.py", "make_tokenizer.py"):
        subprocess.run([sys.executable, program], check=True)
    return tmp_path


def test_the_first_data_set_is_read(folder: Path) -> None:
    spec = read("questions.yaml")
    assert isinstance(spec.data, UserData)
    assert [each.headline for each in load_and_check("questions.yaml", ()).diagnostics] == []
    assert custom_class_fault(spec) == ""
    found = ShardSamples(spec, spec.data)
    assert (found.num_samples("train"), found.num_samples("heldout")) == (180, 20)
    assert [len(found.images("train", n, "vision")) for n in range(5)] == [0, 1, 1, 1, 0]


def test_the_error_on_the_page_is_that_of_a_sample_that_is_gone(folder: Path) -> None:
    source = folder / "my_data.py"
    source.write_text(source.read_text().replace("(self.ids[number],)", "(-1,)"))
    spec = read("questions.yaml", "data.max_bad_samples=1000")
    assert isinstance(spec.data, UserData)
    with pytest.raises(ValueError, match="hold no usable sample") as said:
        ShardSamples(spec, spec.data)
    first = str(said.value).splitlines()[1].replace(str(folder), "/home/me")
    shown = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert first.replace("sample 0:", "sample 17:") in shown


@pytest.mark.example
def test_the_first_data_set_trains_and_goes_on_with_another_layout(folder: Path) -> None:
    first = train("questions.yaml", "--steps", "10")
    assert first.returncode == 0, first.stderr
    other = ("modules.vision.grid={tp: 2}", "modules.language.grid={dp: 2}")
    more = train("questions.yaml", *[word for each in other for word in ("--set", each)])
    assert (more.returncode, "resumes after step 10" in more.stdout) == (0, True), more.stderr
