"""Errors of the system that mean that the host lacks something."""

import errno
import os
import resource

import pytest

from mimo_launch.launcher.host_resources import allow_open_files, environment_fault, too_few_files


@pytest.mark.parametrize(
    ("number", "what", "remedy"),
    [
        (errno.EMFILE, "Too many open files: this process may have 1024 open", "`ulimit -n 4096`"),
        (errno.EAGAIN, "no worker can be started; the user may have 1024", "`ulimit -u 4096`"),
        (errno.EADDRNOTAVAIL, "this host has no loopback", "`ip link set lo up`"),
        (errno.ENOSPC, "No space left on device", "give `--runs` a folder"),
        (errno.EDQUOT, "Disk quota exceeded", "give `--runs` a folder"),
    ],
)
def test_a_fault_of_the_host_has_a_remedy(
    monkeypatch: pytest.MonkeyPatch, number: int, what: str, remedy: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    fault = environment_fault(OSError(number, os.strerror(number)))
    assert fault is not None
    assert what in fault[0]
    assert remedy in fault[1]


def test_other_errors_are_not_blamed_on_the_host() -> None:
    """But one without a number is: no folder for shared memory."""
    assert environment_fault(FileNotFoundError(errno.ENOENT, "No such file", "x")) is None
    missing = "No usable temporary directory found in ['/tmp']"
    fault = environment_fault(FileNotFoundError(errno.ENOENT, missing))
    assert fault is not None
    assert "--shm-size" in fault[1]


@pytest.mark.parametrize("said", ["epoll_create: Too many open files", "Failed to init uv loop"])
def test_what_native_code_says_in_words_has_a_remedy_too(said: str) -> None:
    fault = environment_fault(f"RuntimeError: [enforce fail at loop.cc:105] {said}")
    assert fault is not None
    assert fault[0].startswith("Too many open files: this process may have ")
    assert "`ulimit -n " in fault[1]


def test_a_run_may_open_as_many_files_as_the_host_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("hard", "enough"), [(111, False), (112, True), (-1, True)])
def test_fewer_files_than_workers_open_are_said_before_they_start(
    monkeypatch: pytest.MonkeyPatch, hard: int, enough: bool
) -> None:
    """Eight workers were seen to have 110 open each."""
    assert resource.RLIM_INFINITY == -1
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (hard, hard))
    fault = too_few_files(8)
    if enough:
        assert fault is None
    else:
        assert fault is not None
        assert fault[0] == "this process may have 111 files open, and 8 workers need 112"
        assert "`ulimit -n 65536` as root" in fault[1]
