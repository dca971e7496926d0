"""Models in workers, on the first device that is not bad."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from wgpu_backend.errors import BackendError, DeviceLost
from wgpu_backend.files.store.stored import Stored
from wgpu_backend.server.worker.client import HANG_SECONDS, Client
from wgpu_backend.server.worker.health import Health
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import WorkerModel, open_worker
from wgpu_backend.server.worker.spare import AFTER_SECONDS, Spares

SpecOf = Callable[[Stored, int | None, str], LoadSpec]
"""A function that makes the spec of a model with a context length, on a device."""


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

    def spec(self, stored: Stored, num_ctx: int | None) -> LoadSpec:
        """Return the load arguments for a model.

        Raises
        ------
        NoDeviceLeft
        """
        return self._spec_of(stored, num_ctx, self.health.choose())

    def __call__(self, stored: Stored, num_ctx: int | None) -> WorkerModel:
        """Load a model, and wait for it.

        Raises
        ------
        BackendError
            As `wgpu_backend.load`; NoDeviceLeft where all devices were lost too often.
        """
        for _ in range(max(0, self.health.most_tries - 1)):
            try:
                return self._open(stored, num_ctx)
            except DeviceLost:
                continue
        return self._open(stored, num_ctx)

    def _open(self, stored: Stored, num_ctx: int | None) -> WorkerModel:
        name, device = str(stored.entry.name), self.health.choose()
        spec = self._spec_of(stored, num_ctx, device)
        clients: list[Client] = []

        def started(client: Client) -> None:
            clients.append(client)
            with self._lock:
                if self._closed:
                    # Without this check, a worker could start after `close` and never be ended.
                    raise BackendError(f"{name}: the server ends")
                self._starting.add(client)

        lost = partial(self.health.lost, device)
        try:
            hang = self._hang_seconds
            start = self.spares.start
            return open_worker(name, spec, self._max_queue, lost, started, hang, start)
        except DeviceLost as error:
            lost(error)
            raise
        finally:
            with self._lock:
                self._starting.difference_update(clients)
            self.spares.prepare()

    def close(self) -> None:
        """Open no more models, and end those that are loading, and the spare."""
        with self._lock:
            self._closed = True
            starting = list(self._starting)
        self.spares.close()
        for client in starting:
            client.kill()
