"""The application for Ray Serve, ``wgpu_backend.cli.ray_serve:app``; see docs/cluster.md.

Each replica is a whole server on a node with an adapter. Ray Serve takes the requests, and starts
and ends replicas by how many are in progress. Models are loaded when a replica is first asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from wgpu_backend.cli.failures import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_NUMBERS = ("min_replicas", "max_replicas", "ongoing_requests", "num_ctx", "parallel")
_KNOWN = ("device", "allow_anyone", *_NUMBERS)
# Requests in progress on a replica for which another one is started.
ONGOING_REQUESTS = 4
# Requests that a replica takes; it queues those that no slot is free for.
_MOST_REQUESTS = 512


def app(arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401  Ray has no types of its own
    """Build the application.

    Parameters
    ----------
    arguments : mapping
        ``device``, ``num_ctx``, ``parallel`` and ``allow_anyone`` as of ``wgpu-backend serve``;
        ``min_replicas`` (1) and ``max_replicas`` (8); ``ongoing_requests`` (4), the number in
        progress on a replica for which another one is started.

    Raises
    ------
    UsageError
        An argument is not among them, or is no number where one is needed.
    """
    strange = sorted(arguments.keys() - set(_KNOWN))
    if strange:
        raise UsageError(f"cluster: argument {strange[0]!r}, needs one of {', '.join(_KNOWN)}")
    given = {name: _count(name, arguments[name]) for name in _NUMBERS if name in arguments}
    device = arguments.get("device")
    sizes = given.get("num_ctx"), given.get("parallel")
    is_open = arguments.get("allow_anyone") in (True, "true")

    # Ray takes only plain functions for builders.
    def build() -> ASGIApp:
        return make_asgi_app(None if device is None else str(device), *sizes, allow_anyone=is_open)

    serve: Any = import_module("ray.serve")
    from wgpu_backend.cli.commands.serve.cluster import ADAPTER

    scaling = {
        "min_replicas": given.get("min_replicas", 1),
        "max_replicas": given.get("max_replicas", 8),
        "target_ongoing_requests": given.get("ongoing_requests", ONGOING_REQUESTS),
    }
    deployment = serve.deployment(
        serve.ingress(build)(),
        name="wgpu-backend",
        autoscaling_config=scaling,
        max_ongoing_requests=_MOST_REQUESTS,
        ray_actor_options={"num_cpus": 0, "resources": {ADAPTER: 1}},
    )
    return deployment.bind()


def _count(name: str, value: object) -> int:
    """Return an argument that is a whole number of at least 1."""
    try:
        found = int(str(value))
    except ValueError:
        found = 0
    if found < 1:
        raise UsageError(f"cluster: {name} is {value!r}, needs a whole number from 1")
    return found


def make_asgi_app(
    device: str | None, num_ctx: int | None, parallel: int | None, *, allow_anyone: bool = False
) -> ASGIApp:
    """Make the server of a replica, on its node."""
    from wgpu_backend.cli.commands.serve.server import make_asgi_app
    from wgpu_backend.cli.options import ModelSettings

    settings = ModelSettings(device=device, num_ctx=num_ctx, warmup=True)
    return make_asgi_app(settings, parallel, allow_anyone=allow_anyone)
