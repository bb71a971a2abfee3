"""The work of a forward when all samples are like the nominal one."""

from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.estimate.workload import workload
from mimo_launch.kinds.layer import Workload
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.step_views import StepViews
from mimo_launch.spec.spec import Spec


def nominal_work(layout: Layout, module: ModuleLayout, spec: Spec) -> Workload:
    """Return one forward of a module in the nominal step."""
    return workload(StepViews(layout, nominal_step_data(spec)), module, 0, 0)
