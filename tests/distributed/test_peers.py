"""Training beside other libraries: the same losses, step by step (`nox -s peers`)."""

from pathlib import Path

import pytest
import torch
from tests.gpu import peer_libraries, peers

SPEC = """
version: 1
name: small
modules:
  vision:
    model: {kind: vit, layers: 3, hidden: 32, heads: 4, mlp: 40, channels: 3, patch: 2,
            temporal_patch: 2, shuffle: 2, positions: learned+rope2d, image: [6, 6],
            interpolation: bilinear, activation: gelu_tanh, projector: merger, deepstack: [0, 1]}
    ranks: 0
  language:
    model: {kind: decoder, layers: 3, hidden: 32, heads: 4, kv_heads: 2, head_dim: 12, mlp: 48,
            vocab: 60, qk_norm: true, tied: true, rope_theta: 50.0, mrope: [2, 2, 2],
            mrope_interleaved: true}
    ranks: 0
schedule: {kind: 1f1b, microbatches: 2}
batch: {global: 4, seq: 64}
data: {kind: synthetic, text_only: 0.0, image: [4, 6], min_images: 2, max_images: 2, min_text: 32}
optimizer: {kind: adamw, lr: 3e-3, betas: [0.9, 0.95], weight_decay: 0.1, clip: 1.0}
train: {steps: 4, precision: fp32}
"""


def test_losses_are_those_of_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "small.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    peers.main([str(spec), "--device", "cpu"])
    times, _, rest = capsys.readouterr().out.partition("\n\n")
    losses, _, without = rest.partition("\n\n")
    assert "| transformers " in times
    assert without == "without automodel: it loads on GPUs only\n"
    rows = [[float(cell) for cell in line.split("|")[2:-1]] for line in losses.splitlines()[2:]]
    assert len(rows) == 4
    for here, theirs in rows:
        assert here == pytest.approx(theirs, abs=2e-5)
    assert len({here for here, _ in rows}) == 4


def test_a_library_that_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_libraries, "find_spec", lambda module: None)
    lack = peer_libraries.Automodel.lacks(torch.device("cuda"))
    assert lack == "pip install nemo-automodel 'transformer-engine[pytorch]'"
    monkeypatch.setattr(peer_libraries, "find_spec", lambda module: module)
    assert peer_libraries.Automodel.lacks(torch.device("cuda")) is None
