"""Runs that have saved, for what reads checkpoints, and what `transformers` makes of a folder."""

import json
import warnings
from collections.abc import Sequence
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from tests.support.hugging_face import started
from torch import Tensor

from mimo_launch.checkpoint.index import open_checkpoint
from mimo_launch.checkpoint.loading import start_run
from mimo_launch.checkpoint.saver import CheckpointSaver
from mimo_launch.export.export import ExportProgress, write_export
from mimo_launch.export.export_plan import DType, Exporter
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import CheckpointFailed
from mimo_launch.train.loop import Hooks, train
from mimo_launch.train.rank_session import RankSession

SAVES = {"checkpoint": {"every": 1, "asynchronous": False}}


def with_sections(spec: Spec, **sections: Any) -> Spec:
    """Return a spec with other sections, which saves after each step."""
    data = spec.model_dump(mode="json", by_alias=True)
    return Spec.model_validate({**data, **SAVES, **sections})


def trained(spec: Spec, run: Path) -> Path:
    """Train on the ranks of a spec, which has a section `checkpoint`; return the run folder."""
    run_ranks(train_on_rank, spec, run, world_size=world_size(spec))
    return run


def train_on_rank(spec: Spec, run: Path) -> None:
    with RankSession(Plan.of(spec), draw=False) as session:
        state, saver = start_run(session, run, lambda _: None)
        train(session, lambda _: None, Hooks(saver=saver), state)


def save_on_rank(spec: Spec, run: Path) -> None:
    """Save what `init_from` names before any step."""
    session, _ = started(spec, run)
    saver = CheckpointSaver(session, run, dist.new_group(backend="gloo"))
    saver.save(RunState())
    saver.finish()
    assert not any(isinstance(event, CheckpointFailed) for event in saver.poll())
    session.__exit__(None, None, None)


def exported(
    run: Path,
    to: Path,
    modules: Sequence[str] = (),
    *,
    max_bytes: int = 10**9,
    dtype: DType = "auto",
) -> dict[str, Tensor]:
    """Export modules, or everything; return the tensors of the files at the top."""
    checkpoint = open_checkpoint(run, None)
    plans = Exporter(checkpoint, dtype).folders(modules)
    silent = ExportProgress(lambda _: None, lambda _: None)
    write_export(checkpoint, plans, to, max_bytes=max_bytes, force=False, progress=silent)
    return tensors(to)


def bits(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    return tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def digits_run(folder: Path, adapter: object = None, **language: Any) -> Path:
    """Train an encoder and a decoder on one rank, with an adapter and more keys of its model."""
    decoder = {"kind": "decoder", "layers": 2, "hidden": 32, "heads": 4, "vocab": "digits"}
    vit = {"kind": "vit", "layers": 1, "hidden": 24, "heads": 2, "patch": 4}
    spec = {
        "version": 1,
        "name": "saved",
        "modules": {
            "vision": {"model": vit, "ranks": "0"},
            "language": {
                "model": {**decoder, "kv_heads": 2, **language},
                "adapter": adapter,
                "ranks": "0",
            },
        },
        "batch": {"global": 2, "seq": 33},
        "data": {"kind": "digits"},
        "train": {"steps": 2},
        **SAVES,
    }
    return trained(Spec.model_validate(spec), folder / "saved")


def llava_folder(folder: Path) -> Path:
    """Make the folder of a LLaVA whose files hold no tensors."""
    folder.mkdir(parents=True)
    tower = {
        "model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    text = {
        "model_type": "llama", "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99,
    }  # fmt: skip
    config = {
        "model_type": "llava", "vision_config": tower, "text_config": text,
        "image_token_index": 98, "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {
        "language_model.model.embed_tokens.weight": (99, 96),
        "language_model.model.norm.weight": (96,),
        "language_model.lm_head.weight": (99, 96),
        "vision_tower.vision_model.encoder.layers.1.mlp.fc1.bias": (128,),
        # Behind the states that become rows.
        "vision_tower.vision_model.encoder.layers.2.mlp.fc1.bias": (128,),
        "multi_modal_projector.linear_1.weight": (96, 64),
    }
    header_only(folder / "model.safetensors", shapes)
    return folder


def header_only(path: Path, shapes: dict[str, tuple[int, ...]], dtype: str = "BF16") -> None:
    """Write a safetensors file with a hole for its tensors, for those who read the header."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * (2 if dtype == "BF16" else 4)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def tensors(folder: Path) -> dict[str, Tensor]:
    """Return what the files of a model hold."""
    files = sorted(folder.glob("model*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def load(auto: str, folder: Path) -> Any:
    """Return what a class of transformers makes of a folder; every tensor must have its place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        loader = attrgetter(auto)(transformers)
        model, info = loader.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()
