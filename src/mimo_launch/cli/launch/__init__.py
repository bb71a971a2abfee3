"""From a checked spec to a run: what `train` and `bench` share."""
