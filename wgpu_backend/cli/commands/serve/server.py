"""The server of `serve`: build it from the options and run it until it is signalled."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wgpu_backend.cli.commands.serve.loads import (
    find_pipelines,
    list_devices,
    make_bundled_entry,
    make_load_settings,
    require_known,
)
from wgpu_backend.cli.commands.serve.options import (
    AddressOptions,
    ApiOptions,
    DefaultModelOptions,
    EngineOptions,
    make_draft_arguments,
)
from wgpu_backend.cli.console import log_as_notes, note
from wgpu_backend.cli.failures import UsageError, brief, describe_error
from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.cli.options import ModelSettings
from wgpu_backend.cli.store import find_signing_key, open_store
from wgpu_backend.errors import StoreError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from wgpu_backend.files.store.store import Store
    from wgpu_backend.graph.capabilities import DeviceInfo
    from wgpu_backend.server.core.state import Settings as ServerSettings

# For running requests after the first signal.
_GRACE_SECONDS = 30
# Uvicorn's default for sockets that it opens itself.
_BACKLOG = 2048
_ADDRESS_MISSING = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `serve`.

    Parameters
    ----------
    sampling : mapping
        Parameters of the default model's answers, by name.
    allow_anyone : bool
        Serve other machines without an API key.
    parallel : int or None
        Parallel answers of each model.
    pictures : sequence of Path
        Folders of text-to-image pipelines.
    cluster : str or None
        Address of a Ray cluster.
    stages : int or None
        Its nodes that share a model's layers; None for as many as the model needs.
    """

    address: AddressOptions
    default_model: DefaultModelOptions
    engine: EngineOptions
    api: ApiOptions
    sampling: Mapping[str, object]
    allow_anyone: bool = False
    parallel: int | None = None
    draft: str | None = None
    draft_tokens: int | None = None
    pictures: Sequence[Path] = ()
    cluster: str | None = None
    stages: int | None = None

    def settings(self) -> dict[str, Any]:
        """Combine the server's settings from all groups; raises as the groups do."""
        return {
            **self.address.settings(allow_anyone=self.allow_anyone),
            **self.default_model.settings(self.sampling),
            **self.engine.settings(),
            **self.api.settings(self.address.prefix),
        }


def run_server(options: ServeOptions, settings: ModelSettings) -> None:
    """Serve until Ctrl-C or SIGTERM; running requests have some time to finish.

    Raises
    ------
    UsageError
        The address is open to other machines and there is no key; or a library or the model is
        missing.
    """
    # First, so that invalid options raise before anything is opened.
    if settings.mmproj is not None:
        raise UsageError(
            "--mmproj: fits one model, a server has many; `wgpu-backend create NAME -f` stores "
            "both from a Modelfile with FROM MODEL.gguf and FROM MMPROJ.gguf"
        )
    checked = options.settings()
    _require_libraries()
    from wgpu_backend.server.app import make_app

    log_as_notes(logging.INFO)
    serving = _make_settings(options, settings, _find_devices(options, settings), checked)
    if (name := options.default_model.own_model) is not None:
        require_known(name, serving)
    hosts, port = options.address.addresses
    # Before pruning: a second server at the same port ends here and leaves the store alone.
    sockets, port = open_all_sockets(hosts, port)
    _prune(serving.store)
    app = make_app(serving)
    for host in hosts:
        note(f"serving on http://{host}:{port}")
    _run(app, sockets)


def make_asgi_app(
    settings: ModelSettings, parallel: int | None = None, *, allow_anyone: bool = False
) -> ASGIApp:
    """Make a server without addresses, for Ray Serve, which has its own.

    Without a key and `allow_anyone`, only requests to the name ``localhost`` are answered.

    Parameters
    ----------
    parallel : int or None
        Parallel answers of each model.
    allow_anyone : bool
        Answer other machines without an API key.
    """
    _require_libraries()
    from wgpu_backend.server.app import make_app

    is_open = allow_anyone or bool(AddressOptions().keys)
    address = AddressOptions(host="0.0.0.0" if is_open else "127.0.0.1")
    options = ServeOptions(
        address, DefaultModelOptions(), EngineOptions(), ApiOptions(), {},
        allow_anyone=allow_anyone, parallel=parallel,
    )  # fmt: skip
    checked = options.settings()
    return make_app(_make_settings(options, settings, _find_devices(options, settings), checked))


def _require_libraries() -> None:
    try:
        for name in ("uvicorn", "wgpu_backend.server.app"):
            import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serve: {error.name} is not installed; `pip install '.[serve]'` in the checkout "
            "installs what serve needs"
        ) from None


def _find_devices(options: ServeOptions, settings: ModelSettings) -> list[DeviceInfo]:
    """Return the devices for models; an invalid name raises before the server starts."""
    devices = list_devices(settings)
    if options.engine.deterministic and devices[0].kind == "cpu":
        raise UsageError("--deterministic: not on device 'cpu'; name another with --device")
    return devices


def _make_settings(
    options: ServeOptions,
    settings: ModelSettings,
    devices: Sequence[DeviceInfo],
    checked: Mapping[str, Any],
) -> ServerSettings:
    from wgpu_backend import __version__
    from wgpu_backend.server.core.remote_files import RemoteFiles
    from wgpu_backend.server.core.state import Settings as Serving

    engine = {
        **options.engine.engine(),
        **make_draft_arguments(options.draft, options.draft_tokens),
    }
    return Serving(
        open_store(),
        fixed={name: make_bundled_entry(name) for name in BUNDLED},
        version=__version__,
        keep_seconds=_parse_keep_alive(os.environ.get("OLLAMA_KEEP_ALIVE") or "5m"),
        pictures=find_pipelines(options.pictures),
        picture_device=devices[0].id,
        signing_key=find_signing_key(),
        remote=RemoteFiles() if options.api.allow_remote_images else None,
        debug=settings.debug,
        **make_load_settings(
            settings, devices, options.parallel, engine, options.cluster, options.stages
        ),
        **checked,
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
        note(f"unused blobs are kept: {describe_error(error)}")
        return
    if count:
        note(f"removed {count} unused blobs")


def _parse_keep_alive(text: str) -> float:
    from wgpu_backend.server.core.request import RequestError
    from wgpu_backend.server.core.state import parse_keep_alive

    try:
        return parse_keep_alive(text)
    except RequestError:
        raise UsageError(
            f"OLLAMA_KEEP_ALIVE: {brief(text)}, needs a duration, such as 5m or -1 for ever"
        ) from None


def _run(app: ASGIApp, sockets: list[socket.socket]) -> None:
    import uvicorn

    from wgpu_backend.server.core.connections import TimelyProtocol

    config = uvicorn.Config(
        app,
        http=TimelyProtocol,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    # uvicorn raises the signal again after it has shut down.
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=sockets)


def open_all_sockets(hosts: Sequence[str], port: int) -> tuple[list[socket.socket], int]:
    """Open sockets at all addresses of hosts; return them and their port, chosen if 0.

    Raises
    ------
    UsageError
        See `open_sockets`; sockets that were opened already are closed.
    """
    found: list[socket.socket] = []
    try:
        for host in hosts:
            # getaddrinfo takes IPv6 addresses without brackets.
            found += open_sockets(host.strip("[]"), _choose_port(found, port))
    except UsageError:
        for each in found:
            each.close()
        raise
    return found, _choose_port(found, port)


def _choose_port(found: Sequence[socket.socket], port: int) -> int:
    return found[0].getsockname()[1] if found and not port else port


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Open sockets at all addresses of a host, at one port; ``localhost`` has two addresses.

    Raises
    ------
    UsageError
        The address does not exist, or another program uses the port.
    """
    found: list[socket.socket] = []
    try:
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                where = (place[0], _choose_port(found, port))
                found.append(socket.create_server(where, family=family, backlog=_BACKLOG))
            except OSError as error:
                # A machine without IPv6 may still have an IPv6 address in its hosts file.
                if family != socket.AF_INET6 or error.errno not in _ADDRESS_MISSING:
                    raise
        if not found:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    # ValueError: the name cannot be encoded as a host name.
    except (OSError, ValueError) as error:
        for each in found:
            each.close()
        reason = getattr(error, "strerror", None) or "needs an address, such as 127.0.0.1"
        raise UsageError(f"serve: {brief(host)}, port {port}: {reason}") from None
    return found
