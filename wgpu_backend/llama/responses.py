"""Completions and chat completions in the shape of OpenAI's API, and their log probabilities."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.sessions import Stats
from wgpu_backend.llama.model import Model

Json = dict[str, Any]
Rows = Sequence["NDArray[np.single] | None"]
_LOGPROB_FIELDS = ("tokens", "text_offset", "token_logprobs", "top_logprobs")


@dataclass(slots=True)
class CompletionRequest:
    """A request for a completion, and what was generated for it.

    Parameters
    ----------
    prompt : list of int
        Tokens of the prompt.
    prompt_text : str
        The prompt as text, for `echo`.
    limit : int
        Most tokens to generate.
    stop : list of str
        Texts that end the completion.
    top_logprobs : int or None
        Number of likeliest tokens to report at each position; None for no log probabilities.
    sampling : mapping
        Arguments of `Llama.generate`.
    model : str
        Name of the model in responses.
    stats : Stats
        Has the reason for the end.
    generated : list of int
        Tokens so far, without the token that ended the completion.
    """

    prompt: list[int]
    prompt_text: str
    limit: int
    stop: list[str]
    top_logprobs: int | None
    sampling: Mapping[str, Any]
    model: str
    echo: bool = False
    stats: Stats = field(default_factory=Stats)
    generated: list[int] = field(default_factory=list[int])
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def make_chunk(self, text: str, logprobs: Json | None, reason: str | None = None) -> Json:
        """Return a piece of text in the shape of a response."""
        choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
        }

    def count_usage(self) -> Json:
        """Return the number of tokens of the prompt and the completion."""
        prompt, generated = len(self.prompt), len(self.generated)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
        }


def make_completion(request: CompletionRequest, chunks: Iterable[Json]) -> Json:
    """Return one response for all chunks of a completion."""
    # The chunks come first: they fill in `request.generated`, which the usage counts.
    choices = [chunk["choices"][0] for chunk in chunks]
    text = "".join(choice["text"] for choice in choices)
    logprobs = Logprobs.join([choice["logprobs"] for choice in choices])
    whole = request.make_chunk(text, logprobs, choices[-1]["finish_reason"])
    return {**whole, "usage": request.count_usage()}


def log_softmax(logits: NDArray[np.single], axis: int = -1) -> NDArray[np.single]:
    """Return the logarithms of the probabilities of logits; minus infinity for excluded tokens."""
    # Minus the largest, so that exp() does not overflow. If all are infinite, inf - inf would be
    # NaN.
    top = logits.max(axis=axis, keepdims=True)
    shifted = logits - np.where(np.isfinite(top), top, np.single(0))
    with np.errstate(divide="ignore"):
        return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


class Logprobs:
    """The log probabilities of one completion's tokens, in the order of its chunks.

    `rows` of its methods are the logits of each token in the context.
    """

    def __init__(self, model: Model, request: CompletionRequest) -> None:
        self._model = model
        self._request = request
        self._described = 0
        self._offset = len(request.prompt_text)

    def describe_prompt(self, rows: Rows) -> Json | None:
        """Return the log probabilities of a computed prompt, without BOS.

        The first token has none, since no token precedes it.
        """
        if self._request.top_logprobs is None:
            return None
        fields: Json = {name: [] for name in _LOGPROB_FIELDS}
        # Offsets of the completion begin after the prompt.
        end, self._offset = self._offset, 0
        for i, token in enumerate(self._request.prompt):
            if i or token != self._model.token_bos():
                self._add(fields, token, rows[i - 1] if i else None)
        self._offset = end
        return fields

    def describe_new(self, rows: Rows) -> Json | None:
        """Return the log probabilities of tokens generated since the last call."""
        if self._request.top_logprobs is None:
            return None
        fields: Json = {name: [] for name in _LOGPROB_FIELDS}
        generated, start = self._request.generated, len(self._request.prompt)
        for i in range(self._described, len(generated)):
            # A token was chosen by the logits of the position before it.
            self._add(fields, generated[i], rows[start + i - 1])
        self._described = len(generated)
        return fields

    def _add(self, fields: Json, token: int, row: NDArray[np.single] | None) -> None:
        text = self._decode(token)
        fields["tokens"].append(text)
        fields["text_offset"].append(self._offset)
        self._offset += len(text)
        if row is None:
            fields["token_logprobs"].append(None)
            fields["top_logprobs"].append(None)
            return
        logs = log_softmax(row)
        # A stable sort lists equal logits in the order of token ids.
        best = np.argsort(-logs, kind="stable")[: self._request.top_logprobs]
        top = {self._decode(int(i)): float(logs[i]) for i in best}
        fields["token_logprobs"].append(float(logs[token]))
        # The chosen token is listed even if it is not among the likeliest, as OpenAI does.
        fields["top_logprobs"].append({**top, text: float(logs[token])})

    def _decode(self, token: int) -> str:
        return self._model.token_to_piece(token).decode("utf-8", "ignore")

    @staticmethod
    def join(parts: Sequence[Json | None]) -> Json | None:
        """Return the log probabilities of several chunks as one."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        return {name: [each for part in known for each in part[name]] for name in _LOGPROB_FIELDS}


def make_chat_completion(completion: Json) -> Json:
    """Return a completion in the shape of a chat completion."""
    choice = completion["choices"][0]
    answer = {
        "index": 0,
        "message": {"role": "assistant", "content": choice["text"]},
        "logprobs": _convert_logprobs(choice["logprobs"]),
        "finish_reason": choice["finish_reason"],
    }
    return {
        **_make_head(completion, "chat.completion"),
        "choices": [answer],
        "usage": completion["usage"],
    }


def make_chat_chunks(chunks: Iterable[Json]) -> Generator[Json]:
    """Yield the chunks of a completion in the shape of chat completion chunks."""
    first = True
    for chunk in chunks:
        choice, head = chunk["choices"][0], _make_head(chunk, "chat.completion.chunk")
        # OpenAI's first chunk has only the role, and the last one only the reason for the end.
        if first:
            yield {**head, "choices": [_make_delta({"role": "assistant"}, None, None)]}
            first = False
        is_last = choice["finish_reason"] is not None
        delta = {} if is_last else {"content": choice["text"]}
        logprobs = _convert_logprobs(choice["logprobs"])
        yield {**head, "choices": [_make_delta(delta, logprobs, choice["finish_reason"])]}


def _make_head(completion: Json, kind: str) -> Json:
    return {
        "id": f"chat{completion['id']}",
        "object": kind,
        "created": completion["created"],
        "model": completion["model"],
    }


def _make_delta(delta: Json, logprobs: Json | None, reason: str | None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _convert_logprobs(logprobs: Json | None) -> Json | None:
    """Return a completion's log probabilities as those of a chat, which are one entry per token."""
    if logprobs is None:
        return None
    rows = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    content = [
        {**_make_entry(text, log), "top_logprobs": [_make_entry(*each) for each in top.items()]}
        for text, log, top in rows
    ]
    return {"content": content, "refusal": None}


def _make_entry(text: str, log: float) -> Json:
    return {"token": text, "bytes": list(text.encode()), "logprob": log}
