"""Starts and watches the workers of a job, and says why a run failed."""
