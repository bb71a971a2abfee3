"""The training loop: steps, evaluation, reading ahead, events and listeners."""
