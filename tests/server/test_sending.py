"""Pieces of a stream go out in order, together where they are there at once."""

import asyncio

import pytest

from wgpu_backend.server.sending import Sending

START = {"type": "http.response.start", "status": 200, "headers": []}


def piece(text, *, more=True):
    return {"type": "http.response.body", "body": text, "more_body": more}


class Client:
    """Notes what is sent to it; it does not read while it is `stuck`."""

    def __init__(self):
        self.got = []
        self.reading = asyncio.Event()
        self.reading.set()

    async def __call__(self, message):
        await self.reading.wait()
        self.got.append(message)

    @property
    def bodies(self):
        return [bytes(each["body"]) for each in self.got if "body" in each]


def run(act, most=30.0, extra=()):
    async def with_client():
        client = Client()
        sending = Sending(client, extra, most)
        await act(sending, client)
        return sending, client

    return asyncio.run(with_client())


def test_pieces_that_are_there_at_once_are_one_write():
    async def act(sending, client):
        await sending(dict(START))
        for text in (b"a", b"b", b"c"):
            await sending(piece(text))
        await asyncio.sleep(0.01)
        assert client.bodies == [b"abc"]
        await sending(piece(b"d"))
        await asyncio.sleep(0.01)
        assert client.bodies == [b"abc", b"d"]
        await sending(piece(b"e"))
        await sending(piece(b"", more=False))

    _, client = run(act)
    assert client.bodies == [b"abc", b"d", b"e", b""]
    assert [each.get("more_body") for each in client.got] == [None, True, True, True, False]


def test_headers_are_added_and_a_whole_answer_goes_at_once():
    async def act(sending, client):
        await sending({**START, "headers": []})
        await sending(piece(b"whole", more=False))
        assert client.bodies == [b"whole"]

    _, client = run(act, extra=(("vary", "Origin"),))
    assert client.got[0]["headers"] == [(b"Vary", b"Origin")]


def test_a_client_that_does_not_read_stops_the_stream_and_is_given_up():
    async def act(sending, client):
        await sending(dict(START))
        client.reading.clear()
        await sending(piece(b"a"))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await sending(piece(b"b"))
        sending.close()

    sending, client = run(act, most=0.05)
    assert sending.late
    assert client.bodies == []


def test_much_at_once_waits_for_the_client():
    async def act(sending, client):
        await sending(dict(START))
        for _ in range(64):
            await sending(piece(bytes(4096)))
        await sending(piece(b"", more=False))

    _, client = run(act)
    assert sum(map(len, client.bodies)) == 64 * 4096
    assert max(map(len, client.bodies)) <= (1 << 16) + 4096


def test_an_error_of_the_write_comes_with_the_next_piece():
    async def act(sending, client):
        async def broken(_):
            raise OSError("gone")

        sending = Sending(broken, (), 30.0)
        await sending(piece(b"a"))
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="gone"):
            await sending(piece(b"b", more=False))

    run(act)
