"""Addresses: where launchers meet, and which interface workers use.

Decides: workers use the interface on the route to the meeting point.
Relies on: the kernel's routes; IPv4 for the name of an interface.
Leaves: connections to torch and gloo.
"""

import errno
import fcntl
import os
import re
import socket
import struct
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

_SIOCGIFADDR = 0x8915
# Connections waiting to be accepted: all workers of a large job may connect at the same time.
_BACKLOG = 4096


def parse_endpoint(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` (`[HOST]:PORT` for IPv6).

    Raises: ValueError.
    """
    match = re.fullmatch(r"\[?([^\[\]]+)\]?:(\d+)", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return match[1], int(match[2])


def listen_at(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the address of a host, and at no other if possible.

    Anyone who can write to a store can make workers connect to them and load their pickles. The
    socket listens at all addresses only if others know the host by another address: its name
    resolves to the loopback here, or the address belongs to a service in front of the host.

    Raises: OSError.
    """
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    loopback, own_name = ip_address(str(place[0])).is_loopback, host not in (place[0], "localhost")
    try:
        if not (loopback and own_name):
            return socket.create_server(place[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        if loopback or error.errno != errno.EADDRNOTAVAIL:
            raise
    if socket.has_dualstack_ipv6():
        every = ("::", port)
        return socket.create_server(
            every, family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    return socket.create_server(("", port), backlog=_BACKLOG)


def address_of(host: str, port: int) -> str:
    """Return the address of a host as seen from here, or "" if it has none."""
    try:
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""


def local_address(host: str, port: int) -> str:
    """Return this host's address on the route to another, or "" if there is no route."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # No packet is sent: the kernel picks a route.
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def interface_of(address: str) -> str:
    """Return the name of the interface that has an address, or ""."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # It has no address.
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def answers(host: str, port: int) -> bool:
    """Return whether something accepts connections at an address."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def open_store(host: str, port: int, listener: socket.socket | None, timeout_s: float = 300) -> Any:
    """Open a torch store: serve it at `listener`, or without one, connect to a host and port.

    Raises: RuntimeError, also if nothing answers within `timeout_s` seconds.
    """
    import torch.distributed as dist

    return dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        is_master=listener is not None,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=None if listener is None else listener.detach(),
    )


class WorkerStore:
    """Where the workers of an attempt meet: a free port of a host.

    Connections wait until the store is served, after all workers are forked. Its thread looks up
    the name of each client; a worker forked during a lookup would inherit a locked lock of the C
    library, and hang on it when it connects.
    """

    def __init__(self, address: str) -> None:
        self._listener = listen_at(address, 0)
        self._address, self._port = address, int(self._listener.getsockname()[1])
        self._served: Any = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which workers find the store."""
        found = {"MASTER_ADDR": self._address, "MASTER_PORT": str(self._port)}
        if self._address == "localhost":
            # By default gloo and NCCL take the interface of the host's name, or of the network.
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                found[name] = os.environ.get(name, "lo")
        return found

    def serve(self) -> None:
        """Answer the workers; this process must have forked all of them."""
        self._served = open_store(self._address, self._port, self._listener)

    def close(self) -> None:
        """Stop answering."""
        self._served = None
        self._listener.close()


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """An agreement of all hosts on an attempt: its number, and where its workers meet.

    The host that has the `store` serves it once it has forked its workers.
    """

    attempt: int
    environment: dict[str, str]
    store: WorkerStore | None = None
