"""Embeddings of texts and pictures, for Ollama's routes and OpenAI's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from wgpu_backend.engine.media import MARKER
from wgpu_backend.errors import ContextFull
from wgpu_backend.server.api.llama_server.prompts import check_token
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.engine_request import require_short
from wgpu_backend.server.core.media import decode_base64
from wgpu_backend.server.core.model_api import ModelInterface
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.request_log import GONE
from wgpu_backend.server.core.state import State, cancel_when_gone, read_gpu_options, read_num_ctx
from wgpu_backend.text.tokenizer import Tokenizer

# Characters that can be tokenized in a fraction of a second.
_LONG = 1 << 18
# Texts of a request.
_MOST_TEXTS = 1 << 14
# Tokens that one call of the model may have in addition to its first text. A disconnect takes
# effect between calls; this many tokens make the cost of a call negligible.
_BATCH_TOKENS = 512
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of texts.

    Parameters
    ----------
    vectors : list of list of float
        A vector for each text; without pooling, for each text a list of its tokens' vectors.
    tokens : int
        Sum over all texts, after truncation.
    load_seconds : float
        Time that this request waited for its model.
    """

    vectors: list[Any]
    tokens: int
    load_seconds: float = 0.0


async def compute_embeddings(
    request: Request,
    state: State,
    fields: Fields,
    given: object,
    *,
    truncate: bool,
    of_tokens: bool = False,
    exact: bool = True,
) -> Vectors:
    """Return the embeddings of texts, by the model that the fields name.

    Parameters
    ----------
    request : Request
        If its client disconnects, texts that are not begun are not computed.
    given : str or list
        A text, tokens of one, or a list of such.
    truncate : bool
        Cut texts that are too long.
    of_tokens : bool
        Whether the caller can return a vector of each token, as ``--pooling none`` gives them.
    exact : bool
        Refuse `dimensions` that vectors do not have; else they stay whole.

    Raises
    ------
    ContextFull
        A text is longer than the context, and is not to be cut.
    RequestError
        The server does not pool and the caller needs one vector a text; there are too many texts;
        `dimensions` is out of range; or the client has gone.
    """
    name, pooling = state.get_model_name(fields), state.settings.pooling
    if pooling == "none" and not of_tokens:
        raise RequestError(400, "--pooling none: gives vectors of tokens, needs /embedding")
    keep = fields.get("keep_alive", int, float, str)

    async def embed() -> Vectors:
        begin = time.monotonic()
        async with state.using(
            name, read_num_ctx(fields), keep, read_gpu_options(fields)
        ) as loaded:
            waited = time.monotonic() - begin
            found, seconds = await run_until_gone(
                lambda gone: _embed(
                    loaded, fields, given, pooling, gone, truncate=truncate, exact=exact
                )
            )
            # Count in the event loop: two threads could lose an update.
            loaded.embedded.add(len(found.vectors), found.tokens, seconds)
            return replace(found, load_seconds=waited)

    return await cancel_when_gone(request, embed())


async def run_until_gone(compute: Callable[[threading.Event], Result]) -> Result:
    """Run a function in a thread; its event is set when the caller is cancelled.

    Cancelling waits for the thread, so that it never uses a model that is being unloaded.
    """
    gone = threading.Event()
    task = asyncio.ensure_future(run_in_threadpool(compute, gone))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        gone.set()
        await asyncio.gather(task, return_exceptions=True)
        raise


def split_batches(
    texts: Sequence[str], sizes: Sequence[int], gone: threading.Event
) -> Iterator[list[str]]:
    """Yield texts in batches, each for one call of a model.

    Parameters
    ----------
    sizes : sequence of int
        Tokens of each text, or an upper bound.
    gone : Event
        Set when the client has gone.

    Raises
    ------
    RequestError
        The client has gone.
    """
    batch, tokens = list[str](), 0
    for text, size in zip(texts, sizes, strict=True):
        if batch and tokens + size > _BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
            if gone.is_set():
                raise RequestError(499, GONE)
        batch.append(text)
        tokens += size
    if batch:
        yield batch


def _embed(
    loaded: Loaded,
    fields: Fields,
    given: object,
    pooling: str | None,
    gone: threading.Event,
    *,
    truncate: bool,
    exact: bool,
) -> tuple[Vectors, float]:
    """Return the embeddings of texts, and the seconds they took."""
    model, begin = loaded.model, time.monotonic()
    items = _read_items(given, model.tokenizer)
    given_texts = [item for item in items if isinstance(item, str)]
    if not truncate:
        for text in given_texts:
            require_short(text, loaded)
    read = [_fit(text, model, truncate=truncate) for text in given_texts]
    sizes = [size for _, size in read]
    batches = split_batches([text for text, _ in read], sizes, gone)
    pictures = [item for item in items if isinstance(item, bytes)]
    if pooling == "none":
        if pictures:
            raise RequestError(400, "--pooling none: gives vectors of tokens, a picture has none")
        each = (text for batch in batches for text in batch)
        vectors = [model.states(model.tokenizer.encode(text)).tolist() for text in each]
    else:
        found = [model.embed(batch, pooling=pooling) for batch in batches]
        found += _embed_pictures(model, pictures, gone)
        rows = np.concatenate(found) if found else np.zeros((0, 0), np.float32)
        rows = rows[_places([isinstance(item, bytes) for item in items])]
        vectors = _shorten(rows, fields.get("dimensions", int), exact=exact).tolist()
    # A picture takes the place of one token, whose vector it is.
    return Vectors(vectors, sum(sizes) + len(pictures)), time.monotonic() - begin


def _embed_pictures(
    model: ModelInterface, pictures: Sequence[bytes], gone: threading.Event
) -> Iterator[NDArray[np.float32]]:
    """Yield the vector of each picture, (1, width), until the client has gone."""
    for picture in pictures:
        if gone.is_set():
            raise RequestError(499, GONE)
        yield model.embed(images=[picture])


def _places(are_pictures: Sequence[bool]) -> NDArray[np.intp]:
    """Return the row of each item among the texts' rows and the pictures' rows after them."""
    made = np.empty(len(are_pictures), np.intp)
    made[np.argsort(np.array(are_pictures, bool), kind="stable")] = np.arange(len(are_pictures))
    return made


def _fit(text: str, model: ModelInterface, *, truncate: bool) -> tuple[str, int]:
    """Return a text and its token count, truncated to the context where that is allowed."""
    room = model.num_ctx
    ids = model.tokenizer.encode(_cut_beginning(text, model) if truncate else text)
    if len(ids) <= room:
        return text, len(ids)
    if not truncate:
        raise ContextFull(
            f"the input is too large: it has {len(ids)} tokens, the context holds {room}; "
            "shorten it, or have it truncated where the route can",
            len(ids),
            room,
        )
    # Keep some room: encoding the shortened text again may give more tokens, and special ones.
    return model.tokenizer.decode(ids[: room - 4]), room


def _cut_beginning(text: str, model: ModelInterface) -> str:
    """Return the beginning of a text that is too long to tokenize whole; else the text itself."""
    begin = text[: max(_LONG, 16 * model.num_ctx)]
    enough = len(begin) < len(text) and len(model.tokenizer.encode(begin)) > model.num_ctx
    return begin if enough else text


def _shorten(
    found: NDArray[np.float32], dimensions: int | None, *, exact: bool
) -> NDArray[np.float32]:
    """Return the first `dimensions` values of each vector, normalised again; (texts, width) f32."""
    if dimensions is None or not len(found):
        return found
    if not 0 < dimensions <= found.shape[1]:
        if not exact:
            return found
        raise RequestError(400, f"dimensions: {dimensions}, needs 1 to {found.shape[1]}")
    found = found[:, :dimensions]
    # Cut vectors are no longer of length 1. The bound avoids a division by 0.
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)


def _read_items(given: object, tokenizer: Tokenizer) -> list[str | bytes]:
    items = cast("list[object]", given) if isinstance(given, list) else [given]
    alone = any(isinstance(item, int) for item in items)
    if len(items) > _MOST_TEXTS and not alone:
        what = "texts" if all(isinstance(item, str) for item in items) else "items"
        raise RequestError(
            400,
            f"input: {len(items)} {what}, needs at most {_MOST_TEXTS}; send several requests",
        )
    return [_read_item(item, tokenizer) for item in ([items] if alone else items)]


def _read_item(given: object, tokenizer: Tokenizer) -> str | bytes:
    """Return a text from a string, tokens, a mix of both or an object; or a picture's bytes.

    The model's own tokens around a text are added again.
    """
    if isinstance(given, str):
        return given
    if isinstance(given, dict):
        return _read_parts(cast("dict[str, object]", given))
    if not isinstance(given, list) or not given:
        raise RequestError(
            400, f"input: {str(cast('object', given))[:40]!r}, needs strings, or lists of token ids"
        )
    found, ids = "", list[int]()
    for item in cast("list[object]", given):
        if isinstance(item, str):
            found += tokenizer.decode(ids) + item
            ids = []
        else:
            ids.append(check_token(item, tokenizer))
    return found + tokenizer.decode(ids)


def _read_parts(given: dict[str, object]) -> str | bytes:
    """Return the text or picture of an object.

    Known are parts of OpenAI's messages, alone or in ``content``; ``text`` and ``image`` of
    Jina's API; and llama-server's ``prompt_string``, with a marker for a picture of
    ``multimodal_data``.
    """
    media = cast("list[object] | None", given.get("multimodal_data"))
    if isinstance(given.get("prompt_string"), str):
        text = cast("str", given["prompt_string"])
        if not media:
            return text
        if text.strip() not in ("", MARKER) or not isinstance(media, list) or len(media) != 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(400, f"input: multimodal_data needs one picture, and {MARKER} alone")
        return decode_base64("input: multimodal_data", media[0])
    content = given.get("content")
    if isinstance(content, str):
        return content
    parts = cast("list[object]", content) if isinstance(content, list) else [given]
    read = [_read_part(part, given) for part in parts]
    if all(isinstance(part, str) for part in read):
        return "".join(map(str, read))
    if len(read) > 1:
        raise RequestError(
            400, "input: content has a picture and other parts; send each as an item of its own"
        )
    return read[0]


def _read_part(part: object, given: dict[str, object]) -> str | bytes:
    fields = cast("dict[str, object]", part) if isinstance(part, dict) else {}
    kind = fields.get("type", next((name for name in ("text", "image") if name in fields), None))
    text, picture = fields.get("text"), fields.get("image_url", fields.get("image"))
    if kind == "text" and isinstance(text, str):
        return text
    if kind in ("image_url", "image"):
        url = (
            cast("dict[str, object]", picture).get("url") if isinstance(picture, dict) else picture
        )
        return decode_base64(f"input: {kind}", url)
    raise RequestError(
        400,
        f"input: {str(given)[:60]}, needs prompt_string, or content with parts of type text or "
        "image_url",
    )
