"""Pipelines by the names of their classes, found by listing the folder."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from wgpu_backend.images.pipelines.pipeline import Pipeline

P = TypeVar("P", bound="type[Pipeline]")
PIPELINES: dict[str, type[Pipeline]] = {}
"""The pipelines by class names in model_index.json, such as ``StableDiffusionPipeline``."""


def register(*names: str) -> Callable[[P], P]:
    """Register a pipeline under its class names in model_index.json."""

    def enter(made: P) -> P:
        PIPELINES.update(dict.fromkeys(names, made))
        return made

    return enter


def find_pipelines() -> dict[str, type[Pipeline]]:
    """Return all pipelines; the first call imports them."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return PIPELINES
