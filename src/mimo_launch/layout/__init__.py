"""Who owns what: ranks, stages, samples and rows, as frozen torch-free data."""
