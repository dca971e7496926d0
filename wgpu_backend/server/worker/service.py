"""The message handlers of a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from wgpu_backend.engine.batching.engine import Engine
from wgpu_backend.engine.batching.generation import Generation
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.errors import BackendError, DeviceLost
from wgpu_backend.server.worker.frames import Message
from wgpu_backend.server.worker.keeping import restore_slot, save_slot
from wgpu_backend.server.worker.messages import parse_request
from wgpu_backend.server.worker.outbox import EventSender, ForwardingMailbox

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
        self._under_way: dict[int, tuple[Generation, ForwardingMailbox]] = {}
        # Two threads: a status must not wait for the embeddings of many texts.
        self._reading = ThreadPoolExecutor(1, "readings")
        self._asking = ThreadPoolExecutor(1, "status")

    def take(self, message: Message) -> None:
        """Start to handle a message."""
        number: int = message.get("id", 0)
        match message["do"]:
            case "submit":
                self._submit(number, message["request"])
            case "cancel":
                self._cancel(number)
            case "embed":
                texts, pooling = message["texts"], message["pooling"]
                self._run_later(self._reading, number, lambda: self._embed(texts, pooling))
            case "states":
                tokens = message["tokens"]
                self._run_later(self._reading, number, lambda: self._states(tokens))
            case "rerank":
                query, texts = message["query"], message["texts"]
                self._run_later(self._reading, number, lambda: self._rerank(query, texts))
            case "inspect":
                what, given = message["what"], message["given"]
                self._run_later(self._reading, number, lambda: self._inspect(what, given))
            case "save" | "restore" | "drop" as what:
                self._run_later(self._reading, number, lambda: self._slot(what, message))
            case "status" | "beat" | "forget" as what:
                asked = {"status": self._status, "beat": self._beat, "forget": self._forget}
                self._run_later(self._asking, number, asked[what])
            case "close":
                self._endings.put(None)
            case other:
                self._sender.send_error(number, BackendError(f"worker: cannot do {other!r}"))

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

    def _embed(self, texts: Sequence[str], pooling: str | None) -> Reply:
        found = self._model.embed(texts, pooling=pooling)
        return {"shape": found.shape}, found.astype("<f4").tobytes()

    def _states(self, tokens: Sequence[int]) -> Reply:
        found = self._model.states(tokens)
        return {"shape": found.shape}, found.astype("<f4").tobytes()

    def _rerank(self, query: str, texts: Sequence[str]) -> Reply:
        found = np.asarray(self._model.rerank(query, texts))
        return {"shape": found.shape}, found.astype("<f4").tobytes()

    def _inspect(self, what: str, given: Message) -> Reply:
        return {"found": self._model.inspect(what, given)}, b""

    def _slot(self, what: str, message: Message) -> Reply:
        """Save, restore or drop the cached prefix of tokens."""
        engine, path = self._require_engine(), Path(message.get("path", ""))
        if what == "restore":
            return {"tokens": restore_slot(self._model, engine, path)}, b""
        tokens: list[int] = message["tokens"]
        if what == "drop":
            return {"count": engine.drop_prefix(tokens)}, b""
        return {"count": save_slot(self._model, engine, tokens, path)}, b""

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
