"""Old addresses of what encoders of your own import; `mimo_launch.custom` is the new one.

Decides: `mimo_launch.modules.encoder`, `.inputs` and `.rows` work for this release, with a warning.
Relies on: Python looking into `sys.modules` for a submodule once its parent is imported.
Leaves: everything else to `models`.
"""

import sys
import warnings

from mimo_launch.models import custom_encoder as encoder
from mimo_launch.models import encoder_inputs as inputs
from mimo_launch.models import projector as rows

warnings.warn(
    f"import from mimo_launch.custom: {__name__} goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
for _old, _module in (("encoder", encoder), ("inputs", inputs), ("rows", rows)):
    sys.modules[f"{__name__}.{_old}"] = _module
