"""Authenticated connections from a server to workers on other nodes.

A node listens; for each connection it starts a worker process, which inherits the socket. The
messages are those of `worker.frames`. Both sides prove that they know the cluster's token before
anything is started (HMAC, RFC 2104, over two nonces)::

    node      greeting, nonce
    server    nonce, HMAC("server", both nonces)
    node      HMAC("node", both nonces), process id of the worker

A worker has a ticket instead of the token, with which it may open stages on other nodes: a name,
and the HMAC of it. The name begins its nonce.

The data are not encrypted: the network between nodes has to be private.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from wgpu_backend.errors import BackendError, WorkerLost
from wgpu_backend.server.worker.channel import Channel, Exit, start_process
from wgpu_backend.server.worker.frames import Message

_LOG = logging.getLogger("wgpu_backend.cluster")
GREETING = b"wgpu-backend cluster 1\n"
_NONCE, _PROOF = 32, hashlib.sha256().digest_size
_TICKET = 16
_PID = struct.Struct("<I")
SHORTEST_TOKEN = 16
HANDSHAKE_SECONDS = 5.0
# Time without an answer of the other machine after which a connection counts as ended.
SILENT_SECONDS = 10
# Time from a connection until another process starts that waits for the next one, so that the first
# gets the processor.
AFTER_SECONDS = 2.0
# Connections that have not proved to know the token yet; more are closed at once.
MOST_UNKNOWN = 8
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Gone(Exit):
    """The end of a connection to a worker on another node, whose exit code is not known."""

    where: str = ""

    def __str__(self) -> str:
        return f"on {self.where} is gone"


def check_token(token: str) -> bytes:
    """Return a token as bytes.

    Raises
    ------
    BackendError
        It is too short.
    """
    if len(token) < SHORTEST_TOKEN:
        raise BackendError(
            f"cluster: the token has {len(token)} characters, needs at least {SHORTEST_TOKEN}"
        )
    return token.encode()


def make_ticket(token: str) -> str:
    """Return a new ticket, which the nodes of a cluster take instead of its token."""
    name = secrets.token_bytes(_TICKET)
    return name.hex() + _sign(token.encode(), name).hex()


def _sign(token: bytes, name: bytes) -> bytes:
    return hmac.digest(token, b"ticket" + name, "sha256")


def _prove(token: bytes, who: bytes, *nonces: bytes) -> bytes:
    return hmac.digest(token, who + b"".join(nonces), "sha256")


def _receive(sock: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = sock.recv(count - len(found))
        if not part:
            raise ConnectionError("the connection was closed")
        found += part
    return found


def _watch_peer(sock: socket.socket) -> None:
    """Let a connection end soon after the other machine is gone."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 2),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", SILENT_SECONDS // 2),
        ("TCP_USER_TIMEOUT", 1000 * SILENT_SECONDS),
    ):
        # Not every system has all of them.
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Waiting:
    """A process that waits for a connection, with its imports done."""

    def __init__(self) -> None:
        self._own, theirs = socket.socketpair()
        try:
            self._process = start_process(theirs, "waiting")
        except BaseException:
            self._own.close()
            raise
        finally:
            theirs.close()

    def take(self, sock: socket.socket, program: str) -> subprocess.Popen[bytes] | None:
        """Have the process serve a connection; None if it has ended.

        Parameters
        ----------
        program : str
            See `Channel`.
        """
        with self._own:
            try:
                socket.send_fds(self._own, [program.encode()], [sock.fileno()])
            except OSError:
                return None
        return self._process if self._process.poll() is None else None

    def close(self) -> None:
        """End the process; safe to call again."""
        self._own.close()
        self._process.kill()
        self._process.wait()


def choose_port(token: str, group: str = "") -> int:
    """Return the port of a cluster's nodes: a node that starts again is found at the same one.

    Parameters
    ----------
    group : str
        Name of a pipeline whose stages have ports of their own.
    """
    return 20000 + int.from_bytes(_sign(token.encode(), f"port{group}".encode())[:2]) % 10000


class Listener:
    """A node's listener, which starts a worker for each connection that proves the token.

    Parameters
    ----------
    token : str
        The cluster's token.
    host : str
        Address of an interface that the server reaches.
    port : int
        Its port, or 0 for any.
    spare : bool
        Whether a process waits for the next connection with its imports done; not on Windows.

    Attributes
    ----------
    address : (str, int)
        Host and port.
    """

    def __init__(
        self, token: str, host: str = "127.0.0.1", port: int = 0, *, spare: bool = False
    ) -> None:
        self._token = check_token(token)
        self._spare = spare and hasattr(socket, "send_fds")
        self._waiting: Waiting | None = None
        self._socket = socket.create_server((host, port))
        self.address: Address = self._socket.getsockname()[:2]
        self._unknown = threading.Semaphore(MOST_UNKNOWN)
        self._workers: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._prepare()
        threading.Thread(target=self._accept, name="cluster listener", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            if not self._unknown.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        worker = None
        try:
            with sock:
                sock.settimeout(HANDSHAKE_SECONDS)
                key, nonces = self._check(sock)
                worker = self._start(sock, "process" if key == self._token else "stage")
                sock.sendall(_prove(key, b"node", *nonces) + _PID.pack(worker.pid))
        except (OSError, BackendError) as error:
            _LOG.warning("cluster: a connection was refused: %s", error)
            if worker is not None:
                worker.kill()
        finally:
            self._unknown.release()
        if worker is not None:
            time.sleep(AFTER_SECONDS if self._spare else 0.0)
            self._prepare()
            worker.wait()
            with self._lock:
                self._workers.discard(worker)

    def _check(self, sock: socket.socket) -> tuple[bytes, tuple[bytes, bytes]]:
        """Return the key that the peer proved, the token or a ticket's, and both nonces."""
        own = secrets.token_bytes(_NONCE)
        sock.sendall(GREETING + own)
        theirs, proof = _receive(sock, _NONCE), _receive(sock, _PROOF)
        for key in (self._token, _sign(self._token, theirs[:_TICKET])):
            if hmac.compare_digest(proof, _prove(key, b"server", own, theirs)):
                return key, (own, theirs)
        raise BackendError("it does not have the cluster's token")

    def _start(self, sock: socket.socket, program: str) -> subprocess.Popen[bytes]:
        _watch_peer(sock)
        with self._lock:
            if self._closed:
                raise BackendError("the node is shutting down")
            waiting, self._waiting = self._waiting, None
            worker = None if waiting is None else waiting.take(sock, program)
            worker = worker or start_process(sock, program)
            self._workers.add(worker)
            return worker

    def _prepare(self) -> None:
        """Start a process that waits for a connection, if there is none."""
        with self._lock:
            if not self._spare or self._closed or self._waiting is not None:
                return
            try:
                self._waiting = Waiting()
            except OSError as error:
                # The next connection reports it.
                _LOG.debug("cluster: no process waits: %s", error)

    def close(self) -> None:
        """Accept no more connections, and end the workers; safe to call again."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
            if self._waiting is not None:
                self._waiting.close()
        with suppress(OSError):
            # Wakes the thread that accepts.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for worker in workers:
            worker.kill()


def connect(address: Address, token: str, *, ticket: bool = False) -> tuple[socket.socket, int]:
    """Connect to a node, which starts a worker; return the socket and the worker's process id.

    Parameters
    ----------
    ticket : bool
        Whether `token` is a ticket, which starts a stage.

    Raises
    ------
    WorkerLost
        The node does not answer, has another token, or is no node.
    """
    name, key = f"cluster: node {address[0]}:{address[1]}", check_token(token)
    begin = b""
    if ticket:
        begin, key = (bytes.fromhex(part) for part in (token[: 2 * _TICKET], token[2 * _TICKET :]))
    try:
        sock = socket.create_connection((address[0], address[1]), HANDSHAKE_SECONDS)
    except OSError as error:
        raise WorkerLost(f"{name}: {error}") from None
    try:
        greeting = _receive(sock, len(GREETING))
        if greeting != GREETING:
            raise WorkerLost(f"{name}: greets with {greeting!r}, needs {GREETING!r}")
        theirs, own = _receive(sock, _NONCE), begin + secrets.token_bytes(_NONCE - len(begin))
        sock.sendall(own + _prove(key, b"server", theirs, own))
        proof, pid = _receive(sock, _PROOF), _PID.unpack(_receive(sock, _PID.size))[0]
        if not hmac.compare_digest(proof, _prove(key, b"node", theirs, own)):
            raise WorkerLost(f"{name}: it does not have the cluster's token")
        _watch_peer(sock)
    except OSError as error:
        sock.close()
        raise WorkerLost(f"{name}: {error}, needs a running node and its token") from None
    except BaseException:
        sock.close()
        raise
    return sock, pid


class RemoteChannel(Channel):
    """A channel to a worker on another node.

    Parameters
    ----------
    receive, handle_exit : callable
        See `Channel`.
    """

    def __init__(
        self,
        receive: Callable[[Message, bytes], None],
        handle_exit: Callable[[Exit], None],
        address: Address,
        token: str,
    ) -> None:
        self._address = address
        sock, self.pid = connect(address, token)
        self._begin(sock, receive, handle_exit)

    def _reap(self) -> Exit:
        return Gone(0, f"{self._address[0]}:{self._address[1]}")

    def kill(self) -> None:
        """Close the connection; the worker at its other end then exits."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
