"""`mimo-launch` that notes which records are read: `python spied_train.py FOLDER train SPEC ...`.

Each rank appends the keys of the texts that it reads to a file of its own, which a SIGKILL leaves
complete. Functions are replaced before the command line runs; forked workers inherit it.
"""

import os
import sys
from pathlib import Path
from typing import Any

from mimo_launch.cli.app import main
from mimo_launch.data.shard_samples import ShardSamples


def spy(folder: Path) -> None:
    read = ShardSamples.text

    def text(self: ShardSamples, split: Any, index: int) -> Any:
        with (folder / f"rank-{os.environ['RANK']}").open("a") as file:
            file.write(f"{self.name(split, index).split()[1]}\n")
        return read(self, split, index)

    ShardSamples.text = text  # type: ignore[method-assign]


if __name__ == "__main__":
    spied = Path(sys.argv.pop(1))
    spied.mkdir()
    spy(spied)
    main()
