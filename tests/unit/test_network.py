"""Where the stores of a job listen: only where their users reach them."""

import socket

import pytest

from mimo_launch.launcher.host_rendezvous import HostRendezvous
from mimo_launch.launcher.network import answers, listen_at, worker_store
from mimo_launch.launcher.signals import StopRequest
from mimo_launch.launcher.torchrun_slurm import Joined, JoinedWorld, NodePlace

HERE, ELSEWHERE = "127.0.0.2", "127.0.0.1"


def free_port() -> int:
    with socket.create_server((HERE, 0)) as probe:
        return int(probe.getsockname()[1])


def test_the_store_of_workers_listens_at_its_address_only() -> None:
    store, environment = worker_store(HERE)
    assert environment["MASTER_ADDR"] == HERE
    assert answers(HERE, store.port)
    assert not answers(ELSEWHERE, store.port)


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
    first.say(None)
    assert second.hear() is None
    first.say(0)
    assert second.hear() == 0


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
