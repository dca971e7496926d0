"""Reranking: texts ordered by how well they answer a query, as in Jina and llama-server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.errors import ModelError, TokenizerError
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.completion import require_short
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.state import State

_ALIASES = ("/v1/reranking", "/rerank", "/reranking")
_RERANK = {
    "model": schema.MODEL_OR_OWN,
    "query": Field((str,), "what is asked", required=True),
    "documents": Field((str, list), "texts that may answer it"),
    "texts": Field((str, list), "the same, as TEI has it: the answer is then a list of scores"),
    "top_n": Field((int,), "how many are given, the best first", least=0),
    "return_documents": Field((bool,), "give the texts, too"),
    "return_text": Field((bool,), "the same, as TEI has it"),
    **schema.ignore_fields("raw_scores", "truncate"),
}


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def rerank(_: Request, fields: Fields) -> Response:
        return JSONResponse(await _rank(state, fields))

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
            scores = await run_in_threadpool(loaded.model.rerank, query, texts)
            read = await run_in_threadpool(_count_tokens, loaded.model.prompter, query, texts)
        except (ModelError, TokenizerError) as error:
            raise RequestError(400, f'"{name}" does not support rerank: {error}') from None
    order = sorted(range(len(texts)), key=lambda i: -scores[i])[:most]
    if tei:
        given = fields.switch("return_text", default=False)
        scored: list[dict[str, Any]] = [{"index": i, "score": float(scores[i])} for i in order]
        return [{**each, "text": texts[each["index"]]} for each in scored] if given else scored
    results: list[dict[str, Any]] = [
        {"index": i, "relevance_score": float(scores[i])} for i in order
    ]
    if fields.switch("return_documents", default=False):
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    usage = {"prompt_tokens": read, "total_tokens": read}
    return {"object": "list", "model": name, "results": results, "usage": usage}


def _count_tokens(prompter: Prompter, query: str, texts: Sequence[str]) -> int:
    """Count the tokens of all pairs."""
    return sum(len(prompter.pair(query, text)[0]) for text in texts)
