"""The index of shards that was made: where it is kept, what it depends on, if it is up to date.

Decides: the settings and the states of files by which an index is told from others.
Relies on: `columns` for files.
Leaves: making an index to `open_index`, its samples to `open_split`.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from mimo_launch.data.index.columns import Columns, DamagedIndex, open_columns, read_meta
from mimo_launch.data.random_draws import Split
from mimo_launch.data.samples.media_rows import ShardInputs
from mimo_launch.data.samples.token_columns import TokenColumns
from mimo_launch.data.sources.custom_records import custom_set
from mimo_launch.data.sources.fetching import NotFetched
from mimo_launch.data.sources.file_formats import split_files
from mimo_launch.data.sources.kept_files import kept_folders
from mimo_launch.data.sources.remote_files import ask_for_states
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.kinds.vocabulary import placeholder_id
from mimo_launch.processors.files import TOKENIZER
from mimo_launch.processors.image_texts import image_text, slice_texts, tile_texts
from mimo_launch.processors.tokenizer import chat_sources, special_texts
from mimo_launch.spec.spec import Spec, UserData


def find_index(spec: Spec, data: UserData, inputs: ShardInputs, split: Split) -> Columns | None:
    """Return the index of a split if there is one that is up to date; make none.

    Raises: OSError if a shard cannot be read.
    """
    shards = split_files(data, split)
    return usable_index(data, identity_of(spec, data, inputs, shards), shards)


def usable_index(
    data: UserData, wanted: dict[str, Any], shards: Sequence[NamedShard]
) -> Columns | None:
    """Return the first index that is up to date."""
    tried = (
        opened_if_usable(folder / name_of(wanted), wanted) for folder in folders_of(data, shards)
    )
    return next((columns for columns, _ in tried if columns is not None), None)


def folders_of(data: UserData, shards: Sequence[NamedShard]) -> tuple[Path, ...]:
    """Return the folders in which indexes of these files may be."""
    return kept_folders(data.index, shards[0].path)


def name_of(wanted: dict[str, Any]) -> str:
    """Return the name of a folder, which identifies the settings of an index."""
    settings = json.dumps([wanted["names"], wanted["settings"]], sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def identity_of(
    spec: Spec, data: UserData, inputs: ShardInputs, shards: Sequence[NamedShard]
) -> dict[str, Any]:
    """Return everything an index depends on: settings, and the state of files.

    The tokens of markers follow from it, so a tokenizer need not be loaded to find an index.
    """
    folder = Path(data.tokenizer)
    with suppress(NotFetched):
        ask_for_states([each.path for each in shards])
    tokenizer = hashlib.sha256((folder / TOKENIZER).read_bytes())
    texts = [chat_sources(folder), special_texts(folder)]
    around = (text(folder) or () for text in (image_text, tile_texts, slice_texts))
    tokenizer.update(json.dumps([*texts, *chain.from_iterable(around)]).encode())
    is_here = any(isinstance(each.path, Path) for each in shards)
    media = [[str(folder) for folder in each.media] for each in shards]
    customs = [each.custom and [each.custom.kind, each.custom.options] for each in shards]
    columns = TokenColumns(spec).asked
    templates = [each.template and each.template.model_dump(mode="json") for each in shards]
    identity = {
        "names": [str(each.path.absolute()) for each in shards],
        "settings": {
            # An index of files from elsewhere may come from another host.
            **({"tokenizer": str(folder.absolute())} if is_here else {}),
            "template": data.template and data.template.model_dump(mode="json"),
            "said": [data.image_marker, data.audio_marker, data.video_marker],
            "placeholders": [placeholder_id(spec, name) for name in inputs.in_text],
            "target": data.target_marker if inputs.makes else None,
            "inputs": inputs.sizing,
            "max_image_pixels": data.max_image_pixels,
            "max_characters": data.max_characters,
            **({"media": media} if any(media) else {}),
            **({"templates": templates} if any(templates) else {}),
            **({"custom": customs} if any(customs) else {}),
            **({"columns": columns} if columns else {}),
        },
        "shards": [_state(each) for each in shards],
        "tokenizer": tokenizer.hexdigest(),
    }
    found: dict[str, Any] = json.loads(json.dumps(identity))  # As it will be read back.
    return found


def _state(shard: NamedShard) -> list[int | str] | None:
    """Return size and time of a file, and of a user's data set its length and version, too.

    None if they are unknown, and no network may be used and no class called.
    """
    with suppress(NotFetched):
        found, more = shard.path.stat(), list[int | str]()
        if shard.custom is not None:
            made = custom_set(shard.custom)
            more = [made.samples, made.version]
        return [found.st_size, found.st_mtime_ns, *more]
    return None


def opened_if_usable(folder: Path, wanted: dict[str, Any]) -> tuple[Columns | None, str]:
    """Return an index if it exists and is up to date, or None and why it must be made."""
    try:
        meta = read_meta(folder)
        have = meta["identity"]
        if have["tokenizer"] != wanted["tokenizer"]:
            return None, "the tokenizer has changed"
        for name, old, new in zip(wanted["names"], have["shards"], wanted["shards"], strict=True):
            if old != new and new is not None:
                return None, f"{Path(name).name} has changed"
        return open_columns(folder, meta), ""
    except FileNotFoundError:
        return None, "no index yet"
    except (DamagedIndex, KeyError, TypeError, ValueError) as error:
        return None, f"the index is damaged: {error}"
