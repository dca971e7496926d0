"""Pieces of a stream go out in order, together where they are there at once."""

import asyncio
import contextvars
import json
from functools import partial

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

import uvicorn
from uvicorn.server import ServerState

from tests.server.serving import by_hand, client_of
from wgpu_backend.engine.batching.generation import Generation, Mailbox
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import Event, Finish, Reading, TokenLogprob, Usage
from wgpu_backend.server.core.completion import CompletionOutput, _merge_outputs
from wgpu_backend.server.core.connections import TimelyProtocol
from wgpu_backend.server.core.streaming import Sender
from wgpu_backend.text.output_parsers import Content, Thinking, ToolCall

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
        sending = Sender(client, extra, most)
        await act(sending, client)
        return sending, client

    return asyncio.run(with_client())


async def written(client, count):
    """Wait until so many bodies are written; a busy machine's timers end before."""
    while len(client.bodies) < count:
        await asyncio.sleep(0)


def test_pieces_that_are_there_at_once_are_one_write():
    async def act(sending, client):
        await sending(dict(START))
        for text in (b"a", b"b", b"c"):
            await sending(piece(text))
        await written(client, 1)
        assert client.bodies == [b"abc"]
        await sending(piece(b"d"))
        await written(client, 2)
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

        sending = Sender(broken, (), 30.0)
        await sending(piece(b"a"))
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="gone"):
            await sending(piece(b"b", more=False))

    run(act)


def test_pieces_of_a_client_that_reads_need_no_task_and_no_timer(monkeypatch):
    """A task and a timer take longer than the write itself."""

    async def act(sending, client):
        loop, made = asyncio.get_running_loop(), []
        for name in ("create_task", "call_later", "call_at"):
            monkeypatch.setattr(loop, name, lambda *_, name=name, **__: made.append(name))
        for text in (b"a", b"b"):
            await sending(piece(text))
            for _ in range(3):
                await asyncio.sleep(0)
        monkeypatch.undo()
        assert made == []
        assert client.bodies == [b"a", b"b"]

    run(act)


def test_a_write_that_waits_goes_on_in_its_own_context():
    noted = contextvars.ContextVar("noted", default="outside")

    async def act(sending, client):
        async def send(message):
            token = noted.set("inside")
            await client(message)
            noted.reset(token)

        sending = Sender(send, (), 30.0)
        client.reading.clear()
        await sending(piece(b"a"))
        await asyncio.sleep(0.01)
        assert client.bodies == []
        client.reading.set()
        await sending(piece(b"b", more=False))
        assert client.bodies == [b"a", b"b"]
        assert noted.get() == "outside"

    run(act)


def test_a_write_that_waits_is_ended_with_the_stream():
    async def act(sending, client):
        client.reading.clear()
        await sending(piece(b"a"))
        await asyncio.sleep(0.01)
        sending.close()
        with pytest.raises(asyncio.CancelledError):
            await sending(piece(b"b"))
        assert not sending.late

    run(act)


def answered(pieces, version="1.1", method="GET", headers=()):
    """The bytes that a server writes for pieces of a stream, between the two ends of a socket."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [*headers]})
        for each in pieces:
            await send(piece(each))
            await asyncio.sleep(0)
        await send(piece(b"", more=False))

    async def ask():
        config = uvicorn.Config(app, http=TimelyProtocol, lifespan="off", log_level="error")
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        make = partial(TimelyProtocol, config=config, server_state=state, app_state={})
        server = await loop.create_server(make, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        lines = f"{method} / HTTP/{version}", "host: a", "connection: close"
        writer.write("\r\n".join((*lines, "", "")).encode())
        found = await reader.read()
        writer.close()
        server.close()
        return found.split(b"\r\n\r\n", 1)

    return asyncio.run(ask())


def test_pieces_have_the_framing_that_the_head_declares():
    """As RFC 9112, section 7.1 has chunks; a body of a known length, and one for 1.0, has none."""
    pieces = [b"one", b"", b"x" * 300]
    head, body = answered(pieces)
    assert b"transfer-encoding: chunked" in head.lower()
    assert body == b"3\r\none\r\n12c\r\n" + b"x" * 300 + b"\r\n0\r\n\r\n"
    head, body = answered(pieces, headers=[(b"content-length", b"303")])
    assert b"chunked" not in head.lower()
    assert body == b"".join(pieces)
    head, body = answered(pieces, version="1.0")
    assert b"chunked" not in head.lower()
    assert body == b"".join(pieces)
    assert answered(pieces, method="HEAD")[1] == b""


USER = {"role": "user", "content": "Once"}
TOKENS = 24
FEW = 6  # pieces of a client that reads the first, and then nothing until the answer is made
OPTIONS = {"temperature": 0, "seed": 1}
ASKED = {"model": "tale", "stream": True}
CHAT = {**ASKED, **OPTIONS, "max_tokens": TOKENS, "ignore_eos": True}
PREDICT = {**ASKED, "options": {**OPTIONS, "num_predict": TOKENS}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store")) as client:
        yield client


def pieces(client, path, body, pause=None):
    """What a stream says; its client does not read behind its third message while `pause` waits."""
    got = []

    async def send(message):
        got.append(message)
        if pause is not None and len(got) == 3:
            await pause()

    by_hand(client, path, body, send)
    assert got[0]["status"] == 200
    text = b"".join(each.get("body", b"") for each in got).decode()
    lines = [line.removeprefix("data: ") for line in text.splitlines() if "{" in line]
    return [json.loads(line) for line in lines]


def made(client):
    """Waits until the engine has made all that it was asked for."""

    async def figures():
        got = []

        async def send(message):
            got.append(message)

        async def receive():
            return {"type": "http.request", "body": b""}

        scope = {"type": "http", "method": "GET", "path": "/metrics", "query_string": b""}
        await client.app({**scope, "headers": [(b"host", b"testserver")]}, receive, send)
        lines = got[1]["body"].decode().splitlines()
        told = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return float(told["llamacpp:requests_processing"])

    async def pause():
        while await figures():
            await asyncio.sleep(0.01)

    return pause


def chat_text(piece):
    return "".join(each["delta"].get("content") or "" for each in piece["choices"])


def chat_logprobs(piece):
    found = [each["logprobs"] for each in piece["choices"] if each.get("logprobs")]
    return [each for one in found for each in one["content"]]


ROUTES = {
    "/v1/chat/completions": (
        {**CHAT, "messages": [USER], "logprobs": True, "top_logprobs": 2},
        chat_text,
        chat_logprobs,
    ),
    "/api/chat": (
        {**PREDICT, "messages": [USER], "logprobs": True},
        lambda piece: piece["message"]["content"],
        lambda piece: piece.get("logprobs", []),
    ),
    "/api/generate": (
        {**PREDICT, "prompt": "Once"},
        lambda piece: piece["response"],
        lambda piece: piece.get("context", []),
    ),
    "/v1/completions": (
        {**CHAT, "prompt": "Once", "logprobs": 1, "n": 2},
        lambda piece: "".join(each["text"] for each in piece["choices"] if not each["index"]),
        lambda piece: [
            pair
            for each in piece["choices"]
            if each["logprobs"] and not each["index"]
            for pair in zip(
                each["logprobs"]["tokens"], each["logprobs"]["text_offset"], strict=True
            )
        ],
    ),
    "/completion": (
        {**ASKED, **OPTIONS, "n_predict": TOKENS, "prompt": "Once", "return_tokens": True},
        lambda piece: piece["content"],
        lambda piece: piece["tokens"],
    ),
    "/v1/messages": (
        {**CHAT, "messages": [USER]},
        lambda piece: piece.get("delta", {}).get("text", ""),
        lambda piece: [piece["usage"]] if piece["type"] == "message_delta" else [],
    ),
    "/v1/responses": (
        {**ASKED, "temperature": 0, "max_output_tokens": TOKENS, "input": "Once"},
        lambda piece: piece["delta"] if piece["type"] == "response.output_text.delta" else "",
        lambda piece: (
            [piece["response"]["usage"]["output_tokens"]]
            if piece["type"] == "response.incomplete"
            else []
        ),
    ),
}


@pytest.mark.parametrize("path", ROUTES)
def test_pieces_are_joined_while_a_client_does_not_read_and_say_the_same(client, path):
    body, text, beside = ROUTES[path]
    quick, slow = pieces(client, path, body), pieces(client, path, body, made(client))
    said = [[each for each in map(text, some) if each] for some in (quick, slow)]
    assert "".join(said[0]) == "".join(said[1])
    assert len(said[0]) > TOKENS / 2, "a piece is a token as long as the client reads"
    assert len(said[1]) <= FEW
    lists = [[each for piece in some for each in beside(piece)] for some in (quick, slow)]
    assert lists[0] == lists[1]
    assert lists[0] or path == "/api/generate"


def test_calls_and_reasoning_are_joined_in_their_order():
    usage = Finish("stop", None, context_full=False, usage=Usage(1))
    likely = [TokenLogprob(token, -0.5, b"x") for token in range(4)]
    call = ToolCall("weather", {"city": "Oslo"})
    outputs = [
        CompletionOutput(0, reading=Reading(1, 0, 2, 0.1)),
        CompletionOutput(0, reading=Reading(2, 0, 2, 0.2)),
        CompletionOutput(0, [Thinking("h")], likely[:1], tokens=[0]),
        CompletionOutput(1, [Content("other")], tokens=[9]),
        CompletionOutput(0, [Thinking("m"), Content("A"), call], likely[1:2], tokens=[1]),
        CompletionOutput(0, [call, Content("B")], likely[2:3], tokens=[2]),
        CompletionOutput(0, [Content("C")], likely[3:], [3], usage),
    ]
    assert _merge_outputs(outputs) == [
        outputs[1],
        CompletionOutput(
            0,
            [Thinking("hm"), Content("A"), call, call, Content("BC")],
            likely,
            [0, 1, 2, 3],
            usage,
        ),
        outputs[3],
    ]


def test_events_that_are_taken_are_not_kept():
    mailbox, ended = Mailbox(1), Finish("stop", None, context_full=False, usage=Usage(1))
    events = [Event(0, "a"), Event(0, "b"), Event(0, "", finish=ended)]

    async def taken():
        generation = Generation(1, Request([1]), mailbox, lambda _: None)
        found = []
        for event in events[:2]:
            mailbox.put(event)
        async for event, more in generation.taken():
            found.append((event, more))
            if len(found) == 1:
                mailbox.put(events[2])
        return found

    assert asyncio.run(taken()) == [(events[0], True), (events[1], True), (events[2], False)]
    assert mailbox.events == []
