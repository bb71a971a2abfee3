"""Graphs over shards equal one rank: connectors, flows and a talker around language."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.graphs import connector, flow
from tests.support.proof import failures
from tests.support.shards import image_bytes, tokenizer_folder, write_shard
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.diag.diagnostic import Severity
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.proof import verify_spec


def drawing_shards(folder: Path) -> None:
    """Shards whose samples show none to two images, and ask for none to two."""
    tokenizer_folder(folder / "tokenizer")
    records = []
    for number in range(12):
        shown, made = (number + 1) % 3, number // 2 % 3
        members: dict[str, Any] = {}
        for kind, count in (("", shown), ("target.", made)):
            for image in range(count):
                height, width = 4 + 4 * (number % 3), 4 + 4 * image
                members[f"{kind}{image}.png"] = image_bytes(height, width, 10 * number + image)
        for clip in range(made):
            out = BytesIO()
            np.save(out, np.arange(4 + 2 * clip).reshape(2, -1) + number % 3)
            members[f"target.{clip}.npy"] = out.getvalue()
        asked = "<image> " * shown + f"Draw {number}."
        said = "Here:" + " one <target>" * made
        turns = [("user", asked), ("assistant", said)]
        members["json"] = {"messages": [{"role": role, "content": text} for role, text in turns]}
        records.append((f"{number:03d}", members))
    write_shard(folder / "a.tar", records)


def graph_spec(folder: Path, modules: dict[str, Any], **settings: Any) -> Spec:
    made = spec(
        {"language": box(), **modules},
        data={
            "kind": "webdataset",
            "shards": str(folder / "a.tar"),
            "tokenizer": str(folder / "tokenizer"),
            "template": "chat",
            "target_reads": 6,
            **settings.pop("data", {}),
        },
        seq=96,
        train={"steps": 2, "precision": "fp64"},
        optimizer={"kind": "sgd", "lr": 0.1, "clip": 0.5},
        **settings,
    )
    assert not [each for each in check(made) if each.severity is Severity.ERROR]
    return made


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    drawing_shards(folder)
    return folder


LANGUAGE: dict[str, Any] = {"model": {"vocab": 400}}
FLOW: dict[str, Any] = {"kind": "flow", "channels": 3, "patch": 2}
GRAPHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a resampler in front, two flows behind": (
        {
            "vision": box(0, dp=2, model={"channels": 3}),
            "merger": box(2, **connector("vision", queries=3)),
            "language": box(3, tp=2, **LANGUAGE),
            "drawer": box(2, dp=2, **flow(model=FLOW)),
            "painter": box(0, cp=2, **flow(model={**FLOW, "patch": 4}, loss_weight=0.5)),
        },
        {"microbatches": 2, "mbs": 2},
    ),
    "packed, colocated": (
        {
            "vision": box(0, dp=2, model={"channels": 3}),
            "merger": box(0, dp=2, **connector("vision")),
            "language": box(0, dp=2, **LANGUAGE),
            "drawer": box(0, dp=2, **flow(model=FLOW)),
            "talker": box(1, **flow(model={"kind": "talker", "codebooks": 2, "vocab": 13})),
        },
        {"microbatches": 2, "mbs": 1, "data": {"packing": True}},
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_samples_of_shards_train_a_graph_as_one_rank_would(name: str, shards: Path) -> None:
    modules, settings = GRAPHS[name]
    assert failures(verify_spec(graph_spec(shards, modules, **settings))) == []
