"""Specs that would take without end: bounds at the door, and an answer of bounded size."""

import os
import time
from pathlib import Path

import pytest
from braceexpand import braceexpand
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.specs import box, spec

from mimo_launch.checks.load_and_check import Checked, check_text, load_and_check
from mimo_launch.data.sources.shard_names import MAX_FILES, PatternError, num_names, shard_files
from mimo_launch.diag.diagnostic import to_json
from mimo_launch.diag.text import render
from mimo_launch.kinds.kind import layer_shape
from mimo_launch.kinds.registry import layer_of
from mimo_launch.spec.base import MAX_LAYERS

ROOT = Path(__file__).parents[2]
VALID = (ROOT / "tests" / "fixtures" / "valid.yaml").read_text(encoding="utf-8")
LONG_ANSWER = 100_000


def merges(levels: int, width: int) -> str:
    """Mappings that merge `width` times the one before."""
    lines = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * width)}]}}" for n in range(1, levels)]
    return "\n".join(["a0: &a0 {x: 1}", *lines])


def chain(link: str) -> str:
    """Each value holds the one before."""
    return "a0: &a0 {x: 1}\n" + "\n".join(
        f"a{n}: &a{n} {link.format(f'*a{n - 1}')}" for n in range(1, 400)
    )


def answered(text: str) -> tuple[Checked, str]:
    """Check a text, within the seconds and characters that any file may take."""
    started = time.process_time()
    checked = check_text(text)
    answer = render(checked.diagnostics, checked.source)
    assert all(row["headline"] for row in to_json(checked.diagnostics, checked.source))
    assert time.process_time() - started < 5
    assert len(answer) < LONG_ANSWER
    return checked, answer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(merges(12, 9), "with its aliases written out", id="nested merges"),
        pytest.param("a: &a {<<: [{<<: *a}]}\nb: {<<: *a}", "`<<` takes", id="merge of itself"),
        pytest.param(chain("[{}]"), "aliases nest lists or mappings too deeply", id="deep aliases"),
        pytest.param(chain("{{<<: {}}}"), "`<<` takes", id="deep merges"),
        pytest.param("a: " + "[" * 100_000, "nested too deeply", id="deep lists"),
        pytest.param("a: [" + "x, " * 40_001, "more than 20,000 values", id="many values"),
        pytest.param("k: 1\n" * 1500, "is written twice", id="duplicate keys"),
        pytest.param(
            VALID + "".join(f"k{n}: 1\n" for n in range(1500)), "no key `k0`", id="unknown keys"
        ),
        pytest.param(f"{VALID}? {'k' * 9000}\n: 1\n", "is used as a key", id="long key"),
        pytest.param(VALID + "z: " + "x" * 70_000, "70,000 characters", id="long text"),
        pytest.param(VALID + f"z: [{'{a: 1, a: 2}, ' * 300}]", "written twice", id="long line"),
        pytest.param(
            "modules: {" + ", ".join(f"m{n}: {{}}" for n in range(200)) + "}",
            "`modules` has 200 modules; it must have at most 64",
            id="many modules",
        ),
        pytest.param(VALID.replace("fixture", "x" * 300), "at most 100 letters", id="long name"),
        pytest.param(VALID.replace("  vision:", f"  {'v' * 80}:"), "at most 64", id="module name"),
        pytest.param(VALID.replace("fixture", '"\\ud800"'), "surrogate", id="surrogate"),
        pytest.param(VALID.replace("fixture", '"\\e[2J"'), "\\x1b[2J", id="terminal escape"),
    ],
)
def test_a_file_without_end_is_refused_at_once(text: str, words: str) -> None:
    checked, answer = answered(text)
    assert checked.spec is None
    assert words in answer
    assert "\x1b" not in answer


@pytest.mark.parametrize(
    ("old", "new", "largest"),
    [
        ("layers: 2", "layers: 1000000000", "4,096"),
        ("global: 32", "global: 1000000000", "1,048,576"),
        ("seq: 64", "seq: 1000000000", "134,217,728"),
        ("vocab: digits", "vocab: 1000000000", "134,217,728"),
        ("microbatches: 2", "microbatches: 1000000000", "16,384"),
        ("tp: 2", "tp: 1000000000", "262,144"),
        ("ranks: 4-7", "ranks: 4-99999999", "above 262143"),
        ("hidden: 64", "hidden: 4611686018427387904", "2,147,483,647"),
        ("steps: 100", "steps: 9223372036854775808", "9223372036854775807"),
        ("steps: 100}", "steps: 9}\nidle_ranks: 8-99999999999999999", "above 262143"),
        ("steps: 100}", "steps: 9}\noptimizer: {lr: 9" + "9" * 350 + "}", "9223372036854775807"),
        ("steps: 100}", "steps: 9}\nnodes: {gpus: 8, gpu_memory: 9" + "9" * 400 + "GB}", "a size"),
    ],
    ids=lambda text: text[:30],
)
def test_a_number_that_is_too_large_is_a_finding_that_states_the_largest(
    old: str, new: str, largest: str
) -> None:
    assert old in VALID
    checked, answer = answered(VALID.replace(old, new))
    assert checked.spec is None
    assert largest in answer


def test_a_talker_has_no_more_codebooks_than_a_codec_could() -> None:
    """Each is a table and an output layer of its own: millions took minutes to plan."""
    file = ROOT / "topologies" / "bench" / "talker_1b_disjoint.yaml"
    text = file.read_text(encoding="utf-8")
    checked, answer = answered(text.replace("codebooks: 8", "codebooks: 8000000"))
    assert checked.spec is None
    assert "a whole number from 1 to 1,024" in answer


def test_a_long_line_is_shown_around_its_place() -> None:
    text = VALID + "eval: {samples: 8, " + " " * 5000 + "sample: 1, " + " " * 5000 + "}\n"
    _, answer = answered(text)
    shown, underline = answer.splitlines()[3:5]
    assert len(shown) < 200
    start = underline.index("^")
    assert shown[start : start + len("sample")] == "sample"


@pytest.mark.parametrize(
    ("old", "new"),
    [("fixture", "x" * 300), ("{kind: digits}", f"{{kind: '{'{' * 900}'}}")],
)
def test_a_long_value_is_shown_without_its_middle(old: str, new: str) -> None:
    assert old in VALID
    _, answer = answered(VALID.replace(old, new))
    assert max(map(len, answer.splitlines())) < 400
    assert "..." in answer.partition("\n")[0]


def test_shapes_of_the_most_layers_are_made_once() -> None:
    """A cache for fewer would make all of them anew for each layout of a search."""
    model = spec({"language": box(model={"layers": MAX_LAYERS})}).language.model
    before = layer_shape.cache_info().misses
    shapes = [layer_of(model, number) for number in (*range(MAX_LAYERS), *range(MAX_LAYERS))]
    assert layer_shape.cache_info().misses - before == MAX_LAYERS
    assert len({*map(id, shapes)}) == 1


def test_more_findings_than_anybody_reads_are_counted() -> None:
    _, answer = answered("k: 1\n" * 1500)
    assert answer.endswith("errors in <text>; the first 100 are shown")
    assert answer.count("error[") == 100


def test_fifos_and_devices_are_no_specs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    for path in (tmp_path / "fifo.yaml", Path("/dev/zero")):
        (found,) = load_and_check(path).diagnostics
        assert (found.code, "not a regular file" in found.headline) == ("unreadable-file", True)


@pytest.mark.parametrize(
    "pattern",
    [
        "{0..99999999}.tar",
        "{0..99999999999999999999999}.tar",
        "{99999999999999999999999..0..2}.tar",
        "{0.." + "9" * 9000 + "}.tar",
        "{" + "0" * 9000 + "..199999}.tar",
        "{a..z}" * 6 + ".tar",
        "{z..A..2}" * 6 + ".tar",
        "{0..9}" * 9 + ".tar",
        "{{0..999},{0..999}}{0..999}",
        "{0..199999}" + "x" * 60_000,
        "{a,b" * 50,
        "{" * 30_000 + "}" * 30_000,
        "{a",
    ],
    ids=lambda pattern: pattern[:40],
)
def test_braces_are_counted_before_they_are_expanded(pattern: str) -> None:
    with pytest.raises(PatternError, match="braces"):
        shard_files(pattern)


PIECES = st.sampled_from(
    [*"{},.\\-a0", "{0..3}", "{07..11..2}", "{5..-5..3}", "{a..e..2}", "{Z..b}", "{c..A}", "{x,y"]
)


@given(st.lists(PIECES, max_size=12).map("".join))
@example("{2..{1,2}}{a,{b,c}}")
@example("{0..9..0}{a..z..00}{A..A}{B..A}")
@example("}{,}{{}")
@example("{0..2\n}\\")
def test_the_count_of_names_is_what_the_braces_make(pattern: str) -> None:
    try:
        names = list(braceexpand(pattern))
    except ValueError:
        with pytest.raises(PatternError, match="not balanced"):
            num_names(pattern)
        return
    assert num_names(pattern) == len(names)


def test_a_search_without_end_stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("a/b/1.tar", "a/2.tar", "3.tar", ".hidden/4.tar", "a/b/c/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)

    def named(pattern: str) -> list[str]:
        return [str(path) for path in shard_files(pattern)]

    assert named("**/*.tar") == ["3.tar", "a/2.tar", "a/b/1.tar"]
    assert named("a/*/*.tar") == named("a/b/[0-9].tar") == ["a/b/1.tar"]
    assert named(f"{tmp_path}/.h*/*") == [f"{tmp_path}/.hidden/4.tar"]
    assert named("*/nothing.tar") == []
    # A link to nothing is missing data, not no data.
    (tmp_path / "a/gone.tar").symlink_to("nowhere")
    assert named("*/gone.tar") == ["a/gone.tar"]
    monkeypatch.setattr("mimo_launch.data.sources.shard_names.MAX_FILES", 3)
    with pytest.raises(PatternError, match="more than 3 files and folders"):
        named("**/*.tar")
    assert MAX_FILES == 200_000
