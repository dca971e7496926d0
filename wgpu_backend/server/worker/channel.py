"""A worker process as the server sees it: starting, messages, ending."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from wgpu_backend.errors import BackendError
from wgpu_backend.server.worker.frames import Message, encode_message, make_reader, read_message

_LOG = logging.getLogger("wgpu_backend.worker")
# Time between the end of the socket and the end of the process.
_EXIT_SECONDS = 2.0
# The worker imports from the same paths as the server, and not from its working directory.
_PROGRAM = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from wgpu_backend.server.worker.{} import main; main(sys.argv[1])"
)
_CRASHES = {"SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS"}
# Exit codes from here on are unhandled exceptions.
_WINDOWS_CRASH = 0xC0000000
_WINDOWS_ABORT = 3


@dataclass(frozen=True, slots=True)
class Exit:
    """The exit of a process.

    Parameters
    ----------
    code : int
        Exit code as in `subprocess`: negative for a signal.
    """

    code: int

    @property
    def has_crashed(self) -> bool:
        """Return whether the process crashed, as in a driver, and was not ended on purpose."""
        if sys.platform == "win32":
            return self.code == _WINDOWS_ABORT or self.code & 0xFFFFFFFF >= _WINDOWS_CRASH
        return self._signal_name in _CRASHES

    @property
    def _signal_name(self) -> str:
        with suppress(ValueError):
            return signal.Signals(-self.code).name if self.code < 0 else ""
        return f"signal {-self.code}"

    def __str__(self) -> str:
        return f"ended by {self._signal_name}" if self.code < 0 else f"ended with code {self.code}"


class Channel:
    """The connection to a worker process, with a reading and a writing thread.

    Parameters
    ----------
    receive : callable
        Called with each message and its bytes, in the reading thread.
    handle_exit : callable
        Called once with the exit of the process, after the last message.
    program : str
        Module of this folder whose `main` the process runs.
    """

    def __init__(
        self,
        receive: Callable[[Message, bytes], None],
        handle_exit: Callable[[Exit], None],
        program: str = "process",
    ) -> None:
        own, theirs = socket.socketpair()
        try:
            self._process = start_process(theirs, program)
        except BaseException:
            own.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._begin(own, receive, handle_exit)

    def _begin(
        self,
        own: socket.socket,
        receive: Callable[[Message, bytes], None],
        handle_exit: Callable[[Exit], None],
    ) -> None:
        """Start the threads of a connection."""
        self._receive = receive
        self._handle_exit = handle_exit
        self._socket = own
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        name = f"worker {self.pid}"
        self._reader = threading.Thread(target=self._read, name=f"{name} reader", daemon=True)
        writer = threading.Thread(target=self._write, name=f"{name} writer", daemon=True)
        self._reader.start()
        writer.start()

    def post(self, message: Message, raw: bytes = b"") -> None:
        """Queue a message; finalisers may do so at any moment."""
        self._queue.put(encode_message(message, raw))

    def _write(self) -> None:
        try:
            while (data := self._queue.get()) is not None:
                self._socket.sendall(data)
        except OSError:
            # The worker is gone; the reader handles that.
            return

    def _read(self) -> None:
        try:
            with make_reader(self._socket) as source:
                while (found := read_message(source)) is not None:
                    self._receive(*found)
        except OSError:
            pass
        except BackendError as error:
            _LOG.error("%s; the worker is ended", error)
            self.kill()
        ending = self._reap()
        # Ends the writing thread, which may wait for a message.
        self._queue.put(None)
        self._socket.close()
        self._handle_exit(ending)

    def _reap(self) -> Exit:
        """Wait for the process, so that no zombie is left."""
        try:
            return Exit(self._process.wait(_EXIT_SECONDS))
        except subprocess.TimeoutExpired:
            self._process.kill()
            return Exit(self._process.wait())

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def close(self, seconds: float) -> None:
        """Ask the worker to end, and kill it if it has not within a time limit."""
        self.post({"do": "close"})
        # The reader ends with the process, whose exit it waits for.
        self._reader.join(seconds)
        if self._reader.is_alive():
            self.kill()
            self._reader.join()


def start_process(theirs: socket.socket, program: str) -> subprocess.Popen[bytes]:
    """Start a new interpreter that serves on a socket; see `Channel` for `program`.

    A fork would have the threads' locks and the device's handles.
    """
    arguments = ["-P", "-c", _PROGRAM.format(program)]
    paths = json.dumps(sys.path)
    # `share` needs the id of a running process, so the socket goes through stdin.
    if sys.platform == "win32":
        # In a virtual environment, python.exe starts the base interpreter as its child, which the
        # socket would not reach. So start the base interpreter; it only needs the import paths.
        python = str(getattr(sys, "_base_executable", sys.executable))
        process = subprocess.Popen(
            [python, *arguments, "-", paths],
            stdin=subprocess.PIPE,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,
        )
        assert process.stdin is not None
        process.stdin.write(theirs.share(process.pid).hex().encode() + b"\n")
        process.stdin.close()
        return process
    handle = theirs.fileno()
    return subprocess.Popen(
        [sys.executable, *arguments, str(handle), paths],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(handle,),
        # A session of its own, so that Ctrl-C in a terminal reaches only the server.
        start_new_session=True,
    )
