"""Embeddings of texts, for Ollama's routes and OpenAI's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from starlette.concurrency import run_in_threadpool

from wgpu_backend.errors import ContextFull
from wgpu_backend.server.fields import Fields
from wgpu_backend.server.served import ServedModel
from wgpu_backend.server.serving_state import State
from wgpu_backend.server.wanted import RequestError


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


async def embeddings(state: State, fields: Fields, texts: list[str], *, truncate: bool) -> Embedded:
    """Vectors of texts, by the model that the fields name.

    Raises
    ------
    ContextFull
        A text is longer than the context, and is not to be cut.
    """
    name, dimensions = state.named(fields), fields.get("dimensions", int)
    keep = fields.get("keep_alive", int, float, str)
    async with state.using(name, None, keep) as loaded:
        return await run_in_threadpool(
            _embedded, loaded.model, texts, dimensions, loaded.load_seconds, truncate=truncate
        )


def _embedded(
    model: ServedModel,
    texts: list[str],
    dimensions: int | None,
    load_seconds: float,
    *,
    truncate: bool,
) -> Embedded:
    fitting, count = list[str](), 0
    for text in texts:
        ids = model.tokenizer.encode(text)
        if len(ids) > model.num_ctx:
            if not truncate:
                raise ContextFull(
                    f"the input has {len(ids)} tokens, the context holds {model.num_ctx}"
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
