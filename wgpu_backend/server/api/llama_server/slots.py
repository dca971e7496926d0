"""llama-server's slots: their state, and saving, restoring and erasing their tokens.

A request may name a slot. The server remembers the request's tokens by that number until another
request names it. Saving writes their cached keys and values to a file.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.server.core.body import Fields, read_fields
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.engine_request import require_engine
from wgpu_backend.server.core.metrics import get_engine_status
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.schema import MODEL_OR_OWN, TEXT
from wgpu_backend.server.core.state import State

_FORM = {"model": MODEL_OR_OWN, "filename": TEXT}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,199}")
Act = Callable[[Loaded, int, str], dict[str, Any]]


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def slots(request: Request, _: Fields) -> Response:
        state.require_shown("slots")
        return JSONResponse(await run_in_threadpool(_list_slots, state, dict(request.query_params)))

    async def change(request: Request, _: Fields) -> Response:
        action = request.query_params.get("action", "")
        acts: dict[str, Act] = {"save": _save, "restore": _restore, "erase": _erase}
        if action not in acts:
            raise RequestError(400, f"action: {action[:40]!r}, needs save, restore or erase")
        fields = await read_fields(request, _FORM) if await request.body() else Fields({})
        path = "" if action == "erase" else _make_path(state, fields.text("filename"))
        number = request.path_params["slot"]
        async with state.using(state.get_model_name(fields), "any") as loaded:
            slot = _parse_slot(number, loaded)
            found = await run_in_threadpool(acts[action], loaded, slot, path)
        return JSONResponse({"id_slot": slot, **found})

    api, about = "llama-server", "Save, restore or erase a slot (`?action=`)"
    return [
        Endpoint(api, "GET", "/slots", "Slots of the loaded models", slots),
        Endpoint(api, "POST", "/slots/{slot}", about, change),
    ]


def _make_path(state: State, name: str) -> str:
    folder = state.settings.slot_folder
    if folder is None:
        raise RequestError(501, "slots: the server was started without --slot-save-path")
    # No folder, so that no client can write outside of the slot folder.
    if not _NAME.fullmatch(name) or name.endswith(".part"):
        raise RequestError(400, f"filename: {name[:60]!r}, needs a file name without folders")
    return str(folder / name)


def _parse_slot(text: str, loaded: Loaded) -> int:
    most = loaded.model.num_parallel
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and int(text) < most):
        raise RequestError(400, f"slot: {text[:20]!r}, needs a number below {most}")
    return int(text)


def _get_held_tokens(loaded: Loaded, slot: int) -> Sequence[int]:
    if slot not in loaded.slots:
        raise RequestError(400, f"slot {slot}: is empty; no request named it as id_slot")
    return loaded.slots[slot]


def _save(loaded: Loaded, slot: int, path: str) -> dict[str, Any]:
    held, begin = _get_held_tokens(loaded, slot), time.perf_counter()
    count = require_engine(loaded).save_slot(held, path)
    file = Path(path)
    spent = {"save_ms": (time.perf_counter() - begin) * 1e3}
    written = file.stat().st_size
    return {"filename": file.name, "n_saved": count, "n_written": written, "timings": spent}


def _restore(loaded: Loaded, slot: int, path: str) -> dict[str, Any]:
    begin, file = time.perf_counter(), Path(path)
    tokens = require_engine(loaded).restore_slot(path)
    # A later save or erase has to find them.
    loaded.slots[slot] = tokens
    spent = {"restore_ms": (time.perf_counter() - begin) * 1e3}
    read = file.stat().st_size
    return {"filename": file.name, "n_restored": len(tokens), "n_read": read, "timings": spent}


def _erase(loaded: Loaded, slot: int, _: str) -> dict[str, Any]:
    held = loaded.slots.pop(slot, None)
    return {"n_erased": 0 if held is None else require_engine(loaded).drop_prefix(held)}


def _list_slots(state: State, query: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for loaded in state.pool.list_models():
        status = get_engine_status(loaded)
        for slot in () if status is None else status.slots:
            known: dict[str, Any] = {"id": len(found), "model": str(loaded.stored.entry.name)}
            known |= {"n_ctx": loaded.model.num_ctx, "is_processing": slot is not None}
            if slot is not None:
                known |= {"id_task": slot.request, "n_prompt_tokens": slot.prompt_tokens}
                known |= {"n_decoded": slot.completion_tokens}
            found.append(known)
    if query.get("fail_on_no_slot") and all(slot["is_processing"] for slot in found):
        raise RequestError(503, "no slot is free")
    return found
