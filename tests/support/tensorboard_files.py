"""Reads event files as TensorBoard does."""

from pathlib import Path


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each curve that TensorBoard shows of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {
        name: [(each.step, round(each.value, 4)) for each in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }
