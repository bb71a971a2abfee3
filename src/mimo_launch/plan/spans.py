"""The old address of `mimo_launch.drawing.spans`, for this release.

Decides: nothing.
Relies on: the new one.
Leaves: everything to it.
"""

import sys
import warnings

from mimo_launch.drawing import spans

warnings.warn(
    f"import mimo_launch.drawing.spans: {__name__} goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules[__name__] = spans
