"""`verify` says what it does not prove."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.support.graphs import graph_specs
from tests.support.specs import box, layout_specs, spec

from mimo_launch.spec.load import load_spec
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.coverage import lines_of, not_proved
from mimo_launch.verify.shrink import short_run, shrink


def told(made: Spec) -> dict[str, tuple[Any, Any]]:
    """What is said of a spec, asked and proved, by path."""
    return {f"{r.section}.{r.key}": (r.asked, r.proved) for r in not_proved(made, shrink(made))}


SHARDS = {
    "kind": "webdataset", "shards": "x.tar", "tokenizer": "x", "template": "chat",
}  # fmt: skip


def large() -> Spec:
    vision = box(dp=2, model={"hidden": 64, "heads": 8, "layers": 7}, backend="transformer_engine")
    language = box(
        2, tp=2, model={"heads": 32, "hidden": 128, "vocab": 32_000}, init_from="runs/first", fp8={}
    )
    return spec(
        {"vision": vision, "language": language},
        data=SHARDS,
        seq=512,
        mbs=64,
        train={"steps": 1000, "precision": "bf16", "log_every": 3},
        log={"tensorboard": True},
    )


def test_what_a_proof_makes_small_or_leaves_out_is_said() -> None:
    found = told(large())
    assert found["train.precision"] == ("bf16", "fp64")
    assert [each["kind"] for each in found["spec.data"]] == ["webdataset", "synthetic"]
    assert found["batch.seq"][0] == 512
    assert found["modules.vision.backend"] == ("transformer_engine", "torch")
    assert found["modules.vision.compile"] == ("auto", False)
    assert found["modules.vision.model.layers"] == (7, 2)
    assert found["modules.language.fp8"][1] is None
    assert found["modules.language.init_from"] == ("runs/first", None)
    assert found["modules.language.model.vocab"] == (32_000, 61)


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every setting below a value that is no mapping itself, with its path."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    else:
        yield path, value


def unsaid(asked: Spec, proved: Spec) -> list[str]:
    """Return each setting of either spec that differs in the other, and is in no remark."""
    both = [dict(leaves(each.model_dump(mode="json", by_alias=True))) for each in (asked, proved)]
    said: dict[tuple[str, ...], Any] = {}
    for remark in not_proved(asked, proved):
        section = () if remark.section == "spec" else tuple(remark.section.split("."))
        told = [dict(leaves(each)) for each in (remark.asked, remark.proved)]
        said |= {
            (*section, remark.key, *path): (told[0].get(path), told[1].get(path))
            for path in told[0] | told[1]
        }
    pairs = {path: (both[0].get(path), both[1].get(path)) for path in both[0] | both[1]}
    return [
        ".".join(path)
        for path, (one, other) in pairs.items()
        if one != other and said.get(path) != (one, other)
    ]


SETTINGS: dict[str, Any] = {
    "eval": {"every": 100, "samples": 512, "metric": "photos.loss", "stop_after": 3},
    "checkpoint": {"every": 50, "keep": 7, "keep_best": True, "asynchronous": False},
    "init_from": "runs/first",
    "log": {"tensorboard": True},
}
KINDS_OF_DATA = {
    "synthetic": {},
    "digits": {"kind": "digits", "tasks": ["read"], "max_digits": 3},
    "webdataset": {
        **SHARDS, "too_long": "truncate", "target_reads": 3, "max_rows": 9, "image_marker": "<i>",
        "video": {"fps": 3.0}, "template": {"kind": "chat", "system": "Be brief."},
        "decode_threads": 2, "max_bad_samples": 7,
        "eval_shards": {"photos": "p.tar", "charts": ["c.tar", "d.tar"]},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS_OF_DATA)
def test_every_setting_that_differs_is_said(kind: str) -> None:
    asked = large().model_dump(mode="json", by_alias=True) | SETTINGS
    asked["train"] |= {"max_skipped": 1, "on_write_error": "stop", "timeout": 9}
    if data := KINDS_OF_DATA[kind]:
        asked["data"] = data
    made = Spec.model_validate(asked)
    small = shrink(made)
    for proved in (small, short_run(made, small), shrink(made, "fp32")):
        assert unsaid(made, proved) == []


def test_every_setting_of_a_topology_that_differs_is_said() -> None:
    for file in sorted(Path("topologies").rglob("*.yaml")):
        made = load_spec(file).spec
        assert made is not None
        assert (file, unsaid(made, short_run(made, shrink(made)))) == (file, [])


@settings(max_examples=30, deadline=None)
@given(graph_specs(8) | layout_specs(64, supported_only=False))
def test_every_setting_of_a_random_spec_that_differs_is_said(made: Spec) -> None:
    assert unsaid(made, short_run(made, shrink(made))) == []


def test_what_no_setting_says_is_said_as_well() -> None:
    found = told(large())
    assert found["run.initial weights"] == ("drawn or loaded", "random, none of them 0")
    assert "run.updates of weights" in found
    assert "run.counts of zero gradients" not in found
    counted = told(spec({"language": box(0)}, train={"count_zero_grads": True}))
    assert counted["run.counts of zero gradients"] == ("reported", "nothing")
    drawer = box(0, model={"kind": "flow"}, reads=["language"])
    made = {"language": box(0), "drawer": drawer}
    assert told(spec(made))["run.what `drawer` makes"] == ("images", "nothing")
    assert not [path for path in told(spec(made, eval={})) if "makes" in path]
    assert not [path for path in found if "makes" in path]


def test_a_setting_that_is_kept_is_not_said() -> None:
    found = told(large())
    assert not [path for path in found if "grid" in path or "ranks" in path or "sharding" in path]


def test_a_section_has_one_line() -> None:
    lines = list(lines_of(not_proved(large(), shrink(large()))))
    assert len(lines) == len({line.split(": ")[1] for line in lines})
    [data] = [line for line in lines if "webdataset" in line]
    assert data.startswith("not proved: spec: ")
    assert "shards: x.tar" in data
    assert "(proved: {kind: synthetic, " in data
