"""Per-module optimizers, gradient reduction, norms and learning-rate schedules."""
