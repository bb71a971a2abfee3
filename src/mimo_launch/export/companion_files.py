"""Files that stand beside weights: tokenizer, image processor, settings of generation.

Decides: which are taken over and from where; what the processor of a LLaVA has to be told.
Relies on: names and keys of the files as transformers 4 and 5 write them.
Leaves: copying and writing to `export`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimo_launch.export.sources import Source
from mimo_launch.hugging_face import llava
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.image_processor import PREPROCESSOR, PROCESSOR, processor_folder
from mimo_launch.hugging_face.tokenizer import TOKENIZER, TokenizerError, token_text
from mimo_launch.spec.files import read_json
from mimo_launch.spec.model import Spec, WebdatasetData

# Read as it is by whoever uses a model; which of them there are depends on the model.
_OF_TEXT = (
    TOKENIZER,
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
_OF_IMAGES = (PROCESSOR, PREPROCESSOR, "video_preprocessor_config.json")
_LLAVA = "LlavaProcessor"


@dataclass(frozen=True, slots=True)
class Companions:
    """Files to copy and files to write, by name; `notes` are what a user should know of them."""

    copied: Mapping[str, Path]
    written: Mapping[str, Config] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def companions_of(
    spec: Spec, names: Iterable[str], sources: Mapping[str, Source | None], config: Config
) -> Companions:
    """Return what stands beside the weights of modules, whose `config.json` is `config`.

    The folders that the data name come before those that the weights came from.
    """
    found: dict[str, Path] = {}
    for name in names:
        source, data = sources[name], spec.data
        folders = [] if source is None else [source.folder]
        if name != "language":
            own = processor_folder(spec, name)
        else:
            own = Path(data.tokenizer) if isinstance(data, WebdatasetData) else None
        folders = folders if own is None else [own, *folders]
        for each in _OF_TEXT if name == "language" else _OF_IMAGES:
            known = (folder / each for folder in folders if (folder / each).is_file())
            if (path := next(known, None)) is not None:
                found[each] = path
    if config["model_type"] != llava.MODEL_TYPE or TOKENIZER not in found:
        return Companions(found)
    return _of_llava(found, config)


def _of_llava(found: dict[str, Path], config: Config) -> Companions:
    """Return the files of a LLaVA, whose processor must know the rows of an image.

    A folder of a tower by itself does not say them: it has no text, or that of SigLIP or CLIP.
    """
    theirs = _read(found[PROCESSOR]) if PROCESSOR in found else {}
    if theirs.get("processor_class") == _LLAVA:
        return Companions(found)
    token, folder = config["image_token_index"], found[TOKENIZER].parent
    try:
        text = token_text(folder, token)
    except TokenizerError:
        text = None
    if text is None:
        note = (
            f"token {token} stands for images, and the tokenizer in {folder} has no such token: "
            "transformers makes no inputs with images until it has (docs/worked-example.md)"
        )
        return Companions(found, notes=(note,))
    strategy = config["vision_feature_select_strategy"]
    ours = {
        "processor_class": _LLAVA,
        "image_token": text,
        "patch_size": config["vision_config"]["patch_size"],
        # `default` takes the class token away again.
        "num_additional_image_tokens": int(strategy == "default"),
        "vision_feature_select_strategy": strategy,
    }
    if isinstance(images := theirs.get("image_processor"), dict):
        ours["image_processor"] = images
    copied = {name: path for name, path in found.items() if name != PROCESSOR}
    return Companions(copied, {PROCESSOR: ours})


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
