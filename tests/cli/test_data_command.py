"""`mimo-launch data` from the outside."""

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.shards import sample, shard_data, tokenizer_folder, write_shard

from mimo_launch.cli.shared.console import Console

Cli = Callable[[str], tuple[int, str, str]]
SPEC = "../../topologies/quickstart.yaml"


def test_it_says_what_digits_are_like(run_cli: Cli) -> None:
    code, out, err = run_cli(f"data {SPEC} --records 500 --steps 1")
    assert (code, err) == (0, "")
    assert out.startswith("quickstart: data of kind digits, 500 of 20,000 records looked at\n")
    heads = [line.partition(" ")[0] for line in out.splitlines() if line and line[0] != " "]
    assert heads == [
        "quickstart:", "tokens", "lengths", "vision", "sequences", "balance",
        "read", "speed", "samples", "sample", "sample",
    ]  # fmt: skip
    assert max(map(len, out.splitlines())) <= 100  # The columns of the screen.
    assert "all of them could be" in out
    assert "<bos> <vision 1: 2 x " in out
    assert "<eos>]]" in out


def test_json_has_the_same_numbers(run_cli: Cli) -> None:
    code, out, _ = run_cli(f"data {SPEC} --records 500 --steps 1 --show 1 --json")
    found = json.loads(out)
    assert code == 0
    assert list(found) == [
        "version", "name", "kind", "seq", "global_batch", "facts", "left_out", "read", "shown",
    ]  # fmt: skip
    assert found["facts"]["surveyed"] == 500
    assert found["left_out"] is None
    assert found["read"]["speed"]["tokens_per_s"] > 0
    assert found["read"]["speed"]["wanted"] is None
    [shown] = found["shown"]
    assert shown["records"][0]["images"] in ({"vision": 0}, {"vision": 1})


def test_only_files_have_an_index_to_copy(run_cli: Cli, tmp_path: Path) -> None:
    code, _, err = run_cli(f"data {SPEC} --records 10 --steps 1 --index-to {tmp_path}")
    assert code == 2
    assert "generated data have no index" in err


@pytest.mark.parametrize(
    ("wanted", "code", "words"), [("1", 0, "keeps up with 1"), ("1e15", 1, "TOO SLOW for")]
)
def test_the_exit_code_says_whether_reading_keeps_up(
    run_cli: Cli, wanted: str, code: int, words: str
) -> None:
    found, out, _ = run_cli(
        f"data {SPEC} --records 10 --steps 1 --show 0 --tokens-per-second {wanted}"
    )
    assert (found, words in out, "sample 0" in out) == (code, True, False)


def test_a_spec_with_mistakes_is_not_read(run_cli: Cli) -> None:
    code, out, err = run_cli("data ten_mistakes.yaml")
    assert (code, out) == (2, "")
    assert "error[" in err


def shard_spec(folder: Path, **data: Any) -> Path:
    """A spec over one shard, written to a file."""
    tokenizer_folder(folder / "tokenizer")
    write_shard(folder / "a.tar", ((f"{number:03}", sample(number)) for number in range(30)))
    vision = {"kind": "vit", "layers": 1, "hidden": 16, "heads": 2, "patch": 2, "shuffle": 2}
    language = {"kind": "decoder", "layers": 1, "hidden": 16, "heads": 2, "vocab": 400}
    made = {
        "version": 1,
        "name": "shards",
        "modules": {
            "vision": {"model": {**vision, "channels": 3}, "ranks": "0"},
            "language": {"model": language, "ranks": "0"},
        },
        "batch": {"global": 4, "seq": 256},
        "data": shard_data(folder, **{"max_rows": 24, **data}),
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(made))
    return path


def test_shards_are_read_and_shown_on_a_page(run_cli: Cli, tmp_path: Path) -> None:
    path, html = shard_spec(tmp_path, packing=True), tmp_path / "samples.html"
    code, out, err = run_cli(f"data {path} --html {html}")
    assert code == 0
    assert "data of kind webdataset, 30 records looked at" in out
    assert "bad        0 records\n" in out
    assert "packed into each (data.packing: true), would be" in out
    assert "What is number" in out
    assert f"wrote {html}" in err
    assert "data: indexing 1 shard (train)" in err
    assert "data: 30 samples (train)" in err
    page = html.read_text()
    assert "data:image/png;base64," in page
    assert "<script" not in page
    assert "http" not in page


@pytest.mark.parametrize(
    ("asked", "shown", "packing"), [(7, 7, "false"), (40, 30, "false"), (40, 30, "true")]
)
def test_as_many_samples_are_shown_as_asked_for_each_once_by_shard_and_key(
    run_cli: Cli, tmp_path: Path, asked: int, shown: int, packing: str
) -> None:
    """However many steps are read: a step has four, the epoch 30 records."""
    path = shard_spec(tmp_path)
    code, out, _ = run_cli(f"data {path} --show {asked} --steps 1 --set data.packing={packing}")
    assert code == 0
    named = re.findall(r"^  (a\.tar 0\d\d), \d+ tokens, \d+ learnt", out, re.MULTILINE)
    assert len(named) == len(set(named)) == shown
    assert "read       4 records of 1 step" in out or packing == "true"


PAINTED = re.compile("\x1b\\[(32|36)m(.*?)\x1b\\[0m", re.DOTALL)


def test_learnt_text_is_green_on_a_screen_and_in_brackets_elsewhere(
    run_cli: Cli, tmp_path: Path
) -> None:
    path = shard_spec(tmp_path)
    command = f"data {path} --show 3 --steps 1"
    plain, painted = (run_cli(f"{color}{command}")[1] for color in ("", "--color always "))
    plain, painted = (said[said.index("samples  ") :] for said in (plain, painted))
    assert "\x1b" not in plain

    def in_brackets(found: re.Match[str]) -> str:
        return f"[[{found[2]}]]" if found[1] == "32" else found[2]

    # Lines are filled to the screen, so their ends differ.
    assert PAINTED.sub(in_brackets, painted).split() == plain.split()
    rows = [text for color, text in PAINTED.findall(painted) if color == "36"]
    marks = re.findall(r"<vision \d+: .*?>", " ".join(plain.split()))
    assert [" ".join(each.split()) for each in rows] == ["<rows>", *marks]
    assert len(rows) > 1


def test_text_from_outside_sets_no_colours(run_cli: Cli, tmp_path: Path) -> None:
    said = [
        {"role": "user", "content": "\x1b[31mred\x01"},
        {"role": "assistant", "content": "\x1b[31mNo"},
    ]
    path = shard_spec(tmp_path)
    records = [("000", {"json": {"messages": said}}), ("\x1b[31mbad", {"json": {}})]
    write_shard(tmp_path / "a.tar", records)
    code, out, _ = run_cli(f"--color always data {path} --steps 1")
    assert code == 0
    assert "\x1b[31m" not in out
    assert "a.tar \\x1b[31mbad: " in out
    assert "user\\n\\x1b[31mred\\x01<|im_end|>" in out
    assert "\x1b[32m\\x1b[31mNo<|im_end|>\x1b[0m" in out


def test_names_that_are_no_text_can_be_said(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shard_spec(tmp_path, shards=str(tmp_path / "*.tar"))
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("no\udcfftext.json"))
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr("sys.stdout", out)
    code, _, err = run_cli(f"data {path} --steps 1")
    out.seek(0)
    assert (code, "1 bad" in err) == (0, True)
    assert r"b.tar no\udcfftext" in out.read()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_stays_json_where_a_stream_has_fewer_letters(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "\u00e9 \u6a21 \U0001f600 \udcff \x7f"
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", out)
    Console().answer(json.dumps([said], ensure_ascii=False))
    out.seek(0)
    assert json.loads(out.read()) == [said]


def test_what_cannot_be_used_or_written_is_said(run_cli: Cli, tmp_path: Path) -> None:
    path = shard_spec(tmp_path)
    code, _, err = run_cli(f"data {path} --set batch.seq=8")
    assert code == 1
    assert (
        "the data (train) hold no usable sample: 0 are bad, 30 are longer than `batch.seq` 8" in err
    )
    (tmp_path / "tokenizer" / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    # With placeholders, validate need not know what the template writes for an image.
    code, _, err = run_cli(f"data {path} --set modules.vision.placeholder=381")
    assert code == 1
    assert f"error: the chat template in {tmp_path}/tokenizer cannot be used: it does not" in err
    code, _, err = run_cli(f"data {SPEC} --records 10 --steps 1 --html {tmp_path}/no/page.html")
    assert code == 1
    assert "No such file or directory" in err


@pytest.mark.parametrize("option", ["--stats", "--html"])
def test_the_spec_is_not_written_over(option: str, run_cli: Cli, tmp_path: Path) -> None:
    path = shard_spec(tmp_path)
    before = path.read_bytes()
    code, out, err = run_cli(f"data {path} {option} {path}")
    assert (code, out) == (2, "")
    assert "would be written over the spec" in " ".join(err.split())
    assert path.read_bytes() == before


def test_statistics_stand_for_shards_that_are_away(run_cli: Cli, tmp_path: Path) -> None:
    write_shard(tmp_path / "000.tar", [(f"{n:03d}", sample(n)) for n in range(40)])
    tokenizer_folder(tmp_path / "tokenizer")
    made = yaml.safe_load((Path(__file__).parent / SPEC).resolve().read_text())
    made["modules"]["vision"]["model"].update(channels=3)
    made["modules"]["language"]["model"]["vocab"] = 400
    made["batch"]["seq"] = 256
    made["data"] = shard_data(tmp_path)
    del made["eval"]
    file, stats = tmp_path / "spec.yaml", tmp_path / "stats.json"
    file.write_text(yaml.safe_dump(made))
    code, _, err = run_cli(f"data {file} --steps 1 --show 0 --stats {stats}")
    assert code == 0, err
    assert f"`expect: {stats}` in `data`" in err
    assert json.loads(stats.read_text())["samples"] == 40
    (tmp_path / "000.tar").unlink()
    away = f"--set data.expect={stats}"
    assert run_cli(f"validate {file} {away}")[0] == 2
    code, _, err = run_cli(f"plan {file} {away}")
    assert code == 0, err
    assert "warning[shards-not-found]" in err
