"""Train multimodal models in which every module has its own grid and its own ranks."""

__version__ = "0.1.0"
