"""The message handlers of a worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.batching.engine import Engine
from wgpu_backend.engine.batching.generation import Generation
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.errors import BackendError, DeviceLost
from wgpu_backend.server.worker.frames import Message
from wgpu_backend.server.worker.keeping import restore_slot, save_slot
from wgpu_backend.server.worker.messages import parse_request
from wgpu_backend.server.worker.outbox import EventSender, ForwardingMailbox

_LOG = logging.getLogger("wgpu_backend.worker")
Reply = tuple[Message, bytes]


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
        # Two threads: a status must not wait for the embeddings of many texts.
        self._reading = ThreadPoolExecutor(1, "readings")
        self._asking = ThreadPoolExecutor(1, "status")
        self._readings: Mapping[str, Callable[[Message], Reply]] = {
            "embed": self._embed, "states": self._states, "rerank": self._rerank,
            "scale": self._scale, "inspect": self._inspect, "save": self._save_slot,
            "restore": self._restore_slot, "drop": self._drop_prefix,
        }  # fmt: skip
        self._questions: Mapping[str, Callable[[], Reply]] = {
            "status": self._status, "beat": self._beat, "forget": self._forget,
        }  # fmt: skip

    def take(self, message: Message) -> None:
        """Start to handle a message."""
        number: int = message.get("id", 0)
        match message["do"]:
            case "submit":
                self._submit(number, message["request"])
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

    def _submit(self, number: int, request: Any) -> None:  # noqa: ANN401
        # Forget the requests that have ended since the last one.
        for each in [key for key, (_, box) in self._under_way.items() if box.ended]:
            del self._under_way[each]
        try:
            wanted = parse_request(request)
            box = ForwardingMailbox(number, wanted.n, self._sender)
            self._under_way[number] = self._require_engine().submit(wanted, box), box
        except Exception as error:
            # The server reports it to the client.
            self._sender.send_error(number, error)

    def _cancel(self, number: int) -> None:
        found = self._under_way.pop(number, None)
        if found is not None:
            found[0].cancel()

    def _require_engine(self) -> Engine:
        if self._engine is None:
            raise BackendError(f"{self._model.backend.file.path}: the model makes no text")
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
        return _encode_array(self._model.embed(message["texts"], pooling=message["pooling"]))

    def _states(self, message: Message) -> Reply:
        self._apply_scales()
        return _encode_array(self._model.states(message["tokens"]))

    def _rerank(self, message: Message) -> Reply:
        self._apply_scales()
        return _encode_array(np.asarray(self._model.rerank(message["query"], message["texts"])))

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
        return {"status": asdict(self._require_engine().status())}, b""

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
            # The server reports it to the client.
            self._sender.send_error(number, error)
            if isinstance(error, DeviceLost):
                self._endings.put(error)
            return
        self._sender.send({"type": "answer", "id": number, **answer}, raw)

    def close(self) -> None:
        """Release the model; requests that are under way fail."""
        if self._engine is not None:
            self._engine.close()
        self._model.close()


def _encode_array(found: NDArray[np.floating[Any]]) -> Reply:
    return {"shape": found.shape}, found.astype("<f4").tobytes()
