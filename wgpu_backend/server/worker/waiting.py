"""The process of a node that waits for a connection: a worker or a stage, with all imports done."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from wgpu_backend.device.c_types import parse_c_types
from wgpu_backend.server.worker import process, stage
from wgpu_backend.server.worker.frames import open_socket

PROGRAMS = {"process": process.main, "stage": stage.main}
# Most bytes of a program's name.
MOST_NAME = 64


def main(handle: str) -> None:
    """Wait for a connection and the program that it names, then run that program.

    Parameters
    ----------
    handle : str
        A Unix socket, see `frames.open_socket`; the process ends with it.
    """
    with suppress(Exception):
        # Opening a device reports the same error.
        parse_c_types()
    with open_socket(handle) as node:
        name, handles, _, _ = socket.recv_fds(node, MOST_NAME, 1)
    if not handles:
        os._exit(0)
    PROGRAMS[name.decode()](str(handles[0]))
