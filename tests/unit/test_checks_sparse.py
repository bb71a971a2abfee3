"""Checks of hybrid models and of experts, at their limits: what is accepted can train."""

import re
from math import prod
from typing import Any

import pytest
from tests.unit.test_spec_fuzz import VALUES, assert_drawn, assert_sound, paths, put

from mimo_launch.checks.all_checks import check
from mimo_launch.checks.load_and_check import check_text
from mimo_launch.spec.load import dump_spec, load_text

SPEC = """
version: 1
name: sparse
modules:
  language:
    model:
      kind: hybrid
      pattern: "ME*-"
      hidden: 32
      heads: 4
      vocab: 50
      mlp: 32
      mamba: {heads: 8, head_dim: 4, state: 8, groups: 2}
      moe: {experts: 4, top_k: 2, width: 16}
    ranks: 0-3
    grid: {tp: 4}
batch: {global: 4, seq: 32}
data: {kind: synthetic, text_only: 1.0}
train: {steps: 1}
"""
DECODER = "{kind: decoder, layers: 2, hidden: 32, heads: 4, vocab: 50, mlp: 33, moe: {MOE}}"
MOE = "experts: 4, top_k: 2, width: 16"
DELTA = "model.deltanet={{heads: {}, key_heads: {}, head_dim: 4, key_dim: 4}}"


def codes(*overrides: str) -> list[str]:
    loaded = load_text(SPEC, overrides=[f"modules.language.{each}" for each in overrides])
    assert loaded.spec is not None, loaded.diagnostics
    return sorted(item.code for item in check(loaded.spec))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.heads=2"], ["heads-over-tp"]),
        (["model.pattern=ME-", "model.heads=2"], []),
        (["model.heads=4", "model.kv_heads=3"], ["heads-over-kv-heads"]),
        (["model.pattern=ME-", "model.kv_heads=3"], []),
        (["model.pattern=ME-", "model.heads=5"], []),
        (["model.head_dim=3"], []),
        (["model.head_dim=3", "model.rope_theta=100"], ["odd-head-size"]),
        (["model.pattern=ME-", "model.head_dim=3", "model.rope_theta=100"], []),
        (["model.mamba.groups=3"], ["mamba-heads-over-groups"]),
        (["model.pattern=E*-", "model.mamba.groups=3"], ["setting-without-effect"]),
        (["model.mamba.heads=6"], ["mamba-heads-over-grid"]),
        (["model.pattern=E*-", "model.mamba.heads=6"], ["setting-without-effect"]),
        (["model.pattern=EGM", DELTA.format(8, 2)], []),
        (["model.pattern=EGM", DELTA.format(8, 3)], ["deltanet-heads-over-groups"]),
        (["model.pattern=EGM", DELTA.format(6, 2)], ["deltanet-heads-over-grid"]),
        (["model.pattern=EM", DELTA.format(6, 2)], ["setting-without-effect"]),
        (["model.mlp=33"], ["mlp-over-tp"]),
        (["model.pattern=ME*", "model.mlp=33"], []),
        ([f"model={DECODER.replace('MOE', MOE)}"], []),
        ([f"model={DECODER.replace('MOE', MOE + ', every: 2')}"], ["mlp-over-tp"]),
        ([f"model={DECODER.replace('MOE', MOE + ', first_dense: 1')}"], ["mlp-over-tp"]),
    ],
)
def test_sizes_of_layers_that_are_not_there_split_over_nothing(
    overrides: list[str], expected: list[str]
) -> None:
    assert codes(*overrides) == expected


@pytest.mark.parametrize(
    ("moe", "expected"),
    [
        ("experts: 4, top_k: 4", []),
        ("experts: 4, top_k: 5", ["top-k-over-experts"]),
        ("experts: 4, top_k: 1", ["router-without-gradient"]),
        ("experts: 4, top_k: 1, normalize: false", []),
        ("experts: 1, top_k: 1", ["router-without-gradient"]),
        ("experts: 1, top_k: 1, normalize: false", ["router-without-gradient"]),
        ("experts: 1, top_k: 1, normalize: false, score: sigmoid", []),
        ("experts: 1, top_k: 2, score: sigmoid", ["top-k-over-experts"]),
        ("experts: 1, top_k: 2", ["router-without-gradient", "top-k-over-experts"]),
    ],
)
def test_a_router_has_a_choice_or_a_score_to_learn(moe: str, expected: list[str]) -> None:
    assert codes(f"model.moe={{{moe}, width: 16}}") == expected


@pytest.mark.parametrize(("letter", "key"), [("M", "mamba"), ("G", "deltanet")])
@pytest.mark.parametrize(
    "grid", ["{tp: 4}", "{tp: 2, cp: 2}", "{dp: 4}", "{tp: 3}", "{cp: 3}", "{tp: 3, cp: 2}"]
)
def test_what_is_proposed_for_recurrent_layers_fits(grid: str, letter: str, key: str) -> None:
    sizes = ["model.mamba=null", f"model.pattern={letter}E", "model.moe.width=12", f"grid={grid}"]
    size = prod(int(each) for each in re.findall(r"\d+", grid))
    sizes += ["model.vocab_multiple=12", f"ranks=0-{size - 1}"]
    overrides = [f"modules.language.{each}" for each in sizes] + ["batch.seq=48"]
    (finding,) = check_text(SPEC, overrides=overrides).diagnostics
    assert finding.code == f"{key}-without-sizes"
    # The key was set to null by a `--set`, so its line is another one, or else one of the file.
    found = re.findall(rf"`--set '[\w.]+{key}=(.*)'`|`{key}: (.*)` in", finding.help)
    (proposal,) = (line or of_file for line, of_file in found)
    overrides.append(f"modules.language.model.{key}={proposal}")
    assert check_text(SPEC, overrides=overrides).diagnostics == ()


@pytest.mark.parametrize(
    ("experts", "remedy"),
    [
        ("{tp: 3}", "write `tp` as one of 1, 2, 4"),
        ("{ep: 4, tp: 2}", "write `ep` as one of 1, 2"),
        ("{ep: 2, tp: 3}", "write `tp` as one of 1, 2"),
    ],
)
def test_what_is_proposed_for_a_grid_of_experts_fits(experts: str, remedy: str) -> None:
    found = check_text(SPEC, overrides=[f"modules.language.experts={experts}"]).diagnostics
    assert remedy in [item.help for item in found]


def complete() -> dict[str, Any]:
    """Return the spec with every key written out."""
    loaded = load_text(SPEC, overrides=["modules.language.experts={ep: 2, tp: 2}"])
    assert loaded.spec is not None
    return dump_spec(loaded.spec)


SPARSE_KEYS = [path for path in paths(complete()) if {"mamba", "moe", "experts"} & {*path}]


@pytest.mark.parametrize("path", SPARSE_KEYS, ids=lambda path: ".".join(map(str, path)))
def test_any_value_at_any_place(path: tuple[str | int, ...]) -> None:
    """Whatever stands there, the answer is findings with places."""
    for value in (*VALUES, ...):
        assert_sound(put(complete(), path, value))
    assert_drawn(put(complete(), path, "x"))
    assert_drawn(put(complete(), path, 7))


@pytest.mark.parametrize(("pattern", "said"), [("ME*-", True), ("CE*-", False)])
def test_a_short_convolution_needs_a_layer(pattern: str, said: bool) -> None:
    text = SPEC.replace('"ME*-"', f'"{pattern}"')
    found = check(load_text(text, overrides=["modules.language.model.short_conv=4"]).spec)
    headline = "`short_conv` of `language` does nothing: no layer is `C`"
    assert (headline in [each.headline for each in found]) == said
