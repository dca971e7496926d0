"""Messages on a socket: they arrive unchanged, and damage is reported."""

import math
import socket
import struct

import pytest

from wgpu_backend.errors import BackendError
from wgpu_backend.server.worker.frames import MOST_NBYTES, encode_message, make_reader, read_message


def sent(*parts: bytes):
    """What a reader makes of bytes, up to the end of the socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"".join(parts))
    with ours, make_reader(ours) as source:
        found = []
        while (each := read_message(source)) is not None:
            found.append(each)
        return found


def test_messages_come_out_as_they_were():
    one, two = {"do": "a", "text": "é\n\0", "least": -math.inf}, {"list": [1, [2.5, None]]}
    assert sent(encode_message(one, b"\x00\xff"), encode_message(two)) == [
        (one, b"\x00\xff"),
        (two, b""),
    ]


@pytest.mark.parametrize("missing", [1, 4, 9])
def test_a_message_that_was_cut_is_none(missing):
    whole = encode_message({"do": "a"}, b"abc")
    assert sent(whole, whole[:-missing]) == [({"do": "a"}, b"abc")]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (struct.pack("<II", MOST_NBYTES + 1, 0), f"{MOST_NBYTES + 1} bytes"),
        (struct.pack("<II", 2, 0) + b"{]", "not JSON"),
        (struct.pack("<II", 2, 0) + b"[]", "not a JSON object"),
    ],
)
def test_damage_is_told(data, told):
    with pytest.raises(BackendError, match=told):
        sent(data)
