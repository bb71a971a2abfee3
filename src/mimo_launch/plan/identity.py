"""The identity of a plan: equal hashes mean that ranks will do the same things.

Decides: what two ranks must agree on before they start.
Relies on: the resolved spec and the programs generated from it.
Leaves: comparing to `train.session`, showing to `cli`.
"""

import json
from hashlib import sha256

from mimo_launch import __version__
from mimo_launch.layout.layout import build_layout
from mimo_launch.schedule.actions import format_program
from mimo_launch.schedule.generate import generate
from mimo_launch.spec.model import Spec


def plan_hash(spec: Spec) -> str:
    """Return 12 hex digits over the resolved spec, the programs and this version.

    A setting that is as by default does not count, so that new settings change no hash.
    """
    programs = {format_program(program) for program in generate(build_layout(spec))}
    settings = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    content = [__version__, settings, sorted(programs)]
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
