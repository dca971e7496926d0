"""The interface of models and engines, as the server uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.batching.engine import Engine
from wgpu_backend.engine.batching.generation import Generation
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import EngineStatus
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.server.worker import keeping
from wgpu_backend.server.worker.remote import WorkerEngine, WorkerModel
from wgpu_backend.text.tokenizer import Tokenizer


class ServedModel(Protocol):
    """A model: texts and tokens are immediate, vectors and scores take a while, in a thread."""

    tokenizer: Tokenizer
    prompter: Prompter
    num_ctx: int
    num_parallel: int

    @property
    def config(self) -> Config:
        """Keys and values of the model's file."""
        ...

    @property
    def device(self) -> DeviceInfo:
        """The device that the model runs on."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of tokens in the vocabulary."""
        ...

    @property
    def loras(self) -> Sequence[tuple[str, float]]:
        """Names of files of LoRA adapters, with their scales."""
        ...

    def embed(
        self, texts: str | Sequence[str], *, pooling: str | None = None
    ) -> NDArray[np.float32]:
        """Return the embeddings of texts."""
        ...

    def states(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the vector of each token."""
        ...

    def rerank(self, query: str, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Return the scores of how well each text answers a query."""
        ...

    def inspect(self, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts of the model that the page shows; see `LanguageModel.inspect`."""
        ...

    def close(self) -> None:
        """Release its memory."""
        ...


class ServedEngine(Protocol):
    """An engine: `submit` returns at once, `status` after the current step."""

    num_parallel: int
    max_queue: int

    @property
    def model(self) -> ServedModel:
        """The model of the engine."""
        ...

    @property
    def num_ctx(self) -> int:
        """Positions of a request's context."""
        ...

    def submit(self, request: Request) -> Generation:
        """Submit a request."""
        ...

    def status(self) -> EngineStatus:
        """Return its current state, and its counters."""
        ...

    def drop_prefix(self, tokens: Sequence[int]) -> int:
        """Drop the cached prefix of a text, and return how many tokens it had."""
        ...


Opened = LanguageModel | WorkerModel


def engine_for(model: Opened, max_queue: int) -> ServedEngine | None:
    """Return the engine of a model; None if it makes no text."""
    if isinstance(model, WorkerModel):
        return model.engine
    return Engine(model, max_queue=max_queue) if model.model.has_logits else None


def nbytes_of(model: Opened) -> int:
    """Return the bytes that a model takes on its device."""
    if isinstance(model, WorkerModel):
        return model.nbytes
    return model.backend.backend_memory().size


def is_lost(model: Opened) -> bool:
    """Return whether a model's worker has ended."""
    return isinstance(model, WorkerModel) and model.lost is not None


def close_engine(engine: ServedEngine | None) -> None:
    """End an engine of this process; a worker's ends with its model."""
    if isinstance(engine, Engine):
        engine.close()


def keep(engine: ServedEngine, tokens: Sequence[int], path: str) -> int:
    """Save an engine's keys and values of a text to a file; see `keeping.keep`."""
    if isinstance(engine, Engine):
        return keeping.keep(engine.model, engine, tokens, Path(path))
    assert isinstance(engine, WorkerEngine)
    return engine.keep(tokens, path)


def bring(engine: ServedEngine, path: str) -> list[int]:
    """Restore a text's keys and values from a file, and return its tokens; see `keeping.bring`."""
    if isinstance(engine, Engine):
        return keeping.bring(engine.model, engine, Path(path))
    assert isinstance(engine, WorkerEngine)
    return engine.bring(path)
