"""Libraries that train the Qwen3-VL of `tests.gpu.peers`: one class for each, behind `Peer`.

Each reads a folder of `transformers` and trains it with AdamW, whose weights and moments are in
fp32; products are in bf16 if the spec says so. Otherwise a library keeps its own settings.
"""

from abc import ABC, abstractmethod
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from tests.support.random_models import theirs
from torch import Tensor

from mimo_launch.spec.spec import Spec


class Peer(ABC):
    """A model of a library and its optimizer, on the device."""

    # The package to install for each module.
    needs: ClassVar[dict[str, str]]
    model: Any
    optimizer: torch.optim.Optimizer

    @abstractmethod
    def __init__(self, spec: Spec, folder: Path, device: torch.device) -> None:
        """Load a folder for training."""

    @classmethod
    @abstractmethod
    def title(cls) -> str:
        """Return its name and version."""

    @classmethod
    def lacks(cls, device: torch.device) -> str | None:
        """Say what is missing here, if anything is."""
        if all(find_spec(module) for module in cls.needs):
            return None
        return f"pip install {' '.join(cls.needs.values())}"

    @abstractmethod
    def loss(self, inputs: dict[str, Tensor], wanted: Tensor, labels: int, last: bool) -> Tensor:
        """Return the loss of a microbatch, a share of the mean over all labels of the step."""

    def clip(self, norm: float) -> None:
        """Clip the gradients of a step."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), norm)


class Transformers(Peer):
    """`transformers` under FSDP2: its blocks are units, and attention is torch's."""

    needs: ClassVar = {"transformers": "transformers"}

    @classmethod
    def title(cls) -> str:
        return f"transformers {theirs().__version__}, FSDP2"

    def __init__(self, spec: Spec, folder: Path, device: torch.device) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        kind = theirs().Qwen3VLForConditionalGeneration
        model = kind.from_pretrained(folder, dtype=torch.float32).to(device).train()
        if spec.language.recomputes:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        narrow = torch.bfloat16 if in_bf16(spec) else None
        policy = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32)
        inner = model.model
        for block in (*inner.visual.blocks, *inner.language_model.layers, model):
            fully_shard(block, mp_policy=policy)
        self.model = model
        self.optimizer = adamw(spec, model, device)

    def loss(self, inputs: dict[str, Tensor], wanted: Tensor, labels: int, last: bool) -> Tensor:
        self.model.set_requires_gradient_sync(last)
        logits = self.model(**inputs, use_cache=False).logits.float()
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum") / labels


class Automodel(Peer):
    """NeMo Automodel: its own class of the model, its recomputing and its loss without logits.

    On one rank it does not apply FSDP2, whose mixed precision would keep weights in fp32. So the
    model is in bf16, and the optimizer keeps fp32 copies, as its guide to mixed precision says.
    """

    needs: ClassVar = {
        "nemo_automodel": "nemo-automodel",
        "transformer_engine": "'transformer-engine[pytorch]'",
    }

    @classmethod
    def title(cls) -> str:
        return f"NeMo Automodel {version('nemo-automodel')}"

    @classmethod
    def lacks(cls, device: torch.device) -> str | None:
        return "it loads on GPUs only" if device.type == "cpu" else super().lacks(device)

    def __init__(self, spec: Spec, folder: Path, device: torch.device) -> None:
        from nemo_automodel import NeMoAutoModelForImageTextToText
        from nemo_automodel.components.distributed.config import DistributedSetup, FSDP2Config
        from nemo_automodel.components.loss.chunked_ce import ChunkedCrossEntropy

        narrow = in_bf16(spec)
        self.model = NeMoAutoModelForImageTextToText.from_pretrained(
            str(folder),
            dtype=torch.bfloat16 if narrow else torch.float32,
            attn_implementation="sdpa",
            distributed_setup=DistributedSetup.build(
                FSDP2Config(), activation_checkpointing=spec.language.recomputes
            ),
        ).train()
        self.linear_loss = ChunkedCrossEntropy()
        self.optimizer = fused_adam(spec, self.model) if narrow else adamw(spec, self.model, device)

    def loss(self, inputs: dict[str, Tensor], wanted: Tensor, labels: int, last: bool) -> Tensor:
        from nemo_automodel.components.loss.utils import calculate_loss
        from nemo_automodel.components.training.model_output_utils import get_final_hidden_states

        out = self.model(**inputs, use_cache=False, logits_to_keep=1, output_hidden_states=True)
        return calculate_loss(
            self.linear_loss,
            logits=out.logits,
            labels=wanted,
            model=self.model,
            hidden_states=get_final_hidden_states(out),
            num_label_tokens=labels,
        )

    def clip(self, norm: float) -> None:
        from nemo_automodel.components.training.utils import scale_grads_and_clip_grad_norm

        scale_grads_and_clip_grad_norm(norm, [self.model])


PEERS: dict[str, type[Peer]] = {"transformers": Transformers, "automodel": Automodel}


def in_bf16(spec: Spec) -> bool:
    """Return whether products are in bf16."""
    return spec.train.precision == "bf16"


def adamw(spec: Spec, model: Any, device: torch.device) -> torch.optim.Optimizer:
    """Return torch's AdamW of a spec."""
    return torch.optim.AdamW(groups(spec, model), **shared(spec), fused=device.type == "cuda")


def fused_adam(spec: Spec, model: Any) -> torch.optim.Optimizer:
    """Return Transformer Engine's AdamW of a spec, with fp32 copies of the weights."""
    from nemo_automodel.components.optim.optimizer import FusedAdamConfig

    asked = FusedAdamConfig(**shared(spec), master_weights=True, master_weight_dtype="float32")
    return asked.build_from_param_groups(groups(spec, model))


def shared(spec: Spec) -> dict[str, Any]:
    """Return the settings of AdamW that all weights share."""
    asked = spec.optimizer
    return {"lr": asked.lr, "betas": tuple(asked.betas), "eps": asked.eps}


def groups(spec: Spec, model: Any) -> list[dict[str, Any]]:
    """Return the weights that decay, and those that do not."""
    decays = [(p, p.dim() > 1 and "norm" not in n) for n, p in model.named_parameters()]
    return [
        {"params": [p for p, d in decays if d], "weight_decay": spec.optimizer.weight_decay},
        {"params": [p for p, d in decays if not d], "weight_decay": 0.0},
    ]
