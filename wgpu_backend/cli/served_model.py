"""A model of a running server, which `run` uses so that no model is loaded twice."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

from wgpu_backend.cli.server_client import request_json, server_headers, server_url
from wgpu_backend.engine.prompt import Message
from wgpu_backend.engine.sessions import DoneReason, Stats
from wgpu_backend.errors import ModelNotFound, StoreError
from wgpu_backend.text.grammar import Grammar
from wgpu_backend.text.output_parsers import Content, Part, Thinking

_NANO = 1e-9
# `run` connects before each start, so it must not wait long where no server answers.
_CONNECT_SECONDS = 0.5


class ServedModel:
    """A model of a server, with the part of `LanguageModel` that a chat uses.

    Parameters
    ----------
    shown : mapping
        Answer of ``/api/show`` for the model.
    keep_alive : str or None
        Time for which the server keeps the model after an answer; None for its default.
    num_ctx : int or None
        Positions in the context; None for the server's choice.
    """

    def __init__(
        self, name: str, shown: Mapping[str, Any], keep_alive: str | None, num_ctx: int | None
    ) -> None:
        self.name, self.shown = name, shown
        self.stats = Stats()
        self.asked_ctx = num_ctx
        self._keep_alive = keep_alive

    @property
    def template(self) -> str | None:
        """Chat template; None if the model has none."""
        return str(self.shown.get("template") or "") or None

    @property
    def num_ctx(self) -> int:
        """Positions in the context of the loaded model; 0 if it is not loaded."""
        if self.asked_ctx is not None:
            return self.asked_ctx
        loaded = cast("list[dict[str, Any]]", request_json("GET", "/api/ps")["models"])
        # The server lists complete names, `run` has them as typed.
        name = self.name if ":" in self.name.rpartition("/")[2] else f"{self.name}:latest"
        sizes = [int(each["context_length"]) for each in loaded if each["name"] == name]
        return sizes[0] if sizes else 0

    def parts(
        self,
        messages: Sequence[Message],
        options: Mapping[str, object],
        grammar: Grammar | None,
        think: bool | None,
    ) -> Iterator[Part]:
        """Answer a conversation as a stream of text and reasoning.

        Parameters
        ----------
        options : mapping
            Options that the user set, by Ollama's names; others are the model's defaults.
        grammar : Grammar or None
            Grammar of kind JSON schema.
        """
        body = self._body(options, grammar)
        body |= {"messages": list(messages)} | ({} if think is None else {"think": think})
        return self._stream("/api/chat", body)

    def continue_text(
        self,
        prompt: str,
        options: Mapping[str, object],
        grammar: Grammar | None,
    ) -> Iterator[Part]:
        """Continue a raw text."""
        body = self._body(options, grammar) | {"prompt": prompt, "raw": True}
        return self._stream("/api/generate", body)

    def _body(
        self,
        options: Mapping[str, object],
        grammar: Grammar | None,
    ) -> dict[str, Any]:
        chosen = dict(options)
        if self.asked_ctx is not None:
            # Only a given context: another one would make the server load the model again.
            chosen["num_ctx"] = self.asked_ctx
        body: dict[str, Any] = {"model": self.name, "stream": True, "options": chosen}
        if grammar is not None:
            body["format"] = json.loads(grammar.text)
        if self._keep_alive is not None:
            body["keep_alive"] = self._keep_alive
        return body

    def _stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Part]:
        import httpx2

        self.stats = Stats()
        server, proxied = server_url()
        # No time limit: loading a model may take minutes before the first token.
        client = httpx2.Client(timeout=None, trust_env=proxied, headers=server_headers())
        try:
            with client, client.stream("POST", server + path, json=body) as response:
                for line in response.iter_lines():
                    yield from self._parts(cast("dict[str, Any]", json.loads(line)))
        except (httpx2.HTTPError, ValueError) as error:
            raise StoreError(f"{server}{path}: {error}; the answer was cut off") from None

    def _parts(self, event: Mapping[str, Any]) -> Iterator[Part]:
        if "error" in event:
            raise StoreError(str(event["error"]))
        # /api/chat has the answer in `message`, /api/generate in the event itself.
        message = cast("Mapping[str, Any]", event.get("message", event))
        if message.get("thinking"):
            yield Thinking(str(message["thinking"]))
        text = message.get("content", message.get("response"))
        if text:
            yield Content(str(text))
        if event.get("done"):
            self.stats = Stats(
                prompt_tokens=int(event.get("prompt_eval_count", 0)),
                tokens=int(event.get("eval_count", 0)),
                prompt_seconds=float(event.get("prompt_eval_duration", 0)) * _NANO,
                seconds=float(event.get("eval_duration", 0)) * _NANO,
                done_reason=cast("DoneReason", event.get("done_reason")),
            )


def find_served(name: str, keep_alive: str | None, num_ctx: int | None) -> ServedModel | None:
    """Return the model of a running server; None if no server runs or it lacks the model.

    The server at ``OLLAMA_HOST`` is used, or a server of this package at the default address.

    Raises
    ------
    StoreError
        The server's model is damaged.
    """
    # A connection finds out without importing the HTTP client.
    if not _listens():
        return None
    try:
        # At the default address Ollama itself may run: only a server that the user named, or one
        # of this package, is used.
        named = os.environ.get("OLLAMA_HOST")
        if not named and "wgpu_backend" not in request_json("GET", "/api/version"):
            return None
    except StoreError:
        return None
    try:
        shown = request_json("POST", "/api/show", {"model": name})
    except ModelNotFound:
        return None
    return ServedModel(name, shown, keep_alive, num_ctx)


def _listens() -> bool:
    """Return whether anything listens at the server's address."""
    from urllib.parse import urlsplit

    parts = urlsplit(server_url()[0])
    try:
        where = (parts.hostname or "", parts.port or 0)
        with closing(socket.create_connection(where, _CONNECT_SECONDS)):
            return True
    except OSError:
        return False
