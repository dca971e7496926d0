"""Pieces of a stream go out in order, together where they are there at once."""

import asyncio
import json

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from tests.server.serving import by_hand, client_of
from wgpu_backend.engine.batching.generation import Generation, Mailbox
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import Event, Finish, Reading, TokenLogprob, Usage
from wgpu_backend.server.core.completion import CompletionOutput, _merge_outputs
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

        sending = Sender(broken, (), 30.0)
        await sending(piece(b"a"))
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="gone"):
            await sending(piece(b"b", more=False))

    run(act)


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
