"""The text-only twin of a spec: language alone, with text in place of the rows of encoders.

Decides: what a twin keeps: the model of language with its vocabulary, its grid, schedule, batch and
sequence; how long its texts are; which specs have none.
Relies on: `data.expected_steps` for the lengths of the samples.
Leaves: checking the twin to `checks`, running it to `measure_steps`.
"""

import numpy as np

from mimo_launch.data.expected_steps import records_of
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.kinds.vocabulary import vocab_size
from mimo_launch.spec.base import LANGUAGE, rank_text
from mimo_launch.spec.spec import ModuleSpec, Spec, SyntheticData

_SUFFIX, _MAX_NAME = "-text-only", 100
_FEWEST_TOKENS = 2


class NoTwin(ValueError):
    """A spec has no text-only twin; the message says why, and what to write instead."""


def text_twin(spec: Spec) -> Spec:
    """Return the text-only twin of a checked spec; the twin is not checked. Raises: NoTwin."""
    if not spec.sources_of(LANGUAGE):
        raise NoTwin(f"`language` of {spec.name} reads no encoder; run it without --text-only")
    language = spec.language
    first = language.lowest_trained
    if first == language.model.layers or (first and any(map(_trains, spec.encoders.values()))):
        raise NoTwin(
            "layers of `language` are frozen: in the spec gradients pass through them to "
            "other modules, but alone they have no backward; add --set "
            "modules.language.frozen=false to the commands of both"
        )
    alone = language.replace(
        # Tokens that mark rows are words here: the head keeps its width.
        model=language.model.replace(vocab=vocab_size(spec)),
        ranks=rank_text(range(len(language.rank_range))),
        reads=None,
        init_from=None,
        init_partial=False,
        adapter=language.adapter and language.adapter.replace(init_from=None),
    )
    kind = spec.schedule.kind
    schedule = spec.schedule.replace(
        kind="1f1b" if kind == "bubble_filling" else kind,  # The same without encoders.
        encoder_microbatches=None,
        generator_microbatches=None,
    )
    return spec.replace(
        name=spec.name[: _MAX_NAME - len(_SUFFIX)] + _SUFFIX,
        modules={LANGUAGE: alone},
        schedule=schedule,
        data=_texts(spec),
        train=spec.train.replace(epochs=None),
        init_from=None,
        eval=None,
        checkpoint=None,
        idle_ranks=None,
    )


def _trains(module: ModuleSpec) -> bool:
    return module.projector_trains or module.trains_besides_projector


def _texts(spec: Spec) -> SyntheticData:
    """Return texts with the mean length of the samples, packed as they are."""
    data, mean = spec.data, _mean_length(spec)
    # Lengths are uniform, as far from the mean as there is room on both sides.
    most = round(min(2 * mean - _FEWEST_TOKENS, spec.batch.seq))
    values = {
        "min_text": max(_FEWEST_TOKENS, round(2 * mean) - most),
        "max_text": most,
        "max_documents": data.max_documents if isinstance(data, SyntheticData) else 1,
    }
    return SyntheticData.model_validate(
        {"kind": "synthetic", "text_only": 1.0, "packing": data.packing, **values}
    )


def _mean_length(spec: Spec) -> float:
    """Return the mean number of tokens of a sample, rows included."""
    records = records_of(spec)
    if records is None:
        return nominal_step_data(spec).samples[0].records[0].num_tokens
    return float(records.tokens(np.arange(min(records.number, records.most))).mean())
