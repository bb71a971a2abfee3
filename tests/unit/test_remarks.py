"""`verify` says what it does not prove."""

from typing import Any

from tests.support.specs import box, spec

from mimo_launch.spec.spec import Spec
from mimo_launch.verify.coverage import lines_of, not_proved
from mimo_launch.verify.shrink import shrink


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
    assert found["data.kind"] == ("webdataset", "synthetic")
    assert found["batch.seq"][0] == 512
    assert found["modules.vision.backend"] == ("transformer_engine", "torch")
    assert found["modules.vision.compile"] == ("auto", False)
    assert found["modules.vision.model.layers"] == (7, 2)
    assert found["modules.language.fp8"][1] is None
    assert found["modules.language.init_from"] == ("runs/first", None)
    assert found["modules.language.model.vocab"] == (32_000, 61)


def test_what_no_number_depends_on_is_not_said() -> None:
    assert not [path for path in told(large()) if path.startswith(("log", "spec.name", "name"))]
    assert "train.log_every" not in told(large())


def test_a_setting_that_is_kept_is_not_said() -> None:
    found = told(large())
    assert not [path for path in found if "grid" in path or "ranks" in path or "sharding" in path]


def test_a_section_has_one_line() -> None:
    lines = list(lines_of(not_proved(large(), shrink(large()))))
    assert len(lines) == len({line.split(": ")[1] for line in lines})
    assert "not proved: data: kind webdataset (proved: synthetic)" in lines
