"""Weights that the estimates count are those that the layers declare, shape by shape."""

import sys
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from tests.support.planted_dinov3 import MODEL as DINOV3
from tests.support.planted_gemma4_vision import MODEL as GEMMA4
from tests.support.planted_llama4_vision import MODEL as LLAMA4
from tests.support.planted_ovis2_vision import MODEL as OVIS2
from tests.support.planted_registers import MODEL as REGISTERED
from tests.support.planted_registers import SQUARED
from tests.support.planted_scales import EACH, GATED, MERGED
from tests.support.planted_tiles import LAST, TILES
from tests.support.specs import OF_PHI4, box, hybrid, spec

from mimo_launch.comm.process_groups import Group
from mimo_launch.estimate.parameters import stage_weights
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.block_shapes import BlockShape
from mimo_launch.kinds.mlp_shapes import MlpShape
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import ends_of
from mimo_launch.kinds.weights import LayerShape, Parameter, Share, Weight
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import Segment, declared_parameters
from mimo_launch.layout.layout import ModuleLayout, build_layout
from mimo_launch.models import build
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import DecoderModel, Spec

DECODER = {"kind": "decoder", "layers": 5, "hidden": 48, "heads": 12, "vocab": 300}
GATES = {"gated_attention": True, "qk_norm": True, "heads": 4, "kv_heads": 2}
EXPERTS: dict[str, Any] = {
    "experts": {"ep": 2},
    "model": {"moe": {"experts": 4, "top_k": 2, "width": 8}},
}
VIT = {"kind": "vit", "layers": 3, "hidden": 48, "heads": 4, "patch": 2, "channels": 3}


def hearing(model: dict, **audio) -> Spec:
    return spec({"audio": box(0, model={"kind": "audio", **model}, **audio), "language": box(4)})


def mixing(groups: int = 0, pattern: str = "M-M*-", **language) -> Spec:
    more = language.pop("model", {})
    module = box(0, **language)
    module["model"] = hybrid(module["grid"], pattern, groups) | more
    return spec({"language": module})


def routed(experts: dict, moe: dict, **language) -> Spec:
    model = {**DECODER, "moe": {**EXPERTS["model"]["moe"], **moe}}
    return spec({"language": box(0, model=model, experts=experts, **language)}, mbs=2)


def joined(*towers: str, drawer: dict[str, Any] | None = None, **merger: Any) -> Spec:
    """Return a spec with a connector behind towers, and a generator behind language."""
    model = {"kind": "connector", "layers": 3, "hidden": 24, "heads": 2, **merger}
    grid = {"tp": 2, "pp": 3, "sequence_parallel": True}
    modules = {
        **{name: box(place, model={"hidden": 16}) for place, name in enumerate(towers)},
        "merger": box(2, model=model, reads=towers, **grid),
        "language": box(8, tp=2, model={"hidden": 32}),
        "drawer": box(10, model={"kind": "flow", **(drawer or {})}, reads=["language"], **grid),
    }
    return spec(modules, microbatches=3, mbs=2)


def speaking(**speech: Any) -> Spec:
    """Return a spec with a talker that reads text of a language model in two stages."""
    model = {"kind": "talker", "layers": 3, "hidden": 32, "heads": 4, "codebooks": 3, **speech}
    modules = {
        "language": box(0, tp=2, pp=2, model={"hidden": 40}),
        "speech": box(4, tp=2, pp=3, model=model, reads=["language"], sequence_parallel=True),
    }
    return spec(modules, microbatches=3, mbs=2)


def expert_groups(module: ModuleLayout) -> dict[str, Group]:
    """Groups of the last rank of the experts, which has the least if anyone has less."""
    if module.experts is None:
        return {}
    groups = {axis: module.experts.groups(axis)[-1] for axis in (Axis.EP, Axis.EXPERT_TP)}
    return {str(axis): Group(ranks, len(ranks) - 1, None) for axis, ranks in groups.items()}


def specs() -> dict[str, Spec]:
    """Every size that changes a shape, one spec each."""

    def one(language: dict, vision: dict, tp: int, pp: int = 1, **more) -> Spec:
        return spec(
            {
                "vision": box(0, tp=tp, dp=pp, model={**VIT, **vision}, **more),
                "language": box(0, tp=tp, pp=pp, model={**DECODER, **language}, **more),
            },
            microbatches=pp,
            mbs=pp,
        )

    return {
        "further tokens": one({"mtp": {"depth": 2}}, {}, tp=2, pp=2),
        "further tokens, experts": spec(
            {
                "language": box(
                    tp=2,
                    dp=2,
                    sharding="full",
                    experts={"ep": 2},
                    model={**DECODER, **EXPERTS["model"], "mtp": {"depth": 1}},
                )
            },
            mbs=2,
        ),
        "further tokens of a hybrid": mixing(
            tp=2, model={**GATES, "activation": "silu", "qk_norm": True, "mtp": {"depth": 2}}
        ),
        "further tokens of a hybrid, squared ReLU": mixing(tp=2, model={"mtp": {"depth": 1}}),
        "tp 1": one({}, {}, 1),
        "tp 2, kv heads split": one({"kv_heads": 4}, {"projector": "linear"}, 2),
        "tp 2, RMSNorm and SwiGLU": one(
            {}, {"norm": "rms", "activation": "swiglu", "pre_norm": True, "projector": "merger"}, 2
        ),
        "tp 2, several layers": one({}, {"deepstack": [0, 2], "shuffle": 2}, 2),
        "tp 2, states side by side": one({}, {"layers": 3, "features": [0, 2]}, 2),
        "tp 4, kv heads shared": one({"kv_heads": 2}, {"mlp": 64}, 4, sequence_parallel=True),
        "tied, qk_norm, head_dim": one({"tied": True, "qk_norm": True, "head_dim": 6}, {}, 2, 3),
        "heads of two sizes, values from keys": one(
            {
                "kv_heads": 2,
                "head_dim": 8,
                "values_from_keys": True,
                "qk_norm": True,
                "value_norm": True,
                "layer_scalar": 1.0,
                "sliding_window": {"size": 4, "full": [1, 2], "head_dim": 6, "kv_heads": 4},
            },
            {},
            4,
        ),
        "keys of earlier layers": one(
            {
                "layers": 6,
                "kv_heads": 2,
                "head_dim": 8,
                "mlp": 64,
                "qk_norm": True,
                "shared_keys": {"layers": 3, "mlp": 128},
                "sliding_window": {"size": 4, "full": [1, 5], "head_dim": 6, "kv_heads": 4},
            },
            {},
            4,
        ),
        "per-layer embeddings": one(
            {
                "layers": 2,
                "kv_heads": 2,
                "mlp": 64,
                "per_layer_embeddings": {"width": 6},
                "mtp": {"depth": 1},
            },
            {},
            2,
        ),
        "norms on both sides, sinks": one(
            {"post_norms": True, "norm_offset": True, "attention_sinks": True}, {}, 2
        ),
        "norms of all heads and after layers": one(
            {"pre_norms": False, "post_norms": True, "qk_norm": True, "wide_qk_norm": True}, {}, 2
        ),
        "no gate": one({"activation": "squared_relu"}, {}, 2),
        "xIELU": one({"activation": "xielu"}, {}, 2),
        "LayerNorms, layers in parallel": one({"norm": "layer", "parallel": True}, {}, 2),
        "MLPs without a gate, with biases": one(
            {"activation": "gelu_tanh_without_gate", "mlp_bias": True}, {}, 2
        ),
        "gates": one({"gated_attention": True, "qkv_bias": True, "kv_heads": 2}, {}, 4),
        "gates of a hybrid": mixing(tp=2, model={**GATES, "activation": "silu"}),
        "biases, kv heads split": one(
            {"qkv_bias": True, "output_bias": True, "kv_heads": 4}, {}, 2
        ),
        "latent attention": one(
            {
                "head_dim": 10,
                "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
            },
            {},
            2,
        ),
        "latent attention, queries of the stream": one(
            {"head_dim": 10, "mla": {"kv_rank": 12, "rope_head_dim": 4, "v_head_dim": 6}},
            {},
            4,
            sequence_parallel=True,
        ),
        "biases, kv heads shared": one({"qkv_bias": True, "kv_heads": 2}, {}, 4),
        "untied over pp": one({"mlp": 100, "vocab_multiple": 4}, {}, 1, 5),
        "pixel shuffle, mlp": one({}, {"shuffle": 2}, 2),
        "pixel shuffle, linear": one({}, {"shuffle": 2, "projector": "linear"}, 2),
        "merger, two frames": one(
            {}, {"shuffle": 2, "projector": "merger", "temporal_patch": 2, "positions": "rope2d"}, 2
        ),
        "learned positions": one({}, {"positions": "learned", "image": [3, 4]}, 2),
        "as CLIP in LLaVA": one(
            {},
            {
                "positions": "learned",
                "image": [3, 4],
                "class_token": True,
                "pre_norm": True,
                "patch_bias": False,
                "final_norm": False,
            },
            2,
        ),
        "as a large InternVL": one(
            {},
            {
                "norm": "rms",
                "layer_scale": 0.1,
                "qk_norm": True,
                "qkv_bias": False,
                "projector_norm_eps": 1e-5,
                "shuffle": 2,
            },
            2,
        ),
        "as an Idefics3": one(
            {}, {"projector": "linear", "projector_bias": False, "shuffle": 2}, 2
        ),
        "as a Gemma 3": one(
            {},
            {
                "projector": "linear",
                "projector_bias": False,
                "projector_norm_eps": 1e-6,
                "projector_norm": "rms",
                "projector_norm_offset": True,
                "pooling": "mean",
                "shuffle": 2,
            },
            2,
        ),
        "as a Mistral 3": one({}, MERGED, 2),
        "as a GLM-4.1V": one({}, GATED, 2),
        "as a PaddleOCR-VL": one({}, EACH, 2),
        "as a RADIO": one({}, REGISTERED, 2),
        "a DINOv3": one({}, DINOV3, 2),
        "a tower of Gemma 4": one({}, GEMMA4, 2),
        "a tower of Llama 4": one({}, LLAMA4, 2),
        "a tower of Ovis2": one({}, OVIS2, 2, sequence_parallel=True),
        "a tower of Gemma 4 with clips": one({}, GEMMA4 | {"clipped_linears": True}, 2),
        "a tower of Gemma 4, not standardized": one({}, GEMMA4 | {"standardize": False}, 2),
        "as a Nemotron-H Omni": one({}, SQUARED, 2),
        "gated projector without biases": one(
            {}, {"projector": "gated", "projector_bias": False, "projector_mlp": 22}, 4
        ),
        "audio, gated": hearing({"projector": "gated", "stack": 2}, tp=2),
        "as a LLaVA-OneVision": one({}, TILES, 2, sequence_parallel=True),
        "as a Phi-4 multimodal": one({}, LAST, 2, sequence_parallel=True),
        "projector of two maps without biases": one({}, {"projector_bias": False}, 2),
        "audio, stacked": hearing({"stack": 2, "mels": 5}, tp=2, pp=2),
        "audio, projector without biases": hearing({"projector_bias": False}, tp=2),
        "audio, pooled": hearing(
            {"projector": "linear", "stack": 2, "pooling": "mean", "unpadded": True}, tp=2
        ),
        "audio, in chunks": hearing({"chunk": 8, "stack": 2, "mels": 5}, tp=2, pp=2),
        "aut": spec({"audio": box(0, model={"kind": "aut", "mels": 5}, tp=2), "language": box(4)}),
        "conformer": spec(
            {"audio": box(0, model={"kind": "conformer"}, tp=2, pp=2), "language": box(4)}
        ),
        "conformer without biases": spec(
            {
                "audio": box(
                    0, model={"kind": "conformer", "bias": False, "conv_bias": False}, tp=2
                ),
                "language": box(4),
            }
        ),
        "as the sound of a Phi-4": spec({"audio": box(0, model=OF_PHI4, tp=2), "language": box(4)}),
        "audio, linear": hearing(
            {"projector": "linear", "frames": 30}, tp=4, sequence_parallel=True
        ),
        "hybrid": mixing(tp=2, pp=2),
        "hybrid of short convolutions": mixing(pattern="C-*C-", tp=2, pp=2),
        "DeltaNet": mixing(tp=2, pattern="GM*G"),
        "DeltaNet, key heads shared": mixing(groups=2, pattern="G*", tp=4, sequence_parallel=True),
        "hybrid, groups shared": mixing(groups=2, tp=4, sequence_parallel=True),
        "experts": routed({"ep": 2, "tp": 2}, {"shared": 8, "every": 2}, tp=2, dp=2),
        "experts alone, one per rank": routed({"ep": 4}, {"first_dense": 1}, dp=4),
        "experts with norms of their own": routed(
            {"ep": 2, "tp": 2},
            {"shared": 8, "separate_norms": True, "learned_scale": True},
            tp=2,
            dp=2,
        ),
        "experts with biases": routed({"ep": 2, "tp": 2}, {"bias": True}, tp=2, dp=2),
        "gate of a shared expert": routed({"ep": 2}, {"shared": 8, "shared_gate": True}, dp=2),
        "hybrid with experts": mixing(pattern="M*ME", tp=2, **EXPERTS),
        "frozen": one({}, {}, 1, frozen=True),
        "a connector, a generator": joined("vision", drawer={"hidden": 24, "heads": 2, "patch": 2}),
        "queries, two towers": joined("vision", "depth", queries=3, projector="linear"),
        "a connector without biases": joined("vision", projector_bias=False),
        "a talker": speaking(kv_heads=1, head_dim=6, qkv_bias=True),
        "a talker, text": speaking(reads_text=True, qk_norm=True),
        "a talker, text apart": speaking(reads_text="instead", reads_layer=1),
        "a talker with a code predictor": speaking(
            codebooks=3, predictor={"layers": 2, "heads": 4, "vocab": 9, "mlp": 16}
        ),
        "a talker of experts": speaking(
            moe={"experts": 4, "top_k": 2, "width": 8, "shared": 8, "shared_gate": True, "every": 2}
        ),
        "full sharding": one({}, {}, 2, sharding="full"),
    }


def test_a_kind_is_the_class_that_its_file_has() -> None:
    """Not the one that a decorator has replaced, which still is a subclass."""
    models = (module.model for made in specs().values() for module in made.modules.values())
    kinds = {type(kind_of(model)) for model in models}
    assert len(kinds) > 5
    assert [
        each for each in kinds if vars(sys.modules[each.__module__])[each.__name__] is not each
    ] == []


@pytest.mark.parametrize("name", specs())
def test_every_weight_of_a_kind_is_held_by_a_layer_under_its_name(name: str) -> None:
    """And each rank of tp holds it in the parameter in which the estimates count it."""
    made = specs()[name]
    for module in build_layout(made).modules:
        kind, size = kind_of(made.modules[module.name].model), module.grid.size(Axis.TP)
        for stage in module.stages:
            ends = ends_of(made, module.name, is_first=stage.is_first, is_last=stage.is_last)
            context = ParallelContext(
                tp=Group(tuple(range(size)), size - 1, None),
                sequence_parallel=module.sequence_parallel,
                **expert_groups(module),
            )
            with torch.device("meta"):
                network = build.build_network(made, stage, context)
            found = Counter(
                tuple((placed.name, _part(placed.segment)) for placed in item.placed)
                for item in declared_parameters("", network)
            )
            told = Counter(
                tuple((each.name, _part(each)) for each in context.segments(weights))
                for weights in kind.weights(stage.layers, ends, size)
            )
            assert found == told
            # A checkpoint names the parts that a rank holds, so each is one part of its weight.
            names = Counter(name for parts in found.elements() for name, _ in parts)
            assert set(names.values()) <= {1}
            got = stage_weights(made, stage, size - 1)
            assert got.numel == sum(p.numel() for p in network.parameters())


def _part(segment: Segment) -> Segment:
    return replace(segment, weight=replace(segment.weight, name=""), counted=True)


@pytest.mark.parametrize("shape", [AttentionShape, MlpShape, BlockShape])
def test_a_setting_of_a_shape_is_a_key_of_decoders(shape: type[LayerShape]) -> None:
    named = [each for each in fields(shape) if each.metadata]
    keys = {each.metadata["key"]: each.default for each in named}
    assert keys.keys() <= DecoderModel.model_fields.keys()
    defaults = {key: DecoderModel.model_fields[key].default for key in keys}
    assert keys == defaults


def test_shares_of_a_weight_are_whole_units() -> None:
    """Of four heads, six ranks would hold parts; of two, each is held by three of six ranks."""
    weight = Weight(name="k.weight", shape=(16, 5), axis=0, unit=8)
    assert [weight.part(Share(2, index)) for index in range(2)] == [range(8), range(8, 16)]
    assert [weight.part(Share(6, index)).start for index in range(6)] == [0, 0, 0, 8, 8, 8]
    assert weight.copies(6) == 3
    anywhere = replace(weight, unit=None)
    assert [len(anywhere.part(Share(3, index))) for index in range(3)] == [5, 5, 6]


@pytest.mark.parametrize("model", [VIT, {"kind": "audio"}], ids=["vit", "audio"])
def test_trained_weights_are_those_that_the_spec_leaves_trainable(model: dict) -> None:
    for frozen in (False, True, "except_projector", {"layers": "0-1"}, {"layers": "1"}):
        made = spec({"encoder": box(0, frozen=frozen, model=model), "language": box(1)})
        module = build_layout(made)["encoder"]
        (stage,) = module.stages
        network = build.build_network(made, stage, ParallelContext())
        build._freeze(network, made, "encoder")
        got = stage_weights(made, stage, 0)
        assert got.trained == sum(p.numel() for p in network.parameters() if p.requires_grad)


def test_large_blocks_become_units_and_fully_sharded_ones_always() -> None:
    """A ViT of seven blocks of 19.7 million parameters, small ones, and fully sharded ones."""
    huge = {"layers": 7, "hidden": 1280, "heads": 16, "mlp": 5120, "patch": 2}
    made = spec({"vision": box(0, model=huge), "language": box(1)})
    context = ParallelContext(device=torch.device("meta"))
    for module in build_layout(made).modules:
        (stage,) = module.stages
        with torch.device("meta"):
            network: Any = build.build_network(made, stage, context)
        blocks = [sum(p.numel() for p in block.parameters()) for block in network.layers.values()]
        runs = stage.units
        *units, _ = stage_weights(made, stage, 0).units
        want = [sum(blocks[run.start : run.stop]) for run in runs]
        assert [sum(weight.numel for weight in unit) for unit in units] == want
        assert len(runs) == (1 if module.name == "vision" else 0)
    for module in build_layout(specs()["full sharding"]).modules:
        for stage in module.stages:
            units = stage_weights(specs()["full sharding"], stage, 0).units
            assert len(units) == stage.num_layers + 1


def test_shards_are_padded_to_equal_rows() -> None:
    weight = Parameter((10, 3), "body", matrices=(), in_product=False, trains=True)
    assert [weight.shard(ranks) for ranks in (1, 4, 16)] == [30, 9, 3]
