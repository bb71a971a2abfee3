"""Finding out, before workers start, whether classes of a user's own build what they should.

Decides: that a forked child imports them, so that nothing they do stays in this process.
Relies on: `models.custom_stages` for the checks.
Leaves: saying it to `cli`.
"""

import multiprocessing
from multiprocessing.connection import Connection

from mimo_launch.spec.model import CustomModel, Spec


def fault_of_own_classes(spec: Spec) -> str:
    """Return what is wrong with the classes of a user's own that a spec names, or nothing."""
    if not any(isinstance(module.model, CustomModel) for module in spec.modules.values()):
        return ""
    from mimo_launch.launcher.preload import import_for_workers

    import_for_workers()  # Now: else the child would import torch for itself alone.
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_look, args=(spec, writer), daemon=True)
    child.start()
    writer.close()
    try:
        fault: str = reader.recv()
    except EOFError:
        child.join()
        fault = f"importing the classes ended the process (exit code {child.exitcode})"
    child.join()
    reader.close()
    return fault


def _look(spec: Spec, writer: Connection) -> None:
    from mimo_launch.models.custom_encoder import OwnClassError
    from mimo_launch.models.custom_stages import check_own_classes

    try:
        check_own_classes(spec)
    except OwnClassError as error:
        writer.send(str(error))
    else:
        writer.send("")
