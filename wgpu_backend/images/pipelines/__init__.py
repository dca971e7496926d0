"""Pipelines by the names of their classes; kin share a file. Found by listing the folder."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from wgpu_backend.images.pipelines.pipeline import Pipeline

P = TypeVar("P", bound="type[Pipeline]")
PIPELINES: dict[str, type[Pipeline]] = {}
"""By ``StableDiffusionPipeline`` and the other names that model_index.json may have."""


def register(*names: str) -> Callable[[P], P]:
    """Decorator: folders call this pipeline so."""

    def enter(made: P) -> P:
        PIPELINES.update(dict.fromkeys(names, made))
        return made

    return enter


def find_pipelines() -> dict[str, type[Pipeline]]:
    """All pipelines; the first call imports them."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return PIPELINES
