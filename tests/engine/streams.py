"""Streams of a session without a tokenizer: a token is a letter, its end is chosen by a test."""

from wgpu_backend.engine.batching.completion import ModelInfo, Ticket
from wgpu_backend.engine.batching.constrained import Constrained
from wgpu_backend.engine.batching.generation import Mailbox
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.sessions import TokenStream


class Letters:
    """A tokenizer whose tokens are letters."""

    add_bos, bos_id = False, None

    def __init__(self, ends=()):
        self.eog_ids = frozenset(ends)

    def stream(self):
        return self

    def push(self, token):
        return chr(ord("a") + token % 26)

    def flush(self):
        return ""


def token_stream(runner, session, prompt, options, *, room, vocabulary, **how):
    """Make the stream of an answer; see `Request` and `TokenStream`."""
    depth, ends = how.pop("depth", 1), how.pop("ends", ())
    model = ModelInfo("tiny", Letters(ends), vocabulary, room, None)
    ticket = Ticket(0, Request(prompt, options, **how), [*prompt], Mailbox(1), stepwise=True)
    return TokenStream(runner, Constrained(runner, 1, vocabulary), model, session, ticket, depth)


def tokens_of(stream):
    """The tokens of a stream, one at a time."""
    for event in stream.run():
        yield from event.tokens
