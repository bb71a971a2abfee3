"""Every word of the table of synonyms keeps its meaning, or help says that it cannot."""

import copy
import json
from functools import cache
from typing import Any

import pytest
import yaml
from tests.support.pasting import offers, pasted
from tests.unit.test_pasted_help import VALID

from mimo_launch.spec.fields import value_at
from mimo_launch.spec.foreign_words import synonyms, tables
from mimo_launch.spec.load import load_text
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.wording import flow
from mimo_launch.spec.yaml_source import read_text

KEYS: dict[str, str] = tables()["keys"]
BASE: dict[str, Any] = read_text(VALID).data or {}
LAYER = "modules.language.model."
LANGUAGE = "modules.language."
BASE["modules"]["language"]["model"] |= {
    "moe": {"experts": 4, "top_k": 1, "width": 64},
    "mtp": {"depth": 1, "loss_weight": 0.5},
    "sliding_window": {"size": 8},
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
}
BASE["modules"]["language"] |= {"backend": "transformer_engine", "fp8": {}, "experts": {}}
BASE["modules"]["language"] |= {"adapter": {"rank": 4}}
BASE["modules"]["vision"]["model"] |= {"positions": "learned", "image": [7, 7]}
BASE |= {"checkpoint": {"every": 5}, "eval": {"every": 5, "samples": 32}}
BASE["log"] = {"wandb": {"project": "mine"}, "mlflow": {"experiment": "mine"}}
BASE["optimizer"]["schedule"] = {"kind": "wsd", "decay": 5}
BASE["schedule"] = {"kind": "1f1b", "microbatches": 2}

# Another value of each key than the base has.
VALUES: dict[str, Any] = {
    "name": "other", "nodes": {"gpus": 4}, "train": {"steps": 50}, "checkpoint": {"every": 9},
    "eval": {"every": 9}, "schedule.kind": "gpipe", "schedule.microbatches": 4,
    "optimizer.kind": "sgd", "optimizer.lr": 0.5, "optimizer.clip": 0.5, "optimizer.eps": 1e-6,
    "optimizer.betas": [0.5, 0.6], "optimizer.weight_decay": 0.25,
    LANGUAGE + "shard_over": 2, LANGUAGE + "adapter": {"rank": 8}, LANGUAGE + "adapter.rank": 8,
    LANGUAGE + "adapter.alpha": 8.0, LANGUAGE + "adapter.rslora": True,
    LANGUAGE + "adapter.targets": ["q"], LANGUAGE + "adapter.dropout": 0.1,
    LANGUAGE + "stages": [2], LANGUAGE + "dropout": 0.1, LANGUAGE + "attention_dropout": 0.1,
    LANGUAGE + "offload": ["activations"],
    "optimizer.offload": True, "optimizer.momentum": 0.5, "optimizer.ns_steps": 3,
    "optimizer.schedule.kind": "cosine", "optimizer.schedule.warmup": 7,
    "optimizer.schedule.decay": 9, "optimizer.schedule.min_lr": 1e-4, "train.steps": 77,
    "train.precision": "fp64", "train.log_every": 3, "train.seed": 3, "train.timeout": 99,
    "checkpoint.every": 7, "checkpoint.keep": 4,
    "checkpoint.keep_every": 9, "checkpoint.asynchronous": False,
    "eval.every": 7, "eval.samples": 64, "eval.at_start": True, "data.packing": True,
    "eval.stop_after": 3, "train.epochs": 3,
    "nodes.gpus": 4,
    "log.wandb.entity": "us",
    "log.tensorboard": True, "log.wandb.project": "other", "log.mlflow.experiment": "other",
    "batch.global": 64, "batch.seq": 128, "schedule.virtual_stages": 2,
    LAYER + "layers": 4, LAYER + "hidden": 128, LAYER + "heads": 8, LAYER + "kv_heads": 2,
    LAYER + "head_dim": 32, LAYER + "mlp": 96, LAYER + "vocab": 640, LAYER + "vocab_multiple": 64,
    LAYER + "rotary_factor": 0.5, LAYER + "rope_scaling.rope_type": "yarn",
    LAYER + "norm_eps": 1e-4,
    LAYER + "rope_theta": 5000.0, LAYER + "tied": True, LAYER + "moe.experts": 8,
    LAYER + "moe.top_k": 2, LAYER + "mtp.depth": 2, LAYER + "mtp.loss_weight": 0.25,
    LAYER + "activation": "gelu_tanh",
    "modules.vision.model.patch": 2,
    LANGUAGE + "grid": {"dp": 4}, LANGUAGE + "grid.tp": 1, LANGUAGE + "grid.cp": 2,
    LANGUAGE + "grid.pp": 2, LANGUAGE + "grid.dp": 4, LANGUAGE + "experts.ep": 2,
    LANGUAGE + "experts.tp": 2, LANGUAGE + "backend": "torch",
    LANGUAGE + "fp8.format": "e4m3", LANGUAGE + "fp8.scaling": "current",
    LANGUAGE + "init_from": "folder", LANGUAGE + "frozen": True, LANGUAGE + "compile": True,
}  # fmt: skip


# The words for a key lead to the same texts again and again.
read = cache(load_text)


def spec_of(text: str) -> Spec:
    """Return what a text says, whether or not its settings go together."""
    loaded = read(text)
    assert loaded.spec is not None, [item.headline for item in loaded.diagnostics]
    return loaded.spec


def mended(text: str, depth: int = 3) -> list[Spec]:
    """Return what the offers of the first finding lead to, one after the other."""
    loaded = read(text)
    if loaded.spec is not None:
        return [loaded.spec]
    offered = pasted(text, loaded.diagnostics[0]) if depth else []
    return [spec for new in offered for spec in mended(new, depth - 1)]


def place_of(key: str) -> tuple[str, ...]:
    """Return the path of a key of the table in the base."""
    *above, last = key.split(".")
    module = "vision" if last in ("patch", "image") else "language"
    return tuple(module if step == "*" else step for step in (*above, last))


def changed(path: tuple[str, ...], value: Any, *, without: tuple[str, ...] = ()) -> str:
    """Return the base with a value at a path, and without what is at another."""
    data = copy.deepcopy(BASE)
    if without and (parent := value_at(without[:-1], data)):
        parent.pop(without[-1], None)
    parent = data
    for step in path[:-1]:
        parent = parent.setdefault(step, {})
    parent[path[-1]] = value
    return json.dumps(data)


def words(key: str) -> list[tuple[str, str]]:
    """Return each word for a key, with the section in which it must stand, if there is one."""
    return [(word.rpartition(".")[2], word.rpartition(".")[0]) for word in KEYS[key].split()]


RENAMED = [
    pytest.param(key, word, section, id=f"{word} for {key}")
    for key in KEYS
    if key != "kind"
    for word, section in words(key)
]


@pytest.mark.parametrize(("key", "word", "section"), RENAMED)
def test_a_word_leads_to_its_key_with_its_value(key: str, word: str, section: str) -> None:
    path = place_of(key)
    value = VALUES[".".join(path)]
    right = spec_of(changed(path, value))
    assert right != spec_of(json.dumps(BASE))
    above = path[:2] if path[0] == "modules" else ()
    places = [path[:-1]] if section or len(path) == 1 else [path[:-1], above]
    for place in places:
        text = changed((*place, word), value, without=path)
        specs = mended(text)
        told = [(item.headline, item.help) for item in read(text).diagnostics]
        assert right in specs, told
        assert all(spec == right for spec in specs), told


@pytest.mark.parametrize("word", [word for word, known in synonyms().items() if known.values])
def test_a_word_with_another_value_leads_to_ours(word: str) -> None:
    values = synonyms()[word].values
    path = place_of(synonyms()[word].key)
    place = path[:2] if path[0] == "modules" else ()
    for theirs, ours in values.items():
        given = json.loads(theirs) if theirs in ("true", "false") or theirs.isdigit() else theirs
        text = changed((*place, word), given, without=path)
        meant = json.loads(changed(path, ours, without=path))
        if ours in ("", "true", "false", "[activations]"):
            parent = value_at(path[:-1], meant)
            del parent[path[-1]]
            if ours:
                parent[path[-1]] = yaml.safe_load(ours)
        told = [(item.headline, item.help) for item in read(text).diagnostics]
        assert mended(text) == [spec_of(json.dumps(meant))], told


# A value of each word in another unit, and what it means in the base.
IN_ANOTHER_UNIT: dict[str, tuple[Any, Any]] = {
    "micro_batch_size": (4, 4),
    "warmup_ratio": (0.031, "3.1%"),
    "min_lr_ratio": (0.1, 1e-4),
    "train_samples": (1600, 50),
    "warmup_samples": (100, 4),
    "eval_iters": (2, 64),
    "num_layers_per_virtual_pipeline_stage": (1, 2),
    "distributed_timeout_minutes": (30, 1800),
    "image_size": (28, [7, 7]),
    "beta1": (0.5, [0.5, 0.95]),
    "beta2": (0.5, [0.9, 0.5]),
}


@pytest.mark.parametrize("names", [each["words"] for each in tables()["units"]])
def test_a_value_in_another_unit_is_converted(names: str) -> None:
    known = synonyms()[names.split(maxsplit=1)[0]]
    path = place_of(known.key)
    theirs, ours = IN_ANOTHER_UNIT[names.split(maxsplit=1)[0]]
    for word in names.split():
        for place in (path[:-1], path[:2] if path[0] == "modules" else ()):
            text = changed((*place, word), theirs, without=path)
            (found, *_) = read(text).diagnostics
            assert f"`{path[-1]}: {flow(ours)}`" in found.help, found.help
            # Without the numbers that it needs, it says how to compute it, and offers nothing.
            if not word.endswith(("beta1", "beta2")):
                (found, *_) = read(changed((*place, word), "some", without=path)).diagnostics
                assert found.help.endswith(known.formula), found.help
                assert not offers(found.help)


@pytest.mark.parametrize("words", [each["words"] for each in tables()["missing"]])
def test_what_is_not_here_is_said_and_deleted_only_where_it_was_off(words: str) -> None:
    place = ("modules", "language")
    first, *others = words.split()
    for word, value in [*((first, each) for each in (0.1, True, "some", {"r": 8})),
                        *((word, 0.1) for word in others)]:  # fmt: skip
        (found, *_) = read(changed((*place, word), value)).diagnostics
        assert found.help.startswith("there is no "), found.help
        assert "delete it" not in found.help
    assert not mended(changed((*place, first), 0.1))
    for value in (0, 0.0, False, None, "none", []):
        text = changed((*place, first), value)
        assert mended(text) == [spec_of(json.dumps(BASE))]


@pytest.mark.parametrize("word", [word for words in tables()["notes"] for word in words.split()])
def test_a_note_never_says_to_delete_what_was_meant(word: str) -> None:
    assert not offers(f"delete it: {synonyms()[word].note}")[1:] or "write" in synonyms()[word].note
    assert "delete" not in synonyms()[word].note
    # What is on, also by the word `full`, is never to be deleted.
    for value in (True, "full", "all"):
        (found, *_) = read(changed((word,), value)).diagnostics
        assert "delete it" not in found.help, found.help


@pytest.mark.parametrize("word", ["freeze_vit", "freeze_llm", "use_wandb", "deepspeed"])
def test_what_is_off_is_not_to_be_turned_on(word: str) -> None:
    for value in (False, None, "none"):
        assert mended(changed((word,), value)) == [spec_of(json.dumps(BASE))]
