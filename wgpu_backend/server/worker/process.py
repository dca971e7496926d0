"""The worker's process: it loads a model, and serves it until its socket closes."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from io import BufferedReader
from queue import SimpleQueue

from wgpu_backend.device.c_types import parse_c_types
from wgpu_backend.engine.batching.engine import Engine
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.loading import load
from wgpu_backend.ml.backend import Progress
from wgpu_backend.ops.plugins import import_file
from wgpu_backend.server.worker.drafting import make_engine
from wgpu_backend.server.worker.frames import Message, read_message
from wgpu_backend.server.worker.messages import LoadSpec, error_to_plain
from wgpu_backend.server.worker.outbox import EventSender, connect
from wgpu_backend.server.worker.service import Service

# The server limits the queue, so the worker need not.
_UNBOUND = 1 << 20
# Least time between two progress messages.
_BEAT_SECONDS = 0.1


def main(handle: str) -> None:
    """Serve on an inherited socket.

    Parameters
    ----------
    handle : str
        See `wgpu_backend.server.worker.frames.given`.
    """
    source, sender = connect(handle)
    # Opening a device reports the same error.
    with suppress(Exception):
        # Parsing takes a while, which a spare process does in advance.
        parse_c_types()
    first = read_message(source)
    if first is None:
        os._exit(0)
    _serve(first[0], source, sender)


def _serve(wanted: Message, source: BufferedReader, sender: EventSender) -> None:
    """Load a model, serve it, and end the process when it is no longer needed."""
    endings: SimpleQueue[Exception | None] = SimpleQueue()
    inbox: SimpleQueue[Message] = SimpleQueue()
    threading.Thread(
        target=_read_messages, args=(source, inbox), name="reader", daemon=True
    ).start()
    try:
        spec = LoadSpec(**wanted["spec"])
        model, engine = _load(spec, _report_loading(sender))
    except Exception as error:
        # The server reports it to the client.
        sender.send({"type": "failed", "id": 0, "error": error_to_plain(error)})
        sender.close()
        os._exit(1)
    service = Service(model, engine, sender, endings)
    sender.send({"type": "answer", "id": 0, **_make_facts(model, engine)})
    taking = (inbox, service, endings)
    threading.Thread(target=_handle_messages, args=taking, name="taker", daemon=True).start()
    if engine is not None:
        threading.Thread(
            target=lambda: endings.put(engine.ended()), name="watcher", daemon=True
        ).start()
    error = endings.get()
    if error is not None:
        # Exit without cleaning up: calls into the driver of a lost device may crash.
        sender.send({"type": "lost", "error": error_to_plain(error)})
        sender.close()
        os._exit(1)
    service.close()
    sender.close()
    os._exit(0)


def _report_loading(sender: EventSender) -> Progress:
    """Return a progress callback that reports loading to the server."""
    told = 0.0

    def progress(share: float) -> None:
        nonlocal told
        if time.monotonic() - told >= _BEAT_SECONDS:
            told = time.monotonic()
            sender.send({"type": "loading", "share": share})

    return progress


def _load(spec: LoadSpec, progress: Progress) -> tuple[LanguageModel, Engine | None]:
    for path in spec.imports:
        import_file(path)
    model = load(spec.path, progress=progress, **spec.arguments)
    if not model.model.has_logits:
        return model, None
    return model, make_engine(model, spec, progress, max_queue=_UNBOUND)


def _make_facts(model: LanguageModel, engine: Engine | None) -> Message:
    memory = model.backend.backend_memory()
    return {
        "num_ctx": model.num_ctx,
        "vocabulary": model.vocabulary,
        "loras": [*model.loras],
        "num_parallel": model.num_parallel if engine is None else engine.num_parallel,
        "makes_text": engine is not None,
        "nbytes": memory.size,
        "device": asdict(model.device),
        "pid": os.getpid(),
    }


def _read_messages(source: BufferedReader, inbox: SimpleQueue[Message]) -> None:
    """Read messages; exit when the server is gone, whatever this process is doing."""
    try:
        while (found := read_message(source)) is not None:
            inbox.put(found[0])
    finally:
        os._exit(0)


def _handle_messages(
    inbox: SimpleQueue[Message], service: Service, endings: SimpleQueue[Exception | None]
) -> None:
    """Handle messages in order; an invalid one ends the worker."""
    try:
        while True:
            service.take(inbox.get())
    except Exception as error:
        # The main thread reports it to the server.
        endings.put(error)
