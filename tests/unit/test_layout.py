"""The layout of a spec: what follows from single settings."""

import pytest
from tests.support.specs import box, spec

from mimo_launch.layout.layout import build_layout


@pytest.mark.parametrize(("tp", "is_split"), [(1, False), (2, True)])
def test_sequence_parallelism_splits_tokens_over_tp_where_there_is_any(
    tp: int, is_split: bool
) -> None:
    made = spec({"language": box(0, tp=tp, sequence_parallel=True)})
    assert build_layout(made).language.sequence_parallel is is_split
