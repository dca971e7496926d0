"""`wgpu-backend serve`, `ps` and `stop`."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from wgpu_backend.cli.console import answer, human_bytes, log_as_notes, note, print_table
from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.library import open_store, signing_key
from wgpu_backend.cli.loading import find_device
from wgpu_backend.cli.names import BUNDLED, STORY, exists, model_path
from wgpu_backend.cli.options import Settings
from wgpu_backend.errors import StoreError

if TYPE_CHECKING:
    from wgpu_backend.cli.serve_options import Given
    from wgpu_backend.device_info import DeviceInfo
    from wgpu_backend.model_store.stored import Stored
    from wgpu_backend.server.serving_state import Settings as ServerSettings
    from wgpu_backend.worker.messages import LoadSpec

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 11434
_LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")
_GRACE_SECONDS = 30
_NONE_THERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_SCHEMES = ("http", "https", "app", "file", "tauri", "vscode-webview")


def address(text: str | None) -> tuple[str, int]:
    """Host and port of ``OLLAMA_HOST``: ``host``, ``host:port``, ``:port`` or a URL.

    Raises
    ------
    UsageError
        The port is none.
    """
    rest = (text or "").strip().removeprefix("http://").removeprefix("https://").rstrip("/")
    host, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]"):
        host, port = rest, str(DEFAULT_PORT)
    if not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise UsageError(f"OLLAMA_HOST: {rest[:60]!r}, needs host:port")
    return host or DEFAULT_HOST, int(port)


def serve(
    settings: Settings,
    given: Given,
    parameters: Mapping[str, object],
    *,
    anybody: bool,
    parallel: int | None,
    draft: str | None,
    draft_tokens: int | None,
    pictures: Sequence[Path] = (),
) -> None:
    """Serve until Ctrl-C or SIGTERM; requests that are under way have some time to end.

    Raises
    ------
    UsageError
        The address is not this machine's alone, and there is no key; or a library is missing, or
        the model.
    """
    try:
        import uvicorn

        from wgpu_backend.server.app import make_app
        from wgpu_backend.server.listening import TimelyProtocol
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serve: {error.name} is not installed; pip install 'wgpu-backend[serve]' brings it"
        ) from None
    log_as_notes()
    devices = _devices(settings)  # a wrong name is told before anybody asks
    if given.engine.get("deterministic") and devices[0].kind == "cpu":
        raise UsageError("--deterministic: not on device 'cpu'; name another with --device")
    hosts, port = _addresses(given)
    local = all(host in _LOCAL for host in hosts)
    if not local and not given.keys and not anybody:
        raise UsageError(
            f"serve: {', '.join(hosts)} is open to other machines; give --api-key, or "
            "--allow-anyone"
        )
    engine = {**given.engine, **_engine(draft, draft_tokens)}
    folders = _pictures(pictures)
    serving = _server_settings(settings, devices, given, parallel, engine, local=local)
    serving = replace(serving, pictures={**serving.pictures, **folders})
    if given.own_model is not None:
        _require_known(given.own_model, serving)
        manner = replace(serving.manner, sampling=parameters)
        serving = replace(serving, manner=manner)
    elif parameters:
        name = next(iter(parameters)).replace("_", "-")
        raise UsageError(f"--{name}: there is no model that is meant; give --model")
    sockets = [each for host in hosts for each in bound(host.strip("[]"), port)]
    app = make_app(serving)
    for host in hosts:
        note(f"serving on http://{host}:{port}")
    config = uvicorn.Config(
        app,
        http=TimelyProtocol,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=sockets)


def _addresses(given: Given) -> tuple[tuple[str, ...], int]:
    """Hosts and the port, of the options or the variable."""
    host, port = address(os.environ.get("OLLAMA_HOST"))
    return given.hosts or (host,), port if given.port is None else given.port


def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets at all addresses of a host; ``localhost`` has two.

    Raises
    ------
    UsageError
        There is no such address, or another program has the port.
    """
    found: list[socket.socket] = []
    try:
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                found.append(socket.create_server(place[:2], family=family, backlog=2048))
            except OSError as error:
                # A machine without IPv6 may have an address of it in its table of hosts.
                if family != socket.AF_INET6 or error.errno not in _NONE_THERE:
                    raise
        if not found:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except (OSError, ValueError) as error:
        for each in found:
            each.close()
        told = getattr(error, "strerror", None) or "needs an address, such as 127.0.0.1"
        raise UsageError(f"serve: {brief(host)}, port {port}: {told}") from None
    return found


def _pictures(folders: Sequence[Path]) -> dict[str, Path]:
    """Folders of pipelines by the names that requests use.

    Raises
    ------
    UsageError
        One is no such folder, or has the name of another.
    """
    from wgpu_backend.images.bundled import PICTURES
    from wgpu_backend.images.folder import INDEX

    found: dict[str, Path] = {}
    for folder in folders:
        if not exists(str(folder / INDEX)):
            raise UsageError(f"--pictures: {str(folder)[:200]!r}, needs a folder with {INDEX}")
        name = folder.absolute().name
        if name == PICTURES or name in found:
            raise UsageError(f"--pictures: {folder} has the name {name!r} as another; rename it")
        found[name] = folder.absolute()
    return found


def _require_known(name: str, serving: ServerSettings) -> None:
    """Refuse a model that the server would not find."""
    from wgpu_backend.model_store.names import ModelName

    try:
        if name not in serving.fixed:
            serving.store.entry(ModelName.parse(name))
    except StoreError as error:
        raise UsageError(f"--model: {error}") from None


def _devices(settings: Settings) -> list[DeviceInfo]:
    """What models may run on, the best first: the one that was named, or all adapters."""
    best = find_device(settings)
    if settings.device is not None or best.kind == "cpu":
        return [best]
    from wgpu_backend.device.adapters import Devices

    return [best, *(info for info in Devices() if info.kind != "cpu" and info.id != best.id)]


def _server_settings(
    settings: Settings,
    devices: list[DeviceInfo],
    given: Given,
    parallel: int | None,
    engine: Mapping[str, Any],
    *,
    local: bool,
) -> ServerSettings:
    from wgpu_backend import __version__
    from wgpu_backend.images.bundled import PICTURES, bundled_pictures
    from wgpu_backend.server.serving_state import Settings as Serving
    from wgpu_backend.server.serving_state import seconds_of
    from wgpu_backend.worker.estimate import Room, room_for
    from wgpu_backend.worker.health import Health
    from wgpu_backend.worker.opening import Workers

    known = {info.id: info for info in devices}
    max_queue = _whole("OLLAMA_MAX_QUEUE", 512)
    workers = Workers(
        Health(list(known)),
        lambda stored, num_ctx, device: replace(
            _spec(stored, num_ctx, device, settings, parallel), engine=engine
        ),
        max_queue,
        _whole("WGPU_BACKEND_HANG_SECONDS", 300),
    )

    def measure(stored: Stored, num_ctx: int | None) -> Room:
        spec = workers.spec(stored, num_ctx)
        return room_for(spec, known[spec.device])

    others = os.environ.get("OLLAMA_ORIGINS", "").split(",")
    own = [f"{scheme}://{host}" for scheme in _SCHEMES for host in _LOCAL]
    keep = os.environ.get("OLLAMA_KEEP_ALIVE", "5m")
    return Serving(
        open_store(),
        workers,
        {STORY: _story()},
        version=__version__,
        hosts=_LOCAL if local else (),
        origins=(*own, *given.origins, *(each.strip() for each in others if each.strip())),
        api_keys=given.keys,
        default_model=given.own_model or "",
        any_name=given.any_name,
        preload=given.preload,
        keep_seconds=seconds_of(keep),
        max_loaded=_whole("OLLAMA_MAX_LOADED_MODELS", 0) or 3,
        max_queue=max_queue,
        measure=measure,
        pictures={PICTURES: bundled_pictures()},
        picture_device=devices[0].id,
        signing_key=signing_key(),
        **given.own,
    )


def _engine(draft: str | None, draft_tokens: int | None) -> dict[str, Any]:
    """What engines are told of drafts.

    Raises
    ------
    UsageError
        The draft names no model.
    """
    if draft is None:
        if draft_tokens is not None:
            raise UsageError("--draft-tokens: there is no draft; give --draft ngram or a model")
        return {}
    found = draft if draft == "ngram" else str(model_path(draft).absolute())
    return {"draft": found} | ({} if draft_tokens is None else {"draft_tokens": draft_tokens})


def _whole(variable: str, default: int) -> int:
    text = os.environ.get(variable, "") or str(default)
    if not text.isdecimal():
        raise UsageError(f"{variable}: {text[:40]!r}, needs a whole number")
    return int(text)


def _story() -> Stored:
    """The bundled model, as if the store had it."""
    from wgpu_backend.model_store.files import sha256
    from wgpu_backend.model_store.manifest import CONFIG_TYPE, LAYER_TYPE, Layer, Manifest
    from wgpu_backend.model_store.names import ModelName
    from wgpu_backend.model_store.store import Entry
    from wgpu_backend.model_store.stored import Stored

    digest, facts = sha256(BUNDLED), BUNDLED.stat()
    layer = Layer(LAYER_TYPE + "model", f"sha256:{digest}", facts.st_size)
    manifest = Manifest(Layer(CONFIG_TYPE, f"sha256:{digest}", 0), (layer,))
    entry = Entry(ModelName.parse(STORY), manifest, digest, facts.st_mtime)
    details = {"parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"]}
    sizes = {"parameter_size": "", "quantization_level": ""}
    return Stored(entry, BUNDLED, details={**details, **sizes})


def _spec(
    stored: Stored, num_ctx: int | None, device: str, settings: Settings, parallel: int | None
) -> LoadSpec:
    from wgpu_backend.plugins import imported_files
    from wgpu_backend.worker.messages import LoadSpec

    own = _whole("OLLAMA_CONTEXT_LENGTH", 0) or None
    changes = settings.changes
    adapters = [*((path, 1.0) for path in stored.adapters), *changes.adapters]
    return LoadSpec(
        str(stored.path),
        device,
        profile=settings.profile,
        num_ctx=num_ctx or settings.num_ctx or own,
        num_parallel=parallel or _whole("OLLAMA_NUM_PARALLEL", 0) or 4,
        kv_dtype=settings.kv,
        exact=settings.exact,
        coarse=settings.coarse,
        adapters=tuple((str(path), scale) for path, scale in adapters),
        control_vectors=tuple((str(path), scale) for path, scale in changes.control_vectors),
        control_layers=changes.control_layers,
        imports=tuple(map(str, imported_files())),
    )


def _asked(method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
    """What a server that runs answers.

    Raises
    ------
    StoreError
        None runs, or it refuses.
    """
    import httpx2

    host, port = address(os.environ.get("OLLAMA_HOST"))
    host = DEFAULT_HOST if host == "0.0.0.0" else host
    key = os.environ.get("WGPU_BACKEND_API_KEY", "").partition(",")[0].strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"http://{host}:{port}{path}"
    try:
        response = httpx2.request(method, url, json=body, headers=headers, timeout=60)
        found = cast("dict[str, Any]", response.json())
    except (httpx2.HTTPError, ValueError):
        raise StoreError(f"{url}: no server answers; `wgpu-backend serve` starts one") from None
    if response.status_code != 200:
        raise StoreError(f"{url}: {found.get('error', response.status_code)}")
    return found


def print_running(*, as_json: bool) -> None:
    """List the models that a server has loaded."""
    models = cast("list[dict[str, Any]]", _asked("GET", "/api/ps")["models"])
    if as_json:
        answer(json.dumps(models, indent=2) + "\n")
        return
    rows = [
        (
            str(each["name"]),
            str(each["digest"])[:12],
            human_bytes(int(each["size"])),
            str(each["context_length"]),
            _until(str(each["expires_at"])),
        )
        for each in models
    ]
    if not rows:
        note("no model is loaded")
        return
    print_table(("name", "id", "size", "context", "until"), rows, right=("size", "context"))


def _until(text: str) -> str:
    left = (datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds()
    return "for ever" if left > 1e9 else f"{max(0, round(left))} s from now"


def stop_model(name: str) -> None:
    """Have a server unload a model."""
    _asked("POST", "/api/generate", {"model": name, "keep_alive": 0, "stream": False})
    note(f"stopped {name}")
