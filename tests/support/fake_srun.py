"""A step of srun, faked: `python fake_srun.py TASKS NODES PROGRAM...` starts a task per rank.

As slurmstepd does, it reaps each task at once, kills what is left in its container when the last
task has ended, and exits with the largest code of a task.
"""

import os
import subprocess
import sys

from mimo_launch.launcher.worker_processes import adopt_orphans, end_orphans


def main(num_tasks: int, num_nodes: int, program: list[str]) -> int:
    adopt_orphans()
    step = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(num_tasks),
        "SLURM_STEP_NUM_NODES": str(num_nodes),
        "SLURM_STEP_NODELIST": "localhost,other",
    }
    per_node = num_tasks // num_nodes
    tasks = {}
    for number in range(num_tasks):
        node, local = divmod(number, per_node)
        mine = {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node)}
        process = subprocess.Popen(program, env={**os.environ, **step, **mine})
        tasks[process.pid] = process
    codes = []
    while tasks:
        pid, status = os.wait()
        if tasks.pop(pid, None) is not None:
            code = os.waitstatus_to_exitcode(status)
            codes.append(code if code >= 0 else 128 - code)
    end_orphans(())
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
