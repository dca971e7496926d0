"""Embeddings of texts, for Ollama's routes and OpenAI's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from starlette.concurrency import run_in_threadpool

from wgpu_backend.errors import ContextFull
from wgpu_backend.server.fields import Fields
from wgpu_backend.server.llama_prompts import token_of
from wgpu_backend.server.served import ServedModel
from wgpu_backend.server.serving_state import State
from wgpu_backend.server.wanted import RequestError
from wgpu_backend.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of texts.

    Parameters
    ----------
    vectors : list of list of float
    tokens : int
        Of all texts.
    load_seconds : float
    """

    vectors: list[list[float]]
    tokens: int
    load_seconds: float


async def embeddings(state: State, fields: Fields, given: object, *, truncate: bool) -> Embedded:
    """Vectors of texts, by the model that the fields name.

    Parameters
    ----------
    state : State
    fields : Fields
    given : str or list
        A text, tokens of one, or a list of such.
    truncate : bool
        Cut texts that are too long.

    Raises
    ------
    ContextFull
        A text is longer than the context, and is not to be cut.
    """
    name, dimensions = state.named(fields), fields.get("dimensions", int)
    keep = fields.get("keep_alive", int, float, str)
    async with state.using(name, None, keep) as loaded:
        return await run_in_threadpool(
            _embedded, loaded.model, given, dimensions, loaded.load_seconds, truncate=truncate
        )


def _embedded(
    model: ServedModel,
    given: object,
    dimensions: int | None,
    load_seconds: float,
    *,
    truncate: bool,
) -> Embedded:
    fitting, count = list[str](), 0
    for text in _texts(given, model.tokenizer):
        ids = model.tokenizer.encode(text)
        if len(ids) > model.num_ctx:
            if not truncate:
                raise ContextFull(
                    f"the input is too large: it has {len(ids)} tokens, the context holds "
                    f"{model.num_ctx}",
                    len(ids),
                    model.num_ctx,
                )
            text = model.tokenizer.decode(ids[: model.num_ctx - 4])
        count += min(len(ids), model.num_ctx)
        fitting.append(text)
    found = model.embed(fitting) if fitting else np.zeros((0, 0), np.float32)
    if dimensions is not None and fitting:
        if not 0 < dimensions <= found.shape[1]:
            raise RequestError(400, f"dimensions: {dimensions}, needs 1 to {found.shape[1]}")
        found = found[:, :dimensions]
        found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    return Embedded(found.tolist(), count, load_seconds)


def _texts(given: object, tokenizer: Tokenizer) -> list[str]:
    items = cast("list[object]", given) if isinstance(given, list) else [given]
    alone = any(isinstance(item, int) for item in items)
    return [_text(item, tokenizer) for item in ([items] if alone else items)]


def _text(given: object, tokenizer: Tokenizer) -> str:
    """Text of a text, of tokens, of both mixed, or of an object of llama-server's.

    A model's own tokens around a text are added again.
    """
    if isinstance(given, str):
        return given
    if isinstance(given, dict):
        return _text_of_parts(cast("dict[str, object]", given))
    if not isinstance(given, list) or not given:
        raise RequestError(
            400, f"input: {str(cast('object', given))[:40]!r}, needs texts, or lists of tokens"
        )
    found, ids = "", list[int]()
    for item in cast("list[object]", given):
        if isinstance(item, str):
            found += tokenizer.decode(ids) + item
            ids = []
        else:
            ids.append(token_of(item, tokenizer))
    return found + tokenizer.decode(ids)


def _text_of_parts(given: dict[str, object]) -> str:
    """Text of ``prompt_string``, or of the parts of ``content``."""
    alone, parts = given.get("prompt_string"), given.get("content")
    if isinstance(alone, str):
        return alone
    texts: list[str] = []
    for part in cast("list[object]", parts) if isinstance(parts, list) else [None]:
        kind = cast("dict[str, object]", part) if isinstance(part, dict) else {}
        text = kind.get("text")
        if kind.get("type") != "text" or not isinstance(text, str):
            needed = "needs prompt_string, or content with parts of type text"
            raise RequestError(400, f"input: {str(given)[:60]}, {needed}")
        texts.append(text)
    return "".join(texts)
