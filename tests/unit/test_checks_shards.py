"""What `validate` says of shards, tokenizers and processors, before anything is read."""

import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.shards import PARTS, image_bytes, tokenizer_folder, write_shard

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.data.sample_sizes import largest_image, longest_sample
from mimo_launch.data.sources import fetching
from mimo_launch.data.sources.shard_names import shard_files
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.diag.installed import SHARD_PACKAGES
from mimo_launch.layout.layout import build_layout
from mimo_launch.processors.tokenizer import num_tokens, token_id

TEXT = """
version: 1
name: shards
modules:
  vision:
    model: {{kind: vit, layers: 1, hidden: 16, heads: 2, patch: 4, channels: 3, shuffle: 2}}
    ranks: 0
  language:
    model: {{kind: decoder, layers: 1, hidden: 16, heads: 2, vocab: 400}}
    ranks: 0
batch: {{global: 2, seq: 128}}
data: {{kind: webdataset, shards: "{folder}/*.tar", tokenizer: "{folder}/tok", template: chat}}
"""


# With one token for an image.
PLAIN = PARTS.replace("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>")


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A sound spec, with its files."""
    tokenizer_folder(tmp_path / "tok", PLAIN)
    write_shard(tmp_path / "000.tar", [("x", {"jpg": image_bytes(8, 8), "json": {}})])
    return TEXT.format(folder=tmp_path)


def found(text: str, *settings: str) -> list[Diagnostic]:
    return list(check_text(text, overrides=settings).diagnostics)


def test_a_sound_spec_has_no_findings(text: str) -> None:
    assert found(text) == []


def test_all_samples_of_held_out_shards_may_be_evaluated(text: str, tmp_path: Path) -> None:
    """A set that ends, unlike digits (see the fixture of `evaluation-of-made-up-data`)."""
    assert found(text, f"data.eval_shards={tmp_path}/*.tar", "eval={samples: all}") == []


def test_the_id_of_the_marker_is_what_to_write(text: str, tmp_path: Path) -> None:
    """A placeholder that the tokenizer has is fine; the marker is known to few tokenizers."""
    known = token_id(tmp_path / "tok", "<|image_pad|>")
    assert found(text, f"modules.vision.placeholder={known}") == []
    [item] = found(text, "modules.vision.placeholder=7")
    assert item.help == "add `<image>` to the tokenizer, and write its id"
    [item] = found(text, "modules.vision.placeholder=7", "data.image_marker=<|image_pad|>")
    asked = f"--set modules.vision.placeholder={known}"
    assert item.help == f"write `{asked}`, which is `<|image_pad|>`"


def test_a_template_with_several_tokens_for_an_image_needs_a_placeholder(
    text: str, tmp_path: Path
) -> None:
    """As `train` would say at once; and a template that does not compile."""
    known = token_id(tmp_path / "tok", "<|image_pad|>")
    (tmp_path / "tok" / "chat_template.jinja").write_text(PARTS)
    [item] = found(text)
    assert (item.code, item.path) == ("tokenizer-not-usable", ("modules", "vision"))
    assert "for an image it writes <|vision_start|> <|image_pad|> <|vision_end|>" in item.why
    assert f"write `placeholder: {known}` in `vision`" in item.help
    assert found(text, f"modules.vision.placeholder={known}") == []
    (tmp_path / "tok" / "chat_template.jinja").write_text("{% for %}")
    [item] = found(text)
    assert "it cannot be compiled" in item.why


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        (["data.shards={tmp}/{000..002}.tar"], "shards-not-found", "2 of 3 are missing"),
        (["data.shards={tmp}/x*.tar"], "shards-not-found", "names no file"),
        (["data.shards=[{tmp}/000.tar, {tmp}/1.tar]"], "shards-not-found", "1.tar` names no file"),
        (["data.eval_shards={tmp}/1.tar", "eval={every: 1}"], "shards-not-found", "1.tar"),
        (["data.eval_shards={tmp}/000.tar"], "setting-without-effect", "without an `eval`"),
        (["data.tokenizer={tmp}"], "tokenizer-not-usable", "cannot be used"),
        (["modules.vision.placeholder=7"], "placeholder-not-in-tokenizer", "token with id 7"),
        (["data.processors={visoin: {tmp}}"], "processor-not-supported", "not an encoder"),
        (["data.processors={vision: {tmp}}"], "processor-not-supported", "does not fit"),
        (["modules.vision.model.channels=1", "data.processors={vision: {tmp}/clip}"],
         "processor-not-supported", "does not fit"),
        (["modules.vision.model={kind: gemma4_vision, patch: 14, layers: 1, hidden: 8, heads: 1, "
          "mlp: 8, shuffle: 1, places: 15, channels: 3}", "data.processors={vision: {tmp}/clip}"],
         "processor-not-supported", "images that are 16 patches long, but `vision` has 15"),
        (["data.processors={vision: {tmp}/clip}"], "seq-too-short", "shorter than a sample with"),
        (["modules.language.model.vocab=300"], "vocab-too-small", "tokens of the tokenizer + 1"),
        (["eval={every: 1}"], "eval-without-shards", "no shards to evaluate on"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    text: str, tmp_path: Path, settings: list[str], code: str, words: str
) -> None:
    (tmp_path / "clip").mkdir()
    processor = {"image_processor_type": "CLIPImageProcessor"}
    (tmp_path / "clip" / "preprocessor_config.json").write_text(json.dumps(processor))
    (only,) = found(text, *(each.replace("{tmp}", str(tmp_path)) for each in settings))
    assert (only.code, words in f"{only.headline}: {only.why}") == (code, True), only


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda tar: tar, ""),
        (lambda tar: tar[: tarfile.BLOCKSIZE], ""),
        (lambda tar: tar[:-1], "is cut off after 10,239 bytes"),
        (lambda tar: tar[:148] + b"X" + tar[149:], "has a bad header"),
        (lambda tar: bytes(10_240), ""),
        (lambda tar: bytes(1024), ""),
        (lambda tar: bytes(1 << 20), "has 1,048,576 bytes and begins with zeros"),
        (lambda tar: b"no tar file\n" * 100, "has a bad header"),
        (lambda tar: b"", "is empty"),
    ],
    ids=[
        "whole",
        "whole blocks",
        "a byte less",
        "a wrong sum",
        "no members",
        "none and short",
        "zeros",
        "text",
        "empty",
    ],
)
def test_a_shard_that_is_no_tar_file_is_found_by_its_first_header_and_size(
    text: str, tmp_path: Path, spoil: Callable[[bytes], bytes], why: str
) -> None:
    whole = (tmp_path / "000.tar").read_bytes()
    assert len(whole) == 10_240
    (tmp_path / "001.tar").write_bytes(spoil(whole))
    findings = found(text)
    assert [item.code for item in findings] == (["shards-not-tar"] if why else [])
    if why:
        assert findings[0].headline.endswith(f"not plain tar files: {tmp_path}/001.tar")
        assert why in str(findings[0].why)


def test_the_first_shard_may_be_without_members(text: str, tmp_path: Path) -> None:
    """What the others hold is compared with the encoders."""
    (tmp_path / "000.tar").rename(tmp_path / "001.tar")
    (tmp_path / "000.tar").write_bytes(bytes(10_240))
    assert found(text) == []


_FILES = "write `kind: files` and `sources: [PATH]` in place of"
_TABLE = "write `kind: files` and `sources: [PATH]` for Parquet or Arrow; make JSON lines of others"


@pytest.mark.parametrize(
    ("name", "content", "code", "what", "instead"),
    [
        ("x.jsonl", b'{"messages": []}\n', "shards-not-tar", "is a file of JSON", _FILES),
        ("x.jsonl.gz", b"\x1f\x8b..", "shards-compressed", "is compressed", "unpack them"),
        ("x.data", b' [{"a": 1}]', "shards-not-tar", "is a file of JSON", _FILES),
        ("x.parquet", b"PAR1\x15", "shards-not-tar", "is a table", _TABLE),
        ("x.tar", b"PAR1\x15", "shards-not-tar", "is a table", _TABLE),
        ("x.csv", b"a,b\n", "shards-not-tar", "is a table", _TABLE),
        ("x.zip", b"PK\x03\x04", "shards-not-tar", "is a zip file", "unpack it, and pack"),
        ("x.tar", b"\x1f\x8b\x08", "shards-compressed", "is compressed", "unpack them"),
        ("x.tar.zst", b"?", "shards-compressed", "is compressed", "unpack them"),
        ("x.tar", b"version https://git-lfs.github.com/spec/v1\n", "shards-not-tar",
         "is a pointer of Git LFS", "run `git lfs pull`"),
        ("x.tar", b"\n<!DOCTYPE html>", "shards-not-tar", "is a web page", "download it again"),
    ],
)  # fmt: skip
def test_a_file_of_another_format_is_called_what_it_is(
    text: str, tmp_path: Path, name: str, content: bytes, code: str, what: str, instead: str
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).write_bytes(content)
    (only,) = found(text, f"data.shards={tmp_path}/other/*")
    assert (only.code, only.help[: len(instead)]) == (code, instead)
    assert str(only.why).startswith(f"{name} {what}")


@pytest.mark.parametrize(
    ("address", "instead"),
    [
        ("hf://datasets/a/b/*.tar", "`hf download --repo-type dataset`, and write `shards: "
         "FOLDER/*.tar`"),
        ("hf://datasets/a/b/x.parquet", f"--repo-type dataset`, and {_TABLE}"),
        ("pipe:aws s3 cp s3://a/x.tar -", "every host sees, and write `shards: FOLDER/*.tar`"),
    ],
)  # fmt: skip
def test_an_address_is_no_path(text: str, tmp_path: Path, address: str, instead: str) -> None:
    (only,) = found(text.replace(f"{tmp_path}/*.tar", address))
    assert only.headline == f"`{address}` is an address, not a path"
    assert only.help.endswith(instead)


@pytest.mark.parametrize("address", ["s3://bucket/{000..009}.tar", "https://host/x.tar"])
def test_an_address_is_looked_at_by_a_run_alone_and_needs_its_package(
    text: str, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = text.replace(f"{tmp_path}/*.tar", address)
    assert not found(there)
    monkeypatch.setattr(fetching, "is_installed", lambda name: name == "fsspec")
    (only,) = found(there)
    package = "s3fs" if address.startswith("s3") else "aiohttp"
    assert (only.code, only.help.startswith(f"pip install '{package}>=")) == (
        "missing-package", True,
    )  # fmt: skip


def test_of_a_folder_the_shards_in_it_are_meant(text: str, tmp_path: Path) -> None:
    (only,) = found(text.replace(f"{tmp_path}/*.tar", str(tmp_path)))
    assert only.why == f"{tmp_path} is a folder"
    assert only.help == f"write `shards: {tmp_path}/*.tar` of files that exist"


def test_an_encoder_of_sound_over_images_is_a_warning(text: str) -> None:
    sound = "  sound: {model: {kind: audio, layers: 1, hidden: 16, heads: 2}, ranks: 0}\n"
    more = text.replace("  language:", sound + "  language:")
    (only,) = found(more, "batch.seq=2048")
    assert only.code == "encoder-without-members"
    assert not only.is_error
    assert "its first 2 members end in jpg, json" in only.why


def test_a_given_placeholder_needs_no_room_behind_the_tokenizer(text: str, tmp_path: Path) -> None:
    vocab = num_tokens(tmp_path / "tok")
    settings = [f"modules.language.model.vocab={vocab}"]
    assert [each.code for each in found(text, *settings)] == ["vocab-too-small"]
    assert found(text, *settings, f"modules.vision.placeholder={vocab - 3}") == []


@pytest.mark.parametrize("package", ["braceexpand", "tokenizers", "PIL", "jinja2"])
def test_a_missing_package_is_found(
    text: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (only,) = found(text)
    assert only.code == "missing-package"
    assert only.help == f"pip install '{SHARD_PACKAGES[package]}'", "we are in no index of packages"


def test_sound_needs_packages_of_its_own(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images need none of them."""
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert found(text) == []
    sound = "  sound: {model: {kind: audio, layers: 1, hidden: 16, heads: 2}, ranks: 0}\n"
    more = text.replace("  language:", sound + "  language:")
    first, *_ = found(more, "batch.seq=2048")
    assert (first.code, first.help) == ("missing-package", "pip install 'soundfile>=0.12'")


def test_plan_knows_sizes_without_looking_at_samples(text: str, tmp_path: Path) -> None:
    """The default keeps 256 rows at most; a step of average samples fits into the sequence."""
    spec = check_text(text).spec
    assert spec is not None
    assert largest_image(spec, "vision").rows <= 128
    data = nominal_step_data(spec)
    build_layout(spec)
    for sample in data.samples:
        assert sample.num_tokens <= spec.batch.seq
        (span,) = sample.spans["vision"][:1]
        assert 32 <= span.rows <= 64
        assert 0 < sample.num_labels < sample.num_tokens
    assert longest_sample(spec) == 2
    assert not (tmp_path / ".mimo-index").exists()


def test_images_of_one_size_are_known(text: str, tmp_path: Path) -> None:
    processor: dict[str, Any] = {
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": 52, "width": 40},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    spec = check_text(text, overrides=[f"data.processors={{vision: {tmp_path}}}"]).spec
    assert spec is not None
    largest = largest_image(spec, "vision")
    assert (largest.height, largest.width) == (6, 5)
    assert longest_sample(spec) == 32
    (span,) = nominal_step_data(spec).samples[0].spans["vision"][:1]
    assert (span.height, span.width) == (6, 5)


def test_validate_stays_fast_and_light(text: str, tmp_path: Path) -> None:
    """No torch, no decoder, no tokenizer library; half a second with Python's own start.

    Of a spec that names its placeholders: without, only the template can say what they are.
    """
    known = token_id(tmp_path / "tok", "<|image_pad|>")
    text = text.replace("  vision:\n", f"  vision:\n    placeholder: {known}\n")
    assert "placeholder" in text
    (tmp_path / "spec.yaml").write_text(text)
    code = (
        "import sys; from mimo_launch.checks.load_and_check import load_and_check as c;"
        f"assert c({str(tmp_path / 'spec.yaml')!r}).diagnostics == ();"
        "bad = {'torch', 'PIL', 'tokenizers', 'webdataset', 'numpy'} & set(sys.modules);"
        "assert not bad, bad"
    )
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert time.perf_counter() - begin < 30, "far above what it takes, for a busy machine"


GRAPH = """
  merger:
    model: {kind: connector, layers: 1, hidden: 16, heads: 2, merge: width}
    ranks: 0
    reads: [vision, coarse]
  coarse:
    model: {kind: vit, layers: 1, hidden: 16, heads: 2, patch: 8, channels: 3}
    ranks: 0
  drawer:
    model: {kind: flow, layers: 1, hidden: 16, heads: 2, patch: 4, channels: 3}
    ranks: 0
    reads: [language]
batch:"""


def test_a_graph_over_shards_is_checked_as_any_other(text: str, tmp_path: Path) -> None:
    graph = text.replace("\nbatch:", GRAPH)
    [without] = found(graph)
    assert without.code == "encoder-without-members"
    assert "`drawer` learns to make images" in without.headline
    talks = "{kind: talker, layers: 1, hidden: 16, heads: 2, vocab: 20}"
    [silent] = found(graph, f"modules.drawer.model={talks}")
    assert "`drawer` learns to make codes" in silent.headline
    assert "`KEY.target.npy`" in silent.help
    shown = {"png": image_bytes(8, 8), "json": {}}
    write_shard(tmp_path / "000.tar", [("x", {**shown, "target.png": image_bytes(8, 8)})])
    assert found(graph) == []
    [unequal] = found(graph, "modules.coarse.model.patch=4")
    assert unequal.code == "merged-rows-differ"
    settings = ("data.target_reads=3", "data.target_marker=<made>")
    assert found(graph, *settings) == []
    assert [each.code for each in found(text, *settings)] == ["setting-without-effect"] * 2
    [only] = found(graph, "data.processors={merger: x}")
    assert only.help == "the modules of this spec that have one: `vision`, `coarse`, `drawer`"


def test_plan_knows_the_rows_of_a_graph_over_shards(text: str, tmp_path: Path) -> None:
    """A tower behind a resampler is not bound by the sequence, and a flow by nothing but itself."""
    graph = text.replace("\nbatch:", GRAPH.replace("merge: width", "queries: 5"))
    spec = check_text(graph, overrides=["data.target_reads=9"]).spec
    assert spec is not None
    [sample] = {id(each): each for each in nominal_step_data(spec).samples}.values()
    rows = {name: sample.rows(name) for name in spec.encoders | spec.generators}
    assert rows == {"vision": 121, "coarse": 121, "merger": 5, "drawer": 121}
    (span,) = sample.spans["drawer"]
    assert (span.reads, span.position) == (9, sample.num_tokens - 9)
    assert longest_sample(spec) == 7
    build_layout(spec)
    plain = text.replace("\nbatch:", GRAPH.replace("merge: width", "merge: rows"))
    spec = check_text(plain).spec
    assert spec is not None
    [sample] = {id(each): each for each in nominal_step_data(spec).samples}.values()
    assert 2 < sample.rows("merger") <= spec.batch.seq - 2
    assert sample.num_tokens <= spec.batch.seq


@pytest.mark.parametrize("many", [10, 200])
def test_the_names_in_braces_are_measured_not_the_pattern(
    text: str, tmp_path: Path, many: int
) -> None:
    """Names of 40 bytes each: together more than a name, or a whole path, may have."""
    names = [f"a-name-of-a-shard-of-photographs-{n:03d}.tar" for n in range(many)]
    for name in names:
        (tmp_path / name).hardlink_to(tmp_path / "000.tar")
    pattern = f"{tmp_path}/{{{','.join(names)}}}"
    for setting in (f"data.shards={pattern}", f"data.shards=[{pattern!r}]"):
        assert found(text, setting) == []
    (only,) = found(text, f"data.shards={pattern.replace(names[-1], 'x' * 256)}")
    assert only.code == "shards-not-found"
    assert (
        "its braces make a name that cannot be: the name of a file has at most 255 bytes, not 256"
        in only.headline
    )


def test_patterns_name_files_in_order_each_once(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "1.tar"):
        (tmp_path / name).touch()
    names = [f"{tmp_path}/b.tar", f"{tmp_path}/*.tar", f"{tmp_path}/{{1..2}}.tar"]
    assert [path.name for path in shard_files(names)] == ["b.tar", "1.tar", "a.tar", "2.tar"]


VALID = (Path(__file__).parents[1] / "fixtures" / "valid.yaml").read_text(encoding="utf-8")
PLACES = """\
  kind: files
  tokenizer: tok
  template: chat
  sources:
    - path:
        - absent/a.jsonl
        - absent/b.jsonl  # one
      media: [absent]
  processors:
    language: x
    visoin: y  # two
"""


def test_a_finding_about_an_item_of_a_list_stands_at_the_item() -> None:
    text = re.sub(r"(?m)^data: .*$", lambda _: f"data:\n{PLACES}", VALID)
    shards = re.sub(
        r"(?m)^data: .*$",
        "data:\n  kind: webdataset\n  tokenizer: t\n  template: chat\n"
        "  shards:\n    - absent/a.tar\n    - absent/b.tar  # three\n",
        VALID,
    )
    adapter = VALID.replace(
        "    ranks: 4-7\n",
        "    ranks: 4-7\n    adapter:\n      rank: 4\n"
        "      targets:\n        - q\n        - qq  # four\n",
    )
    for spec, quoted, sign in (
        (text, "`absent/b.jsonl`", "# one"),
        (text, "`visoin`", "# two"),
        (shards, "`absent/b.tar`", "# three"),
        (adapter, "`qq`", "# four"),
    ):
        checked = check_text(spec)
        (item,) = (each for each in checked.diagnostics if quoted in each.headline)
        place = checked.source.place_of(item).span
        assert place is not None
        assert sign in spec.splitlines()[place.line - 1]


def test_changes_of_weights_may_lie_beyond_the_default_steps_of_epochs() -> None:
    data = "{kind: files, tokenizer: t, template: chat, sources: [{path: a, name: a, weight: 1}], "
    data += "weight_changes: [{step: 1000, weights: {a: 2}}]}"
    text = re.sub(r"(?m)^data: .*$", f"data: {data}", VALID)
    counted = re.sub(r"(?m)^train: .*$", "train: {epochs: 3}", text)
    for spec, number in ((text, 1), (counted, 0)):
        found = [
            each for each in check_text(spec).diagnostics if "change of weights" in each.headline
        ]
        assert len(found) == number
