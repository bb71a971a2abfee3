"""Keys and types: every fault at once, in our words, and what can still be read."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mimo_launch.spec.base import MissingPartError
from mimo_launch.spec.load import Loaded, dump_spec, load_text, spec_from_data

ROOT = Path(__file__).parents[2]
VALID = (ROOT / "tests" / "fixtures" / "valid.yaml").read_text(encoding="utf-8")


def load(*changes: tuple[str, str]) -> Loaded:
    text = VALID
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return load_text(text)


def found(loaded: Loaded) -> list[tuple[str, str]]:
    """Return (code, dotted path) of each diagnostic."""
    return [(item.code, ".".join(map(str, item.path))) for item in loaded.diagnostics]


@pytest.mark.parametrize(
    ("written", "every", "keep"),
    [("null", None, 2), ("{}", None, 2), ("{keep: 1}", None, 1), ("{every: 3}", 3, 2)],
)
def test_a_run_saves_at_its_end_by_default(written: str, every: int | None, keep: int) -> None:
    spec = load_text(VALID, overrides=[f"checkpoint={written}"]).spec
    assert spec is not None
    assert spec.saving is not None
    assert (spec.saving.every, spec.saving.keep) == (every, keep)
    assert spec_from_data(dump_spec(spec)) == spec


def test_a_run_that_saves_nothing_says_none() -> None:
    spec = load_text(VALID, overrides=["checkpoint=none"]).spec
    assert spec is not None
    assert spec.saving is None
    assert spec_from_data(dump_spec(spec)) == spec
    for written in ("false", "'no'", "None"):
        [fault] = load_text(VALID, overrides=[f"checkpoint={written}"]).diagnostics
        assert fault.headline.endswith("; it must be a mapping or `none`")
        assert fault.help == "write `--set checkpoint=none`"
    [fault] = load_text(VALID, overrides=["checkpoint=3"]).diagnostics
    assert fault.help.startswith("write `--set 'checkpoint={...}'`")


@pytest.mark.parametrize(("value", "key"), [("2", "depth"), ("0.1", "loss_weight")])
def test_a_number_in_place_of_a_section_is_meant_for_the_one_key_of_its_type(
    value: str, key: str
) -> None:
    [fault] = load_text(VALID, overrides=[f"modules.language.model.mtp={value}"]).diagnostics
    assert fault.help == f"write `--set 'modules.language.model.mtp={{{key}: {value}}}'`"


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("optimizer.betas=1", "`betas`: AdamW's decay rates of the two moments"),
        ("modules.language.model.qk_norm=1", "`qk_norm`: RMSNorm on each query and key head"),
        ("modules.language.model.tied=1", "`tied`: use the token embedding as the output layer"),
        ("modules.vision.model.patch_bias=1", "`patch_bias`: a bias in the embedding of patches"),
    ],
)
def test_the_meaning_of_a_key_keeps_the_capitals_of_names(override: str, why: str) -> None:
    [fault] = load_text(VALID, overrides=[override]).diagnostics
    assert fault.why == why


def test_valid_spec_loads() -> None:
    loaded = load()
    assert loaded.diagnostics == ()
    assert loaded.spec is not None
    assert loaded.spec.batch.global_ == 32
    assert loaded.spec.modules["vision"].rank_range == range(4)


@pytest.mark.parametrize(
    ("old", "new", "code", "path"),
    [
        ("seq: 64", "seqs: 64", "unknown-key", "batch.seqs"),
        ("data: {kind", "data: {knd", "unknown-key", "data.knd"),
        ("version: 1", "version: 2", "bad-value", "version"),
        ("version: 1", "version: '1'", "wrong-type", "version"),
        ("version: 1\n", "", "missing-key", ""),
        ("name: fixture", "name: ../x", "bad-value", "name"),
        ("name: fixture", "name: 12", "wrong-type", "name"),
        ("{global: 32, seq: 64}", "32", "wrong-type", "batch"),
        ("{global: 32, seq: 64}", "", "wrong-type", "batch"),
        ("{global: 32, seq: 64}", "[32, 64]", "wrong-type", "batch"),
        ("kind: digits", "kind: 3", "wrong-type", "data.kind"),
        ("{kind: digits}", "{}", "missing-key", "data"),
        ("{kind: digits}", "digits", "wrong-type", "data"),
        ("kind: digits}", "kind: digits, text_only: 1.5}", "bad-value", "data.text_only"),
        ("ranks: 0-3", "ranks: 3-0", "bad-value", "modules.vision.ranks"),
        ("ranks: 0-3", "ranks: all", "bad-value", "modules.vision.ranks"),
        ("ranks: 0-3", "ranks: 0-99999999", "bad-value", "modules.vision.ranks"),
        ("ranks: 0-3", "ranks: 99999999", "bad-value", "modules.vision.ranks"),
        ("ranks: 0-3", "ranks: -1", "bad-value", "modules.vision.ranks"),
        ("ranks: 0-3", "ranks: 1.5", "wrong-type", "modules.vision.ranks"),
        ("ranks: 0-3", "ranks: [0, 3]", "wrong-type", "modules.vision.ranks"),
        ("ranks: 0-3", "ranks: true", "wrong-type", "modules.vision.ranks"),
        ("tp: 1,", "tp: 1.0,", "wrong-type", "modules.vision.grid.tp"),
        ("tp: 1,", "tp: true,", "wrong-type", "modules.vision.grid.tp"),
        ("tp: 1,", "tp: -1,", "bad-value", "modules.vision.grid.tp"),
        ("vocab: digits", "vocab: words", "bad-value", "modules.language.model.vocab"),
        ("vocab: digits", "vocab: 0", "bad-value", "modules.language.model.vocab"),
        ("vocab: digits", "vocab: 2.5", "wrong-type", "modules.language.model.vocab"),
        ("kind: decoder", "kind: decodr", "unknown-kind", "modules.language.model.kind"),
        ("kind: decoder", "kind: 'a/b.py:C'", "unknown-kind", "modules.language.model.kind"),
        ("  vision:", "  Vision:", "bad-value", "modules.Vision"),
        ("train: {", "train: {precision: fp16, ", "bad-value", "train.precision"),
        ("train: {", "train: {seed: -1, ", "bad-value", "train.seed"),
        ("train: {", "optimizer: {lr: .nan}\ntrain: {", "bad-value", "optimizer.lr"),
        ("train: {", "optimizer: {betas: [0.9]}\ntrain: {", "bad-value", "optimizer.betas"),
        ("train: {", "optimizer: {betas: 0.9}\ntrain: {", "wrong-type", "optimizer.betas"),
        ("train: {", "optimizer: {betas: [0.9, 1]}\ntrain: {", "bad-value", "optimizer.betas.1"),
        ("train: {", "optimizer: {betas: [a, 0.9]}\ntrain: {", "wrong-type", "optimizer.betas.0"),
        ("train: {", "optimizer: {clip: none}\ntrain: {", "wrong-type", "optimizer.clip"),
        ("train: {", "eval: [1]\ntrain: {", "wrong-type", "eval"),
        ("ranks: 4-7", "ranks: 4-7\n    order: [tp, xp]", "bad-value", "modules.language.order.1"),
    ],
)  # fmt: skip
def test_each_fault_has_its_code_and_path(old: str, new: str, code: str, path: str) -> None:
    loaded = load((old, new))
    assert found(loaded) == [(code, path)]
    assert loaded.spec is None
    (fault,) = loaded.diagnostics
    assert fault.why
    assert fault.help


def test_optimizer_kinds_are_listed() -> None:
    (fault,) = load(("train: {", "optimizer: {kind: lion}\ntrain: {")).diagnostics
    assert fault.headline == "`kind` is `lion`; it must be `adamw`, `sgd` or `muon`"


def test_no_word_of_pydantic_leaks() -> None:
    """Its sentences begin with these words; ours never do."""
    text = VALID.replace("tp: 1", "tp: x").replace("seq: 64", "seq: [1]").replace("0-3", "a-b")
    for item in load_text(text).diagnostics:
        words = f"{item.headline} {item.why} {item.help}"
        assert not any(
            word in words for word in ("Input should", "Field required", "pydantic", "Value error")
        )


def test_all_close_matches_are_offered() -> None:
    (fault,) = load(("tp: 1, dp: 4", "tp: 1, dpp: 4")).diagnostics
    assert fault.at_key
    assert "`dp`" in fault.help
    assert "`pp`" in fault.help


@pytest.mark.parametrize(
    ("old", "new", "help_"),
    [
        ("tp: 1,", "tp: 2.0,", "write `tp: 2`"),
        ("tp: 1,", "tp: '2',", "write `tp: 2` without quotes"),
        ("train: {", "optimizer: {clip: None}\ntrain: {", "write `clip: null`"),
        ("    ranks: 0-3", "    ranks: 0-3\n    frozen: off", "write `frozen: false`"),
        ("train: {", "train: {precision: fp23, ", "did you mean `fp32`?"),
        ("seq: 64", "sequence: 64", "did you mean `seq`?"),
        (
            "kind: digits}",
            "kind: digits, zzz: 1}",
            "none of the keys here is sure to mean it; they are `max_bad_samples`, `packing`, "
            "`kind`, `tasks`, `min_digits`, `max_digits`, `text_only`, `samples`",
        ),
    ],
)
def test_help_can_be_pasted(old: str, new: str, help_: str) -> None:
    assert load((old, new)).diagnostics[0].help == help_


def test_a_misspelt_required_key_is_one_fault_not_two() -> None:
    assert found(load(("hidden: 64, heads: 4, patch", "hidden: 64, hedas: 4, patch"))) == [
        ("unknown-key", "modules.vision.model.hedas")
    ]


def test_missing_key_points_at_the_key_of_its_section() -> None:
    loaded = load(("batch: {global: 32, seq: 64}", "batch:\n  global: 32"))
    place = loaded.source.place_of(loaded.diagnostics[0])
    assert place.span is not None
    assert (place.span.line, place.span.column, place.span.length) == (13, 1, 5)


def test_parts_at_fault_are_left_out_and_the_rest_is_there() -> None:
    partial = load(("tp: 1, dp: 4", "tp: x, dp: 4"), ("seq: 64", "seqq: 64")).partial
    assert partial is not None
    vision = partial.modules["vision"]
    assert vision.grid.dp == 4
    assert vision.rank_range == range(4)
    with pytest.raises(MissingPartError):
        vision.grid.tp  # noqa: B018
    with pytest.raises(MissingPartError):
        vision.grid.num_ranks  # noqa: B018
    with pytest.raises(MissingPartError):
        partial.batch.seq  # noqa: B018
    assert partial.batch.global_ == 32


def test_a_misspelt_optional_key_hides_its_default() -> None:
    """Nothing may be concluded from a default that the user meant to replace."""
    partial = load(("microbatches: 2", "microbatchs: 2")).partial
    assert partial is not None
    with pytest.raises(MissingPartError):
        partial.schedule.microbatches  # noqa: B018


@pytest.mark.parametrize("path", sorted((ROOT / "topologies").glob("*.yaml")), ids=lambda p: p.stem)
def test_dump_round_trips(path: Path) -> None:
    spec = load_text(path.read_text(encoding="utf-8")).spec
    assert spec is not None
    data = dump_spec(spec)
    assert "global" in data["batch"]
    again = spec_from_data(json.loads(json.dumps(data)))
    assert again == spec
    assert dump_spec(again) == data


def test_a_process_that_read_no_spec_dumps_the_specs_it_receives(tmp_path: Path) -> None:
    """Ranks get specs from their launcher, and have read no section of these kinds themselves."""
    paths = sorted((ROOT / "topologies").glob("*.yaml"))
    specs = [load_text(path.read_text(encoding="utf-8")).spec for path in paths]
    sent = tmp_path / "specs"
    sent.write_bytes(pickle.dumps(specs))
    program = """
import json, pickle, sys
from mimo_launch.spec.load import dump_spec
with open(sys.argv[1], "rb") as sent:
    print(json.dumps([dump_spec(each) for each in pickle.load(sent)]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, sent], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [dump_spec(each) for each in specs if each is not None]


def test_spec_from_bad_data_raises() -> None:
    data: dict[str, Any] = {"version": 1}
    with pytest.raises(ValueError, match="lacks `name`"):
        spec_from_data(data)


@pytest.mark.parametrize(
    "lines",
    [
        "template: chat",
        "template: {kind: caption}, sources: [{path: b, template: chat, weigth: 1}]",
        "template: chat, expect: stats.json",
    ],
)
@pytest.mark.parametrize(
    "kind", ["kind: files, sources: [a]", "kind: my:Data", "kind: webdataset, shards: a"]
)
def test_a_sound_short_form_beside_a_fault_is_no_fault(kind: str, lines: str) -> None:
    if "sources" in lines and "files" not in kind:
        return
    kind = kind.partition(",")[0] if "sources" in lines else kind
    text = re.sub(
        r"(?m)^data: .*$", f"data: {{{kind}, tokenizer: t, {lines}, too_log: drop}}", VALID
    )
    found = {item.path for item in load_text(text).diagnostics}
    assert ("data", "too_log") in found
    assert {path for path in found if path[-1] not in ("too_log", "weigth")} == set()


@pytest.mark.parametrize(
    ("path", "help_"),
    [
        ("eval", "write `--set 'eval={}'`"),
        ("checkpoint", "write `--set 'checkpoint={}'`"),
        ("modules.language.fp8", "write `--set 'modules.language.fp8={}'`"),
        # It needs a project.
        ("log.wandb", "write `--set 'log.wandb={...}'`, or indented `key: value` lines"),
    ],
)
def test_true_in_place_of_a_section_means_all_its_defaults(path: str, help_: str) -> None:
    found = load_text(VALID, overrides=[f"{path}=true"]).diagnostics
    assert [each.help for each in found] == [help_]


def test_a_number_of_nodes_is_not_taken_for_one_of_gpus() -> None:
    (found,) = load_text(VALID + "nodes: 2\n").diagnostics
    assert found.help == "write `nodes: {...}`, or indented `key: value` lines"


@pytest.mark.parametrize("value", ["${oc.env:MODEL,models/a}", "${MODEL:-/models/a}", "${a/b}"])
def test_variables_with_defaults_are_variables(value: str) -> None:
    (found,) = load_text(VALID + f"init_from: {value}\n").diagnostics
    assert found.headline == f"`{value}` is a variable, and a spec has none"


def test_a_template_of_no_kind_is_said_to_be_one() -> None:
    text = re.sub(
        r"(?m)^data: .*$", "data: {kind: files, sources: [a], tokenizer: t, template: chta}", VALID
    )
    (found,) = load_text(text).diagnostics
    assert (found.code, found.help) == ("unknown-kind", "did you mean `chat`?")
