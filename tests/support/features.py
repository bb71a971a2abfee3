"""What random specs cover, for tables of coverage. Imports no torch."""

from tests.support.partly_trained import parts_trained
from tests.support.specs import AXES

from mimo_launch.layout.balance import replicas_that_share
from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import HybridModel, Spec, VitModel

LETTERS = {
    "M": "Mamba layers",
    "G": "DeltaNet layers",
    "C": "short convolutions",
    "*": "attention layers",
    "-": "MLP layers",
    "E": "experts",
}


def features(made: Spec) -> set[str]:
    """Name what a spec covers: placements, axes, fan, k, frozen and text-only modules, models."""
    layout = build_layout(made)
    found = {f"encoders {len(layout.encoders)}", made.schedule.kind}
    found |= {f"{axis} > 1" for m in layout.modules for axis in AXES if m.grid.size(axis) > 1}
    found |= {"4 or more ranks"} if layout.world_size >= 4 else set()
    found |= {"idle ranks"} if made.idle_ranks is not None else set()
    found |= {"packed documents"} if made.data.max_documents > 1 else set()
    found |= {"packed records"} if made.data.packing else set()
    found |= {"several images"} if made.data.max_images > 1 else set()
    found |= {"text only"} if made.data.text_only == 1 else set()
    found |= {"mixed text"} if 0 < made.data.text_only < 1 else set()
    for name, module in made.modules.items():
        found |= {"sequence parallel"} if layout[name].sequence_parallel else set()
        found |= {"full sharding"} if module.sharding == "full" else set()
        found |= {"other order"} if module.order != AXES else set()
        role = "language" if name == "language" else "encoder"
        found |= {f"frozen {role}"} if module.frozen is True else set()
        found |= {"frozen except projector"} if module.frozen == "except_projector" else set()
        found |= {"recompute"} if module.recompute == "full" else set()
    return (
        found
        | parts_trained(made)
        | _of_encoders(made)
        | _of_placements(layout)
        | _of_language(made, layout)
    )


def _of_encoders(made: Spec) -> set[str]:
    found: set[str] = set()
    for encoder in made.encoders.values():
        model, joined = encoder.model, encoder.model.patches_per_row > 1
        if isinstance(model, VitModel):
            found |= {model.kind}
            found |= {"pixel shuffle"} if joined else set()
            found |= {f"{model.positions} positions, {model.projector} projector"}
            found |= {"class token"} if model.class_token else set()
            found |= {"registers"} if model.registers else set()
            found |= {"no final norm"} if not model.final_norm else set()
            found |= {"windows"} if model.windows else set()
            found |= {"tiles"} if model.tiles else set()
            found |= {"layer scale"} if model.layer_scale else set()
            if model.qk_norm:
                found |= {f"norm of {'each head' if model.head_qk_norm else 'all heads'}"}
            found |= {"norm of the projector"} if model.projector_norm_eps else set()
            found |= {"pooled rows"} if model.pooling == "mean" and joined else set()
            found |= {"merged rows"} if model.pooling == "linear" else set()
            found |= {"norm of patches"} if model.patch_norm else set()
            found |= {"no biases in vision"} if not model.block_bias else set()
            found |= {f"frequencies {model.rope_frequencies}"} if model.turns_patches else set()
            found |= {f"{model.interpolation} positions"} if model.has_table else set()
            found |= {"rows of several layers"} if model.deepstack else set()
            found |= {"RMSNorm in vision"} if model.norm == "rms" else set()
            found |= {"gated MLPs in vision"} if model.activation == "swiglu" else set()
        else:
            found |= {model.kind, f"{model.kind}, {model.projector} projector"}
            found |= {"frame stacking"} if joined else set()
            found |= {"clips of one length"} if model.fixed_length else set()
    return found


def _of_placements(layout: Layout) -> set[str]:
    found: set[str] = set()
    language = layout.language
    for encoder in layout.encoders:
        mine, theirs = set(encoder.grid.ranks), set(language.grid.ranks)
        placement = "colocated" if mine == theirs else "overlap" if mine & theirs else "disjoint"
        found |= {placement}
        num, dp = encoder.grid.size("dp"), language.grid.size("dp")
        found |= {"fan-in" if num > dp else "fan-out" if num < dp else "one-to-one"}
        found |= {"uneven dp"} if num % dp and dp % num else set()
        found |= {"samples move"} if replicas_that_share(layout, encoder) > 1 else set()
        if not encoder.in_phases:
            found |= {"groups in front"} if encoder.group_size > 1 else set()
        else:
            more = layout.samples.microbatches > encoder.group_size
            found |= {"several groups"} if more else {"one group"}
            found |= {"k > 1"} if encoder.group_size > 1 else set()
    return found


def _of_language(made: Spec, layout: Layout) -> set[str]:
    module, model, grid = made.language, made.language.model, layout.language.grid
    found = {f"language {axis} > 1" for axis in AXES if grid.size(axis) > 1}
    found |= {"tied"} if model.tied else set()
    found |= {"gated attention"} if model.gated_attention else set()
    found |= {"heads that rotate in part"} if model.rotary_factor < 1 else set()
    found |= {"neighbours rotate together"} if model.rotary_interleaved else set()
    found |= {"further tokens"} if model.mtp else set()
    found |= {"positions on three axes"} if model.mrope else set()
    if isinstance(model, HybridModel):
        found |= {"hybrid", *(f"hybrid, {LETTERS[each]}" for each in model.pattern)}
        if "G" in model.pattern:
            found |= {f"DeltaNet over {axis}" for axis in ("tp", "cp") if grid.size(axis) > 1}
        if "M" in model.pattern:
            found |= {f"Mamba over {axis}" for axis in ("tp", "cp") if grid.size(axis) > 1}
            found |= (
                {"Mamba groups shared over tp"} if model.mamba.groups < grid.size("tp") else set()
            )
    else:
        found |= {"query, key and value biases"} if model.qkv_bias else set()
        found |= {"sliding windows"} if model.sliding_window else set()
        found |= {"chunks"} if model.sliding_window and model.sliding_window.chunked else set()
        found |= {"layers without rotary positions"} if model.nope else set()
        found |= {"bidirectional images"} if model.bidirectional_images else set()
        found |= {"bidirectional prompts"} if model.bidirectional_prompts else set()
        found |= {"norms on both sides"} if model.post_norms and model.pre_norms else set()
        found |= set() if model.pre_norms else {"norms after layers alone"}
        found |= set() if model.gated_mlp else {"MLPs without a gate"}
        found |= {"biases of MLPs"} if model.mlp_bias else set()
        found |= {"norms after rotation"} if model.rotated_qk_norm else set()
        found |= {"norms of all heads together"} if model.wide_qk_norm else set()
        found |= {"heads of one length"} if model.l2_qk_norm else set()
        found |= {"layers in parallel"} if model.parallel else set()
        found |= {f"{model.norm} norms in language"} if model.norm != "rms" else set()
        found |= {"factors on layers"} if model.residual_scale else set()
        found |= {"factors on logits"} if model.logit_scale else set()
        found |= {"latent attention"} if model.mla else set()
        found |= {"attention sinks"} if model.attention_sinks else set()
        found |= {"queries that grow"} if model.query_scaling else set()
        found |= {"capped scores"} if model.attention_softcap else set()
        found |= {"capped logits"} if model.logit_softcap else set()
        found |= {"bias of attention's output"} if model.output_bias else set()
        found |= {"axes in turn"} if model.mrope and model.mrope_interleaved else set()
    experts, moe = layout.language.experts, model.moe
    if experts is None or moe is None:
        return found
    found |= {"experts", f"experts, {moe.score}"}
    found |= {"ep > 1"} if experts.size(Axis.EP) > 1 else set()
    found |= {"split experts"} if experts.size(Axis.EXPERT_TP) > 1 else set()
    found |= {"replicas of experts"} if experts.size(Axis.EXPERT_DP) > 1 else set()
    found |= {"shared expert"} if moe.shared else set()
    found |= {"groups of experts"} if moe.groups > 1 else set()
    found |= {"gate of a shared expert"} if moe.gates_shared else set()
    found |= {"experts with linear biases"} if moe.bias else set()
    found |= {"biases of experts"} if moe.bias_update_rate else set()
    found |= {"every expert chosen"} if moe.top_k == moe.experts else set()
    found |= {"experts, full sharding"} if module.sharding == "full" else set()
    found |= {"experts, recompute"} if module.recompute == "full" else set()
    found |= {"experts, frozen"} if module.frozen is True else set()
    cuts = [range(s.first_layer, s.first_layer + s.num_layers) for s in layout.language.stages]
    have = [any(model.has_experts(layer) for layer in layers) for layers in cuts]
    return found | ({"stages without experts"} if not all(have) else set())
