"""Reranking: texts ordered by how well they answer a query, as in Jina and llama-server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.errors import ModelError, TokenizerError
from wgpu_backend.server.api.embeddings import run_until_gone, split_batches
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.engine_request import require_short
from wgpu_backend.server.core.model_api import ModelInterface
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.state import State, cancel_when_gone

_ALIASES = ("/v1/reranking", "/rerank", "/reranking")
_RERANK = {
    "model": schema.MODEL_OR_OWN,
    "query": Field((str,), "the query", required=True),
    "documents": Field((str, list), "texts that may answer the query"),
    "texts": Field((str, list), "TEI's name for documents; the answer is then a list of scores"),
    "top_n": Field((int,), "number of results to return, the best first", least=0),
    "return_documents": Field((bool,), "return the texts as well"),
    "return_text": Field((bool,), "TEI's name for return_documents"),
    **schema.ignore_fields("raw_scores", "truncate"),
}


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def rerank(request: Request, fields: Fields) -> Response:
        return JSONResponse(await cancel_when_gone(request, _rank(state, fields)))

    paths = {"/v1/rerank": "Jina", **dict.fromkeys(_ALIASES, "llama-server")}
    return [
        Endpoint(api, "POST", path, "Order texts by how well they answer", rerank, _RERANK)
        for path, api in paths.items()
    ]


async def _rank(state: State, fields: Fields) -> dict[str, Any] | list[dict[str, Any]]:
    name, query = state.get_model_name(fields), fields.require("query")
    tei = fields.get("texts", str, list) is not None
    texts = fields.texts("texts" if tei else "documents")
    if not texts:
        raise RequestError(400, "documents is required")
    most = fields.get("top_n", int)
    async with state.using(name) as loaded:
        for text in (query, *texts):
            require_short(text, loaded)
        try:
            scores, read = await run_until_gone(partial(_score, loaded.model, query, texts))
        except (ModelError, TokenizerError) as error:
            raise RequestError(400, f'"{name}" does not support rerank: {error}') from None
    order = sorted(range(len(texts)), key=lambda i: -scores[i])[:most]
    if tei:
        given = fields.switch("return_text", default=False)
        scored: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in order]
        return [{**each, "text": texts[each["index"]]} for each in scored] if given else scored
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in order]
    if fields.switch("return_documents", default=False):
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    usage = {"prompt_tokens": read, "total_tokens": read}
    return {"object": "list", "model": name, "results": results, "usage": usage}


def _score(
    model: ModelInterface, query: str, texts: Sequence[str], gone: threading.Event
) -> tuple[list[float], int]:
    """Return the score of each text, and the tokens of all pairs."""
    # Characters instead of tokens: the model checks first that it is a reranker, since the
    # tokenizer of another one refuses pairs with a less helpful message.
    batches = split_batches(texts, [len(query) + len(text) for text in texts], gone)
    scores = [float(score) for batch in batches for score in model.rerank(query, batch)]
    return scores, sum(len(model.prompter.pair(query, text)[0]) for text in texts)
