"""The files of a folder that say how text and media become the input of a model.

Decides: their names, as transformers 4 and 5 write them; which class the processor has.
Relies on: nothing.
Leaves: what the settings mean to `images`, `videos` and `tokenizer`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mimo_launch.spec.files import read_json

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
# Special tokens, which transformers reads if the settings have no `added_tokens_decoder`.
SPECIALS = "special_tokens_map.json"
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
VIDEO_PREPROCESSOR = "video_preprocessor_config.json"


class ProcessorError(ValueError):
    """A folder has no image processor, or one that is not supported."""


class UnknownProcessor(ProcessorError):
    """The class of a folder's image processor is not supported."""


class TokenizerError(ValueError):
    """A folder holds no usable tokenizer; the message is one line."""


def json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises: TokenizerError."""
    try:
        found = read_json(file)
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise TokenizerError(f"{file.name} is not a JSON object")
    return found


def processor_class(folder: Path) -> str:
    """Return the class of a folder's processor, without `Processor`; "" if none is named.

    Raises: TokenizerError.
    """
    files = [folder / name for name in (PROCESSOR, PREPROCESSOR, SETTINGS)]
    settings = [json_object(file) for file in files if file.is_file()]
    classes = (each.get("processor_class") for each in settings)
    return str(next((each for each in classes if each is not None), "")).removesuffix("Processor")


def files_of(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and JSON of each of these files in a folder. Raises: ProcessorError."""
    for name in names:
        try:
            config = read_json(folder / name)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ProcessorError(f"{name} cannot be read: {error}") from error
        yield name, config


def settings_of(folder: Path, part: str, names: Iterable[str]) -> dict[str, Any] | None:
    """Return the settings of a processor in a folder; None if no file has them.

    A processor of several modalities contains that of each `part`, such as `image_processor`; older
    ones do not, and their `names` of files follow. Raises: ProcessorError.
    """
    for name, whole in files_of(folder, (PROCESSOR, *names)):
        is_nested = name == PROCESSOR and isinstance(whole, dict)
        config = whole.get(part) if is_nested else whole
        if is_nested and config is None:
            continue
        if isinstance(config, dict):
            return config
        raise ProcessorError(f"{name} is not a JSON object")
    return None
