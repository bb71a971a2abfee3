"""Estimates of parameters, memory, FLOPs and time of a step, without running it."""
