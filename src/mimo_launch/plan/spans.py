"""The old import path of `mimo_launch.drawing.spans`, kept for this release.

Decides: nothing.
Relies on: the new path.
Leaves: everything to `drawing.spans`.
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
