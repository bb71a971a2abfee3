"""Layers cut over tp and cp: linear, attention, Mamba, experts, loss."""
