"""How long ranks take from nothing to their first all-reduce: `python -m tests.gpu.start_times`.

Prints one line per way to start them, for 1, 2, 4, ... of this machine's GPUs. The parent has
imported what ranks need, as launcher and tests do; a spawned rank imports it again.
"""

import argparse
import multiprocessing
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from mimo_launch.launcher.forking import import_for_workers


def first_all_reduce(rank: int, world_size: int, device: str, store: str) -> None:
    import_for_workers()
    import torch
    import torch.distributed as dist

    from mimo_launch.comm.world import device_for, join_world

    place = device_for(device, rank)
    join_world(
        place,
        timeout=timedelta(seconds=120),
        store=dist.FileStore(store, world_size),
        rank=rank,
        world_size=world_size,
    )
    total = torch.ones((), device=place)
    dist.all_reduce(total)
    assert total.item() == world_size
    dist.destroy_process_group()


def seconds(method: str, world_size: int, device: str) -> float:
    context = multiprocessing.get_context(method)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        ranks = [
            context.Process(
                target=first_all_reduce,
                args=(rank, world_size, device, str(Path(folder) / "store")),
            )
            for rank in range(world_size)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        taken = time.perf_counter() - begin
    assert not any(rank.exitcode for rank in ranks), "a rank failed"
    return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--most", type=int, default=4)
    options = parser.parse_args()
    import_for_workers()
    from mimo_launch.launcher.gpus import num_gpus

    most = min(options.most, num_gpus()) if options.device == "cuda" else options.most
    for world_size in (size for size in (1, 2, 4, 8) if size <= most):
        for method in ("fork", "spawn", "fork", "spawn"):
            taken = seconds(method, world_size, options.device)
            print(f"{options.device} {world_size} ranks, {method}: {taken:.2f} s", flush=True)


if __name__ == "__main__":
    main()
