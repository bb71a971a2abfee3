"""Old addresses of layers that encoders of your own import; `mimo_launch.custom` is the new one.

Decides: `mimo_launch.parallel.attention`, `.context`, `.layers` and `.segments` work for this
release, with a warning.
Relies on: Python looking into `sys.modules` for a submodule once its parent is imported.
Leaves: everything else to `layers`.
"""

import sys
import warnings
from types import ModuleType

from mimo_launch.layers import attention, linear, norms
from mimo_launch.layers import parallel_context as context
from mimo_launch.layers import parameter_segments as segments

warnings.warn(
    f"import from mimo_launch.custom: {__name__} goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
layers = ModuleType(f"{__name__}.layers", linear.__doc__)
vars(layers).update({**vars(linear), "Norm": norms.Norm, "__name__": layers.__name__})
for _old, _module in (
    ("attention", attention),
    ("context", context),
    ("layers", layers),
    ("segments", segments),
):
    sys.modules[f"{__name__}.{_old}"] = _module
