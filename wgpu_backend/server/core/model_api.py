"""The interface of models and engines, as the server uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.batching.generation import Generation
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import EngineStatus
from wgpu_backend.engine.media import Part, Prepared
from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.errors import BackendError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.text.tokenizer import Tokenizer


class ModelInterface(Protocol):
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
    def engine(self) -> EngineInterface | None:
        """The engine of the model; None if it does not generate text."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that the model takes on its devices."""
        ...

    @property
    def vram_nbytes(self) -> int:
        """Bytes that the model takes on devices other than the NumPy device."""
        ...

    @property
    def gpu_layers(self) -> int:
        """Layers that are not on the NumPy device, where the output head counts as one."""
        ...

    @property
    def placement(self) -> str:
        """The layers of each device, as text."""
        ...

    @property
    def lost(self) -> BackendError | None:
        """The error that ended its worker; None while it is alive."""
        ...

    @property
    def takes(self) -> Sequence[str]:
        """The inputs besides text that the model takes, of ``image`` and ``audio``."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of tokens in the vocabulary."""
        ...

    @property
    def loras(self) -> Sequence[tuple[str, float]]:
        """File names of the model's LoRA adapters, with their scales."""
        ...

    def embed(
        self,
        texts: str | Sequence[str] = (),
        *,
        images: Sequence[bytes] = (),
        pooling: str | None = None,
    ) -> NDArray[np.float32]:
        """Return the embeddings of texts, then of pictures."""
        ...

    def states(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the vector of each token."""
        ...

    def rerank(self, query: str, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Return the scores of how well each text answers a query."""
        ...

    def set_lora_scales(self, scales: Sequence[float]) -> None:
        """Change the scales of its LoRA adapters, in the order of `loras`."""
        ...

    def prepare(self, part: Part) -> Prepared:
        """Read and prepare the bytes of a picture or sound for the model's tower."""
        ...

    def inspect(self, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts of the model that the page shows; see `LanguageModel.inspect`."""
        ...

    def close(self) -> None:
        """Release the model's memory."""
        ...


class EngineInterface(Protocol):
    """An engine: `submit` returns at once, `status` after the current step."""

    num_parallel: int
    max_queue: int

    @property
    def model(self) -> ModelInterface:
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
        """Return the engine's current state and counters."""
        ...

    def drop_prefix(self, tokens: Sequence[int]) -> int:
        """Drop the cached prefix of a text, and return how many tokens it had."""
        ...

    def save_slot(self, tokens: Sequence[int], path: str) -> int:
        """Save the cached keys and values of tokens to a file, and return how many it has."""
        ...

    def restore_slot(self, path: str) -> list[int]:
        """Restore keys and values from a file, and return their tokens."""
        ...
