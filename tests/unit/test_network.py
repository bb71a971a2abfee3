"""Where the stores of a job listen: only where their users reach them."""

import os
import select
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from mimo_launch.launcher import joined_world
from mimo_launch.launcher.host_rendezvous import HostRendezvous
from mimo_launch.launcher.hosts import OneHost
from mimo_launch.launcher.joined_world import Beginning, JoinedWorld
from mimo_launch.launcher.network import WorkerStore, answers, listen_at, open_store
from mimo_launch.launcher.signals import StopRequest
from mimo_launch.launcher.torchrun_slurm import Joined, NodePlace
from mimo_launch.launcher.verdict import Host

# Addresses that no other program uses: at 127.0.0.1, another may listen at the same port.
HERE, ELSEWHERE = "127.0.0.2", "127.0.0.3"


def free_port() -> int:
    with socket.create_server((HERE, 0)) as probe:
        return int(probe.getsockname()[1])


def test_the_store_of_workers_listens_at_its_address_only() -> None:
    store = WorkerStore(HERE)
    store.serve()
    port = int(store.environment["MASTER_PORT"])
    assert store.environment["MASTER_ADDR"] == HERE
    assert answers(HERE, port)
    assert not answers(ELSEWHERE, port)
    store.close()
    assert not answers(HERE, port)


def test_workers_that_connect_before_their_store_is_served_all_meet(tmp_path: Path) -> None:
    """A thread that answered them sooner would hold locks at forks, and hang one in a thousand."""
    hosts, threads = OneHost(8, tmp_path), os.listdir("/proc/self/task")
    for _ in range(2):
        rendezvous = hosts.rendezvous()
        assert os.listdir("/proc/self/task") == threads
        workers = [os.fork() or meet(rendezvous.environment, rank) for rank in range(8)]
        assert rendezvous.store is not None
        rendezvous.store.serve()
        ends = select.poll()
        for worker in workers:
            ends.register(os.pidfd_open(worker), select.POLLIN)
        deadline = time.monotonic() + 20
        while len(ends.poll(100)) < 8 and time.monotonic() < deadline:
            pass
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        assert [os.waitpid(worker, 0)[1] for worker in workers] == [0] * 8


def meet(place: dict[str, str], rank: int) -> NoReturn:
    """Connect as a worker does, and wait for the last one."""
    store = open_store(place["MASTER_ADDR"], int(place["MASTER_PORT"]), None, 20)
    store.set(f"rank {rank}", "is here")
    store.get("rank 7")
    os._exit(0)


def test_the_store_of_launchers_listens_at_the_endpoint_only() -> None:
    port = free_port()
    place = NodePlace(0, 1, f"{HERE}:{port}", "run")
    rendezvous = HostRendezvous(place, range(1), "plan", StopRequest(), timeout=5)
    assert answers(HERE, port)
    assert not answers(ELSEWHERE, port)
    rendezvous.close()


def test_the_store_of_ranks_that_joined_listens_at_the_masters_address_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the ranks hear there whether there is anything to run."""
    port = free_port()
    monkeypatch.setenv("MASTER_ADDR", HERE)
    monkeypatch.setenv("MASTER_PORT", str(port))
    first, second = (JoinedWorld(Joined(rank, 2), timeout=5) for rank in (0, 1))
    assert not answers(ELSEWHERE, port)
    begun = Beginning(3, (Host(node=0, name="gpu0", ranks=(0, 1)),), 29501)
    first.say(begun)
    assert second.hear() == begun
    first.say(0)
    assert second.hear() == 0


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", HERE)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    first = JoinedWorld(Joined(0, 2), timeout=1)
    first.introduce("")
    with pytest.raises(RuntimeError, match="rank 1 did not come within 1 s"):
        first.hosts()


@pytest.mark.parametrize("own", [HERE, ELSEWHERE])
def test_ranks_that_torchrun_starts_again_read_nothing_of_an_earlier_start(
    monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    """The store of its agent outlives them, with all that they wrote.

    MASTER_ADDR may be that of a service which passes on only the port of the agent.
    """
    monkeypatch.setattr(joined_world, "listen_at", lambda host, port: listen_at(own, port))
    with listen_at(HERE, 0) as listener:
        port = listener.getsockname()[1]
        agent = open_store(HERE, port, listener)
    monkeypatch.setenv("MASTER_ADDR", HERE)
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    for attempt in range(2):
        with ThreadPoolExecutor() as pool:
            second = pool.submit(_hear_as_second)
            time.sleep(0.5)
            assert not second.done()
            first = JoinedWorld(Joined(0, 2), timeout=5)
            began = Beginning(attempt, (Host(node=0, name="gpu0", ranks=(0, 1)),), 29501)
            first.say(began)
            assert second.result() == began
        del first
    assert agent.num_keys() >= 1


def _hear_as_second() -> Beginning | int:
    return JoinedWorld(Joined(1, 2), timeout=5).hear()


@pytest.mark.parametrize("address", ["127.0.1.1", "192.0.2.1"])
def test_a_host_that_others_know_by_another_address_is_listened_to_everywhere(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """The loopback that some systems give their own name; a service in front of the host."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
    with listen_at("node0", 0) as listener:
        port = listener.getsockname()[1]
        monkeypatch.undo()
        assert answers(HERE, port)
        assert answers(ELSEWHERE, port)
