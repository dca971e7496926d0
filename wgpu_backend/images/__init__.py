"""Image generation: diffusers pipelines, their tokenizers, schedulers and image files.

::

    from wgpu_backend import images

    with images.load("folder") as pipeline:
        pipeline.generate("a red circle", seed=1).images[0].save("circle.png")

Names are imported on first use: a server that only lists folders loads nothing else.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wgpu_backend.images.loading import load
    from wgpu_backend.images.requests import Generated, Step

_HOMES = {"Generated": "requests", "Step": "requests", "load": "loading"}
__all__ = ["Generated", "Step", "load"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
