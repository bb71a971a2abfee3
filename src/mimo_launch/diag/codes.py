"""Every code a diagnostic can carry, with its explanation.

Decides: what a code means; its page in `docs/errors` and `mimo-launch explain` are made from here.
Relies on: the tables by subject next to this file.
Leaves: headlines with values to the checks.
"""

from mimo_launch.diag.code import Code
from mimo_launch.diag.codes_audio import AUDIO_CODES
from mimo_launch.diag.codes_data import DATA_CODES
from mimo_launch.diag.codes_experts import EXPERT_CODES
from mimo_launch.diag.codes_hybrid import HYBRID_CODES
from mimo_launch.diag.codes_layout import LAYOUT_CODES
from mimo_launch.diag.codes_model import MODEL_CODES
from mimo_launch.diag.codes_run import RUN_CODES
from mimo_launch.diag.codes_schedule import SCHEDULE_CODES
from mimo_launch.diag.codes_shards import SHARD_CODES
from mimo_launch.diag.codes_text import TEXT_CODES

TABLES = (
    TEXT_CODES,
    LAYOUT_CODES,
    SCHEDULE_CODES,
    MODEL_CODES,
    DATA_CODES,
    AUDIO_CODES,
    EXPERT_CODES,
    HYBRID_CODES,
    SHARD_CODES,
    RUN_CODES,
)
CODES: dict[str, Code] = {code.name: code for table in TABLES for code in table}
