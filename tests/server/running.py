"""`wgpu-backend serve` as a process, spoken to over its socket, and what the system knows of it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class ServerProcess:
    """A server with a store of its own; as a context manager it is ended by SIGTERM.

    Parameters
    ----------
    folder : Path
        Of the store, and of the log.
    words : str
        Further options of the command.
    **variables
        Of the environment.
    """

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        self.port = free_port()
        self.log = folder / "server.log"
        command = [sys.executable, "-X", "faulthandler", "-m", "wgpu_backend", "serve", *words]
        where = {"OLLAMA_HOST": f"127.0.0.1:{self.port}", "OLLAMA_MODELS": str(folder / "models")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **where, **variables},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self._wait_until_it_listens()

    def _wait_until_it_listens(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            with suppress(OSError):
                self.ask("GET", "/health")
                return
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, sent: int = signal.SIGTERM) -> float:
        """Have it end; seconds until it has."""
        begin = time.monotonic()
        self.process.send_signal(sent)
        self.process.wait(PATIENCE)
        return time.monotonic() - begin

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of an answer."""
        with closing(self.connection()) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read()

    def stream(self, body: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Status and lines of an answer of `/api/generate`; leave it and the client is gone."""
        with closing(self.connection()) as connection:
            connection.request("POST", "/api/generate", json.dumps(body))
            response = connection.getresponse()
            for line in response:
                yield response.status, json.loads(line)

    def figure(self, name: str) -> float:
        """Sum of a figure over all models."""
        text = self.ask("GET", "/metrics")[1].decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    # What the system knows; Linux alone tells.

    @property
    def workers(self) -> list[int]:
        """Processes that it has started and that still are, zombies included, oldest first."""
        while tasks := list(Path(f"/proc/{self.process.pid}/task").iterdir()):
            with suppress(FileNotFoundError, ProcessLookupError):  # of a thread that has ended
                found = [(task / "children").read_text().split() for task in tasks]
                return sorted((int(pid) for each in found for pid in each), key=_started)
        return []

    @property
    def files(self) -> int:
        """Files that it has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    @property
    def threads(self) -> int:
        """Threads that it has."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    @property
    def mib(self) -> float:
        """Memory that it holds."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def alive(pid: int) -> bool:
    """Whether there is such a process; one that waits to be taken note of is none."""
    try:
        return _told(pid)[0] != "Z"
    except OSError:
        return False


def _started(pid: int) -> int:
    return int(_told(pid)[19])  # clock ticks after the system's start


def _told(pid: int) -> list[str]:
    """What the system tells of a process, from its state on (proc(5))."""
    found = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return found.rpartition(")")[2].split()
