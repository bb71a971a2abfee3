"""What a configuration says of experts, by our keys.

Decides: nothing; a key that no configuration has is said to be the default.
Relies on: `spec.language` for the keys that say what is computed.
Leaves: the names of settings to the families.
"""

from typing import Any

from mimo_launch.spec.language import Moe


def moe_keys(**said: Any) -> dict[str, Any]:
    """Return `moe` of a model of which `said` is known, as `Moe.architecture` does, unchecked."""
    return {
        key: said.get(key, each.default)
        for key, each in Moe.model_fields.items()
        if key not in Moe.TRAINING
    }
