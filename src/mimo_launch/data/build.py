"""Builds the data set that a spec names.

Decides: the class of the data set.
Relies on: `dataset` for the interface of a data set.
Leaves: samples to the data sets.
"""

from mimo_launch.data.dataset import Dataset
from mimo_launch.data.digits import DigitStrips
from mimo_launch.data.synthetic import SyntheticSamples
from mimo_launch.spec.spec import DigitsData, Spec, UserData


def build_dataset(spec: Spec) -> Dataset:
    """Return the data set that `data:` names.

    Raises:
        ValueError: The longest sample exceeds `batch.seq`, an encoder cannot read the images, or
            the shards hold nothing to train on (see `index.split_report`).
        OSError: The shards cannot be read, or their index cannot be written.
    """
    if isinstance(spec.data, DigitsData):
        return DigitStrips(spec, spec.data)
    if isinstance(spec.data, UserData):
        # Imported here because tokenizers and decoders are optional packages.
        from mimo_launch.data.shard_samples import ShardSamples

        return ShardSamples(spec, spec.data)
    return SyntheticSamples(spec, spec.data)
