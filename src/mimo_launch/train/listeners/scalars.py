"""An event as named numbers: what TensorBoard and Weights & Biases draw.

Decides: the names of the curves. What exists once is under `train/`, `eval/` and `checkpoint/`;
what each module has is under `grad_norm/`, `lr/`, `imbalance/`, `imbalance_before/` and
`zero_grads/`, with the module's name.
Relies on: `events`.
Leaves: sending them to the listeners.
"""

from mimo_launch.train.events import CheckpointSaved, EvalFinished, Event, Reading, StepFinished


def scalars(event: Event) -> dict[str, float]:
    """Return the curves that an event has a point of; most events have none."""
    match event:
        case StepFinished():
            return _of_step(event)
        case EvalFinished(eval_loss=loss, digit_accuracy=accuracy):
            share = {} if accuracy is None else {"eval/digit_accuracy": accuracy}
            return {"eval/loss": loss, **share}
        case CheckpointSaved():
            return {
                "checkpoint/seconds": event.seconds,
                "checkpoint/stall_s": event.stall_s,
                "checkpoint/bytes": event.num_bytes,
            }
        case _:
            return {}


def _of_step(event: StepFinished) -> dict[str, float]:
    return {
        "train/loss": event.loss,
        **({} if event.aux_loss is None else {"train/aux_loss": event.aux_loss}),
        "train/grad_norm": event.grad_norm,
        "train/tokens_per_s": event.tokens_per_s,
        "train/skipped": float(event.skipped),
        "train/bad_samples": float(event.bad_samples),
        **{f"grad_norm/{name}": norm for name, norm in event.grad_norms.items()},
        **{f"lr/{name}": rate for name, rate in event.lrs.items()},
        **{f"imbalance/{name}": each.after for name, each in event.imbalance.items()},
        **{f"imbalance_before/{name}": each.before for name, each in event.imbalance.items()},
        **({} if event.reading is None else _of_reading(event.reading)),
        **{f"zero_grads/{name}": float(n) for name, n in (event.zero_grads or {}).items()},
    }


def _of_reading(reading: Reading) -> dict[str, float]:
    return {"reading/waited_s": reading.waited_s, "reading/read_s": reading.read_s}
