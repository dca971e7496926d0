"""Ollama's routes about models: tags, show, pull, create, copy, delete, blobs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.engine.adapters import check_lora
from wgpu_backend.errors import GGUFError, StoreError
from wgpu_backend.files.gguf.reader import PART_NAME, open_gguf
from wgpu_backend.files.store.files import draft, settle, sha256
from wgpu_backend.files.store.manifest import digest_hex
from wgpu_backend.files.store.modelfile import Modelfile, check_parameters, write_modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.pull import Progress, Puller
from wgpu_backend.files.store.push import Pusher
from wgpu_backend.files.store.store import Entry, Store, free_bytes
from wgpu_backend.files.store.stored import Stored, create, details
from wgpu_backend.files.tower_files import is_tower
from wgpu_backend.images.folder import INDEX
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.model_capabilities import (
    find_files,
    list_capabilities,
    read_capabilities,
)
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.request_log import get_record
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.sse import encode_line
from wgpu_backend.server.core.state import State, cancel_when_gone, start_stream

# The version whose API these routes follow; clients refuse older ones.
OLLAMA_VERSION = "0.30.0"
_LINES = "application/x-ndjson"
# Pulls may take hours: in asyncio's own threads they would block the loading of models.
_WORKERS = ThreadPoolExecutor(64, "library")
# Most letters of a client's file name in errors.
_NAME = 100
# Most values of a list that is shown.
_SHORT = 64
# Texts of this length are not shown.
_LONG = 65_536
_NAMES = {"model": schema.TEXT, "name": Field((str,), "an older name for model")}
_SHOW = {
    **_NAMES,
    **schema.ignore_fields("system", "template", "options"),
    "verbose": Field((bool,), "return long lists as well"),
}
_COPY = {"source": Field((str,), required=True), "destination": Field((str,), required=True)}
_PULL = {
    **_NAMES,
    "insecure": Field((bool,), "allow a registry without encryption"),
    "stream": schema.STREAM,
}
_CREATE = {
    **_NAMES,
    **schema.ignore_fields("renderer", "parser", "requires", "info"),
    "from": Field((str,), "a model to begin with"),
    "files": Field(
        (dict,), "digests of blobs by names of files: a GGUF file's or its parts', an mmproj file's"
    ),
    "adapters": Field((dict,), "digests of LoRA adapters by names of files"),
    "template": schema.TEXT,
    "license": Field((str, list)),
    "system": schema.TEXT,
    "parameters": schema.OBJECT,
    "messages": schema.LIST,
    "quantize": Field((str,), "is refused"),
    "stream": schema.STREAM,
}
Send = Callable[[dict[str, Any]], None]


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the store of a state."""
    return [
        *_make_fact_endpoints(state),
        *_make_change_endpoints(state),
        *_make_transfer_endpoints(state),
    ]


def _make_fact_endpoints(state: State) -> list[Endpoint]:
    async def version(_: Request, __: Fields) -> Response:
        return JSONResponse({"version": OLLAMA_VERSION, "wgpu_backend": state.settings.version})

    async def tags(_: Request, __: Fields) -> Response:
        return JSONResponse({"models": await run_in_threadpool(_list_models, state)})

    async def show(_: Request, fields: Fields) -> Response:
        name = _read_name(fields)
        verbose = fields.switch("verbose", default=False)
        if name in state.image_queue:
            folder = state.settings.pictures[name.removesuffix(":latest")]
            return JSONResponse(await run_in_threadpool(_show_pipeline, name, folder))
        return JSONResponse(await run_in_threadpool(_show, state.find(name), verbose=verbose))

    return [
        Endpoint("Ollama", "GET", "/api/version", "Version of the server", version),
        Endpoint("Ollama", "GET", "/api/tags", "List of models", tags),
        Endpoint("Ollama", "POST", "/api/show", "Facts about a model", show, _SHOW),
    ]


def _make_change_endpoints(state: State) -> list[Endpoint]:
    async def copy(_: Request, fields: Fields) -> Response:
        names = fields.require("source"), fields.require("destination")
        await run_in_threadpool(_copy, state, *names)
        return Response()

    async def delete(_: Request, fields: Fields) -> Response:
        name = await run_in_threadpool(_find_existing, state, _read_name(fields))
        # Otherwise the pool would serve a model that is no longer listed.
        await state.pool.unload(str(name))
        await run_in_threadpool(state.store.remove, name)
        return Response()

    async def blob(request: Request, _: Fields) -> Response:
        path = state.store.blob(request.path_params["digest"])
        if request.method == "HEAD":
            return Response(status_code=200 if path.is_file() else 404)
        if path.is_file():
            return Response(status_code=200)
        await _receive_blob(state, request, path)
        return Response(status_code=201)

    return [
        Endpoint("Ollama", "POST", "/api/copy", "Copy a model to another name", copy, _COPY),
        Endpoint("Ollama", "DELETE", "/api/delete", "Remove a model", delete, _NAMES),
        Endpoint("Ollama", "HEAD", "/api/blobs/{digest}", "Check for a blob", blob),
        Endpoint("Ollama", "POST", "/api/blobs/{digest}", "Upload a blob", blob),
    ]


def _make_transfer_endpoints(state: State) -> list[Endpoint]:
    async def pull(request: Request, fields: Fields) -> Response:
        name = await run_in_threadpool(_find_existing, state, _read_name(fields))
        insecure = fields.switch("insecure", default=False)

        def work(send: Send, stop: threading.Event) -> None:
            def report(progress: Progress) -> None:
                send(_format_progress(progress))

            puller = Puller(state.store, insecure=insecure, report=report, cancelled=stop.is_set)
            puller.pull(name)

        return await _run_in_background(request, work, fields)

    async def push(request: Request, fields: Fields) -> Response:
        name = await run_in_threadpool(_find_existing, state, _read_name(fields))
        insecure = fields.switch("insecure", default=False)
        # A missing model must fail before the stream begins, to get a status.
        await run_in_threadpool(state.store.entry, name)

        def work(send: Send, stop: threading.Event) -> None:
            def report(progress: Progress) -> None:
                send(_format_progress(progress))

            key = state.settings.signing_key
            pusher = Pusher(
                state.store, insecure=insecure, report=report, cancelled=stop.is_set, key=key
            )
            pusher.push(name)

        return await _run_in_background(request, work, fields)

    async def make(request: Request, fields: Fields) -> Response:
        name = await run_in_threadpool(_require_free_name, state, _read_name(fields))
        modelfile = await run_in_threadpool(_make_modelfile, state, fields)

        def work(send: Send, _: threading.Event) -> None:
            def report(status: str) -> None:
                send({"status": status})

            create(state.store, name, modelfile, Path("/"), report, fits=check_lora)

        return await _run_in_background(request, work, fields)

    return [
        Endpoint("Ollama", "POST", "/api/pull", "Pull a model", pull, _PULL, _LINES),
        Endpoint("Ollama", "POST", "/api/push", "Push a model to a registry", push, _PULL, _LINES),
        Endpoint("Ollama", "POST", "/api/create", "Create a model", make, _CREATE, _LINES),
    ]


def _read_name(fields: Fields) -> str:
    return fields.text("model") or fields.text("name") or fields.require("model")


def _find_existing(state: State, name: str) -> ModelName:
    """Find the name of a model in the store, ignoring case."""
    return state.store.existing(ModelName.parse(name))


def _require_free_name(state: State, name: str) -> ModelName:
    """Return a name for a model of the store, unless a model of the server's own would hide it."""
    if state.find_fixed(name) is not None or name in state.image_queue:
        raise RequestError(400, f"model {name!r} is the server's own; choose another name")
    return _find_existing(state, name)


def _copy(state: State, source: str, destination: str) -> None:
    fixed, name = state.find_fixed(source), _require_free_name(state, destination)
    if fixed is None:
        state.store.copy(_find_existing(state, source), name)
    else:
        create(state.store, name, fixed.modelfile, fixed.path.parent)


def _list_models(state: State) -> list[dict[str, Any]]:
    fixed = [
        _describe_model(each.entry, each.details, each.path)
        for each in state.settings.fixed.values()
    ]
    stored = [_describe_entry(state.store, entry) for entry in state.store.entries()]
    pictures = [
        _describe_pipeline(name, state.settings.pictures[name])
        for name in state.image_queue.models()
    ]
    return [*fixed, *stored, *pictures]


def _describe_pipeline(name: str, folder: Path) -> dict[str, Any]:
    """Describe an image pipeline as Ollama lists models; the hash of its index is the digest."""
    index, files = folder / INDEX, [each for each in folder.rglob("*") if each.is_file()]
    facts = {"parent_model": "", "format": "safetensors", "family": "pictures"}
    sizes = {"families": ["pictures"], "parameter_size": "", "quantization_level": ""}
    return {
        "name": name,
        "model": name,
        "modified_at": _format_time(index.stat().st_mtime),
        "size": sum(each.stat().st_size for each in files),
        "digest": hashlib.sha256(index.read_bytes()).hexdigest(),
        "details": {**facts, **sizes},
        "capabilities": ["image"],
    }


def _show_pipeline(name: str, folder: Path) -> dict[str, Any]:
    """Return facts about an image pipeline, in the fields that clients read of models."""
    listed = _describe_pipeline(name, folder)
    shared = {key: listed[key] for key in ("details", "capabilities", "modified_at")}
    texts = dict.fromkeys(("modelfile", "parameters", "template", "system"), "")
    return {**texts, **shared, "model_info": {"general.architecture": "pictures"}}


def _describe_entry(store: Store, entry: Entry) -> dict[str, Any]:
    return _describe_model(entry, details(store, entry), *find_files(store, entry))


def _describe_model(
    entry: Entry,
    facts: Any,  # noqa: ANN401
    path: Path | None,
    projector: Path | None = None,
) -> dict[str, Any]:
    name = str(entry.name)
    return {
        "name": name,
        "model": name,
        "modified_at": _format_time(entry.modified),
        "size": entry.manifest.size,
        "digest": entry.digest,
        "details": facts,
        "capabilities": list_capabilities(path, projector),
    }


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _show(stored: Stored, *, verbose: bool) -> dict[str, Any]:
    with open_gguf(stored.path, check_types=False) as file:
        info = {key: _format_value(value, verbose=verbose) for key, value in file.metadata.items()}
        info["general.parameter_count"] = sum(math.prod(i.shape) for i in file.tensors.values())
        info.pop("tokenizer.chat_template", None)
        tensors = [
            {"name": i.name, "type": i.dtype.name.upper(), "shape": list(reversed(i.shape))}
            for i in file.tensors.values()
        ]
        own = file.config.string("tokenizer.chat_template", "")
        can = read_capabilities(file, stored.projector)
    made: dict[str, Any] = {
        "modelfile": write_modelfile(stored.modelfile),
        "parameters": _format_parameters(stored),
        "template": stored.template or own,
        "system": stored.system,
        "details": stored.details,
        "messages": list(stored.messages),
        "model_info": info,
        "capabilities": can,
        "modified_at": _format_time(stored.entry.modified),
        "tensors": tensors,
    }
    if stored.license:
        made["license"] = stored.license
    if stored.projector is not None:
        made["projector_info"] = _describe_tower(stored.projector, verbose=verbose)
    return made


def _describe_tower(path: Path, *, verbose: bool) -> dict[str, Any]:
    with open_gguf(path, check_types=False) as file:
        info = {key: _format_value(value, verbose=verbose) for key, value in file.metadata.items()}
        info["general.parameter_count"] = sum(math.prod(i.shape) for i in file.tensors.values())
    return info


def _format_parameters(stored: Stored) -> str:
    lines: list[str] = []
    for name, value in stored.parameters.items():
        values = cast("list[object]", value) if isinstance(value, list) else [value]
        lines += [f"{name:<30} {json.dumps(each)}" for each in values]
    return "\n".join(lines)


def _format_value(value: object, *, verbose: bool) -> object:
    plain = cast("object", value.tolist() if isinstance(value, np.ndarray) else value)
    if isinstance(plain, list):
        values = cast("list[object]", plain)
        return None if len(values) > _SHORT and not verbose else [_make_finite(v) for v in values]
    # The text is a whole ``tokenizer.json``.
    if isinstance(plain, str) and len(plain) > _LONG and not verbose:
        return None
    return _make_finite(plain)


def _make_finite(value: object) -> object:
    """Return the value, as a string if JSON cannot express it."""
    wrong = isinstance(value, float) and not np.isfinite(value)
    # JSON has no infinities and no NaN.
    return str(value) if wrong else value


def _format_progress(progress: Progress) -> dict[str, Any]:
    if not progress.digest:
        return {"status": progress.status}
    return {
        "status": progress.status,
        "digest": progress.digest,
        "total": progress.total,
        "completed": progress.completed,
    }


def _make_modelfile(state: State, fields: Fields) -> Modelfile:
    fields.refuse("quantize", "is not supported, `wgpu-backend quantize` writes files")
    adapters: dict[str, Any] = fields.get("adapters", dict) or {}
    files: dict[str, Any] = fields.get("files", dict) or {}
    for file, digest in (*files.items(), *adapters.items()):
        get_record().names[state.store.blob(f"sha256:{digest_hex(digest)}").name] = file[:_NAME]
    base, tower = _find_base(state, fields)
    return Modelfile(
        base,
        check_parameters(fields.get("parameters", dict) or {}),
        [str(_find_blob(state, digest)) for digest in adapters.values()],
        fields.texts("license"),
        fields.get("template", str),
        fields.get("system", str),
        [(str(m.get("role")), str(m.get("content", ""))) for m in fields.objects("messages")],
        tower,
    )


def _find_base(
    state: State, fields: Fields
) -> tuple[ModelName | Path | tuple[Path, ...], str | None]:
    """Return the source of a new model, and its tower's file if there is one.

    The source is a path only if the server itself knows the file.
    """
    given: dict[str, object] = fields.get("files", dict) or {}
    found = {file: _find_blob(state, digest) for file, digest in given.items()}
    # A part of a split file cannot be opened alone.
    whole = [file for file in found if not PART_NAME.fullmatch(file)]
    towers = [str(found.pop(file)) for file in whole if _is_tower(found[file])]
    if len(towers) > 1 or (len(found) > 1 and not all(map(PART_NAME.fullmatch, found))):
        raise RequestError(
            400,
            f"files: {len(given)} files, needs one of GGUF or all parts of a split one, and at "
            "most one mmproj file",
        )
    tower = towers[0] if towers else None
    if found:
        return tuple(found.values()), tower
    name = fields.text("from")
    if not name:
        alone = "files: an mmproj file alone, needs its model in 'files' or 'from'"
        raise RequestError(400, alone if tower else "neither 'from' or 'files' was specified")
    fixed = state.find_fixed(name)
    return _find_existing(state, name) if fixed is None else fixed.path, tower


def _is_tower(path: Path) -> bool:
    """Return whether a blob is an mmproj file; one that cannot be opened is reported later."""
    try:
        return is_tower(path)
    except GGUFError:
        return False


def _find_blob(state: State, digest: object) -> Path:
    """Return the path of an uploaded blob."""
    found = state.store.blob(f"sha256:{digest_hex(digest)}")
    if not found.is_file():
        raise RequestError(400, f"blob {digest} not found")
    return found


async def _receive_blob(state: State, request: Request, path: Path) -> None:
    """Take a blob in, and keep it if its digest is right."""
    state.store.require_writable()
    length, free = int(request.headers.get("content-length", "0")), free_bytes(path.parent)
    if length > free:
        raise RequestError(507, f"blob: {length} bytes, the disk has {free} free")
    with draft(path.parent) as (file, written):
        async for chunk in request.stream():
            await run_in_threadpool(file.write, chunk)
        file.close()
        found = await run_in_threadpool(sha256, written)
        expected = digest_hex(request.path_params["digest"])
        if found != expected:
            raise StoreError(f"blob: its SHA-256 is {found}, its name has {expected}")
        # The blob gets its name at last, so no other request can find half of it.
        await run_in_threadpool(settle, written, path)


async def _run_in_background(
    request: Request, work: Callable[[Send, threading.Event], None], fields: Fields
) -> Response:
    """Do long work in a thread, and stream its progress."""
    lines = _stream_progress(work)
    if fields.switch("stream", default=True):
        encoded = (encode_line(line) async for line in lines)
        return await start_stream(
            request, encoded, _LINES, lambda _, why: encode_line({"error": why})
        )

    async def last() -> dict[str, Any]:
        found: dict[str, Any] = {}
        async for line in lines:
            found = line
        return found

    return JSONResponse(await cancel_when_gone(request, last()))


async def _stream_progress(
    work: Callable[[Send, threading.Event], None],
) -> AsyncGenerator[dict[str, Any]]:
    loop, stop = asyncio.get_running_loop(), threading.Event()
    queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def send(line: dict[str, Any] | None) -> None:
        # Queues of asyncio are not safe to use from threads.
        loop.call_soon_threadsafe(queue.put_nowait, line)

    def run() -> None:
        try:
            work(send, stop)
        finally:
            send(None)

    task = loop.run_in_executor(_WORKERS, run)
    try:
        while (line := await queue.get()) is not None:
            yield line
        await task
    finally:
        stop.set()
        # The thread writes to the store until it sees `stop`.
        await asyncio.gather(asyncio.shield(task), return_exceptions=True)
