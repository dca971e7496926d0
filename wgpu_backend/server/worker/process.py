"""The worker's process: it loads a model, and handles messages until its socket closes."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BufferedReader
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import __version__
from wgpu_backend.device.adapters import Devices, describe, split_copy
from wgpu_backend.device.c_types import parse_c_types
from wgpu_backend.engine.batching.engine import Engine
from wgpu_backend.engine.batching.generation import Generation
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.loading import load
from wgpu_backend.engine.sizes import measure_towers
from wgpu_backend.errors import (
    BackendError,
    DeviceError,
    DeviceLost,
    ModelError,
    OptionError,
    StoreError,
    WorkerLost,
)
from wgpu_backend.llama.states import (
    Layout,
    SavedSequence,
    StateError,
    pack_state,
    unpack_state,
)
from wgpu_backend.ml.backend import Progress
from wgpu_backend.nn.kvcache.paged import BLOCK
from wgpu_backend.ops.plugins import import_file
from wgpu_backend.server.cluster.stages import open_stage
from wgpu_backend.server.worker.event_sender import EventSender, ForwardingMailbox, connect
from wgpu_backend.server.worker.frames import Message, read_message
from wgpu_backend.server.worker.media_messages import PlacedPlain, PreparedMedia, parse_part
from wgpu_backend.server.worker.messages import (
    NGRAM,
    LoadSpec,
    error_to_plain,
    from_plain,
    to_plain,
)

_LOG = logging.getLogger("wgpu_backend.worker")
Reply = tuple[Message, bytes]
# The server limits the queue, so the worker need not.
_UNBOUND = 1 << 20
_ADAPTER = re.compile(r"[a-z0-9]+:\d+(#\d+)?")
# For how long a stage on another node that was lost is tried to be opened again. Then the server
# looks for other nodes.
REOPEN_SECONDS = 20.0
# Least time between two progress messages.
_BEAT_SECONDS = 0.1


def main(handle: str) -> None:
    """Serve on an inherited socket.

    Parameters
    ----------
    handle : str
        See `frames.open_socket`.
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


def _serve(first: Message, source: BufferedReader, sender: EventSender) -> None:
    """Load a model, serve it, and end the process when it is no longer needed."""
    endings: SimpleQueue[Exception | None] = SimpleQueue()
    inbox: SimpleQueue[Message] = SimpleQueue()
    threading.Thread(
        target=_read_messages, args=(source, inbox), name="reader", daemon=True
    ).start()
    try:
        _require_version(first.get("version", "an older one"))
        spec = from_plain(LoadSpec, first["spec"])
        model, engine = _load(spec, _report_loading(sender), endings.put)
    except Exception as error:
        # The server reports it to the client.
        sender.send_error(0, error)
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
    # The device is intact, so its memory can be released in order.
    service.close()
    sender.close()
    os._exit(0)


def _require_version(server: str) -> None:
    """Refuse to work for a server that started before the package was replaced."""
    if server != __version__:
        raise ModelError(
            f"the server has version {server}, the package is {__version__} now; restart the server"
        )


def _report_loading(sender: EventSender) -> Progress:
    """Return a progress callback that reports loading to the server."""
    reported = 0.0

    def progress(share: float) -> None:
        nonlocal reported
        if time.monotonic() - reported >= _BEAT_SECONDS:
            reported = time.monotonic()
            sender.send({"type": "loading", "share": share})

    return progress


def _load(
    spec: LoadSpec, progress: Progress, lost: Callable[[Exception], None]
) -> tuple[LanguageModel, Engine | None]:
    # Files of `--import` register architectures and ops that the model may need.
    for path in spec.imports:
        import_file(path)
    stages = () if spec.pipeline is None else spec.pipeline.stages
    engines: list[Engine] = []

    def notice(error: Exception) -> None:
        """Make the engine reopen a stage that was lost while nothing ran."""
        if engines:
            engines[0].wake()
        else:
            lost(error)

    openers = {
        each.id: partial(open_stage, each, lost=notice, reopen_seconds=REOPEN_SECONDS)
        for each in stages
    }
    try:
        model = load(spec.path, progress=progress, openers=openers, **spec.arguments)
    except DeviceError:
        _require_adapters(spec)
        raise
    # An encoder has no engine; it only reads texts.
    if not model.model.has_logits:
        return model, None
    engines.append(make_engine(model, spec, progress, max_queue=_UNBOUND))
    return model, engines[0]


def _require_adapters(spec: LoadSpec) -> None:
    """Raise DeviceLost for an adapter that the server saw when it started, and that is gone."""
    known = Devices()
    there = {info.id for info in known}
    for name in spec.devices or (spec.device,):
        if _ADAPTER.fullmatch(name) and split_copy(name)[0] not in there:
            listing = "; ".join(describe(info) for info in known)
            raise DeviceLost(f"device {name}: it is gone, there are {listing}")


def _make_facts(model: LanguageModel, engine: Engine | None) -> Message:
    memory = model.backend_memory()
    later = _measure_later(model)
    return {
        "num_ctx": model.num_ctx,
        "vocabulary": model.vocabulary,
        "loras": [*model.loras],
        "num_parallel": model.num_parallel if engine is None else engine.num_parallel,
        "makes_text": engine is not None,
        "takes": [*model.towers.modalities],
        "nbytes": memory.size + later,
        "vram_nbytes": memory.gpu_size + (later if memory.gpus else 0),
        "gpu_layers": model.placement.gpu_layers,
        "placement": str(model.placement),
        "device": to_plain(model.device),
        "pid": os.getpid(),
    }


def _measure_later(model: LanguageModel) -> int:
    """Return the bytes that the model's towers will take on its device from the first picture."""
    towers = model.towers
    if not towers.modalities:
        return 0
    found = measure_towers(model.backend.file, towers.mmproj)
    on_gpu = model.device.kind != "cpu"
    weights = found.weights if on_gpu else found.host_weights
    # The NumPy device has intermediates only while a graph runs.
    graph = max(found.graph - towers.warm_nbytes, 0) if on_gpu else 0
    return graph + (weights if towers.backend is None else 0)


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


class Service:
    """A dispatcher of messages to a model; only `close` waits for it.

    Parameters
    ----------
    engine : Engine or None
        None for a model that does not generate text.
    endings : SimpleQueue
        Receives the error that ends the worker, or None to close it.
    """

    def __init__(
        self,
        model: LanguageModel,
        engine: Engine | None,
        sender: EventSender,
        endings: SimpleQueue[Exception | None],
    ) -> None:
        self._model = model
        self._engine = engine
        self._sender = sender
        self._endings = endings
        # Scales of LoRA adapters that wait for the running requests to end.
        self._scales: Sequence[float] | None = None
        self._under_way: dict[int, tuple[Generation, ForwardingMailbox]] = {}
        self._prepared = PreparedMedia()
        # Two threads: a status must not wait for the embeddings of many texts.
        self._reading = ThreadPoolExecutor(1, "readings")
        self._asking = ThreadPoolExecutor(1, "status")
        self._readings: Mapping[str, Callable[[Message], Reply]] = {
            "embed": self._embed, "states": self._states, "rerank": self._rerank,
            "scale": self._scale, "inspect": self._inspect, "save": self._save_slot,
            "restore": self._restore_slot, "drop": self._drop_prefix, "prepare": self._prepare,
        }  # fmt: skip
        self._questions: Mapping[str, Callable[[], Reply]] = {
            "status": self._status, "beat": self._beat, "forget": self._forget,
        }  # fmt: skip

    def take(self, message: Message) -> None:
        """Start to handle a message."""
        number: int = message.get("id", 0)
        match message["do"]:
            case "submit":
                self._submit(number, message["request"], message.get("placed", ()))
            case "cancel":
                self._cancel(number)
            case "close":
                self._endings.put(None)
            case what if what in self._readings:
                self._run_later(self._reading, number, lambda: self._readings[what](message))
            case what if what in self._questions:
                self._run_later(self._asking, number, self._questions[what])
            case what:
                self._sender.send_error(number, BackendError(f"worker: cannot do {what!r}"))

    def _submit(self, number: int, request: Any, placed: Sequence[PlacedPlain]) -> None:  # noqa: ANN401
        # Forget the requests that have ended since the last one.
        for each in [key for key, (_, box) in self._under_way.items() if box.ended]:
            del self._under_way[each]
        try:
            parsed = from_plain(Request, request)
            if placed:
                parsed = replace(parsed, placed=[self._prepared.place(each) for each in placed])
            box = ForwardingMailbox(number, parsed.n, self._sender)
            self._under_way[number] = self._require_engine().submit(parsed, box), box
        except Exception as error:
            # The server reports it to the client.
            self._sender.send_error(number, error)

    def _cancel(self, number: int) -> None:
        found = self._under_way.pop(number, None)
        if found is not None:
            found[0].cancel()

    def _require_engine(self) -> Engine:
        if self._engine is None:
            raise BackendError(f"{self._model.backend.file.path}: the model does not generate text")
        return self._engine

    def _scale(self, message: Message) -> Reply:
        self._scales = message["scales"]
        self._apply_scales()
        return {}, b""

    def _apply_scales(self) -> None:
        """Change the adapters' scales, unless requests are running; then try again later.

        Requests bring the new scales with them, but only those that equal the model's own scales
        may share the prefix cache, and texts have no scales of their own.
        """
        if self._scales is None:
            return
        try:
            files = [path for path, _ in self._model.adapters.loras]
            self._model.set_adapters([*zip(files, self._scales, strict=True)])
            self._scales = None
        except DeviceLost:
            raise
        except BackendError as error:
            _LOG.debug("adapters keep their scales for now: %s", error)

    def _embed(self, message: Message) -> Reply:
        self._apply_scales()
        images = [b64decode(image) for image in message["images"]]
        pooling = message["pooling"]
        return _encode_array(self._model.embed(message["texts"], images=images, pooling=pooling))

    def _states(self, message: Message) -> Reply:
        self._apply_scales()
        return _encode_array(self._model.states(message["tokens"]))

    def _rerank(self, message: Message) -> Reply:
        self._apply_scales()
        return _encode_array(np.asarray(self._model.rerank(message["query"], message["texts"])))

    def _prepare(self, message: Message) -> Reply:
        return self._prepared.add(*self._model.towers.prepare(parse_part(message))), b""

    def _inspect(self, message: Message) -> Reply:
        return {"found": self._model.inspect(message["what"], message["given"])}, b""

    def _save_slot(self, message: Message) -> Reply:
        engine, path = self._require_engine(), Path(message["path"])
        return {"count": save_slot(self._model, engine, message["tokens"], path)}, b""

    def _restore_slot(self, message: Message) -> Reply:
        engine, path = self._require_engine(), Path(message["path"])
        return {"tokens": restore_slot(self._model, engine, path)}, b""

    def _drop_prefix(self, message: Message) -> Reply:
        return {"count": self._require_engine().drop_prefix(message["tokens"])}, b""

    def _status(self) -> Reply:
        return {"status": to_plain(self._require_engine().status())}, b""

    def _beat(self) -> Reply:
        """Answer after the current step, so that a hung device gives no answer."""
        if self._engine is not None:
            self._engine.status()
        return {}, b""

    def _forget(self) -> Reply:
        self._require_engine().clear_cache()
        return {}, b""

    def _run_later(self, pool: ThreadPoolExecutor, number: int, act: Callable[[], Reply]) -> None:
        pool.submit(self._answer, number, act)

    def _answer(self, number: int, act: Callable[[], Reply]) -> None:
        try:
            answer, raw = act()
        except Exception as error:
            if isinstance(error, DeviceLost) and self._engine and self._model.lost is not None:
                self._engine.wake()
                error = WorkerLost(f"{error}; it is opened again, send the request again")
            # The server reports it to the client.
            self._sender.send_error(number, error)
            if isinstance(error, DeviceLost):
                self._endings.put(error)
            return
        self._sender.send({"type": "answer", "id": number, **answer}, raw)

    def close(self) -> None:
        """Release the model; requests in progress fail."""
        if self._engine is not None:
            self._engine.close()
        self._model.close()


def _encode_array(found: NDArray[np.floating[Any]]) -> Reply:
    return {"shape": found.shape}, found.astype("<f4").tobytes()


def make_engine(
    model: LanguageModel,
    spec: LoadSpec,
    progress: Progress | None = None,
    **options: Any,  # noqa: ANN401
) -> Engine:
    """Create the engine of a spec, with its draft: ``"ngram"`` or the path of a draft model.

    A draft suits only some of a server's models; the others run without it, and the log states
    the reason.

    Parameters
    ----------
    progress : callable or None
        Progress of loading the draft.
    **options
        Defaults of the engine, which the spec overrides.
    """
    own = {**options, **spec.engine}
    draft = own.pop("draft", None)
    most = own.pop("draft_tokens", None)
    if draft is None:
        return Engine(model, **own)
    guessing = own if most is None else {**own, "draft_tokens": most}
    found: LanguageModel | None = None
    try:
        found = None if draft == NGRAM else _load_draft(draft, model, spec, progress)
        return Engine(model, draft=found or "ngram", **guessing)
    except BackendError as error:
        _LOG.warning("%s is served without a draft: %s", spec.path, error)
        if found is not None:
            found.close()
        return Engine(model, **own)


def _load_draft(
    path: str, model: LanguageModel, spec: LoadSpec, progress: Progress | None
) -> LanguageModel:
    """Load the draft model, with as much context as the model has."""
    if path == spec.path:
        raise OptionError("draft: it is the model itself, which saves no time; use a smaller model")
    own = replace(spec, adapters=(), control_vectors=(), control_layers=None)
    if spec.devices or spec.placement is not None:
        # Numbers of layers are those of the model. A draft is small and goes where tokens are made.
        home = model.placement.devices[model.placement.output]
        own = replace(own, device=home, devices=(), placement=None)
    sized = replace(own, num_ctx=model.num_ctx, num_parallel=model.num_parallel)
    return load(path, progress=progress, **sized.arguments)


def save_slot(model: LanguageModel, engine: Engine, tokens: Sequence[int], path: Path) -> int:
    """Write the cached keys and values of tokens to a file.

    Returns
    -------
    int
        Tokens that it has.

    Raises
    ------
    StoreError
        The tokens are no longer cached, or too few to be saved.
    """
    # Those of the tokens that the cache still has, see `PrefixCache.saved`.
    known, saved = engine.kept_prefix(tokens)
    if saved is None and len(tokens) <= BLOCK:
        raise StoreError(f"slot: it holds {len(tokens)} tokens, needs more than {BLOCK} to be kept")
    if saved is None:
        raise StoreError("slot: its cached tokens were evicted for other requests")
    data = pack_state(_layout(model), [SavedSequence(0, saved)], known)
    # Two servers may save to the same name; a reader must never see half a file.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return len(known)


def restore_slot(model: LanguageModel, engine: Engine, path: Path) -> list[int]:
    """Restore keys and values from a file, and return their tokens.

    Raises
    ------
    StoreError
        There is no such file, or it is damaged or of another model.
    """
    try:
        found, tokens = unpack_state(path.read_bytes(), _layout(model))
        if len(found) != 1 or not tokens or len(tokens) > model.num_ctx:
            raise StateError(
                f"state: {len(found)} sequences with {len(tokens)} tokens, needs one sequence "
                f"with 1 to {model.num_ctx}"
            )
        model.cache.require_saved(found[0].saved)
        engine.take_prefix(tokens, found[0].saved)
    except FileNotFoundError:
        raise StoreError(f"slot: no file {path.name[:60]!r}") from None
    except (StateError, ValueError) as error:
        raise StoreError(f"slot: {path.name[:60]!r}: {error}") from None
    return tokens


def _layout(model: LanguageModel) -> Layout:
    file = model.backend.file.path
    facts = {
        "architecture": model.backend.config.architecture,
        "nbytes": Path(file).stat().st_size if Path(file).is_file() else 0,
        "vocabulary": model.vocabulary,
    }
    return Layout.from_cache(facts, model.cache)
