"""What a device achieves on the layers of language, kind by kind, and on the head.

Decides: that the first layer of a kind stands for all, on as many tokens as one microbatch brings.
Relies on: the layers of `models`, built a second time without sharding and without other ranks.
Leaves: other modules and passes over memory to `device_rates`.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from mimo_launch.bench.single_layer import alone, noise, randomised, tflops, there_and_back
from mimo_launch.estimate.flops import forward_flops
from mimo_launch.kinds.layer import LayerKind, Workload
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import padded_vocab_size, vocab_size
from mimo_launch.layers.parallel_context import SINGLE, ParallelContext
from mimo_launch.layout.encoder_placement import LANGUAGE
from mimo_launch.layout.stages import Stage
from mimo_launch.models.build import RankModule
from mimo_launch.models.language_model import LanguageInput, LanguageStage
from mimo_launch.spec.model import DecoderModel, ExpertGrid, HybridModel, Spec
from mimo_launch.train.session import RankSession

# Constants of `Calibration`.
CONSTANTS = {
    LayerKind.BLOCK: "language_linear",
    LayerKind.MAMBA: "mamba",
    LayerKind.EXPERTS: "experts",
}


def language_layers(session: RankSession, module: RankModule) -> Iterator[tuple[str, float]]:
    """Yield the constant and the rate of the first layer of each kind."""
    model = session.spec.language.model
    seen: set[LayerKind] = set()
    for number in range(model.layers):
        kind = kind_of(model).layer_widths(number).kind
        if kind not in seen:
            seen.add(kind)
            name = CONSTANTS[kind] if module.context.fp8 is None else "language_fp8"
            yield name, _layer(session, module, number, kind)


def _layer(session: RankSession, module: RankModule, number: int, kind: LayerKind) -> float:
    context, spec, shards = alone(module), session.spec, 1
    if kind is LayerKind.EXPERTS:
        spec, shards = _own_experts(spec), context.tp.size
        context = replace(context, tp=SINGLE)
    stage = Stage(LANGUAGE, 1, number, 1, is_first=False, is_last=False)
    network = randomised(_decoder(spec, context, stage), context)
    work, batch = _tokens(session, module, labels=None, shards=shards)
    hidden = noise(context, work.tokens, spec.language.model.hidden).requires_grad_()
    flops = forward_flops(spec, stage, work).total
    return tflops(flops, context.tp, there_and_back(network, hidden, batch), context.device)


def _own_experts(spec: Spec) -> Spec:
    """Return a spec with those experts alone that a rank holds, or its parts of them.

    To these, as many tokens come as the rank sends when loads are balanced; the other parts of a
    layer are whole, for the tokens of one tp rank.
    """
    language, model = spec.language, _model(spec)
    moe, grid = model.moe, language.experts or ExpertGrid()
    if moe is None:
        return spec
    own = moe.experts // grid.ep
    mine = moe.model_copy(
        update={
            "experts": own,
            "top_k": min(moe.top_k, own),
            "width": moe.width // grid.tp,
        }
    )
    changed = language.model_copy(update={"model": model.model_copy(update={"moe": mine})})
    return spec.model_copy(update={"modules": {**spec.modules, LANGUAGE: changed}})


def head_rate(session: RankSession, module: RankModule) -> float:
    """Return the rate of the vocabulary head and the loss."""
    context, stage = alone(module), Stage(LANGUAGE, 1, 0, 0, is_first=False, is_last=True)
    network = randomised(_decoder(session.spec, context, stage), context)
    vocab = vocab_size(session.spec)
    work, batch = _tokens(session, module, labels=vocab)
    hidden = noise(context, work.tokens, session.spec.language.model.hidden).requires_grad_()
    flops = forward_flops(session.spec, stage, work).total
    return tflops(flops, context.tp, there_and_back(network, hidden, batch), context.device)


def _model(spec: Spec) -> DecoderModel | HybridModel:
    """Return the model of language. Raises: TypeError for one of an unknown kind."""
    model = spec.language.model
    if not isinstance(model, DecoderModel | HybridModel):
        raise TypeError(f"language has a model of unknown kind {model!r}")
    return model


def _decoder(spec: Spec, context: ParallelContext, stage: Stage) -> nn.Module:
    return LanguageStage(
        context,
        _model(spec),
        stage,
        vocab=vocab_size(spec),
        padded_vocab=padded_vocab_size(spec),
        global_samples=spec.batch.global_,
        recompute=False,
    )


def _tokens(
    session: RankSession, module: RankModule, *, labels: int | None, shards: int = 1
) -> tuple[Workload, LanguageInput]:
    """Return one microbatch of one cp rank, with random labels below `labels` if there are any.

    Of every sequence, only as much as one of so many `shards` has.
    """
    layout, device = session.layout, session.device
    seq = layout.seq // module.context.cp.size // shards
    count = layout.samples.microbatch_size
    batch = LanguageInput(
        num_sequences=count,
        tokens=None,
        positions=torch.arange(seq, device=device),
        documents=None,
        labels=None if labels is None else torch.randint(labels, (count, seq), device=device),
        rows={},
        placements={},
    )
    return Workload(spans=(seq,) * count, held=seq * count, rows=0, forwards=1), batch
