"""Servers of files on this host, which fail on request: of a folder by HTTP, of buckets as S3."""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from werkzeug.serving import make_server
from werkzeug.utils import send_from_directory
from werkzeug.wrappers import Request, Response

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass
class Faults:
    """What goes wrong: a delay in seconds; shares of requests that fail, end early, or are wrong.

    `poison` is the number of further answers with a wrong byte, `is_down` fails all; `asked` are
    the requests, and `poisoned` the places in it of those that got a wrong byte.
    """

    delay: float = 0.0
    failing: float = 0.0
    cut: float = 0.0
    wrong: float = 0.0
    poison: int = 0
    is_down: bool = False
    at_once: int = 0
    most_at_once: int = 0
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    poisoned: list[int] = field(default_factory=list)
    url: str = ""
    _random: random.Random = field(default_factory=lambda: random.Random(0))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def around(self, application: Application) -> Application:
        def faulty(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            with self._lock:
                fails, cuts, errs = (self._random.random() for _ in range(3))
                ranged = environ.get("HTTP_RANGE", "")
                self.asked.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], ranged))
                place = len(self.asked) - 1
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
            time.sleep(self.delay)
            with self._lock:
                self.at_once -= 1
            if self.is_down or fails < self.failing:
                return Response("not now", 503)(environ, start)
            answer: Any = application(environ, start)
            found = b"".join(answer)
            if hasattr(answer, "close"):
                answer.close()
            if environ["REQUEST_METHOD"] == "GET" and ranged:
                if cuts < self.cut:
                    return [found[: len(found) // 2]]
                if self.poison or errs < self.wrong:
                    self.poison = max(0, self.poison - 1)
                    self.poisoned.append(place)
                    middle = len(found) // 2
                    found = found[:middle] + bytes([found[middle] ^ 1]) + found[middle + 1 :]
            return [found]

        return faulty

    def fetched(self) -> list[tuple[str, str, str]]:
        """Return the requests for bytes."""
        return [each for each in self.asked if each[0] == "GET" and each[2]]


@contextmanager
def served(application: Application) -> Iterator[Faults]:
    faults = Faults()
    server = make_server("127.0.0.1", 0, faults.around(application), threaded=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    faults.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def served_folder(folder: Path) -> Iterator[Faults]:
    """Serve a folder by HTTP."""

    @Request.application
    def application(request: Request) -> Response:
        return send_from_directory(folder, request.path.lstrip("/"), request.environ)

    with served(application) as faults:
        yield faults


@contextmanager
def served_bucket() -> Iterator[Faults]:
    """Serve empty buckets as S3 does; credentials and the address go into the environment."""
    from moto.server import DomainDispatcherApplication, create_backend_app

    with served(DomainDispatcherApplication(create_backend_app)) as faults:
        yield faults
