"""Messages on a socket: two lengths, an object in JSON, and bytes as they are.

JSON cannot name code, so neither side can make the other run any.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Mapping
from io import BufferedReader
from operator import index
from typing import Any, cast

from wgpu_backend.errors import BackendError

# Lengths of the JSON and of the bytes after it.
LENGTHS = struct.Struct("<II")
# Most bytes of a part of a message; a longer one is damaged.
MOST_NBYTES = 1 << 30
# Many small messages are read at once.
_BUFFER = 1 << 16
Message = dict[str, Any]
# Tokens may be NumPy's integers. `json.dumps` would make an encoder for each message.
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=index)


def encode_message(message: Mapping[str, Any], raw: bytes = b"") -> bytes:
    """Encode a message.

    Parameters
    ----------
    message : mapping
        Plain data; numbers may be infinite.
    raw : bytes
        Binary data of the message, such as vectors.

    Raises
    ------
    BackendError
        It is too long for a frame.
    """
    text = _ENCODER.encode(message).encode()
    if max(len(text), len(raw)) > MOST_NBYTES:
        raise BackendError(
            f"worker: a message of {max(len(text), len(raw))} bytes, needs at most {MOST_NBYTES}"
        )
    return LENGTHS.pack(len(text), len(raw)) + text + raw


def open_socket(handle: str) -> socket.socket:
    """Return the socket that a worker's process inherited.

    Parameters
    ----------
    handle : str
        Its file descriptor; on Windows ``-``, with the data of `socket.share` in a line of stdin.
    """
    if sys.platform == "win32":
        return socket.fromshare(bytes.fromhex(sys.stdin.readline()))
    return socket.socket(fileno=int(handle))


def make_reader(sock: socket.socket) -> BufferedReader:
    """Return a socket as a reader for `read_message`."""
    return cast("BufferedReader", sock.makefile("rb", _BUFFER))


def read_message(
    source: BufferedReader, most_text: int = MOST_NBYTES, most_raw: int = MOST_NBYTES
) -> tuple[Message, bytes] | None:
    """Read a message from a socket; None if it was closed, or ends within a message.

    Parameters
    ----------
    most_text, most_raw : int
        Most bytes of the JSON, and of the data after it.

    Raises
    ------
    BackendError
        The data is not a message.
    """
    head = source.read(LENGTHS.size)
    if len(head) < LENGTHS.size:
        return None
    lengths = LENGTHS.unpack(head)
    for length, most in zip(lengths, (most_text, most_raw), strict=True):
        if length > most:
            raise BackendError(f"worker: a message of {length} bytes, needs at most {most}")
    text, raw = (source.read(length) for length in lengths)
    # The process ended while it was sending.
    if (len(text), len(raw)) != lengths:
        return None
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise BackendError(f"worker: a message is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BackendError("worker: a message is not a JSON object")
    return cast("Message", found), raw
