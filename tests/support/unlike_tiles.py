"""Folders whose processors cut images otherwise than an encoder."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.pasting import pasted
from tests.support.shards import image_bytes, write_shard
from tests.support.specs import box
from tests.unit.test_shard_samples import opened, shard_spec, with_vocab

from mimo_launch.checks.all_checks import check
from mimo_launch.checks.load_and_check import check_text
from mimo_launch.processors.files import ProcessorError
from mimo_launch.spec.load import dump_spec

OTHER = "name the folder that the encoder's weights come from in `data.processors`"


def assert_refused(folder: Path, model: dict[str, Any], why: str, help_: str) -> None:
    """Check that a spec of the folder is refused, also by readers, and valid with the help."""
    given = {"tokenizer": str(folder), "processors": {"eye": str(folder)}}
    write_shard(folder.parent / "a.tar", [("0", {"png": image_bytes(8, 8), "txt": b"A dog."})])
    modules = {"eye": box(model=model)}
    made = with_vocab(shard_spec(folder.parent, modules, template="chat", **given))
    [found] = [each for each in check(made) if each.code == "processor-not-supported"]
    assert re.search(why, found.why or "")
    assert found.help == help_
    with pytest.raises(ProcessorError, match=why):
        opened(made)
    for text in pasted(json.dumps(dump_spec(made)), found):
        after = check_text(text)
        assert after.spec is not None, after.diagnostics
