"""Logarithms of probabilities, as OpenAI's completions tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.llama.model import Model

Json = dict[str, Any]
Rows = Sequence["NDArray[np.single] | None"]
_FIELDS = ("tokens", "text_offset", "token_logprobs", "top_logprobs")


def log_softmax(logits: NDArray[np.single], axis: int = -1) -> NDArray[np.single]:
    """Logarithms of the probabilities of logits; of those that are ruled out, minus infinity."""
    top = logits.max(axis=axis, keepdims=True)
    shifted = logits - np.where(np.isfinite(top), top, np.single(0))
    with np.errstate(divide="ignore"):
        return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


class Logprobs:
    """Tells of the tokens of one completion.

    Parameters
    ----------
    text : str
        The prompt.
    count : int or None
        Likeliest tokens to tell of; None to tell nothing.
    """

    def __init__(self, model: Model, prompt: Sequence[int], text: str, count: int | None) -> None:
        self._model = model
        self._prompt = prompt
        self._count = count
        self._told = 0
        self._offset = len(text)

    def of_prompt(self, rows: Rows) -> Json | None:
        """Of a prompt that was computed, whose first token follows nothing; without BOS."""
        if self._count is None:
            return None
        found: Json = {name: [] for name in _FIELDS}
        end, self._offset = self._offset, 0
        for i, token in enumerate(self._prompt):
            if i or token != self._model.token_bos():
                self._tell(found, token, rows[i - 1] if i else None)
        self._offset = end
        return found

    def following(self, made: Sequence[int], rows: Rows) -> Json | None:
        """Of tokens that were made since the last time."""
        if self._count is None:
            return None
        found: Json = {name: [] for name in _FIELDS}
        for i in range(self._told, len(made)):
            self._tell(found, made[i], rows[len(self._prompt) + i - 1])
        self._told = len(made)
        return found

    def _tell(self, found: Json, token: int, row: NDArray[np.single] | None) -> None:
        text = self._text(token)
        found["tokens"].append(text)
        found["text_offset"].append(self._offset)
        self._offset += len(text)
        if row is None:
            found["token_logprobs"].append(None)
            found["top_logprobs"].append(None)
            return
        logs = log_softmax(row)
        best = np.argsort(-logs, kind="stable")[: self._count]
        top = {self._text(int(i)): float(logs[i]) for i in best}
        found["token_logprobs"].append(float(logs[token]))
        found["top_logprobs"].append({**top, text: float(logs[token])})

    def _text(self, token: int) -> str:
        return self._model.token_to_piece(token).decode("utf-8", "ignore")

    @staticmethod
    def joined(parts: Sequence[Json | None]) -> Json | None:
        """One of several."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        return {name: [each for part in known for each in part[name]] for name in _FIELDS}
