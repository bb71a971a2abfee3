"""Known ways to get gradients wrong, each planted on every rank of a run.

`BUGS` names for each bug a spec on which it matters and a function that plants it, by replacing one
function of the product inside the forked rank. The proof must reject every one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tests.support.planted_caps import CAP_BUGS
from tests.support.planted_chunks import CHUNK_BUGS
from tests.support.planted_deepstack import STACK_BUGS
from tests.support.planted_dinov3 import DINOV3_BUGS
from tests.support.planted_experts import EXPERT_BUGS
from tests.support.planted_gates import GATE_BUGS
from tests.support.planted_gemma4 import GEMMA4_BUGS
from tests.support.planted_gemma4_vision import GEMMA4_VISION_BUGS
from tests.support.planted_graphs import GRAPH_BUGS
from tests.support.planted_growth import GROWTH_BUGS
from tests.support.planted_hybrid import HYBRID_BUGS
from tests.support.planted_images import IMAGE_BUGS
from tests.support.planted_latent import LATENT_BUGS
from tests.support.planted_llama4_vision import LLAMA4_VISION_BUGS
from tests.support.planted_mtp import MTP_BUGS
from tests.support.planted_nope import NOPE_BUGS
from tests.support.planted_norms import NORM_BUGS
from tests.support.planted_ovis2_vision import OVIS2_VISION_BUGS
from tests.support.planted_per_layer import PER_LAYER_BUGS
from tests.support.planted_registers import REGISTER_BUGS
from tests.support.planted_scales import SCALE_BUGS
from tests.support.planted_shared_keys import SHARED_KEYS_BUGS
from tests.support.planted_silence import SILENCE_BUGS
from tests.support.planted_sinks import SINK_BUGS
from tests.support.planted_sliding import SLIDING_BUGS
from tests.support.planted_split import SPLIT_BUGS
from tests.support.planted_tiles import TILE_BUGS
from tests.support.planted_windows import WINDOW_BUGS
from tests.support.specs import box, spec
from torch.distributed.fsdp import FSDPModule

from mimo_launch.comm import autograd_collectives
from mimo_launch.comm.collectives import all_reduce
from mimo_launch.layers import linear, sequence_contexts
from mimo_launch.models import audio_encoder, fsdp, language_input, stage_interface, vision_encoder
from mimo_launch.optimizer import step_end
from mimo_launch.runtime import compute, executor
from mimo_launch.runtime.mailbox import Address
from mimo_launch.spec.spec import Spec


@dataclass(frozen=True)
class Bug:
    """A bug and where to look for it."""

    plant: Callable[[], None]
    spec: Spec


def colocated(**settings: Any) -> Spec:
    """Vision dp 4 on the ranks of language tp 2 dp 2, two groups of two microbatches."""
    return spec(
        {"vision": box(0, dp=4), "language": box(0, tp=2, dp=2, model={"qk_norm": True})},
        **{"microbatches": 4, "encoder_microbatches": 2, "mbs": 2, **settings},
    )


def disjoint(**settings: Any) -> Spec:
    """Vision tp 2 dp 2 in front of language dp 2."""
    return spec(
        {"vision": box(0, tp=2, dp=2), "language": box(4, dp=2)},
        **{"microbatches": 3, "mbs": 2, **settings},
    )


def grouped(**settings: Any) -> Spec:
    """Vision dp 4 in front of language dp 3, which encodes four microbatches at once."""
    return spec(
        {"vision": box(0, dp=4), "language": box(4, dp=3)},
        **{"microbatches": 8, "encoder_microbatches": 4, **settings},
    )


def extra_mean() -> None:
    """Gradients are averaged over the replicas although the loss already is."""
    correct = FSDPModule.set_gradient_divide_factor
    fsdp.FSDPModule.set_gradient_divide_factor = lambda unit, factor: correct(unit, 2.0 * factor)


def is_last_of_language(stages: Any, action: Any) -> bool:
    """Whether a forward has made a loss."""
    layout = stages.layout.language
    return action.module == layout.name and layout.stages[action.stage].is_last


def scale_output(stages: Any, action: Any, factor: float) -> None:
    """Multiply what a stage has made."""
    outputs, at = stages.mail.outputs, Address.of(action)
    outputs.put(at, outputs.take(at) * factor)


def local_label_count() -> None:
    """Each replica divides by its own microbatch's labels instead of the step's."""
    correct = compute.Stages.forward

    def local(self: Any, action: Any, step: Any) -> None:
        correct(self, action, step)
        if is_last_of_language(self, action):
            replica = self.layout.language.grid.index("dp", self.rank)
            samples = self.layout.samples.language(replica, action.index)
            mine = sum(step.data.samples[s].num_labels for s in samples)
            scale_output(self, action, step.data.num_labels / mine / 4)

    compute.Stages.forward = local


def swapped_slots() -> None:
    """An encoder replica encodes its samples in another order than the bridge assumes."""
    correct = compute.Stages.encoder_view

    def swapped(*args: Any) -> Any:
        view = correct(*args)
        return replace(view, samples=view.samples[::-1])

    compute.Stages.encoder_view = swapped


def dropped_last_microbatch() -> None:
    """The last microbatch of a step adds nothing to the gradients."""
    correct = compute.Stages.forward

    def dropping(self: Any, action: Any, step: Any) -> None:
        correct(self, action, step)
        last = self.layout.samples.microbatches - 1
        if is_last_of_language(self, action) and action.index == last:
            scale_output(self, action, 0.0)

    compute.Stages.forward = dropping


def norm_over_one_grid() -> None:
    """The norm that clips every module is that of language alone."""
    correct = step_end.reduce_metrics

    def partial_norm(*args: Any, **options: Any) -> Any:
        metrics = correct(*args, **options)
        return replace(metrics, norm=metrics.squares["language"].sqrt())

    step_end.reduce_metrics = partial_norm


def replicated_counted_twice() -> None:
    """Weights that every tp rank holds enter the norm once per tp rank."""
    from mimo_launch.layers.parallel_context import ParallelContext

    ParallelContext.counts = property(lambda self: True)


def reduced_before_they_exist() -> None:
    """Encoder gradients are reduced after the first backward of a step, not the last."""
    backward, switch = compute.Stages.backward, executor._sync

    def never_for_encoders(module: Any, stage: int, *, is_last: bool) -> None:
        if module.name == "language":
            switch(module, stage, is_last=is_last)

    def first_syncs(self: Any, action: Any, step: Any) -> None:
        if action.module in self.bridges:
            switch(self.modules[action.module], action.stage, is_last=action.index == 0)
        backward(self, action, step)

    executor._sync, compute.Stages.backward = never_for_encoders, first_syncs


def split_rows_zero_filled() -> None:
    """Leaving the encoder, the gradient of the other tp ranks' rows is zero, as autograd says."""

    def zero_fill(grad: torch.Tensor, sizes: tuple[int, ...], group: Any) -> torch.Tensor:
        full = grad.new_zeros((sum(sizes), *grad.shape[1:]))
        start = sum(sizes[: group.index])
        full[start : start + grad.shape[0]] = grad
        return full

    autograd_collectives.SPLIT_ROWS.back = zero_fill


def gather_rows_summed() -> None:
    """Entering language, the gradients of the tp ranks are summed, as autograd says."""

    share = autograd_collectives.GATHER_ROWS.back

    def summed(grad: torch.Tensor, sizes: tuple[int, ...], group: Any) -> torch.Tensor:
        return share(all_reduce(grad, group), sizes, group)

    autograd_collectives.GATHER_ROWS.back = summed


def partial_sums_dropped() -> None:
    """Terms that tp ranks hold of a gradient (QK norms) are never added up."""
    step_end.sum_partial_gradients = lambda *args: None


def partial_sums_only_under_sequence_parallelism() -> None:
    """QK norms are taken for complete because there is no sequence parallelism."""
    from mimo_launch.layers.parallel_context import ParallelContext

    ParallelContext.inner_grad = ParallelContext.token_grad


def zero_rows_skipped() -> None:
    """A rank whose group has no rows skips the encoder's backward."""
    correct = compute.Stages.backward

    def skipping(self: Any, action: Any, step: Any) -> None:
        bridge = self.bridges.get(action.module)
        if bridge is None or self.mail.outputs.peek(bridge.at(action.index)).shape[0]:
            correct(self, action, step)

    compute.Stages.backward = skipping


def exit_sums_gradients() -> None:
    """The end of a tensor-parallel region sums complete gradients once more."""
    autograd_collectives.EXIT_TP.back = all_reduce


def bias_added_before_the_sum() -> None:
    """A row-parallel bias is added on every tp rank before the outputs are summed."""

    def adding(self: Any, x: torch.Tensor, *_: Any) -> torch.Tensor:
        return self.context.leave(torch.nn.functional.linear(x, self.weight, self.bias))

    linear.RowLinear.forward = adding


def one_backward_too_few() -> None:
    """The backward exchange of the last group returns the gradients of the group before it."""
    from mimo_launch.runtime.bridges import RankBridge

    correct = RankBridge._deliver

    def stale(self: Any, state: Any, rows: Any, *, forward: bool) -> None:
        correct(self, state, rows, forward=forward)
        for index in state.sent:
            if not forward and index > 0 and rows is not None:
                self.mail.gradients.peek(self.at(index)).zero_()

    RankBridge._deliver = stale


def answers_of_the_first_microbatch() -> None:
    """Of the gradients of a group, those of all microbatches but the first are lost."""
    from mimo_launch.runtime.bridges import RankBridge

    correct = RankBridge._outgoing

    def first_only(self: Any, state: Any, *, forward: bool) -> Any:
        rows = correct(self, state, forward=forward)
        if not forward and rows is not None:
            rows[self._num_received(min(state.received)) :] = 0
        return rows

    RankBridge._outgoing = first_only


def mixed_text(**settings: Any) -> Spec:
    """Colocated, one rank, groups of one microbatch, half of the samples without an image.

    With this seed the last group of a step has no image while others have one.
    """
    return spec(
        {"vision": box(0), "language": box(0)},
        microbatches=4,
        encoder_microbatches=1,
        mbs=1,
        text_only=0.5,
        seed=LAST_GROUP_EMPTY,
        **settings,
    )


LAST_GROUP_EMPTY = 58


def piped(**settings: Any) -> Spec:
    """Vision pp 2 in front of language cp 2 pp 2."""
    return spec(
        {"vision": box(0, pp=2), "language": box(2, cp=2, pp=2)},
        **{"microbatches": 3, "mbs": 2, **settings},
    )


def wide_group(**settings: Any) -> Spec:
    """Vision on one rank, encoding two microbatches of both replicas of language at once."""
    return spec(
        {"vision": box(0, cp=1), "language": box(0, dp=2)},
        **{"microbatches": 4, "encoder_microbatches": 2, "mbs": 2, **settings},
    )


def cp_sum_missing() -> None:
    """Gradients of keys and values that other cp ranks attended to are lost."""
    from mimo_launch.layers import attention

    def own_share(grad: torch.Tensor, group: Any) -> torch.Tensor:
        size = grad.shape[0] // group.size
        return grad[group.index * size : (group.index + 1) * size].clone()

    gather = autograd_collectives.GATHER.ahead
    attention.gather_tokens = autograd_collectives.Pair(gather, own_share)


def contiguous_chunks() -> None:
    """A cp rank takes two neighbouring chunks of a sequence where zigzag chunks are meant."""

    def contiguous(seq: int, cp: int, cp_size: int, device: Any) -> torch.Tensor:
        return torch.arange(seq, device=device).view(cp_size, -1)[cp]

    language_input.zigzag_positions = contiguous


def encoder_stage_skipped() -> None:
    """Stages of an encoder after the first pass their input on without running their layers."""
    from mimo_launch.models.vision_encoder import VisionStage

    correct = VisionStage.forward

    def skipping(self: Any, hidden: Any, packed: Any) -> Any:
        if hidden is not None:
            self.layers = torch.nn.ModuleDict()
        return correct(self, hidden, packed)

    VisionStage.forward = skipping


def rows_sequence_major() -> None:
    """Rows are placed by position, then by sample, where the bridge sends sample by sample."""
    from dataclasses import replace as changed

    from mimo_launch.runtime import bridges

    correct = bridges.row_places

    def sorted_by_position(views: Any, *rest: Any) -> Any:
        placed, layout = correct(views, *rest), views.layout
        seq = layout.seq // layout.language.grid.size("cp")
        order = sorted(placed.places.tolist(), key=lambda place: (place % seq, place // seq))
        return changed(placed, places=torch.tensor(order, dtype=torch.long))

    bridges.row_places = sorted_by_position


def documents_see_each_other() -> None:
    """Documents packed into one sequence attend to each other."""
    language_input.read_documents = lambda *args: None


def records_see_each_other() -> None:
    """Records of a pack are taken for one document."""
    from mimo_launch.train import loader

    loader.joined_documents = lambda records, seq: np.zeros(seq, dtype=np.int64)


def labels_shifted_over_the_pack() -> None:
    """Labels are made of a pack's tokens: the last token of a record predicts the next one's."""
    from mimo_launch.train import loader

    correct = loader.joined_texts

    def over_borders(records: Any, seq: int) -> Any:
        records = list(records)
        tokens, labels = correct(records, seq)
        for record, _ in records[1:]:
            labels[record.first - 1] = tokens[record.first]
        return tokens, labels

    loader.joined_texts = over_borders


def slot_of_the_whole_group() -> None:
    """An encoder takes its share of a group microbatch by microbatch over all replicas."""
    correct = compute.Stages.encoder_view

    def by_microbatch(self: Any, *rest: Any) -> Any:
        view, locate = correct(self, *rest), self.layout.samples.locate
        return replace(
            view,
            samples=tuple(sorted(view.samples, key=lambda s: (*locate(s)[1::-1], s))),
        )

    compute.Stages.encoder_view = by_microbatch


def skewed(**settings: Any) -> Spec:
    """Vision dp 4 on the ranks of language tp 4: images of 2 to 6 patches move among replicas."""
    return spec(
        {"vision": box(0, dp=4), "language": box(0, tp=4)},
        **{"microbatches": 4, "mbs": 2, "max_patches": 12, "text_only": 0.2, **settings},
    )


def receiver_takes_the_even_cut() -> None:
    """Language takes rows for those of the even cut: replica after replica, in order of samples."""
    from mimo_launch.runtime import bridges

    correct = bridges.target_end

    def in_order(*args: Any) -> Any:
        end, peers, first = correct(*args), [], 0
        for peer in end.peers:
            last = first + len(peer.index)
            peers.append(replace(peer, index=torch.arange(first, last)))
            first = last
        return replace(end, peers=tuple(peers))

    bridges.target_end = in_order


def shuffled(**settings: Any) -> Spec:
    """Vision tp 2 with a pixel shuffle of 2 x 2 patches in front of language cp 2."""
    return spec(
        {"vision": box(0, tp=2, model={"shuffle": 2}), "language": box(2, cp=2)},
        **{"microbatches": 2, "mbs": 2, "max_patches": 32, **settings},
    )


def squares_row_major() -> None:
    """Patches stand in the order of the image, yet neighbours in the list become one row."""
    from mimo_launch.train import loader

    correct = loader.reader
    loader.reader = lambda model: correct(model.model_copy(update={"shuffle": 1}))


def three_axes(**settings: Any) -> Spec:
    """Several images a sample in front of language cp 2 pp 2, whose positions have three axes."""
    mrope = {"head_dim": 8, "mrope": [1, 2, 1], **settings.pop("language", {})}
    return spec(
        {"vision": box(0), "language": box(1, cp=2, pp=2, model=mrope)},
        **{"microbatches": 2, "mbs": 2, "max_images": 3, "max_patches": 12, **settings},
    )


def axes_not_in_turn() -> None:
    """Axes follow each other over the pairs of a head where they should take turns."""
    from mimo_launch.kinds.decoder import DecoderKind

    def following(self: Any) -> Any:
        pairs = self.model.mrope
        return tuple(axis for axis, number in enumerate(pairs) for _ in range(number))

    DecoderKind.mrope_axes = property(following)  # type: ignore[assignment, method-assign]


def axes_lost_behind_the_first_stage() -> None:
    """Stages of language after the first take the places in the sequence for position ids."""
    from mimo_launch.models.language_model import LanguageStage

    correct = LanguageStage.forward

    def losing(self: Any, hidden: Any, batch: Any) -> Any:
        if hidden is not None:
            cp, seq = self.context.cp, batch.positions.shape[2] * self.context.cp.size
            places = sequence_contexts.zigzag_positions(
                seq, cp.index, cp.size, batch.positions.device
            )
            batch = replace(batch, positions=places)
        return correct(self, hidden, batch)

    LanguageStage.forward = losing


def height_and_width_swapped() -> None:
    """The decoder turns with the width of an image where height is meant, and the reverse."""
    correct = language_input.read_positions
    language_input.read_positions = lambda *args: correct(*args)[[0, 2, 1]]


def turned_patches(**settings: Any) -> Spec:
    """Vision cp 2 pp 2 as in Qwen2-VL, beside language with positions on three axes."""
    model = {
        "positions": "rope2d", "shuffle": 2, "temporal_patch": 2, "projector": "merger",
        "patch_bias": False, "activation": "quick_gelu", "norm_eps": 1e-6,
    }  # fmt: skip
    return spec(
        {
            "vision": box(0, cp=2, pp=2, model=model),
            "language": box(4, model={"head_dim": 8, "mrope": [1, 2, 1]}),
        },
        **{"microbatches": 2, "mbs": 2, "max_images": 3, "max_patches": 32, **settings},
    )


def class_tokens(**settings: Any) -> Spec:
    """Vision tp 2 cp 2 under sequence parallelism as in CLIP; images of any size."""
    model = {
        "layers": 2, "positions": "learned", "image": [2, 3], "class_token": True,
        "pre_norm": True, "final_norm": False, "activation": "quick_gelu",
    }  # fmt: skip
    vision = box(0, tp=2, cp=2, sequence_parallel=True, model=model)
    return spec(
        {"vision": vision, "language": box(4)},
        **{"microbatches": 2, "mbs": 2, "max_images": 3, "max_patches": 12, **settings},
    )


def class_tokens_become_rows() -> None:
    """Class tokens stand in front of the patches of a shard, where rows are taken from."""
    from mimo_launch.models.vision_encoder import VisionStage

    correct = VisionStage.embed

    def in_front(self: Any, packed: Any) -> Any:
        tokens = correct(self, packed)
        return tokens.roll(packed.extra_tokens, dims=0)

    VisionStage.embed = in_front


def images_share_a_class_token() -> None:
    """All images attend to the class token of the first one that this rank holds a part of."""
    correct = stage_interface.two_list_context

    def shared(*args: Any, **kwargs: Any) -> Any:
        mask = correct(*args, **kwargs)
        if mask.order is not None and mask.key_lengths:
            # The class token of an image is its first key.
            firsts = np.cumsum([0, *mask.key_lengths[:-1]])
            mask.order.keys[firsts] = mask.order.keys[0].clone()
        return mask

    stage_interface.two_list_context = shared


def position_of_the_class_token_forgotten() -> None:
    """Patches read learned positions from row 0 on, which is that of the class token."""
    from mimo_launch.models.positions import LearnedPositions

    correct = LearnedPositions.forward

    def from_zero(self: Any, places: Any) -> Any:
        self.shape = replace(self.shape, class_is_last=True)
        return correct(self, places)

    LearnedPositions.forward = from_zero


def positions_of_another_image() -> None:
    """Learned positions are interpolated for the height and width of the largest image."""
    from mimo_launch.models.positions import LearnedPositions

    correct = LearnedPositions.forward

    def of_largest(self: Any, places: Any) -> Any:
        largest = places.clone()
        largest[:, 2:] = places[:, 2:].amax(dim=0)
        return correct(self, largest)

    LearnedPositions.forward = of_largest


def rows_and_columns_swapped() -> None:
    """Patches are turned by their column where their row is meant, and the reverse."""
    correct = vision_encoder.image_places
    vision_encoder.image_places = lambda *args, **how: correct(*args, **how)[:, ::-1].copy()


def places_of_the_first_cp_rank() -> None:
    """Every cp rank of an encoder turns its patches by the places of those of the first."""
    correct = vision_encoder.image_places
    vision_encoder.image_places = lambda *args, **how: correct(
        *args[:-1], range(len(args[-1])), **how
    )


def heard(**settings: Any) -> Spec:
    """Audio tp 2 with two tokens a row in front of language, several clips in a sample."""
    model = {"kind": "audio", "stack": 2}
    return spec(
        {"audio": box(0, tp=2, model=model), "language": box(2, dp=2)},
        **{"microbatches": 2, "mbs": 2, "max_images": 3, "max_frames": 16, **settings},
    )


def neighbours_heard() -> None:
    """The first convolution runs over all clips as if they were one."""
    correct = audio_encoder.pack

    def together(clips: Any, how: Any, context: Any, held: range) -> Any:
        if not clips:
            return correct(clips, how, context, held)
        # Of the five frames that a token sees, those between its neighbours' are its own.
        windows = torch.cat([clip.values for clip in clips]).unflatten(1, (-1, 5))
        frames = windows[:, :, 2:4].transpose(0, 1).flatten(1)
        joined = how.cut(frames.numpy(), dtype=context.compute_dtype, pinned=False)
        places = torch.cat([clip.positions for clip in clips])
        return correct([replace(joined, positions=places)], how, context, held)

    audio_encoder.pack = together


def stacked_across_clips() -> None:
    """Rows begin one token late: the end of a clip is stacked with the beginning of the next."""
    from mimo_launch.models.audio_encoder import AudioStage

    correct = AudioStage.__init__

    def late(self: Any, context: Any, kind: Any, *rest: Any, **options: Any) -> None:
        correct(self, context, kind, *rest, **options)

        def shifted(_: Any, inputs: tuple[torch.Tensor]) -> torch.Tensor:
            (rows,) = inputs
            return rows.view(-1, kind.model.hidden).roll(1, dims=0).view(rows.shape)

        self.projector.register_forward_pre_hook(shifted)

    AudioStage.__init__ = late


def images_reversed() -> None:
    """The reader of training hands on the images of a sample from the last to the first."""
    from mimo_launch.train.loader import ReadStep

    correct = ReadStep.images
    ReadStep.images = lambda self, *args: correct(self, *args)[::-1]


PARTS = (
    HYBRID_BUGS, EXPERT_BUGS, GRAPH_BUGS, WINDOW_BUGS, STACK_BUGS, SLIDING_BUGS, SCALE_BUGS,
    SINK_BUGS, IMAGE_BUGS, GATE_BUGS, LATENT_BUGS, DINOV3_BUGS, SILENCE_BUGS, CAP_BUGS,
    TILE_BUGS, REGISTER_BUGS, MTP_BUGS, GROWTH_BUGS, NOPE_BUGS, NORM_BUGS, CHUNK_BUGS,
    GEMMA4_BUGS, GEMMA4_VISION_BUGS, SHARED_KEYS_BUGS, PER_LAYER_BUGS, LLAMA4_VISION_BUGS,
    OVIS2_VISION_BUGS, SPLIT_BUGS,
)  # fmt: skip
BUGS: dict[str, Bug] = {
    "extra mean over dp": Bug(extra_mean, disjoint()),
    "labels counted per replica": Bug(local_label_count, colocated()),
    "swapped slots": Bug(swapped_slots, colocated()),
    "dropped last microbatch": Bug(dropped_last_microbatch, disjoint()),
    "norm over one grid only": Bug(norm_over_one_grid, disjoint()),
    "replicated weights counted twice": Bug(replicated_counted_twice, disjoint()),
    "encoder gradients reduced before they exist": Bug(reduced_before_they_exist, colocated()),
    "encoder end of the bridge zero-filled": Bug(split_rows_zero_filled, disjoint()),
    "language end of the bridge summed": Bug(gather_rows_summed, colocated()),
    "partial sums dropped": Bug(partial_sums_dropped, colocated()),
    "QK-norm taken for complete": Bug(partial_sums_only_under_sequence_parallelism, colocated()),
    "zero-row backward skipped": Bug(zero_rows_skipped, mixed_text()),
    "gradients summed at the end of a region": Bug(exit_sums_gradients, disjoint()),
    "row bias added before the sum": Bug(bias_added_before_the_sum, disjoint()),
    "exchange of the last group lost": Bug(one_backward_too_few, colocated()),
    "answers of the first microbatch": Bug(answers_of_the_first_microbatch, grouped()),
    "cp sum missing": Bug(cp_sum_missing, piped()),
    "wrong chunk": Bug(contiguous_chunks, piped()),
    "encoder stage skipped": Bug(encoder_stage_skipped, piped()),
    "rows sequence-major": Bug(rows_sequence_major, piped()),
    "documents see each other": Bug(documents_see_each_other, piped(max_documents=4)),
    "records of a pack see each other": Bug(records_see_each_other, piped(packing=True)),
    "labels over the end of a record": Bug(labels_shifted_over_the_pack, piped(packing=True)),
    "slot of a whole group": Bug(slot_of_the_whole_group, wide_group()),
    "rows received by the even cut": Bug(receiver_takes_the_even_cut, skewed()),
    "squares row-major": Bug(squares_row_major, shuffled()),
    "neighbouring clips heard": Bug(neighbours_heard, heard()),
    "stacked across clips": Bug(stacked_across_clips, heard()),
    "class tokens become rows": Bug(class_tokens_become_rows, class_tokens()),
    "images share a class token": Bug(images_share_a_class_token, class_tokens()),
    "position of the class token forgotten": Bug(
        position_of_the_class_token_forgotten, class_tokens()
    ),
    "positions of another image": Bug(positions_of_another_image, class_tokens()),
    "axes lost behind the first stage": Bug(axes_lost_behind_the_first_stage, three_axes()),
    "height and width swapped": Bug(height_and_width_swapped, three_axes()),
    "axes not in turn": Bug(axes_not_in_turn, three_axes(language={"mrope_interleaved": True})),
    "images of a sample reversed": Bug(images_reversed, three_axes()),
    "rows and columns swapped": Bug(rows_and_columns_swapped, turned_patches()),
    "places of the first cp rank": Bug(places_of_the_first_cp_rank, turned_patches()),
    **{name: Bug(plant, made) for part in PARTS for name, (plant, made) in part.items()},
}
