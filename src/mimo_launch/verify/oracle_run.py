"""A whole run of the oracle: rates, updates and evaluations, written out.

Decides: the correct numbers of every step, and the correct weights and moments at the end.
Relies on: `oracle` for losses and gradients. It shares no optimizer, schedule or loop with the
product. The formulas are from the papers: AdamW (arXiv:1711.05101, algorithm 2), cosine
(arXiv:1608.03983), warm-up, stable, decay (arXiv:2404.06395), the inverse square root
(arXiv:1706.03762), Muon (arXiv:2502.16982, and its
coefficients from kellerjordan.github.io/posts/muon).
Leaves: checkpoints: a run that stops and resumes must equal this one.
"""

import re
from dataclasses import dataclass, field
from math import cos, inf, isnan, nan, pi, sqrt

import torch
from torch import Tensor

from mimo_launch.data.order.sample_order import global_order, records_of, steps_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD
from mimo_launch.spec.optimizers import STATE, LrSchedule, OptimizerName, OptimizerSpec
from mimo_launch.spec.sections import EvalSpec, HeldOut
from mimo_launch.spec.spec import Spec
from mimo_launch.train.evaluation import DRAWING_STEPS
from mimo_launch.verify.oracle import Oracle
from mimo_launch.verify.oracle_blocks import Load

# Tables of tokens, of codes and of positions do not count as matrices, although they have two axes.
TABLES = re.compile(
    r"\.(embedding|per_layer\.table|codes|later\.\d+|positions|class_token|registers|queries"
    r"|projector\.table|projector\.indicators)\.weight$"
)
# Biases with two axes: of heads, for contents, places and each distance, and columns of a gate.
BIASES = re.compile(r"\.(bias_u|bias_v|shift\.value|shift\.gate)$|^[^.]+\.distances\.weight$")
# These do not map hidden vectors to hidden vectors, nor do convolutions along time and adapters.
NOT_HIDDEN = (".head.weight", ".shared_gate.weight")
NOT_IN = (
    *(".mamba.conv.", ".deltanet.conv.", ".short_conv.conv.", ".conv.depthwise."),
    *(".heads.", ".lora_"),
)
# AdamW's second moment.
SQUARES = "exp_avg_sq"

# Steps of a flow from noise to the images that are compared one by one.
MADE_IN = 3


@dataclass(frozen=True, slots=True)
class RightNumbers:
    """The numbers of a step: `norms` of all modules, `lrs` of the modules that train."""

    loss: float
    losses: dict[str, float]
    aux_loss: float
    norms: dict[str, float]
    lr: float
    lrs: dict[str, float]
    tokens: int
    skipped: bool


@dataclass(frozen=True, slots=True)
class RightEvaluation:
    """The numbers of an evaluation; `losses` has, by name, the losses that have terms."""

    loss: float
    losses: dict[str, float]
    accuracy: float | None
    code_accuracy: float | None
    recognised: float | None


@dataclass(slots=True)
class RightRun:
    """Steps in order, evaluations by the number of steps before them, tensors at the end.

    `made` has the images and clips that generators make of held-out samples in `MADE_IN` steps,
    with the weights at the end: "generator.record.place" -> an image or clip.

    `state` has by name what optimizers keep of each weight; a second moment is its root, so it is
    as large as a gradient. `summed` has the running sums again, over absolute gradients.
    """

    steps: list[RightNumbers] = field(default_factory=list)
    evaluations: dict[int, RightEvaluation] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, dict[str, Tensor]] = field(default_factory=lambda: {n: {} for n in STATE})
    summed: dict[str, dict[str, Tensor]] = field(default_factory=lambda: {n: {} for n in STATE})
    made: dict[str, Tensor] = field(default_factory=dict)


def right_run(spec: Spec, skipped: int) -> RightRun:
    """Run all steps of a spec; step `skipped` (from 0) updates nothing."""
    oracle, found = Oracle(spec, randomise=True), RightRun()
    order = global_order(spec, oracle.dataset)
    updates = 0
    if spec.eval is not None and spec.eval.at_start:
        found.evaluations[0] = _evaluate(oracle, spec.eval.samples)
    for step, ids in enumerate(steps_of(order, spec.train.steps)):
        loss, grads = oracle.loss_and_gradients(ids, step)
        number = step + 1
        lrs = {
            name: _module_rate(spec, name, number)
            for name, module in spec.modules.items()
            if module.frozen is not True
        }
        has_labels = any(oracle.terms.values())
        if step != skipped and has_labels:
            updates += 1
            _update(oracle, grads, lrs, updates, found)
            oracle.move_biases()
        found.steps.append(
            RightNumbers(
                loss=loss,
                losses=oracle.means,
                aux_loss=oracle.balance_loss,
                norms={name: _norm(grads, f"{name}.") for name in spec.modules},
                lr=_rate(spec, spec.optimizer.lr, spec.optimizer.schedule.warmup, number),
                lrs=lrs,
                tokens=sum(
                    oracle.dataset.length("train", record)
                    for sample in ids
                    for record in records_of(sample)
                ),
                skipped=step == skipped or not has_labels,
            )
        )
        if spec.eval is not None and (
            number == spec.train.steps or number % (spec.eval.every or number + 1) == 0
        ):
            found.evaluations[number] = _evaluate(oracle, spec.eval.samples)
            if _none_was_better(spec.eval, found.evaluations):
                break
    found.weights = {name: weight.detach().clone() for name, weight in oracle.weights.items()}
    found.state[SQUARES] = {n: moment.sqrt() for n, moment in found.state[SQUARES].items()}
    if spec.eval is not None:
        for index in _held_out(oracle, spec.eval.samples):
            with torch.no_grad():
                made = oracle.made(index, MADE_IN)
            found.made |= {
                f"{name}.{index}.{place}": torch.tensor(array).double()
                for name, arrays in made.items()
                for place, array in enumerate(arrays)
            }
    return found


def _none_was_better(asked: EvalSpec, evaluations: dict[int, RightEvaluation]) -> bool:
    """Return whether the last `stop_after` evaluations were not better than one before."""
    of_runs = [each for number, each in evaluations.items() if number > 0]
    # Smaller is better.
    judged = [
        e.loss if asked.metric == "loss" else nan if e.accuracy is None else -e.accuracy
        for e in of_runs
    ]
    numbers = [inf if isnan(each) else each for each in judged]
    if asked.stop_after is None or min(numbers) == inf:
        return False
    return len(numbers) - 1 - numbers.index(min(numbers)) >= asked.stop_after


def _norm(grads: dict[str, Tensor], prefix: str = "") -> float:
    squares = (float(g.square().sum()) for name, g in grads.items() if name.startswith(prefix))
    return sqrt(sum(squares))


def _module_rate(spec: Spec, module: str, number: int) -> float:
    own, common = spec.modules[module].optimizer, spec.optimizer
    peak = own.lr if own.lr is not None else common.lr
    warmup = own.warmup if own.warmup is not None else common.schedule.warmup
    return _rate(spec, peak, warmup, number)


def _rate(spec: Spec, peak: float, asked_warmup: int | str, number: int) -> float:
    """Return the rate of step `number`, counted from 1."""
    schedule: LrSchedule = spec.optimizer.schedule
    steps, low = spec.train.steps, min(peak, schedule.min_lr)
    warmup, decay = -_rounded_down(asked_warmup, -steps), _rounded_down(schedule.decay, steps)
    if number <= warmup:
        return peak * number / warmup
    # 0 at the first step after the warm-up, 1 at the last one.
    gone = (number - warmup - 1) / max(1, steps - warmup - 1)
    if schedule.kind == "linear":
        return (1 - gone) * peak + gone * low
    if schedule.kind == "inverse_sqrt":
        return max(low, peak * sqrt(max(1, warmup) / number))
    if schedule.kind == "cosine":
        return low + (1 + cos(pi * gone)) / 2 * (peak - low)
    if schedule.kind == "wsd" and number > steps - decay:
        return peak - (peak - low) * (number - (steps - decay)) / decay
    return peak


def _rounded_down(words: int | str, steps: int) -> int:
    """Return the steps that a number or a percentage means; below 0 for `steps` below 0."""
    if isinstance(words, int):
        return words if steps > 0 else -words
    whole, _, digits = words.rstrip("%").partition(".")
    return int(whole + digits) * steps // int("100" + "0" * len(digits))


def _update(
    oracle: Oracle, grads: dict[str, Tensor], lrs: dict[str, float], count: int, found: RightRun
) -> None:
    """Move all weights by clipped gradients; `count` is the number of this update, from 1."""
    settings, norm = oracle.spec.optimizer, _norm(grads)
    scale = 1.0 if settings.clip is None or norm <= settings.clip else settings.clip / norm
    with torch.no_grad():
        for name, grad in grads.items():
            module, weight = name.partition(".")[0], oracle.weights[name]
            clipped = direction = grad * scale
            kind = rule_of(oracle, name)
            if kind == "adamw":
                direction = _adamw(settings, name, clipped, count, found)
            elif kind == "muon":
                direction = _muon(settings, name, clipped, found)
            weight -= lrs[module] * (direction + decay_of(oracle, name) * weight)


def rule_of(oracle: Oracle, name: str) -> OptimizerName:
    """Return the word for the rule that a weight follows."""
    spec = oracle.spec
    module, weight = spec.modules[name.partition(".")[0]], oracle.weights[name]
    kind = module.optimizer.kind or spec.optimizer.kind
    is_hidden = not name.endswith(NOT_HIDDEN) and not any(each in name for each in NOT_IN)
    is_other = TABLES.search(name) or BIASES.search(name)
    is_matrix = weight.ndim == 2 and is_hidden and not is_other
    if kind == "muon" and (not is_matrix or kind_of(module.model).is_custom):
        return "adamw"
    return kind


def _adamw(settings: OptimizerSpec, name: str, grad: Tensor, count: int, found: RightRun) -> Tensor:
    beta1, beta2 = settings.betas
    first = _running("exp_avg", name, grad, beta1, found)
    second = _running(SQUARES, name, grad**2, beta2, found)
    spread = (second / (1 - beta2**count)).sqrt() + settings.eps
    return first / (1 - beta1**count) / spread


def _muon(settings: OptimizerSpec, name: str, grad: Tensor, found: RightRun) -> Tensor:
    rate = settings.momentum
    momentum = _running("momentum_buffer", name, grad, rate, found)
    ahead = rate * momentum + (1 - rate) * grad if settings.nesterov else momentum
    # Singular values, each moved alone: no matrix is multiplied as in the product.
    left, values, right = torch.linalg.svd(ahead, full_matrices=False)
    values = values / max(1e-7, float(ahead.norm()))
    for _ in range(settings.ns_steps):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    direction: Tensor = left * values @ right
    return 0.2 * sqrt(max(grad.shape)) * direction


def _running(key: str, name: str, term: Tensor, rate: float, found: RightRun) -> Tensor:
    """Return the running mean that a rule keeps of a weight, with another term."""
    for means, each in ((found.state[key], term), (found.summed[key], term.abs())):
        means[name] = rate * means.get(name, torch.zeros_like(each)) + (1 - rate) * each
    return found.state[key][name]


def decay_of(oracle: Oracle, name: str) -> float:
    """Return the decay of a weight: its module's or the common rate, 0 if it does not decay."""
    module, common = oracle.spec.modules[name.partition(".")[0]], oracle.spec.optimizer
    if kind_of(module.model).is_custom:
        decays = oracle.custom_decays[name]
    elif TABLES.search(name):
        decays = common.decay.embeddings
    else:
        decays = oracle.weights[name].ndim > 1 and not BIASES.search(name)
    own = module.optimizer.weight_decay
    rate = own if own is not None else common.weight_decay
    return rate if decays else 0.0


def _evaluate(oracle: Oracle, samples: HeldOut) -> RightEvaluation:
    """Return the mean losses over all held-out terms, and the share of right answer tokens."""
    dataset, spec = oracle.dataset, oracle.spec
    sums, terms = dict.fromkeys(oracle.losses, 0.0), dict.fromkeys(oracle.losses, 0.0)
    right, total, recognised, judged, ends = 0, 0, 0, 0, dataset.answer_ends
    oracle.right_codes, codes = 0, 0.0
    with torch.no_grad():
        for index in _held_out(oracle, samples):
            for name, (own, num) in oracle.record_losses("heldout", index, Load(), 0).items():
                sums[name], terms[name] = sums[name] + float(own), terms[name] + num
                said = kind_of(spec.modules[name].model).codes
                codes += num * said.codebooks if said else 0
            if dataset.scores and (answer := dataset.answer("heldout", index)):
                greedy = _say(oracle, index, len(answer), ends)
                right += sum(a == b for a, b in zip(greedy, answer, strict=False))
                total += len(answer)
            made = oracle.made(index, DRAWING_STEPS) if dataset.judges else {}
            for images in made.values():
                found = dataset.count_recognised("heldout", index, images)
                recognised, judged = recognised + found[0], judged + found[1]
    losses = {name: sums[name] / terms[name] for name in sums if terms[name]}
    loss = sum(oracle.losses[name] * mean for name, mean in losses.items())
    shares = ((right, total), (oracle.right_codes, codes), (recognised, judged))
    return RightEvaluation(loss, losses, *(part / of if of else None for part, of in shares))


def _held_out(oracle: Oracle, samples: HeldOut) -> range:
    """Return the held-out samples that an evaluation takes."""
    there = oracle.dataset.num_samples("heldout")
    return range(there if samples == "all" else min(samples, there))


def _say(oracle: Oracle, index: int, most: int, ends: frozenset[int]) -> list[int]:
    """Return the greedy answer to a held-out sample: the most probable token at each step."""
    tokens, labels = (torch.from_numpy(x) for x in oracle.dataset.text("heldout", index))
    last = int((labels != IGNORE_LABEL).nonzero()[0])
    tokens[last + 1 :] = PAD
    said: list[int] = []
    while len(said) < most:
        choice = int(oracle.logits("heldout", index, tokens, Load())[last].argmax())
        if choice in ends:
            break
        said.append(choice)
        last += 1
        tokens[last] = choice
    return said
