"""`wgpu-backend serve`: build the server from its options and run it until it is signalled."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

from wgpu_backend.cli.console import log_as_notes, note
from wgpu_backend.cli.failures import UsageError, brief, message_of
from wgpu_backend.cli.library import open_store, signing_key
from wgpu_backend.cli.names import STORY
from wgpu_backend.cli.options import Settings
from wgpu_backend.cli.serve.engine import EngineOptions, drafts
from wgpu_backend.cli.serve.listening import Listening
from wgpu_backend.cli.serve.loads import devices_of, loads
from wgpu_backend.cli.serve.models import pipelines, require_known, story
from wgpu_backend.cli.serve.own_model import OwnModel
from wgpu_backend.cli.serve.shown import Shown
from wgpu_backend.cli.serve.sockets import all_bound
from wgpu_backend.errors import StoreError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from wgpu_backend.files.store.store import Store
    from wgpu_backend.graph.capabilities import DeviceInfo
    from wgpu_backend.server.core.state import Settings as ServerSettings

_GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of `serve`.

    Parameters
    ----------
    sampling : mapping
        Parameters of the default model's answers, by name.
    anybody : bool
        Serve other machines without an API key.
    parallel : int or None
        Parallel answers of each model.
    pictures : sequence of Path
        Folders of text-to-image pipelines.
    """

    listening: Listening
    own_model: OwnModel
    engine: EngineOptions
    shown: Shown
    sampling: Mapping[str, object]
    anybody: bool = False
    parallel: int | None = None
    draft: str | None = None
    draft_tokens: int | None = None
    pictures: Sequence[Path] = ()

    def settings(self) -> dict[str, Any]:
        """Combine the server's settings from all groups; raises as the groups do."""
        return {
            **self.listening.settings(anybody=self.anybody),
            **self.own_model.settings(self.sampling),
            **self.engine.settings(),
            **self.shown.settings(self.listening.prefix),
        }


def serve(wanted: Wanted, settings: Settings) -> None:
    """Serve until Ctrl-C or SIGTERM; running requests have some time to finish.

    Raises
    ------
    UsageError
        The address is open to other machines and there is no key; or a library or the model is
        missing.
    """
    told = wanted.settings()  # first, so that invalid options raise before anything is opened
    _require_libraries()
    from wgpu_backend.server.app import make_app

    log_as_notes(logging.INFO)
    serving = _settings(wanted, settings, _devices(wanted, settings), told)
    if (name := wanted.own_model.own_model) is not None:
        require_known(name, serving)
    hosts, port = wanted.listening.addresses
    sockets, port = all_bound(hosts, port)
    _prune(serving.store)
    app = make_app(serving)
    for host in hosts:
        note(f"serving on http://{host}:{port}")
    _run(app, sockets)


def _require_libraries() -> None:
    try:
        for name in ("uvicorn", "wgpu_backend.server.app"):
            import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serve: {error.name} is not installed; `pip install '.[serve]'` in the checkout "
            "installs what serve needs"
        ) from None


def _devices(wanted: Wanted, settings: Settings) -> list[DeviceInfo]:
    """Return the devices for models; an invalid name raises before the server starts."""
    devices = devices_of(settings)
    if wanted.engine.deterministic and devices[0].kind == "cpu":
        raise UsageError("--deterministic: not on device 'cpu'; name another with --device")
    return devices


def _settings(
    wanted: Wanted, settings: Settings, devices: Sequence[DeviceInfo], told: Mapping[str, Any]
) -> ServerSettings:
    from wgpu_backend import __version__
    from wgpu_backend.server.core.state import Settings as Serving

    engine = {**wanted.engine.engine(), **drafts(wanted.draft, wanted.draft_tokens)}
    return Serving(
        open_store(),
        fixed={STORY: story()},
        version=__version__,
        keep_seconds=_keep_seconds(os.environ.get("OLLAMA_KEEP_ALIVE") or "5m"),
        pictures=pipelines(wanted.pictures),
        picture_device=devices[0].id,
        signing_key=signing_key(),
        debug=settings.debug,
        **loads(settings, devices, wanted.parallel, engine),
        **told,
    )


def _prune(store: Store) -> None:
    """Remove unreferenced blobs, as Ollama does at start-up."""
    from wgpu_backend.files.store.store import prune

    kept = os.environ.get("OLLAMA_NOPRUNE", "").strip().lower() not in ("", "0", "false")
    if kept or store.read_only:
        return
    try:
        count = prune(store)
    except (OSError, StoreError) as error:
        note(f"blobs that no model has are kept: {message_of(error)}")
        return
    if count:
        note(f"removed {count} blobs of no model")


def _keep_seconds(text: str) -> float:
    from wgpu_backend.server.core.request import RequestError
    from wgpu_backend.server.core.state import parse_keep_alive

    try:
        return parse_keep_alive(text)
    except RequestError:
        raise UsageError(
            f"OLLAMA_KEEP_ALIVE: {brief(text)}, needs a duration, such as 5m or -1 for ever"
        ) from None


def _run(app: ASGIApp, sockets: list[socket]) -> None:
    import uvicorn

    from wgpu_backend.server.core.connections import TimelyProtocol

    config = uvicorn.Config(
        app,
        http=TimelyProtocol,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=sockets)
