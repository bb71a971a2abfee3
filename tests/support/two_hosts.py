"""Two hosts on one machine: network namespaces of an unprivileged user, joined by a cable."""

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ADDRESSES = ("10.77.0.1", "10.77.0.2")
IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "ip"


@pytest.fixture
def hosts() -> "Iterator[TwoHosts]":
    """Two hosts; tests that import this are skipped where namespaces are not permitted."""
    try:
        with two_hosts() as made:
            yield made
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces: {error}")


class TwoHosts:
    """The hosts; `pids` are processes that keep their namespaces alive."""

    def __init__(self, pids: tuple[int, int]) -> None:
        self.pids = pids

    def enter(self, host: int) -> Callable[[], None]:
        """Return what moves a process of one thread to a host."""

        def move() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            for kind in ("user", "net"):
                fd = os.open(f"/proc/{self.pids[host]}/ns/{kind}", os.O_RDONLY)
                if libc.setns(fd, 0):
                    raise OSError(ctypes.get_errno(), f"cannot enter the {kind} namespace")
                os.close(fd)

        return move

    def run(self, host: int, *command: str) -> None:
        """Run a command on a host."""
        enter = ["nsenter", "-t", str(self.pids[host]), "-U", "-n", "--preserve-credentials"]
        subprocess.run([*enter, *command], check=True, capture_output=True, text=True)

    def cut(self) -> None:
        """Pull the cable."""
        self.run(0, IP, "link", "set", "cable0", "down")


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make two hosts. Raises: OSError or CalledProcessError where namespaces are not permitted."""
    first = subprocess.Popen(["unshare", "-Urn", "sleep", "600"])
    processes = [first]
    try:
        _wait_for_namespace(first, "net", os.getpid())
        enter = ["nsenter", "-t", str(first.pid), "-U", "-n", "--preserve-credentials"]
        second = subprocess.Popen([*enter, "unshare", "-n", "sleep", "600"])
        processes.append(second)
        _wait_for_namespace(second, "net", first.pid, os.getpid())
        hosts = TwoHosts((first.pid, second.pid))
        hosts.run(0, IP, "link", "add", "cable0", "type", "veth", "peer", "name", "cable1")
        hosts.run(0, IP, "link", "set", "cable1", "netns", str(second.pid))
        for host, address in enumerate(ADDRESSES):
            hosts.run(host, IP, "link", "set", "lo", "up")
            hosts.run(host, IP, "addr", "add", f"{address}/24", "dev", f"cable{host}")
            hosts.run(host, IP, "link", "set", f"cable{host}", "up")
        yield hosts
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wait_for_namespace(process: subprocess.Popen[bytes], kind: str, *others: int) -> None:
    """Wait until a process has left the namespaces of other processes."""
    old = {Path(f"/proc/{other}/ns/{kind}").readlink() for other in others}
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise OSError("namespaces are not permitted here")
        if Path(f"/proc/{process.pid}/ns/{kind}").readlink() not in old:
            return
        time.sleep(0.01)
    raise OSError("a namespace was not made in time")
