"""Models in workers, as the server uses them, on the first healthy device."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.batching.generation import Generation, Mailbox
from wgpu_backend.engine.batching.intake import Intake
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import EngineStatus
from wgpu_backend.engine.media import Part, Prepared
from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.errors import BackendError, DeviceLost, OutOfMemory
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.files.huggingface.folder import open_model_file
from wgpu_backend.files.store.stored import Stored
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.server.worker.channel import Channel
from wgpu_backend.server.worker.client import HANG_SECONDS, Client, Lost, Reply
from wgpu_backend.server.worker.frames import Message
from wgpu_backend.server.worker.health import Health
from wgpu_backend.server.worker.media_messages import ask_prepared
from wgpu_backend.server.worker.messages import (
    GpuOptions,
    LoadSpec,
    apply_gpu_options,
    from_plain,
)
from wgpu_backend.server.worker.spare import AFTER_SECONDS, Spares, Start
from wgpu_backend.text.tokenizer import Tokenizer

SpecOf = Callable[[Stored, int | None, str], LoadSpec]
"""A function that makes the spec of a model with a context length, on a device."""
# A status waits for the end of a step.
_STATUS_SECONDS = 60.0


class WorkerEngine:
    """The engine of a worker, with the methods of `wgpu_backend.Engine` that a server needs.

    Parameters
    ----------
    max_queue : int
        Choices that may wait for a slot.
    """

    def __init__(self, model: WorkerModel, client: Client, max_queue: int) -> None:
        self.model = model
        self.num_parallel = model.num_parallel
        self.max_queue = max_queue
        self._client = client
        self._intake = Intake(model.name, self.num_parallel, max_queue)

    @property
    def num_ctx(self) -> int:
        """Positions of a request's context."""
        return self.model.num_ctx

    def submit(self, request: Request, mailbox: Mailbox | None = None) -> Generation:
        """Submit a request, without waiting for its answer; see `Engine.submit`.

        Parameters
        ----------
        mailbox : Mailbox or None
            See `Client.submit`.

        Raises
        ------
        BackendError
            The prompt does not fit, too many wait, or the worker has ended.
        """
        # Refused here, it costs no round trip and takes no place in the queue.
        request.fitting(self.num_ctx, self.model.vocabulary)
        return self._client.submit(request, self._intake, mailbox)

    def status(self) -> EngineStatus:
        """Return the engine's state and counters; waits for the end of a step."""
        return from_plain(EngineStatus, self._client.ask("status", _STATUS_SECONDS)[0]["status"])

    def clear_cache(self) -> None:
        """Drop the cache of ended requests."""
        self._client.ask("forget")

    def save_slot(self, tokens: Sequence[int], path: str) -> int:
        """Save the cached keys and values of tokens to a file; see `process.save_slot`."""
        return self._client.ask("save", tokens=[*tokens], path=path)[0]["count"]

    def restore_slot(self, path: str) -> list[int]:
        """Restore keys and values from a file; see `process.restore_slot`."""
        return self._client.ask("restore", path=path)[0]["tokens"]

    def drop_prefix(self, tokens: Sequence[int]) -> int:
        """Drop the cached prefix of a text, and wait for that; see `Engine.drop_prefix`."""
        return self._client.ask("drop", tokens=[*tokens])[0]["count"]


class WorkerModel:
    """A model in a worker, with the methods of `LanguageModel` that a server needs.

    Parameters
    ----------
    name : str
        Name of the model, for messages.
    client : Client
        Client whose model is loaded, or will be.

    Attributes
    ----------
    loras : list of (str, float)
        Names of files of LoRA adapters, with their scales.
    nbytes, vram_nbytes : int
        Bytes that it takes on its devices, and on those that are not the NumPy device.
    gpu_layers : int
        Layers that are not on the NumPy device, where the output head counts as one.
    placement : str
        The layers of each device, as text.
    takes : list of str
        What it takes besides text, of ``image`` and ``audio``.
    engine : WorkerEngine or None
        None for a model that does not generate text.
    """

    def __init__(self, name: str, client: Client, texts: TextParts, max_queue: int) -> None:
        facts: Message = client.loaded.result()[0]
        self.name = name
        self.config, self.tokenizer, self.prompter = texts
        self.num_ctx: int = facts["num_ctx"]
        self.num_parallel: int = facts["num_parallel"]
        self.vocabulary: int = facts["vocabulary"]
        self.loras = [(str(name), float(scale)) for name, scale in facts["loras"]]
        self.nbytes: int = facts["nbytes"]
        self.vram_nbytes: int = facts["vram_nbytes"]
        self.gpu_layers: int = facts["gpu_layers"]
        self.placement: str = facts["placement"]
        self.takes: list[str] = facts["takes"]
        self.device = from_plain(DeviceInfo, facts["device"])
        self._client = client
        makes_text: bool = facts["makes_text"]
        self.engine = WorkerEngine(self, client, max_queue) if makes_text else None

    @property
    def lost(self) -> BackendError | None:
        """The error that ended the worker; None while it is alive."""
        return self._client.error

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._client.pid

    def embed(
        self,
        texts: str | Sequence[str] = (),
        *,
        images: Sequence[bytes] = (),
        pooling: str | None = None,
    ) -> NDArray[np.float32]:
        """Wait for the embeddings of texts and pictures; see `LanguageModel.embed`."""
        given = texts if isinstance(texts, str) else [*texts]
        encoded = [b64encode(image).decode() for image in images]
        return _decode_array(
            self._client.ask("embed", texts=given, images=encoded, pooling=pooling)
        )

    def states(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Wait for the state of each token, and return them; see `LanguageModel.states`."""
        return _decode_array(self._client.ask("states", tokens=[int(token) for token in tokens]))

    def rerank(self, query: str, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Score how well each text answers a query, and wait; see `LanguageModel.rerank`."""
        given = texts if isinstance(texts, str) else [*texts]
        return _decode_array(self._client.ask("rerank", query=query, texts=given))

    def set_lora_scales(self, scales: Sequence[float]) -> None:
        """Change the scales of the LoRA adapters, and wait for the worker to apply them."""
        self._client.ask("scale", scales=[*scales])

    def prepare(self, part: Part) -> Prepared:
        """Prepare the bytes of a picture, a sound or a video; waits. As `Towers.prepare`."""
        return ask_prepared(self._client.ask, part)

    def inspect(self, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for the parts of the model that the page shows; see `LanguageModel.inspect`."""
        return self._client.ask("inspect", what=what, given=dict(given))[0]["found"]

    def close(self) -> None:
        """End the worker. Safe to call twice."""
        self._client.close()


def _decode_array(answer: Reply) -> NDArray[np.float32]:
    message, raw = answer
    # A copy, since the bytes of a message are read-only.
    return np.frombuffer(raw, "<f4").reshape(message["shape"]).astype(np.float32)


TextParts = tuple[Config, Tokenizer, Prompter]
"""The parts of a model file that can be used without a device."""


def read_text_parts(path: str) -> TextParts:
    """Read the parts of a model file that can be used without a device.

    Raises
    ------
    GGUFError, TokenizerError
        The file is damaged, or its tokenizer unknown.
    """
    with open_model_file(path) as file:
        tokenizer = Tokenizer.of_file(file)
        return file.config, tokenizer, Prompter(file.config, tokenizer)


def open_worker(
    name: str,
    spec: LoadSpec,
    max_queue: int,
    lost: Lost,
    started: Callable[[Client], None] = lambda _: None,
    hang_seconds: float = HANG_SECONDS,
    start: Start = Channel,
    texts: str | None = None,
) -> WorkerModel:
    """Load a model in a worker of its own, and wait for it.

    Parameters
    ----------
    name : str
        Name of the model, for messages.
    max_queue : int
        Choices that may wait for a slot.
    lost : callable
        See `Client`.
    started : callable
        Called with the client while the model loads.
    start : callable
        See `Client`.
    texts : str or None
        The model's file on this machine, if the worker is on another one.

    Raises
    ------
    BackendError
        As `wgpu_backend.load`; WorkerLost where the process ended.
    """
    client = Client(name, spec, lost, hang_seconds, start)
    try:
        started(client)
        # Read the tokenizer while the worker loads the weights.
        parts = read_text_parts(texts or spec.path)
        return WorkerModel(name, client, parts, max_queue)
    except BaseException:
        client.kill()
        client.close()
        raise


class Workers:
    """An opener of models in workers, on the first healthy device.

    Parameters
    ----------
    health : Health
        Health of the devices.
    max_queue : int
        Choices that may wait for a slot, of each model.
    hang_seconds : float
        See `Client`.
    spare_seconds : float or None
        Time after a load until a spare process starts; None for no spare.
    """

    def __init__(
        self,
        health: Health,
        spec_of: SpecOf,
        max_queue: int,
        hang_seconds: float = HANG_SECONDS,
        spare_seconds: float | None = AFTER_SECONDS,
    ) -> None:
        self.health = health
        self.spares = Spares(spare_seconds)
        self._spec_of = spec_of
        self._max_queue = max_queue
        self._hang_seconds = hang_seconds
        self._starting: set[Client] = set()
        self._lock = threading.Lock()
        self._closed = False

    def spec(self, stored: Stored, num_ctx: int | None, gpu: GpuOptions | None = None) -> LoadSpec:
        """Return the load arguments for a model.

        Parameters
        ----------
        gpu : GpuOptions or None
            A request's options of placing layers.

        Raises
        ------
        NoDeviceLeft
        """
        spec = self._spec_of(stored, num_ctx, self.health.choose())
        return apply_gpu_options(spec, gpu, self.health.left)

    def __call__(
        self, stored: Stored, num_ctx: int | None, gpu: GpuOptions | None = None
    ) -> WorkerModel:
        """Load a model, and wait for it.

        Raises
        ------
        BackendError
            As `wgpu_backend.load`; NoDeviceLeft where all devices were lost too often.
        """
        try:
            for _ in range(max(0, self.health.most_tries - 1)):
                try:
                    return self._open(stored, num_ctx, gpu)
                except DeviceLost:
                    continue
            return self._open(stored, num_ctx, gpu)
        except OutOfMemory as error:
            causes = self.health.causes
            if not causes:
                raise
            message = f"{error}; the devices are fewer than at the start: {causes}"
            raise OutOfMemory(message, error.report) from error

    def _open(self, stored: Stored, num_ctx: int | None, gpu: GpuOptions | None) -> WorkerModel:
        name, chosen = str(stored.entry.name), self.health.choose()
        spec = self.spec(stored, num_ctx, gpu)
        clients: list[Client] = []

        def register(client: Client) -> None:
            clients.append(client)
            with self._lock:
                if self._closed:
                    # Without this check, a worker could start after `close` and never be ended.
                    raise BackendError(f"{name}: the server is shutting down")
                self._starting.add(client)

        lost = partial(self._count_loss, spec.devices or (chosen,))
        try:
            hang = self._hang_seconds
            start = self.spares.start
            return open_worker(name, spec, self._max_queue, lost, register, hang, start)
        except DeviceLost as error:
            lost(error)
            raise
        finally:
            with self._lock:
                self._starting.difference_update(clients)
            self.spares.prepare()

    def _count_loss(self, devices: Sequence[str], error: BackendError) -> None:
        """Count the loss of a device: of several, the one that the error names."""
        text = str(error)
        # Errors of devices begin with one; others may list those that are there.
        subjects = [name for name in devices if f"device {name}: " in text]
        # The longest name: vulkan:1 is a part of vulkan:10.
        named = subjects or [name for name in devices if name in text]
        self.health.lost(max(named, key=len, default=devices[0]), error)

    def close(self) -> None:
        """Open no more models, and end those that are loading, and the spare."""
        with self._lock:
            self._closed = True
            starting = list(self._starting)
        self.spares.close()
        for client in starting:
            client.kill()
