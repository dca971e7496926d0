"""A proxy between two nodes of this machine, whose connection can be slow, stop, or end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

Address = tuple[str, int]


class Link:
    """A TCP proxy to one address.

    Parameters
    ----------
    delay : float
        Seconds that data take in each direction.
    host : str
        Address of the interface where it listens.

    Attributes
    ----------
    address : (str, int)
        Where it listens.
    """

    def __init__(self, to: Address, delay: float = 0.0, host: str = "127.0.0.1") -> None:
        self.to, self.delay = to, delay
        self._open = threading.Event()
        self._open.set()
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server = socket.create_server((host, 0))
        self.address: Address = self._server.getsockname()[:2]
        self._threads: list[threading.Thread] = []
        self._accepting = self._start(self._accept)

    def _start(self, act: Callable[..., None], *args: object) -> threading.Thread:
        made = threading.Thread(target=act, args=args, name="link", daemon=True)
        made.start()
        return made

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.to)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._sockets |= {near, far}
            for source, target in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._threads.append(self._start(self._forward, source, target))

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        """Forward data of one direction; data on their way overtake none, and wait for none."""
        waiting: list[tuple[float, bytes]] = []
        ready = threading.Condition()

        def send() -> None:
            with suppress(OSError):
                while True:
                    with ready:
                        ready.wait_for(lambda: bool(waiting))
                        due, data = waiting.pop(0)
                    time.sleep(max(0.0, due - time.monotonic()))
                    self._open.wait()
                    if not data:
                        break
                    target.sendall(data)
            self._end(source, target)

        sender = self._start(send)
        data = b"-"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            with ready:
                waiting.append((time.monotonic() + self.delay, data))
                ready.notify()
        sender.join()

    def _end(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Let no data through."""
        self._open.clear()

    def go_on(self) -> None:
        """Let data through again, those that waited first."""
        self._open.set()

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            self._end(*self._sockets)

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._server.close()
        self.go_on()
        self.cut()
        for each in self._threads:
            each.join()
        for each in self._sockets:
            each.close()
